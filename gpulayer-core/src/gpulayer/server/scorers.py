"""The scorers of a control plane: asked in batches when the engine wants opinions, and what they say goes back to it.

Each has a task of its own, so that one that is slow or hangs holds up nobody but those who wait for it, and these no
longer than the engine lets them. A scorer that fails has no opinion on what it was asked, for some seconds; where the
guard lets it rest, as long as it rests.

Who only wants to know (``explain``) asks beside that, a batch of everybody's questions at a time, with slots and a
breaker of the guard of their own: however many ask, and whatever they ask, placement does not notice. What was said to
them is kept for a moment.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from gpulayer.clock import Clock
from gpulayer.engine import State, opinions
from gpulayer.engine.effects import AskScorer, Effect
from gpulayer.engine.events import OpinionsGiven
from gpulayer.errors import GpulayerError, PluginFault, PluginResting
from gpulayer.ids import Digest
from gpulayer.placement.eligibility import is_eligible
from gpulayer.plugins.contracts.scorer import SCORER_DEADLINE_S, Pair, ScoreBatch, Scorer
from gpulayer.plugins.host import Host
from gpulayer.plugins.registry import Registered
from gpulayer.plugins.results import instance_of
from gpulayer.server.driver import Make
from gpulayer.spec.machine import WorkerFacts
from gpulayer.spec.opinion import Mark, Opinion, Refusal
from gpulayer.spec.plain import plain_line
from gpulayer.spec.request import Request

__all__ = ["Scorers", "lacking_opinions"]

_log: Final = logging.getLogger(__name__)

_BATCH_PAIRS: Final = 20_000
_EVENT_PAIRS: Final = 2_000  # the driver takes as long as it takes over one event
_FAULT_MS: Final = 10_000
_CURIOUS_MS: Final = 10_000  # what was said to who only wanted to know is kept so long
_CURIOUS_PAIRS: Final = 100_000
_REASON: Final = 200

Submit = Callable[..., Awaitable[object]]  # ``Driver.submit``
Machines = dict[Digest, WorkerFacts]
Said = list[tuple[Digest, Opinion | None]]


@dataclass(slots=True)
class _Asked:
    """What one scorer is still to be asked. Asking twice for what waits is asking once."""

    registered: Registered[Scorer]
    waiting: dict[Request, Machines] = field(default_factory=dict)
    wake: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True)
class _Curious:
    """What people want to know of one scorer, and what it has said to them: until when that is kept."""

    registered: Registered[Scorer]
    waiting: dict[Request, Machines] = field(default_factory=dict)
    known: dict[tuple[Request, Digest], tuple[Opinion | None, int]] = field(default_factory=dict)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def lacks(self, request: Request, machines: Machines, now_ms: int) -> Machines:
        return {
            digest: facts
            for digest, facts in machines.items()
            if (word := self.known.get((request, digest))) is None or word[1] <= now_ms
        }

    def keep(self, batch: Mapping[Request, Machines], said: Sequence[Said], *, now_ms: int, until_ms: int) -> None:
        count = sum(map(len, said))
        if len(self.known) + count > _CURIOUS_PAIRS:
            self.known = {pair: word for pair, word in self.known.items() if word[1] > now_ms}
            for pair in list(islice(self.known, max(0, len(self.known) + count - _CURIOUS_PAIRS))):
                del self.known[pair]
        for request, pairs in zip(batch, said, strict=True):
            for digest, opinion in pairs:
                self.known[request, digest] = (opinion, until_ms)


class Scorers:
    """Keep ``run`` going in one task, and ``take`` what the engine wants to know. names: in the order of use."""

    def __init__(self, host: Host, *, clock: Clock, submit: Submit) -> None:
        self._host = host
        self._clock = clock
        self._submit = submit
        self._scorers = {one.name: _Asked(one) for one in host.registry.scorers}
        self._curious = {one.name: _Curious(one) for one in host.registry.scorers}
        self.names = tuple(self._scorers)

    def take(self, state: State, effects: Iterable[Effect]) -> None:
        """What these effects ask is put to the scorers soon. Quick; from the event loop alone."""
        for effect in effects:
            if isinstance(effect, AskScorer) and (asked := self._scorers.get(effect.scorer)) is not None:
                facts = state.facts  # of later steps of the batch, too: what no worker has any more is not in it
                machines = {digest: facts[digest] for digest in effect.digests if digest in facts}
                if machines:
                    asked.waiting.setdefault(effect.request, {}).update(machines)
                    asked.wake.set()

    async def run(self) -> None:
        """Until cancelled. Raises what a plugin raised where the host is strict."""
        async with asyncio.TaskGroup() as group:
            for name in self._scorers:
                group.create_task(self._serve(name), name=f"scorer {name}")

    async def ask(self, request: Request, lacking: Mapping[str, Machines]) -> dict[tuple[str, Digest], Opinion | None]:
        """What they say now or said a moment ago, side by side, for who only wants to know. It goes nowhere else."""
        known: dict[tuple[str, Digest], Opinion | None] = {}

        async def ask_one(name: str, machines: Machines) -> None:
            curious = self._curious[name]
            with suppress(TimeoutError):
                async with asyncio.timeout(2 * SCORER_DEADLINE_S):  # a batch that is on its way, and the next
                    await self._learn(curious, request, machines)
            for digest in machines:
                if (word := curious.known.get((request, digest))) is not None:
                    known[name, digest] = word[0]

        async with asyncio.TaskGroup() as group:
            for name, machines in lacking.items():
                if name in self._curious:
                    group.create_task(ask_one(name, machines))
        return known

    async def _learn(self, curious: _Curious, request: Request, machines: Machines) -> None:
        """Until all of it is known. Whoever has the turn asks for all who wait for theirs."""
        lacks = curious.lacks(request, machines, self._clock.monotonic_ms())
        if not lacks:
            return
        curious.waiting.setdefault(request, {}).update(lacks)
        try:
            async with curious.turn:
                while lacks := curious.lacks(request, machines, self._clock.monotonic_ms()):
                    curious.waiting.setdefault(request, {}).update(lacks)  # who had the turn may have given up
                    batch = _next_batch(curious.waiting)
                    lifetime_ms, said = await self._ask(curious.registered, "Scorer.score (explain)", batch)
                    now_ms = self._clock.monotonic_ms()
                    curious.keep(batch, said, now_ms=now_ms, until_ms=now_ms + min(lifetime_ms, _CURIOUS_MS))
        finally:
            curious.waiting.pop(request, None)  # others who wait for the same put it there again

    async def _serve(self, name: str) -> None:
        asked = self._scorers[name]
        while True:
            await asked.wake.wait()
            batch = _next_batch(asked.waiting)
            if not batch:
                asked.wake.clear()
                continue
            lifetime_ms, said = await self._ask(asked.registered, "Scorer.score", batch)
            makes = [
                make
                for request, pairs in zip(batch, said, strict=True)
                for make in _events(name, request, lifetime_ms, pairs)
            ]
            try:
                await self._submit(*makes)
            except GpulayerError as error:
                # The engine's state is gone, or this fault of ours is in the driver's log: it asks again either way.
                _log.info("opinions of scorer %s are dropped: %s", name, error.message)

    async def _ask(
        self, registered: Registered[Scorer], method: str, batch: Mapping[Request, Machines]
    ) -> tuple[int, list[Said]]:
        """The lifetime of the answer, and what was said of the machines of each request."""
        wall_ms = self._clock.wall_ms()
        try:
            said = await self._host.acall(
                registered, method, lambda scorer: _score(scorer, batch, wall_ms), deadline_s=SCORER_DEADLINE_S
            )
        except PluginFault as fault:
            _log.info("%s", fault.message)
            rest_ms = fault.details.get("rest_ms", 0) if isinstance(fault, PluginResting) else 0
            return max(_FAULT_MS, rest_ms), [[(digest, None) for digest in machines] for machines in batch.values()]
        return int(registered.lifetime_s * 1000), said


def lacking_opinions(state: State, request: Request) -> dict[str, Machines]:
    """By scorer, machines that fit the request and of which it has not said what it thinks."""
    found: dict[str, Machines] = {}
    for worker in state.workers.values() if state.policy.scorers else ():
        names = opinions.lacking(state, request, worker.facts_digest)
        if names and is_eligible(request, worker.facts, name=worker.name):
            for name in names:
                machines = found.setdefault(name, {})
                if len(machines) < _BATCH_PAIRS:
                    machines[worker.facts_digest] = worker.facts
    return found


def _next_batch(waiting: dict[Request, Machines]) -> dict[Request, Machines]:
    """Whole requests as far as they go into one, and a piece of one that is too large. Taken out of what waits."""
    batch: dict[Request, Machines] = {}
    room = _BATCH_PAIRS
    for request, machines in list(waiting.items()):
        if len(machines) <= room:
            batch[request] = waiting.pop(request)
        elif not batch:
            batch[request] = {digest: machines.pop(digest) for digest in list(machines)[:room]}
            break
        else:
            break
        room -= len(batch[request])
    return batch


def _events(scorer: str, request: Request, lifetime_ms: int, said: Said) -> list[Make]:
    pieces = [tuple(said[start : start + _EVENT_PAIRS]) for start in range(0, len(said), _EVENT_PAIRS)]
    return [_given(scorer, request, lifetime_ms, piece) for piece in pieces]


def _given(scorer: str, request: Request, lifetime_ms: int, piece: tuple[tuple[Digest, Opinion | None], ...]) -> Make:
    return lambda at: OpinionsGiven(at, scorer, request, lifetime_ms, piece)


def _score(scorer: Scorer, batch: Mapping[Request, Machines], wall_ms: int) -> list[Said]:
    """In the plugin's thread, all of it: iterating over its answer is its doing, too."""
    places: dict[Digest, int] = {}
    machines: list[WorkerFacts] = []
    pairs: list[Pair] = []
    for number, of_request in enumerate(batch.values()):
        for digest, facts in of_request.items():
            place = places.get(digest)
            if place is None:
                place = places[digest] = len(machines)
                machines.append(facts)
            pairs.append(Pair(number, place))
    said = _checked(scorer.score(ScoreBatch(tuple(batch), tuple(machines), tuple(pairs), wall_ms)), len(pairs))
    following = iter(said)
    return [[(digest, next(following)) for digest in of] for of in batch.values()]


def _checked(answer: Sequence[Mark | Refusal | None], count: int) -> list[Opinion | None]:
    """Exactly so many; in values of ours, for a plugin's own kind of mark may change its mind."""
    said: list[Opinion | None] = []
    for opinion in answer:
        if len(said) == count:
            raise ValueError(f"it gave more than the {count:,} opinions that it was asked for")
        match opinion:
            case None:
                said.append(None)
            case Mark():
                said.append(Mark(float(opinion.value)))
            case Refusal():
                said.append(Refusal(_line(instance_of(str, opinion.reason))))
            case _:
                raise TypeError(f"it gave a {type(opinion).__name__} where a Mark, a Refusal or None is due")
    if len(said) < count:
        raise ValueError(f"it gave {len(said):,} opinions of the {count:,} that it was asked for")
    return said


def _line(reason: str) -> str:
    """One, of a length that fits into others, without what a terminal would act on."""
    return plain_line(reason, _REASON) or "it gives no reason"
