"""``gpulayer submit``: the main road. Parsing here; following in ``foreground``."""

import os
from typing import TYPE_CHECKING, Annotated, cast

import typer

from gpulayer.cli import needs
from gpulayer.cli.command import check_command, default_source, left_behind, read_env
from gpulayer.cli.console import print_json, print_line, say, say_warnings
from gpulayer.cli.exits import Exit
from gpulayer.cli.foreground import Foreground
from gpulayer.cli.nouns import JsonFlag, TargetOption, command_app, open_client
from gpulayer.cli.progress import start_progress, transfer_progress
from gpulayer.cli.records import AFTER_FAILED
from gpulayer.cli.secret_flags import read_secrets
from gpulayer.client import calls
from gpulayer.client.connect import has_ended
from gpulayer.errors import UsageError
from gpulayer.faults import here
from gpulayer.sdk.client import local_job_env, ship_plan
from gpulayer.sdk.options import JobOptions, plan_job
from gpulayer.spec.units import parse_duration_ms

if TYPE_CHECKING:
    from gpulayer.wire.jobs import JobRecord

app = command_app()


@app.command(context_settings={"allow_interspersed_args": False})
def submit(
    *,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND…", help="The program and its arguments.")
    ] = None,
    target: TargetOption = "",
    accelerator: needs.AcceleratorFlag = "",
    devices: needs.DevicesFlag = None,
    device_model: needs.DeviceModelFlag = "",
    device_memory: needs.DeviceMemoryFlag = "",
    compute_capability: needs.CapabilityFlag = "",
    framework: needs.FrameworkFlag = None,
    cpus: needs.CpusFlag = None,
    memory: needs.MemoryFlag = "",
    disk: needs.DiskFlag = "",
    label: needs.LabelFlag = None,
    worker: needs.WorkerFlag = "",
    zone: needs.ZoneFlag = "",
    region: needs.RegionFlag = "",
    network_group: needs.GroupFlag = "",
    resource: needs.ResourceFlag = None,
    launcher: needs.LauncherFlag = "",
    environment: needs.EnvironmentFlag = "",
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Queue when workers fit but are busy, or fail at once.")
    ] = True,
    source: Annotated[
        str, typer.Option("--source", metavar="DIR", help="The folder that ships (default: that of `python file.py`).")
    ] = "",
    include: Annotated[
        list[str] | None, typer.Option("--include", metavar="PATTERN", help="Ship it although ignored.")
    ] = None,
    exclude: Annotated[list[str] | None, typer.Option("--exclude", metavar="PATTERN", help="Leave it out.")] = None,
    input_: needs.InputFlag = None,
    output: Annotated[
        list[str] | None,
        typer.Option("--output", metavar="PATTERN", help="What comes home (default: all new or changed files)."),
    ] = None,
    env: Annotated[list[str] | None, typer.Option("--env", metavar="K=V", help="A variable of the job.")] = None,
    env_file: Annotated[str, typer.Option("--env-file", metavar="FILE", help="Variables, K=V a line.")] = "",
    secret: Annotated[
        list[str] | None,
        typer.Option("--secret", metavar="NAME", help="A variable of yours that is masked in logs and shown nowhere."),
    ] = None,
    secret_file: Annotated[
        list[str] | None,
        typer.Option("--secret-file", metavar="NAME=FILE", help="The same from a file; NAME=-: standard input."),
    ] = None,
    grant: Annotated[
        str, typer.Option("--grant", metavar="own|submit", help="A token for the job: to read itself; to submit.")
    ] = "",
    name: Annotated[str, typer.Option("--name", metavar="NAME")] = "",
    tag: Annotated[list[str] | None, typer.Option("--tag", metavar="K=V")] = None,
    priority: Annotated[int, typer.Option("--priority", metavar="N", help="Higher goes first.")] = 0,
    after: Annotated[
        list[str] | None,
        typer.Option("--after", metavar="JOB[:any]", help="Once that one has succeeded; any: has ended."),
    ] = None,
    array: Annotated[
        str, typer.Option("--array", metavar="N[%M]", help="N elements, at most M at once; each finds its number.")
    ] = "",
    retries: Annotated[
        int | None,
        typer.Option("--retries", min=0, metavar="N", help="Of failures not the program's own (default 2)."),
    ] = None,
    retry_on: Annotated[
        str, typer.Option("--retry-on", metavar="infrastructure|any", help="any: also the program's own failures.")
    ] = "",
    timeout: Annotated[str, typer.Option("--timeout", metavar="TIME", help="2h")] = "",
    grace: Annotated[str, typer.Option("--grace", metavar="TIME", help="From SIGTERM to SIGKILL: 30s.")] = "",
    keep_for: Annotated[
        str, typer.Option("--keep-for", metavar="TIME", help="How long a worker out of contact goes on: 1h.")
    ] = "",
    exclusive: Annotated[
        bool, typer.Option("--exclusive", help="Never on two workers at once: out of contact for 19 s, it ends.")
    ] = False,
    pids: Annotated[int, typer.Option("--pids", min=0, metavar="N", help="At most so many processes and threads.")] = 0,
    nice: Annotated[
        int, typer.Option("--nice", min=0, max=19, metavar="N", help="Lower its priority for the processor.")
    ] = 0,
    pin_cores: Annotated[bool, typer.Option("--pin-cores", help="On cores that no other pinned job has.")] = False,
    log_limit: Annotated[str, typer.Option("--log-limit", metavar="SIZE", help="Of output kept (default 1GiB).")] = "",
    split_streams: Annotated[
        bool, typer.Option("--split-streams", help="Keep stderr apart; else both share one pipe, in order.")
    ] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Print the id and return.")] = False,
    no_outputs: Annotated[bool, typer.Option("--no-outputs", help="Bring no files home.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Only the program's output, and errors.")] = False,
    idempotency_key: Annotated[
        str | None, typer.Option("--idempotency-key", metavar="KEY", help="The same key is the same job, for 7 days.")
    ] = None,
    json: JsonFlag = False,
) -> int:
    """Run a command where it fits, stream its output, bring its files home, and exit with its exit code."""
    words = list(command or ())
    check_command(words, is_file=os.path.isfile)
    options: JobOptions = {
        "name": name,
        "priority": priority,
        "retry_on": _retry_on(retry_on),
        "exclusive": exclusive,
        "pids": pids,
        "nice": nice,
        "pin_cores": pin_cores,
        "log_limit": log_limit,
        "split_streams": split_streams,
        "wait": wait,
        "keep_outputs": not no_outputs,
        "include": include or (),
        "exclude": exclude or (),
        "outputs": output or (),
        "env": read_env(env or (), _read(env_file), environment=os.environ, file_name=env_file),
        "secrets": read_secrets(secret or (), secret_file or (), environment=os.environ),
        "grant": grant,
        "tags": needs.pairs(tag or (), "--tag"),
        "after": after or (),
        "array": array,
        **({} if idempotency_key is None else {"idempotency_key": idempotency_key}),
    }
    request = needs.request_options(
        accelerator=accelerator,
        devices=devices,
        device_model=device_model,
        device_memory=device_memory,
        compute_capability=compute_capability,
        framework=framework,
        cpus=cpus,
        memory=memory,
        disk=disk,
        label=label,
        worker=worker,
        zone=zone,
        region=region,
        network_group=network_group,
        resource=resource,
        launcher=launcher,
        environment=environment,
        input_=input_,
    )
    options = cast("JobOptions", {**options, **request})
    if retries is not None:
        options["retries"] = retries
    for option, text in (("timeout", timeout), ("grace", grace), ("keep_for", keep_for)):
        if text:
            parse_duration_ms(text, what=f"--{option.replace('_', '-')}")  # here: by the name that was typed
            options[option] = text  # type: ignore[literal-required] # one of the three
    note = ""
    if source:
        _check_folder(source)
        options["source"] = source
    else:
        shipped = default_source(words, is_file=os.path.isfile)
        note = left_behind(words, None if shipped is None else shipped[0], is_file=os.path.isfile)
        if shipped is not None:
            options["source"], words = shipped
        elif include or exclude:
            raise UsageError("--include and --exclude choose from a source, and there is none", hint="add --source DIR")
    if note and not quiet:
        say(f"note: {note}")

    with open_client(target) as client:
        plan = plan_job(words, options, base_env=local_job_env(client.settings))
        transport = client.transport
        with transfer_progress(is_quiet=quiet) as progress:
            submission = ship_plan(
                transport,
                plan,
                os.environ,
                {},
                progress=progress,
                notes=lambda note: None if quiet else say(f"note: {note}"),
            )
        here("client.before_submit")
        with start_progress(transport, is_quiet=quiet):
            record = transport.send(calls.submit_job(submission, key=plan.key))
        here("client.after_submit")
        if not quiet:
            say_warnings(record.get("warnings", ()))
        if detach and not _never_begins(record):
            _print_detached(record, as_json=json)
            return Exit.OK
        return Foreground(
            transport,
            record,
            is_quiet=quiet,
            as_json=json,
            brings_outputs=not no_outputs,
            has_ended=lambda: has_ended(client.settings),
        ).run()


def _never_begins(record: "JobRecord") -> bool:
    """It ended as it came: no worker fits, or what it was to come after has failed."""
    reason = record["reason"]
    return record["state"] == "rejected" or (reason is not None and reason["code"] == AFTER_FAILED)


def _print_detached(record: "JobRecord", *, as_json: bool) -> None:
    if as_json:
        print_json(record)
    else:
        print_line(record["id"])


def _retry_on(text: str) -> str:
    if text not in ("", "infrastructure", "any"):
        raise UsageError(f"--retry-on {text}: unknown", hint="one of infrastructure, any")
    return text


def _check_folder(source: str) -> None:
    """Before a control plane is started for it. The scan says the same, later."""
    if not os.path.exists(source):
        raise UsageError(f"source folder {source} does not exist", hint="name an existing folder with --source")


def _read(path: str) -> str:
    if not path:
        return ""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"--env-file {path} can't be read: {why}", hint="name a file of K=V lines") from None
