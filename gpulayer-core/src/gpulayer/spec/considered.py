"""What was weighed when a task was placed: kept with the attempt, and small, whatever the fleet."""

from dataclasses import dataclass
from typing import Final

__all__ = ["MAX_KEPT", "Considered", "Place"]

MAX_KEPT: Final = 8  # of those that could have had it; beyond that they are counted


@dataclass(frozen=True, slots=True)
class Place:
    """One worker that could have had the task. The fields decide in this order, from ``is_avoided`` on; smaller is
    better. mark_lost: 1 less what scorers gave, a half where they said nothing."""

    worker: str
    is_avoided: bool
    preference: int
    mark_lost: float
    devices_left: int
    cpus_left: int


@dataclass(frozen=True, slots=True)
class Considered:
    """``away``: silent, joining, draining or unheard of. ``refused``: scorers kept the task from it, or it had a full
    disk. ``best``: the first of ``fitting``, whoever got it among them."""

    away: int
    ineligible: int
    busy: int
    refused: int
    fitting: int
    best: tuple[Place, ...]
