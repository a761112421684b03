"""``gpulayer worker``: the machines that do the work."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from gpulayer.cli.console import print_fields, print_json, print_line, print_table
from gpulayer.cli.nouns import JsonFlag, TargetOption, command_app, open_client
from gpulayer.cli.records import age, devices_text, resources_text, worker_fields
from gpulayer.spec.units import format_bytes

if TYPE_CHECKING:
    from gpulayer.wire.workers import WorkerRecord

app = command_app(help="List, show, drain, resume and remove workers.", no_args_is_help=True)

Ref = Annotated[str, typer.Argument(metavar="WORKER", help="Name, id, or the beginning of one.")]


@app.command("list")
def list_workers(*, target: TargetOption = "", json: JsonFlag = False) -> None:
    """All workers and how they are."""
    with open_client(target) as client:
        workers = client.workers()
    if json:
        print_json({"workers": workers})
        return
    now = datetime.now(UTC)
    is_counted = any(map(resources_text, workers))  # few have any, and a screen has little room
    rows = [
        [
            worker["name"],
            worker["state"],
            f"{worker['cpus_free']}/{worker['cpus']}",
            format_bytes(worker["memory_bytes"]),
            devices_text(worker),
            *([resources_text(worker)] if is_counted else []),
            str(len(worker["leases"]) or ""),
            age(worker["last_seen_at"], now),
        ]
        for worker in workers
    ]
    headers = ["worker", "state", "cpus free", "memory", "devices"]
    headers += [*["resources"] * is_counted, "attempts", "last seen"]
    print_table(headers, rows, empty="no workers; gpulayer join makes a machine one")


@app.command()
def show(worker: Ref, *, target: TargetOption = "", json: JsonFlag = False) -> None:
    """Everything a worker reports of its machine."""
    with open_client(target) as client:
        record = client.worker(worker)
    if json:
        print_json(record)
    else:
        print_fields(worker_fields(record))


@app.command()
def drain(worker: Ref, *, target: TargetOption = "", json: JsonFlag = False) -> None:
    """Let it finish what it runs and give it nothing new."""
    with open_client(target) as client:
        _print_change(client.drain_worker(worker), as_json=json)


@app.command()
def resume(worker: Ref, *, target: TargetOption = "", json: JsonFlag = False) -> None:
    """Give it work again."""
    with open_client(target) as client:
        _print_change(client.resume_worker(worker), as_json=json)


@app.command()
def remove(
    worker: Ref,
    *,
    force: Annotated[bool, typer.Option("--force", help="Although it works; its attempts are lost.")] = False,
    target: TargetOption = "",
    json: JsonFlag = False,
) -> None:
    """Forget it."""
    with open_client(target) as client:
        _print_change(client.remove_worker(worker, force=force), as_json=json)


def _print_change(record: "WorkerRecord", *, as_json: bool) -> None:
    if as_json:
        print_json(record)
    else:
        print_line(f"worker {record['name']} {record['state']}")
