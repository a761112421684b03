"""Who is let in when more comes than can be done: refused early, with the time to come again, instead of late.

A control plane that is behind takes no *new* work until it has caught up: what was accepted goes ahead. Reports and
commands of workers, cancels, and whatever asks of one job are never refused here, so a flood of submissions makes
nobody's lease run out. What is refused has cost a head and a look at a token; nothing of its body was read.

``Admission`` counts what is under way and remembers how many were turned away; ``decide`` is pure. What it looks at:
how much the driver has before it and how old its oldest is (a slow disk shows there), how many requests of one kind are
under way, and how many bytes of their bodies are in memory. A body counts by what has come of it, so one that drips
takes a place and no more; and no party (see ``auth``) has more than half of the places or of the memory of a kind:
whatever one does, there is room for others.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from gpulayer.errors import Overloaded

__all__ = ["Admission", "AdmissionLimits", "Backlog", "Demand", "Held", "Load", "decide"]

_MOST_S: Final = 10
_LATELY_MS: Final = 1_000


class Demand(StrEnum):
    """What a request asks for; a route says which. ``AHEAD``: never refused."""

    AHEAD = "ahead"
    SUBMIT = "submit"  # new jobs
    UPLOAD = "upload"  # of sources
    LOOK = "look"  # over all jobs or workers


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """queued_events, queued_ms: of the driver; past either one nothing new is taken in. submits, uploads, looks:
    requests under way at once. body_bytes: what the bodies of submits may hold in memory together, and those of
    uploads; one is let in however large it is. Of these four a party has half. refusals_a_second: what is turned away
    for the price of a few submissions; where there are more, all are told to stay away for longer."""

    queued_events: int = 40_000
    queued_ms: int = 5_000
    submits: int = 256
    uploads: int = 64
    looks: int = 128
    body_bytes: int = 256 * 2**20
    refusals_a_second: int = 200

    def at_once(self, demand: Demand) -> int:
        """How many requests of this kind may be under way."""
        match demand:
            case Demand.SUBMIT:
                return self.submits
            case Demand.UPLOAD:
                return self.uploads
            case _:
                return self.looks


@dataclass(frozen=True, slots=True)
class Backlog:
    """What waits for the driver. oldest_ms: how long its head has waited; 0 where nothing does."""

    events: int = 0
    oldest_ms: int = 0


@dataclass(frozen=True, slots=True)
class Load:
    """What ``decide`` looks at. under_way, body_bytes: of the kind that asks; of_party, party_bytes: of these, what is
    of the party that asks. refused: within the last second."""

    backlog: Backlog = field(default_factory=Backlog)
    under_way: int = 0
    body_bytes: int = 0
    of_party: int = 0
    party_bytes: int = 0
    refused: int = 0


def decide(demand: Demand, size: int, load: Load, limits: AdmissionLimits) -> int | None:
    """None: come in. Else: after how many seconds to come again, 1 to 10. size: of the body, as far as it has come."""
    if demand is Demand.AHEAD or not _is_too_much(demand, size, load, limits):
        return None
    behind_s = load.backlog.oldest_ms // 1000 if demand is Demand.SUBMIT else 0
    return min(_MOST_S, 1 + max(behind_s, load.refused // limits.refusals_a_second))


def _is_too_much(demand: Demand, size: int, load: Load, limits: AdmissionLimits) -> bool:
    most = limits.at_once(demand)
    if load.under_way >= most or (most > 1 and load.of_party >= most // 2):
        return True
    if demand is Demand.LOOK:
        return False
    if _is_too_large(size, load, limits):
        return True
    backlog = load.backlog
    is_behind = backlog.events >= limits.queued_events or backlog.oldest_ms >= limits.queued_ms
    return demand is Demand.SUBMIT and is_behind


def _is_too_large(size: int, load: Load, limits: AdmissionLimits) -> bool:
    """For what is held beside others already: of all, and of this party."""
    is_beside = load.under_way > 0 and load.body_bytes + size > limits.body_bytes
    return is_beside or (load.of_party > 0 and load.party_bytes + size > limits.body_bytes // 2)


class Admission:
    """Of one control plane, in its event loop. backlog: of its driver, now."""

    def __init__(
        self, limits: AdmissionLimits, *, backlog: Callable[[], Backlog], monotonic_ms: Callable[[], int]
    ) -> None:
        self.limits = limits
        self._backlog = backlog
        self._monotonic_ms = monotonic_ms
        self._held: dict[Demand, dict[str, list[Held]]] = {demand: {} for demand in Demand}
        self._under_way = dict.fromkeys(Demand, 0)
        self._bytes = dict.fromkeys(Demand, 0)
        self._second, self._refused, self._refused_before = 0, 0, 0
        self.refusals = 0

    @contextmanager
    def admitted(self, demand: Demand, party: str) -> Iterator["Held"]:
        """Inside, the request counts. Raises Overloaded."""
        held = Held(self, demand, party)
        if demand is Demand.AHEAD:
            yield held
            return
        again_s = decide(demand, 0, self.load(demand, party), self.limits)
        if again_s is not None:
            raise self._refusal(again_s)
        self._under_way[demand] += 1
        of_party = self._held[demand].setdefault(party, [])
        of_party.append(held)
        try:
            yield held
        finally:
            self._under_way[demand] -= 1
            self._bytes[demand] -= held.bytes
            of_party.remove(held)
            if not of_party:
                del self._held[demand][party]

    def take(self, held: "Held", size: int) -> None:
        """See ``Held.take``."""
        demand = held.demand
        if demand is Demand.AHEAD:
            return
        load = self.load(demand, held.party)
        # This one is among those under way, and alone is let in however large it is.
        others = replace(load, under_way=load.under_way - 1, of_party=load.of_party - 1)
        if _is_too_large(size, others, self.limits):
            raise self._refusal(1)
        held.bytes += size
        self._bytes[demand] += size

    def load(self, demand: Demand, party: str = "") -> Load:
        """As a request of this kind and party meets it now."""
        second = self._monotonic_ms() // _LATELY_MS
        if second != self._second:
            self._refused_before = self._refused if second == self._second + 1 else 0
            self._second, self._refused = second, 0
        of_party = self._held[demand].get(party, ())
        return Load(
            self._backlog(),
            self._under_way[demand],
            self._bytes[demand],
            len(of_party),
            sum(each.bytes for each in of_party),
            max(self._refused, self._refused_before),
        )

    def _refusal(self, again_s: int) -> Overloaded:
        self._refused += 1
        self.refusals += 1
        return Overloaded(
            "the control plane is busy",
            hint="nothing was accepted; the same request may come again after Retry-After",
            details={"retry_after_s": again_s},
        )


@dataclass(slots=True, eq=False)
class Held:
    """What a request that was let in holds in memory of its body."""

    admission: Admission
    demand: Demand
    party: str
    bytes: int = 0

    def take(self, size: int) -> None:
        """So much more of the body has come. Raises Overloaded, and then it must not be kept."""
        self.admission.take(self, size)
