"""``gpulayer job``: what was submitted. A job is named by its id, the beginning of one, or a unique name."""

from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gpulayer.cli.console import print_fields, print_json, print_line, print_table, say, say_warnings
from gpulayer.cli.exits import Exit, exit_for_job
from gpulayer.cli.logs import LogChoice, show_logs
from gpulayer.cli.losses import LossTeller
from gpulayer.cli.nouns import JsonFlag, TargetOption, command_app, open_client
from gpulayer.cli.progress import transfer_progress
from gpulayer.cli.records import (
    age,
    command_text,
    details_text,
    element_row,
    ending_line,
    job_fields,
    state_text,
    when,
    workers_of,
)
from gpulayer.cli.references import find_job
from gpulayer.client.connect import has_ended
from gpulayer.client.following import FINAL_STATES
from gpulayer.errors import Conflict
from gpulayer.ids import Digest
from gpulayer.sdk.job import RUNS_FOLDER
from gpulayer.spec.units import parse_duration_ms

if TYPE_CHECKING:
    import re

    from gpulayer.wire.jobs import ElementRecord, JobRecord

_FEW_ELEMENTS: Final = 40

app = command_app(help="List, show, follow, wait for, cancel and retry jobs; get results.", no_args_is_help=True)

Ref = Annotated[str, typer.Argument(metavar="JOB", help="Id, the beginning of one, or a unique name.")]
Index = Annotated[int | None, typer.Option("--index", min=0, metavar="I", help="Of that element of an array.")]
Grace = Annotated[str, typer.Option("--grace", metavar="TIME", help="From SIGTERM to SIGKILL.")]


@app.command("list")
def list_jobs(
    *,
    state: Annotated[str, typer.Option("--state", metavar="STATE", help="queued, running, failed, …")] = "",
    name: Annotated[str, typer.Option("--name", metavar="NAME")] = "",
    mine: Annotated[bool, typer.Option("--mine", help="Only those of whoever asks.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, metavar="N")] = 50,
    target: TargetOption = "",
    json: JsonFlag = False,
) -> None:
    """The newest jobs, newest first."""
    with open_client(target) as client:
        jobs = client.jobs(state=state, name=name, mine=mine, limit=limit)
    if json:
        print_json({"jobs": jobs})
        return
    now = datetime.now(UTC)
    rows = [
        [
            job["id"],
            state_text(job),
            job["name"],
            workers_of(job),
            job["submitted_by"]["name"],
            age(job["submitted_at"], now),
            command_text(job["command"], limit=48),
        ]
        for job in jobs
    ]
    print_table(["job", "state", "name", "worker", "who", "submitted", "command"], rows, empty="no jobs")


@app.command()
def show(
    job: Ref,
    *,
    index: Index = None,
    elements: Annotated[bool, typer.Option("--elements", help="All elements of an array, a line each.")] = False,
    target: TargetOption = "",
    json: JsonFlag = False,
) -> None:
    """Everything known of one job; of an array also its elements, if they are few, else those that failed."""
    with open_client(target) as client:
        found = find_job(client, job)
        record = found.record(index=index)
        is_few = "array" in record and record["array"]["count"] <= _FEW_ELEMENTS
        shown: list[ElementRecord] = []
        if elements or (is_few and not json):
            shown = list(found.elements())
        elif "array" in record and not json:
            shown = list(islice(found.elements(failed=True), _FEW_ELEMENTS))
    if json:
        print_json({"elements": shown} if elements else record)
        return
    if not elements:
        print_fields(job_fields(record))
    if shown:
        rows = [element_row(element) for element in shown]
        print_table(["element", "state", "attempts", "worker", "took", "exit code"], rows, empty="no elements")
    if record["state"] == "rejected":
        from gpulayer.cli.verdicts import rejection_lines  # noqa: PLC0415 - only after a rejection

        for line in rejection_lines(record):
            print_line(line)


@app.command()
def logs(
    job: Ref,
    *,
    follow: Annotated[bool, typer.Option("--follow", help="Go on until the job has ended.")] = False,
    tail: Annotated[int | None, typer.Option("--tail", min=0, metavar="N", help="Only the last N lines.")] = None,
    since: Annotated[
        str, typer.Option("--since", metavar="T", help="Only what came since: 10m, 2h, 14:30, 2026-11-30T14:30.")
    ] = "",
    rank: Annotated[int, typer.Option("--rank", min=0, metavar="R", help="Of that rank (default 0).")] = 0,
    grep: Annotated[
        str | None, typer.Option("--grep", metavar="RE", help="Only lines in which this regular expression is found.")
    ] = None,
    attempt: Annotated[int | None, typer.Option("--attempt", min=1, metavar="N", help="Default: the latest.")] = None,
    index: Index = None,
    target: TargetOption = "",
) -> None:
    """Its output, byte for byte; of a split job each stream on its own. With --grep, --tail counts what was found.

    Of an array all elements by their numbers, each line with its number before it; with --index one of them.
    """
    choice = LogChoice(
        follow=follow,
        tail=tail,
        since_ms=_since(since),
        rank=rank,
        grep=None if grep is None else _pattern(grep),
        attempt=attempt,
        index=index,
    )
    with open_client(target) as client:
        record = find_job(client, job).record(index=index)
        if follow:
            teller = LossTeller(record["id"], lambda: has_ended(client.settings))
            client.transport.waiting = teller.waiting
        show_logs(client.transport, record, choice)


@app.command()
def wait(
    jobs: Annotated[list[str], typer.Argument(metavar="JOB…", help="Ids, beginnings of them, or unique names.")],
    *,
    timeout: Annotated[str, typer.Option("--timeout", metavar="TIME", help="Give up after this long: 10m.")] = "",
    target: TargetOption = "",
    json: JsonFlag = False,
) -> int:
    """Block until they have ended; exits with the first failure's code, or 8 when time is up."""
    limit_s = parse_duration_ms(timeout, what="--timeout") / 1000 if timeout else None
    started = datetime.now(UTC)
    records = []
    with open_client(target) as client:
        for found in [find_job(client, ref) for ref in jobs]:
            client.transport.waiting = LossTeller(found.id, lambda: has_ended(client.settings)).waiting
            spent = (datetime.now(UTC) - started).total_seconds()
            records.append(found.wait(timeout=None if limit_s is None else max(0.0, limit_s - spent)))
    if json:
        print_json(records[0] if len(records) == 1 else {"jobs": records})
    else:
        for record in records:
            print_line(ending_line(record, ""))
    return next((code for code in map(exit_for_job, records) if code), Exit.OK)


@app.command()
def cancel(
    jobs: Annotated[list[str], typer.Argument(metavar="JOB…", help="Ids, beginnings of them, or unique names.")],
    *,
    grace: Grace = "",
    target: TargetOption = "",
    json: JsonFlag = False,
) -> None:
    """Ask for their end and return; what has ended already stays as it is."""
    grace_s = parse_duration_ms(grace, what="--grace") / 1000 if grace else None
    records, lines = [], []
    with open_client(target) as client:
        for found in [find_job(client, ref) for ref in jobs]:
            record = found.record()
            if record["state"] in FINAL_STATES:
                lines.append(f"job {record['id']} had already ended: {_state(record)}")
            else:
                try:
                    record = found.cancel(grace=grace_s)
                except Conflict:  # it ended between the two
                    record = found.record()
                lines.append(f"job {record['id']} {_state(record)}")
            records.append(record)
    if json:
        print_json(records[0] if len(records) == 1 else {"jobs": records})
        return
    for line in lines:
        print_line(line)


@app.command()
def retry(job: Ref, *, target: TargetOption = "", json: JsonFlag = False) -> None:
    """Submit the same again, as a new job; prints its id."""
    with open_client(target) as client:
        again = find_job(client, job).retry()
        say_warnings(again.warnings)
        if json:
            print_json(again.record())
        else:
            print_line(again.id)


@app.command()
def result(
    job: Ref,
    *,
    download: Annotated[bool, typer.Option("--download", help="Bring the outputs home.")] = False,
    dest: Annotated[str, typer.Option("--dest", metavar="DIR", help="Where to (default gpulayer_runs/<job>).")] = "",
    index: Index = None,
    target: TargetOption = "",
    json: JsonFlag = False,
) -> int:
    """How it ended and what it made; exits like the job. Does not wait."""
    with open_client(target) as client:
        found = find_job(client, job)
        record = found.record(index=index)
        if record["state"] not in FINAL_STATES:
            raise Conflict(
                f"job {record['id']} has no result yet: it is {record['state']}",
                hint=f"gpulayer job wait {record['id']}",
            )
        landed = ""
        if download or dest:
            from gpulayer.client.download import bring_home  # noqa: PLC0415 - only where outputs come home

            of_element = [] if index is None else [str(index)]
            destination = Path(dest) if dest else Path(RUNS_FOLDER, record["id"], *of_element)
            if record["output_tree"]:
                with transfer_progress(is_quiet=json) as progress:
                    home = bring_home(client.transport, Digest(record["output_tree"]), destination, progress=progress)
                for warning in home.warnings:
                    say(f"note: {warning}")
                landed = str(destination)
    if json:
        print_json(record)
    else:
        say(ending_line(record, landed))
        rows = [[output["path"], f"{output['size']:,}", output["digest"][:12]] for output in record["outputs"]]
        print_table(["output", "bytes", "digest"], rows, empty="no outputs")
    return exit_for_job(record)


@app.command()
def events(job: Ref, *, target: TargetOption = "", json: JsonFlag = False) -> None:
    """What happened to it, in order."""
    with open_client(target) as client:
        found = find_job(client, job).events()
    if json:
        print_json({"events": found})
        return
    if not found or found[0]["event"] != "job_submitted":
        say("what happened before is no longer kept: gpulayer up --keep-events TIME; gpulayer job show has the record")
    rows = [[str(event["seq"]), when(event["at"]), event["event"], details_text(event["details"])] for event in found]
    print_table(["seq", "at", "event", "details"], rows, empty="no events")


@app.command("why")
def why_there(job: Ref, *, target: TargetOption = "", json: JsonFlag = False) -> None:
    """Why it is where it is: what was weighed when it was placed, or what it waits for."""
    with open_client(target) as client:
        found = find_job(client, job).why()
    if json:
        print_json(found)
        return
    from gpulayer.cli.verdicts import why_lines  # noqa: PLC0415 - only here

    for line in why_lines(found):
        print_line(line)


def _since(text: str) -> int | None:
    if not text:
        return None
    from gpulayer.client.since import parse_since  # noqa: PLC0415 - only with --since

    return parse_since(text, now=datetime.now(UTC).astimezone(), what="--since")


def _pattern(text: str) -> "re.Pattern[str]":
    from gpulayer.client.lines import compile_pattern  # noqa: PLC0415 - only with --grep

    return compile_pattern(text, what="--grep")


def _state(record: "JobRecord") -> str:
    return record["state"].replace("_", " ")
