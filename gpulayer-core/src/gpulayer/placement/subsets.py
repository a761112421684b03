"""Which of the free devices of one machine a task gets: those that are joined best, so that what is left is too. Pure.

``link`` of two devices is what ``spec.topology.strength`` gives their link, without a unit: 10 (over the link between
sockets) to 100 and one for each NVLink; 0 where no link is known, also between devices of which nobody told anything.
``same_numa`` is 1 where both are known to be next to one NUMA node, else 0. The weight of a pair, and of a set:

    w(a, b) = link(a, b) × 256 + same_numa(a, b)
    Σw(X)   = sum of w over all pairs of X

Of the free devices F the choice S of ``count`` has the greatest

    (least link in S, Σw(S), Σw(F∖S))

compared in this order, and among equals the lowest indices: the set whose sorted indices come first. So the slowest
link counts first, which is what collective operations wait for; then the sum of links, then how many pairs are next to
one node (for up to 23 devices, whose 253 pairs can't add up to one step of a link; NUMA counts for more in larger
sets), then the least fragmentation: Σw of what is left free. One device alone has no link: it is the one whose taking
leaves the best. With no topology all links are alike, and NUMA decides, then the index.

Branch and bound finds the optimum among up to ``EXACT_UP_TO`` free devices. Among more it stops after a fixed number of
steps, never a time, so that the same question has the same answer anywhere. That is no worse than beginning with any of
them and adding one after the other the device that adds most, among sets of the greatest least link that was found.
Answers are remembered, a bounded number of them. Where a machine has more than ``MOST_JOINED`` devices that match, who
calls takes the lowest indices instead.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Final

from gpulayer.spec.machine import Device
from gpulayer.spec.plain import plain_line
from gpulayer.spec.topology import strength

__all__ = [
    "EXACT_UP_TO",
    "MOST_JOINED",
    "Topology",
    "best_subset",
    "forget",
    "named_by_index",
    "topology_of",
    "why_these",
]

EXACT_UP_TO: Final = 16
MOST_JOINED: Final = 64  # more than eight GPUs in seven slices each; a worker may report 1,024
_STEPS: Final = 20_000  # pairs looked at: some milliseconds
_LINK: Final = 256  # over same_numa
_LONGEST_WORD: Final = 32
_MOST_NAMED: Final = 16


@dataclass(frozen=True, slots=True)
class Topology:
    """Of devices by their position, lowest index first. links: strengths, 0 where none is known. numa_nodes: None: not
    known. No uuids: machines that are built alike share one, and the answers for it."""

    links: tuple[tuple[int, ...], ...]
    numa_nodes: tuple[int | None, ...]

    def weight(self, one: int, other: int) -> int:
        """``w``, symmetric."""
        node = self.numa_nodes[one]
        return self.links[one][other] * _LINK + (node is not None and node == self.numa_nodes[other])


def topology_of(devices: Sequence[Device]) -> Topology:
    """Positions are those given. Of two ends of a link that say different words the weaker counts."""
    return _topology(tuple((device.uuid, device.numa_node, device.links) for device in devices))


def best_subset(
    topology: Topology, *, free: int, count: int, required: int = 0, allowed: int | None = None
) -> tuple[int, ...]:
    """Positions of the best ``count`` of ``free``, ascending, by the formula above. Masks have bit n for position n.

    required: some of ``free`` that are in S whatever it costs. allowed: what S is taken from besides, None: all of
    ``free``; what is free and not allowed counts as left. Raises ValueError where there are too few of them, or more
    are required than wanted.
    """
    allowed = free if allowed is None else allowed & free
    if count < required.bit_count() or count > (allowed | required).bit_count() or required & ~free:
        raise ValueError(f"no choice of {count} from {allowed:#x} with {required:#x} of {free:#x}")
    return _best_subset(topology, free, count, required, allowed & ~required)


def forget() -> None:
    """Answer anew what was answered before: for measuring."""
    _best_subset.cache_clear()
    _topology.cache_clear()


def why_these(devices: Sequence[Device], chosen: Sequence[Device]) -> str:
    """One phrase for people: ``devices 0,1: NV18, the fastest pair free``. devices: all that it was chosen from; both
    by index."""
    count = len(chosen)
    named = named_by_index(chosen)
    if count == len(devices):
        return f"{named}: all that are free"
    if count == 1:
        is_first = chosen[0].uuid == devices[0].uuid
        return f"{named}: {'the first that is free' if is_first else 'leaves those free that are joined best'}"
    topology = topology_of(devices)
    slowest_of_all = min(map(min, _off_diagonal(topology)))
    if slowest_of_all == max(map(max, _off_diagonal(topology))):
        return f"{named}: all links alike: {_numa_words(chosen)}"
    words = _words([(device.uuid, device.links) for device in chosen])
    joined = [words.get(pair, "") for pair in combinations(range(count), 2)]
    slowest = min(joined, key=_worth)
    shown = plain_line(slowest, _LONGEST_WORD) or "links not known"
    if _worth(slowest) == slowest_of_all:
        return f"{named}: {shown} at the slowest, as in any {count} that are free; the highest sum of links"
    better = " and better" if any(_worth(word) > _worth(slowest) for word in joined) else ""
    return f"{named}: {shown}{better}, the fastest {'pair' if count == 2 else count} free"


def named_by_index(devices: Sequence[Device]) -> str:
    """``device 0``, ``devices 0,2``, ``24 devices``."""
    if len(devices) > _MOST_NAMED:
        return f"{len(devices)} devices"
    indices = ",".join(map(str, sorted(device.index for device in devices)))
    return f"device{'' if len(devices) == 1 else 's'} {indices}"


def _numa_words(chosen: Sequence[Device]) -> str:
    """What decided where links are alike."""
    nodes = {device.numa_node for device in chosen}
    known = [device.numa_node for device in chosen if device.numa_node is not None]
    if len(known) == len(set(known)):
        return "first by index"  # no two share a node, and then no others do
    if len(nodes) == 1:
        return f"{'both' if len(chosen) == 2 else 'all'} on NUMA node {known[0]}"
    return "the most pairs on one NUMA node"


_Joints = tuple[str, tuple[tuple[str, str], ...]]
"""The uuid of a device, and its links."""


def _words(devices: Sequence[_Joints]) -> dict[tuple[int, int], str]:
    """Links by positions, the lower one first."""
    position = {uuid: number for number, (uuid, _) in enumerate(devices)}
    words: dict[tuple[int, int], str] = {}
    for number, (_, links) in enumerate(devices):
        for peer, word in links:
            other = position.get(peer, number)
            if word and other != number:
                pair = min(number, other), max(number, other)
                words[pair] = min(words.get(pair, word), word, key=_worth)
    return words


def _worth(word: str) -> int:
    return strength(word) or 0


@lru_cache(maxsize=2048)
def _topology(devices: tuple[tuple[str, int | None, tuple[tuple[str, str], ...]], ...]) -> Topology:
    words = _words([(uuid, links) for uuid, _, links in devices])
    places = range(len(devices))
    links = tuple(
        tuple(_worth(words.get((min(one, other), max(one, other)), "")) for other in places) for one in places
    )
    return Topology(links, tuple(node for _, node, _ in devices))


def _off_diagonal(topology: Topology) -> list[list[int]]:
    return [[link for other, link in enumerate(row) if other != one] for one, row in enumerate(topology.links)]


@lru_cache(maxsize=16_384)
def _best_subset(topology: Topology, free: int, count: int, required: int, optional: int) -> tuple[int, ...]:
    if count == required.bit_count():
        return tuple(_bits(required))
    if count == (required | optional).bit_count():
        return tuple(_bits(required | optional))
    places = list(_bits(free))
    local = {place: number for number, place in enumerate(places)}
    nodes = [topology.numa_nodes[place] for place in places]
    links = [[topology.links[one][other] for other in places] for one in places]
    # ``Topology.weight``, at a third of the price.
    weights = [
        [link * _LINK + (node is not None and node == other) for link, other in zip(row, nodes, strict=True)]
        for row, node in zip(links, nodes, strict=True)
    ]
    for number, row in enumerate(weights):
        row[number] = 0
    search = _Search(
        links,
        weights,
        count=count,
        required=sum(1 << local[place] for place in _bits(required)),
        optional=sum(1 << local[place] for place in _bits(optional)),
    )
    return tuple(places[number] for number in _bits(search.best()))


class _Search:
    """For the best set among devices that are numbered from 0, all of them free; sets are masks.

    The formula is one number here, greater where it is better and of no two sets the same: of sets with the greatest
    least link (which the first step finds, and which the second one keeps to), Σw(S) × K + Σw(F∖S), above one bit for
    each device, the highest bit for the lowest index. Σw(F∖S) = Σw(F) − Σ_{a∈S} w(a, F) + Σw(S), so that it is a sum
    over pairs (``pair``) and devices (``single``). Each pair is counted from both ends, all is doubled.
    """

    def __init__(
        self, links: list[list[int]], weights: list[list[int]], *, count: int, required: int, optional: int
    ) -> None:
        size = len(links)
        sums = [sum(row) for row in weights]
        self._links, self._count, self._required, self._optional = links, count, required, optional
        self._steps_left = _STEPS if size > EXACT_UP_TO else None
        unit = 1 << size
        self._pair = [[weight * (sum(sums) // 2 + 2) * unit for weight in row] for row in weights]
        self._single = [(1 << size - 1 - one) - sums[one] * unit for one in range(size)]
        self._twins = [_later_twins(weights, one) & optional for one in range(size)]
        self._adjacent: list[int] = []
        self._best, self._best_value = 0, 0

    def best(self) -> int:
        start = self._widest()
        self._take(start, self._value(start))
        begun = self._firsts() if self._steps_left is not None else [self._required]
        for greedy in map(self._greedy, begun):
            if greedy:
                self._take(greedy, self._value(greedy))
        gains = list(self._single)
        for one in _bits(self._required):
            gains = [gain + more for gain, more in zip(gains, self._pair[one], strict=True)]
        candidates = list(_bits(self._common(self._required, self._optional)))
        left = self._count - self._required.bit_count()
        self._branch(self._required, self._value(self._required), candidates, gains, left)
        return self._best

    def _widest(self) -> int:
        """Some set whose least link is the greatest; leaves in ``_adjacent`` who may be together in such a set."""
        size = len(self._links)
        levels = sorted({self._links[one][other] for one, other in combinations(range(size), 2)})
        found = 0
        low, high = 0, len(levels) - 1
        adjacent = self._at_least(levels[0])
        while low <= high:
            middle = (low + high) // 2 if found else 0  # at the lowest level any set will do
            self._adjacent = self._at_least(levels[middle])
            clique = self._clique(self._required, self._common(self._required, self._optional))
            if clique:
                found, adjacent, low = clique, self._adjacent, middle + 1
            else:
                high = middle - 1
        self._adjacent = adjacent
        return found

    def _at_least(self, level: int) -> list[int]:
        return [
            sum(1 << other for other, link in enumerate(row) if other != one and link >= level)
            for one, row in enumerate(self._links)
        ]

    def _common(self, chosen: int, among: int) -> int:
        """Who of ``among`` may be together with all of ``chosen``; nobody where those may not be themselves."""
        for one in _bits(chosen):
            if chosen & ~(self._adjacent[one] | 1 << one):
                return 0
            among &= self._adjacent[one]
        return among

    def _clique(self, chosen: int, candidates: int) -> int:
        """``chosen`` and candidates, ``count`` in all, who may all be together; 0: none, or none found in time."""
        left = self._count - chosen.bit_count()
        if not left:
            return chosen
        while candidates.bit_count() >= left and self._goes_on(1):
            first = candidates & -candidates
            candidates ^= first
            found = self._clique(chosen | first, candidates & self._adjacent[first.bit_length() - 1])
            if found:
                return found
        return 0

    def _firsts(self) -> list[int]:
        """What a set may begin with, and nothing twice that comes to the same."""
        firsts, left = [], self._common(self._required, self._optional)
        while left:
            first = left & -left
            firsts.append(self._required | first)
            left &= ~(first | self._twins[first.bit_length() - 1])
        return firsts

    def _greedy(self, chosen: int) -> int:
        """These, and one after the other the device that adds most; 0 where that leads nowhere."""
        gains = list(self._single)
        for one in _bits(chosen):
            gains = [gain + more for gain, more in zip(gains, self._pair[one], strict=True)]
        candidates = self._common(chosen, self._optional)
        while chosen.bit_count() < self._count:
            if not candidates:
                return 0
            one = max(_bits(candidates), key=gains.__getitem__)
            chosen |= 1 << one
            candidates &= self._adjacent[one]
            gains = [gain + more for gain, more in zip(gains, self._pair[one], strict=True)]
        return chosen

    def _branch(self, chosen: int, value: int, candidates: list[int], gains: list[int], left: int) -> None:
        """Try all sets of ``chosen`` and ``left`` candidates that may be better than the best one yet. gains: what
        each candidate adds to ``value``, that of ``chosen``."""
        if not self._goes_on(len(candidates) ** 2):
            return
        if left == 1:
            for one in candidates:
                self._take(chosen | 1 << one, value + gains[one])
            return
        bounds: list[tuple[int, int]] = []  # on what each adds together with others, doubled
        for one in candidates:
            pair, adjacent = self._pair[one], self._adjacent[one]
            others = sorted([pair[other] for other in candidates if adjacent >> other & 1], reverse=True)
            if len(others) >= left - 1:
                bounds.append((2 * gains[one] + sum(others[: left - 1]), one))
        bounds.sort(reverse=True)
        while len(bounds) >= left:
            if 2 * value + sum(bound for bound, _ in bounds[:left]) <= 2 * self._best_value:
                return
            _, one = bounds[0]
            pair, adjacent = self._pair[one], self._adjacent[one]
            rest = [other for _, other in bounds[1:] if adjacent >> other & 1]
            if len(rest) >= left - 1:
                added = [gain + more for gain, more in zip(gains, pair, strict=True)]
                self._branch(chosen | 1 << one, value + gains[one], rest, added, left - 1)
            # Whoever is like it in all, and comes later, is worth no try without it.
            twins = self._twins[one]
            bounds = [bound for bound in bounds[1:] if not twins >> bound[1] & 1]

    def _value(self, chosen: int) -> int:
        members = list(_bits(chosen))
        pairs = sum(self._pair[one][other] for one, other in combinations(members, 2))
        return pairs + sum(self._single[one] for one in members)

    def _take(self, chosen: int, value: int) -> None:
        if not self._best or value > self._best_value:
            self._best, self._best_value = chosen, value

    def _goes_on(self, steps: int) -> bool:
        if self._steps_left is None:
            return True
        self._steps_left -= steps
        return self._steps_left >= 0


def _later_twins(weights: list[list[int]], one: int) -> int:
    """Those after it that have the same weights as it with all others: each can stand for the other."""
    own, twins = weights[one], 0
    for other in range(one + 1, len(weights)):
        row = weights[other]
        before, between, after = slice(one), slice(one + 1, other), slice(other + 1, None)
        if own[before] == row[before] and own[between] == row[between] and own[after] == row[after]:
            twins |= 1 << other
    return twins


def _bits(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
