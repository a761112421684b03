"""Planted faults in fair share and in reservations."""

from typing import Any, Final

from gpulayer.engine import reservations, shares
from gpulayer.testing.sim.mutant import Mutant

__all__ = ["SHARE"]


def _owners_unminded(_: Any) -> Any:
    """Whoever comes first goes first, whatever he has already."""
    return lambda state, owner: 0


def _most_goes_first(of_owner: Any) -> Any:
    """Who has most goes first."""
    return lambda state, owner: -of_owner(state, owner)


def _used_forgotten(_: Any) -> Any:
    """After a restart nobody knows what owners have."""
    return lambda state: None


def _backfill_unminded(_: Any) -> Any:
    """What is kept for who waits longest is given to whoever fits."""
    return lambda state, worker, share, place, *, limit_ms: None


def _limits_unread(keeps_off: Any) -> Any:
    """Whoever has a time limit may have what is kept for others, however long it is."""

    def broken(state: Any, worker: Any, share: Any, place: Any, *, limit_ms: Any) -> Any:
        return keeps_off(state, worker, share, place, limit_ms=None if limit_ms is None else 0)

    return broken


SHARE: Final[dict[str, Mutant]] = {
    "owners_unminded": Mutant(13, shares, "of_owner", _owners_unminded),
    "most_goes_first": Mutant(13, shares, "of_owner", _most_goes_first),
    "used_forgotten": Mutant(13, shares, "fill", _used_forgotten),
    "backfill_unminded": Mutant(13, reservations, "keeps_off", _backfill_unminded),
    "limits_unread": Mutant(13, reservations, "keeps_off", _limits_unread),
}
