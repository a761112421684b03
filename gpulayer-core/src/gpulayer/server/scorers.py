"""The scorers of a control plane: asked in batches when the engine wants opinions, and what they say goes back to it.

Each has a task of its own, so that one that is slow or hangs holds up nobody but those who wait for it, and these no
longer than the engine lets them. A scorer that fails has no opinion on what it was asked, for some seconds.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpulayer.clock import Clock
from gpulayer.engine import State, opinions
from gpulayer.engine.effects import AskScorer, Effect
from gpulayer.engine.events import OpinionsGiven
from gpulayer.errors import GpulayerError, PluginFault
from gpulayer.ids import Digest
from gpulayer.placement.eligibility import is_eligible
from gpulayer.plugins.contracts.scorer import MAX_LIFETIME_S, SCORER_DEADLINE_S, Pair, ScoreBatch, Scorer
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
_NAME_S: Final = 1.0
_FAULT_MS: Final = 10_000
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


class Scorers:
    """``register`` them, keep ``run`` going in one task, and ``take`` what the engine wants to know."""

    def __init__(self, host: Host, *, clock: Clock, submit: Submit) -> None:
        self._host = host
        self._clock = clock
        self._submit = submit
        self._scorers: dict[str, _Asked] = {}

    async def register(self) -> tuple[str, ...]:
        """Their names, in the order of use. One that can't even say its name is left out."""
        for registered in self._host.registry.scorers:
            try:
                name = await self._host.acall(
                    registered, "Scorer.name", lambda scorer: str(instance_of(str, scorer.name)), deadline_s=_NAME_S
                )
            except PluginFault as fault:
                _log.warning("a scorer is not used: %s", fault.message)
                continue
            self._scorers[name] = _Asked(registered)
        return tuple(self._scorers)

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
        """What they say now, side by side, for who only wants to know. It goes nowhere else."""
        known: dict[tuple[str, Digest], Opinion | None] = {}

        async def ask_one(name: str, machines: Machines) -> None:
            _, said = await self._ask(self._scorers[name].registered, {request: machines})
            known.update(((name, digest), opinion) for digest, opinion in said[0])

        async with asyncio.TaskGroup() as group:
            for name, machines in lacking.items():
                if name in self._scorers:
                    group.create_task(ask_one(name, machines))
        return known

    async def _serve(self, name: str) -> None:
        asked = self._scorers[name]
        while True:
            await asked.wake.wait()
            batch = _next_batch(asked)
            if not batch:
                asked.wake.clear()
                continue
            lifetime_ms, said = await self._ask(asked.registered, batch)
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

    async def _ask(self, registered: Registered[Scorer], batch: Mapping[Request, Machines]) -> tuple[int, list[Said]]:
        """The lifetime of the answer, and what was said of the machines of each request."""
        wall_ms = self._clock.wall_ms()
        try:
            return await self._host.acall(
                registered,
                "Scorer.score",
                lambda scorer: _score(scorer, batch, wall_ms),
                deadline_s=SCORER_DEADLINE_S,
            )
        except PluginFault as fault:
            _log.info("%s", fault.message)
            return _FAULT_MS, [[(digest, None) for digest in machines] for machines in batch.values()]


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


def _next_batch(asked: _Asked) -> dict[Request, Machines]:
    """Whole requests as far as they go into one, and a piece of one that is too large. Taken out of what waits."""
    batch: dict[Request, Machines] = {}
    room = _BATCH_PAIRS
    for request, machines in list(asked.waiting.items()):
        if len(machines) <= room:
            batch[request] = asked.waiting.pop(request)
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


def _score(scorer: Scorer, batch: Mapping[Request, Machines], wall_ms: int) -> tuple[int, list[Said]]:
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
    lifetime_s = float(scorer.lifetime_s)
    if not 1 <= lifetime_s <= MAX_LIFETIME_S:  # NaN is refused too
        raise ValueError(f"its lifetime_s is {lifetime_s:g}, not from 1 to {MAX_LIFETIME_S:g}")
    following = iter(said)
    return int(lifetime_s * 1000), [[(digest, next(following)) for digest in of] for of in batch.values()]


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
