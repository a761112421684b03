"""``gpulayer resources``: what all workers offer, and what is free now; ``detect``: what this machine would."""

import contextlib
import logging
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated

import typer

from gpulayer.cli.console import print_json, print_line, print_table, say
from gpulayer.cli.ending import told_to_end
from gpulayer.cli.nouns import JsonFlag, TargetOption, command_app, open_client
from gpulayer.cli.offers import lines_below, worker_table
from gpulayer.errors import UsageError

app = command_app(help="What all workers offer, and what is free now; detect: what this machine would.")


@app.callback(invoke_without_command=True)
def resources(
    context: typer.Context,
    *,
    target: TargetOption = "",
    json: JsonFlag = False,
) -> None:
    """Without a command of its own: as ``list``."""
    if context.invoked_subcommand is None:
        _show(target, as_json=json)


@app.command("list")
def list_resources(*, target: TargetOption = "", json: JsonFlag = False) -> None:
    """A line for devices that are alike; then frameworks, how devices are linked, and what can't be used."""
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
    # What plugins print is no part of the answer, and what is logged is in it.
    with contextlib.redirect_stdout(sys.stderr), _unlogged(), told_to_end():
        found = look(
            environment=dict(os.environ),
            plugins=PluginSettings.of(os.environ),
            python=path,
            now=tell,
        )
    if json:
        fields = {"python": found.python, "checked": list(found.checked), "faults": list(found.faults)}
        processes = None if found.processes is None else [asdict(process) for process in found.processes]
        print_json({**facts_to_wire(found.facts), **fields, "processes": processes})
        return
    for line in detected_lines(found):
        print_line(line)


@contextlib.contextmanager
def _unlogged() -> Iterator[None]:
    """Where nobody listens to the log, Python writes its warnings to stderr."""
    logger, nobody = logging.getLogger("gpulayer"), logging.NullHandler()
    logger.addHandler(nobody)
    try:
        yield
    finally:
        logger.removeHandler(nobody)


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
    headers, rows = worker_table(workers)
    print_table(headers, rows, empty="no workers; gpulayer join makes a machine one")
    for line in lines_below(workers):
        print_line(line)
