"""Planted faults in fair share."""

from typing import Any, Final

from gpulayer.engine import shares
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


SHARE: Final[dict[str, Mutant]] = {
    "owners_unminded": Mutant(13, shares, "of_owner", _owners_unminded),
    "most_goes_first": Mutant(13, shares, "of_owner", _most_goes_first),
    "used_forgotten": Mutant(13, shares, "fill", _used_forgotten),
}
