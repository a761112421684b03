"""``gpulayer restore``: a control plane of a backup, in an empty folder. It starts nothing."""

import os
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import typer

from gpulayer.cli.console import print_line, say
from gpulayer.cli.ending import told_to_end
from gpulayer.cli.nouns import command_app
from gpulayer.clock import SystemClock
from gpulayer.sdk.settings import state_folder

app = command_app()

_KNOW: Final = (
    "tokens and workers that were revoked, rotated or removed since then are good again: gpulayer token list and",
    "worker list, once it runs; gpulayer token revoke ID. Jobs submitted since then are unknown and have to be",
    "submitted again, and jobs that waited in the backup run, also where they have run since.",
)


@app.command()
def restore(
    file: Annotated[str, typer.Argument(metavar="FILE", help="What gpulayer backup made.")],
    *,
    state: Annotated[
        str, typer.Option("--state", metavar="DIR", help="An empty folder; this user's own where none is given.")
    ] = "",
) -> None:
    """Make the control plane of a backup, in an empty folder. Nothing is started; gpulayer up does that.

    Its workers come back by themselves. What they run is ended, and runs again if it may: nobody knows how it went on.
    """
    from gpulayer.server.restoring import restore as restore_  # noqa: PLC0415 - SQLAlchemy and the engine

    folder = state_folder(os.environ, state_dir=state)
    with told_to_end():
        made = restore_(Path(file), folder, clock=SystemClock())
    at = datetime.fromtimestamp(made.head.made_wall_ms / 1000, UTC)
    print_line(f"restored to {folder}: the control plane as of {at:%Y-%m-%d %H:%M:%S} UTC")
    lost = (
        f"; {_count(made.lost, 'attempt')} that ran when the backup was made {'is' if made.lost == 1 else 'are'} lost"
    )
    left = " and ".join(each for each in ("blobs", "logs") if each not in made.head.holds)
    go_on = f"{_count(made.queued, 'job')} that {'has' if made.queued == 1 else 'have'} not ended"
    say(f"{_count(made.workers, 'worker')}, {go_on}{lost if made.lost else ''}" + (f"; without {left}" if left else ""))
    if made.damaged_blobs:
        say(f"{made.damaged_blobs} sources or outputs were damaged when the backup was made, and are left out")
    for line in _KNOW:
        say(line)
    own = "" if folder == state_folder(os.environ) else f" --state {shlex.quote(str(folder))}"
    say(f"end the former control plane, if it runs, before you start this one: gpulayer up{own}")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
