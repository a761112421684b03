"""Which start of a worker's agent is its newest: the only one that is served.

A worker's folder has one key and counts the starts of its agent (``boot``); each process that is started has a random
``instance``. The newest start is that of the highest boot, and of the first instance with it: a start in the same
folder always has a higher boot, so whoever comes with a lower one, or with the same one as another, runs in a copy of
the folder, or is what a copy was made of. Both must not go on: each would run the other's jobs. But where nothing has
been heard of the newest for longer than a lease, and nothing is lent to it any more, it may be that the folder was
rolled back, and that there is no other: then whoever comes is told the number above which its start is the newest.

Pure; ``Auth`` keeps the newest start with the worker's identity, and ends the sessions of all others.
"""

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from gpulayer.errors import BadRequest, Conflict
from gpulayer.server.store import IdentityRow

__all__ = ["Incumbent", "Start", "check_newest", "start_of", "superseded", "with_newest", "with_start"]


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


@dataclass(frozen=True, slots=True)
class Incumbent:
    """What is known of the newest start. heard_wall_ms: when it last was; 0: never. is_silent: for longer than a lease.
    is_free: and nothing is lent to it any more, so that nobody can lose anything by it."""

    heard_wall_ms: int
    is_silent: bool
    is_free: bool


def superseded(row: IdentityRow, incumbent: Incumbent | None = None) -> Conflict:
    """What an agent hears that has lost its place; ``details.superseded`` is true, and ``boot`` the newest. Where
    ``details.is_free`` is true, too, it may have the place of that one by a start of a higher number."""
    since = f" since {_text(row.started_wall_ms)}" if row.started_wall_ms else ""
    details: dict[str, object] = {"superseded": True, "boot": row.boot}
    verb, heard = "runs", ""
    hint = "remove identity.json from one of the folders, and join that machine anew"
    if incumbent is not None and incumbent.is_silent:
        verb, details["is_free"] = "ran", incumbent.is_free
        last = (
            f"was last heard of at {_text(incumbent.heard_wall_ms)}" if incumbent.heard_wall_ms else "was never heard"
        )
        heard = f" and {last}"
        if not incumbent.is_free:
            heard += ", and jobs that are kept for it stand"
            hint = f"start it again when they have ended or are given up; or {hint}"
    return Conflict(
        f"another agent {verb} with this worker's identity{since}{heard}: was its folder copied, or restored from a"
        " backup?",
        hint=hint,
        details=details,
    )


def _text(wall_ms: int) -> str:
    return f"{datetime.fromtimestamp(wall_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


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
