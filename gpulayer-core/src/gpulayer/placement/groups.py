"""Where the nodes of a gang go: near each other, since they talk to each other all the time.

The nearest that is free: all in one network group, else in one zone, else in one region, else anywhere. Of several such
places the one whose workers rank best. A worker whose place nobody has named is near nobody.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gpulayer.placement.choose import Candidate, Rank
from gpulayer.spec.machine import Locality

__all__ = ["Level", "Nearest", "nearest"]


class Level(StrEnum):
    """What the nodes of a gang have in common, the nearest first."""

    NETWORK_GROUP = "network group"
    ZONE = "zone"
    REGION = "region"


@dataclass(frozen=True, slots=True)
class Nearest:
    """chosen: in the order of their ranks. level, place: what all of them are in, and its name; None: nothing."""

    chosen: tuple[tuple[Rank, Candidate], ...]
    level: Level | None = None
    place: str = ""


_KEYS: Final[dict[Level, Callable[[Locality], tuple[str, ...]]]] = {
    Level.NETWORK_GROUP: lambda where: (where.network_group,),
    Level.ZONE: lambda where: (where.zone, where.region),  # regions may name theirs alike
    Level.REGION: lambda where: (where.region,),
}


def nearest(ranked: Sequence[tuple[Rank, Candidate]], nodes: int) -> Nearest | None:
    """``nodes`` of these, the best first; None where there are too few. Those to be avoided only where there are too
    few others anywhere."""
    if len(ranked) < nodes:
        return None
    if nodes == 1:
        return Nearest((ranked[0],))
    wanted = [one for one in ranked if not one[0].is_avoided]
    pool = wanted if len(wanted) >= nodes else ranked
    for level, key in _KEYS.items():
        together: dict[tuple[str, ...], list[tuple[Rank, Candidate]]] = {}
        for one in pool:
            where = key(one[1].facts.locality)
            if where[0]:
                together.setdefault(where, []).append(one)
        large = [where for where, found in together.items() if len(found) >= nodes]
        if large:
            ranks = {where: [rank for rank, _ in together[where][:nodes]] for where in large}
            where = min(large, key=ranks.__getitem__)  # names differ, so ranks do
            return Nearest(tuple(together[where][:nodes]), level, where[0])
    return Nearest(tuple(pool[:nodes]))
