"""``gpulayer resources``: what all workers offer, and what is free now; ``detect``: what this machine would."""

import contextlib
import os
import shutil
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from gpulayer.cli.console import print_json, print_line, print_table, say
from gpulayer.cli.ending import told_to_end
from gpulayer.cli.nouns import JsonFlag, TargetOption, command_app, open_client
from gpulayer.cli.offers import device_text, link_lines, pending_lines, unusable_lines
from gpulayer.cli.records import resources_text
from gpulayer.errors import UsageError
from gpulayer.spec.units import format_bytes

if TYPE_CHECKING:
    from gpulayer.wire.workers import DeviceFields

app = command_app(help="What all workers offer, and what is free now; detect: what this machine would.")


@app.callback(invoke_without_command=True)
def resources(
    context: typer.Context,
    *,
    target: TargetOption = "",
    json: JsonFlag = False,
) -> None:
    if context.invoked_subcommand is None:
        _show(target, as_json=json)


@app.command("list")
def list_resources(*, target: TargetOption = "", json: JsonFlag = False) -> None:
    """A line a device, with its number; then how devices are linked, and what can't be used."""
    _show(target, as_json=json)


@app.command()
def detect(
    *,
    python: Annotated[
        str | None,
        typer.Option("--python", metavar="PATH", help="Check the frameworks of this Python; default: a job's."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """What this machine would offer as a worker, what it can't use, and why. Starts nothing."""
    from gpulayer.cli.detected import detected_lines  # noqa: PLC0415 - only this command needs them
    from gpulayer.plugins.settings import PluginSettings  # noqa: PLC0415
    from gpulayer.wire.facts import facts_to_wire  # noqa: PLC0415
    from gpulayer.worker.detecting import detect as look  # noqa: PLC0415

    path = "" if python is None else _python(python)
    tell = say if sys.stderr.isatty() else lambda _: None
    # What plugins print is no part of the answer.
    with contextlib.redirect_stdout(sys.stderr), told_to_end():
        found = look(
            environment=dict(os.environ),
            plugins=PluginSettings.of(os.environ),
            python=path,
            now=tell,
        )
    if json:
        fields = {"python": found.python, "checked": list(found.checked), "faults": list(found.faults)}
        print_json({**facts_to_wire(found.facts), **fields})
        return
    for line in detected_lines(found):
        print_line(line)


def _python(named: str) -> str:
    """Its path. Raises UsageError where no Python is there that could be asked."""
    from gpulayer.worker.detecting import NoPythonError, ensure_python  # noqa: PLC0415

    path = shutil.which(os.path.expanduser(named)) if named else None
    if path is None:
        what = "it can't be run" if named and os.path.exists(os.path.expanduser(named)) else "no program is there"
    else:
        try:
            ensure_python(path, environment=os.environ)
        except NoPythonError as error:
            what = str(error)
        else:
            return os.path.abspath(path)
    raise UsageError(f"--python {named or repr(named)}: {what}", hint="name a Python: --python .venv/bin/python")


def _show(target: str, *, as_json: bool) -> None:
    with open_client(target) as client:
        workers = client.workers()
    if as_json:
        print_json({"workers": workers})
        return
    is_counted = any(map(resources_text, workers))  # few have any, and a screen has little room
    rows: list[list[str]] = []
    for worker in workers:
        cpus = f"{worker['cpus_free']} of {worker['cpus']}"
        frameworks = ", ".join(
            dict.fromkeys(f"{found['name']} {found['version']}" for found in worker["frameworks"] if found["usable"])
        )
        devices: list[DeviceFields | None] = [*worker["devices"]] or [None]
        for number, device in enumerate(devices):
            is_first = number == 0
            rows.append(
                [
                    worker["name"] if is_first else "",
                    worker["state"] if is_first else "",
                    cpus if is_first else "",
                    format_bytes(worker["memory_bytes"]) if is_first else "",
                    *([resources_text(worker) if is_first else ""] if is_counted else []),
                    device_text(device["index"], device["kind"], device["model"]) if device else "no device",
                    _memory(device) if device else "",
                    device["state"] if device else "",
                    frameworks if is_first else "",
                ]
            )
    headers = ["worker", "state", "cpus free", "memory", *["resources"] * is_counted]
    headers += ["device", "device memory", "device state", "frameworks"]
    print_table(headers, rows, empty="no workers; gpulayer join makes a machine one")
    for line in [*link_lines(workers), *unusable_lines(workers), *pending_lines(workers)]:
        print_line(line)


def _memory(device: "DeviceFields") -> str:
    free, total = device["memory_free_bytes"], device["memory_bytes"]
    if total is None:
        return "shared with the machine" if device.get("is_memory_shared") else "unknown"
    return format_bytes(total) if free is None else f"{format_bytes(free)} of {format_bytes(total)} free"
