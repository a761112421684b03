"""Which start of a worker's agent is its newest: the only one that is served.

A worker's folder has one key and counts the starts of its agent (``boot``); each process that is started has a random
``instance``. The newest start is that of the highest boot, and of the first instance with it: a start in the same
folder always has a higher boot, so whoever comes with a lower one, or with the same one as another, runs in a copy of
the folder, or is what a copy was made of. Both must not go on: each would run the other's jobs.

Pure; ``Auth`` keeps the newest start with the worker's identity, and ends the sessions of all others.
"""

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from gpulayer.errors import BadRequest, Conflict
from gpulayer.server.store import IdentityRow

__all__ = ["Start", "check_newest", "start_of", "superseded", "with_newest", "with_start"]


@dataclass(frozen=True, slots=True)
class Start:
    """One process of an agent."""

    boot: int
    instance: str


def start_of(boot: int | None, instance: str | None) -> Start | None:
    """As a session request names it; None for an agent of before, which names none. Raises BadRequest for a half."""
    if boot is None and instance is None:
        return None
    if boot is None or instance is None:
        raise BadRequest("boot and instance come together, or not at all")
    if not (instance.isascii() and instance.isalnum()):
        raise BadRequest("instance: must be letters and digits")
    return Start(boot, instance)


def check_newest(row: IdentityRow, start: Start) -> None:
    """Raises the Conflict of ``superseded`` for a start that is neither the newest nor newer."""
    is_other = start.boot == row.boot and row.instance not in ("", start.instance)
    if start.boot < row.boot or is_other:
        raise superseded(row)


def superseded(row: IdentityRow) -> Conflict:
    """What an agent hears that has lost its place; ``details.superseded`` is true, and ``boot`` the newest."""
    since = ""
    if row.started_wall_ms:
        since = f" since {datetime.fromtimestamp(row.started_wall_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    return Conflict(
        f"another agent runs with this worker's identity{since}: was its folder copied, or restored from a backup?",
        hint="remove identity.json from one of the folders, and join that machine anew",
        details={"superseded": True, "boot": row.boot},
    )


def with_start(row: IdentityRow, start: Start, wall_ms: int) -> IdentityRow:
    """The identity once this is its newest start, which it may be already."""
    if (row.boot, row.instance) == (start.boot, start.instance):
        return row
    return replace(row, boot=start.boot, instance=start.instance, started_wall_ms=wall_ms)


def with_newest(row: IdentityRow, known: IdentityRow) -> IdentityRow:
    """``row`` with the counter and the start that ``known`` has, where those are newer: they only rise."""
    row = row if row.counter >= known.counter else replace(row, counter=known.counter)
    if known.boot > row.boot or (known.boot == row.boot and not row.instance):
        row = replace(row, boot=known.boot, instance=known.instance, started_wall_ms=known.started_wall_ms)
    return row
