"""The one owner of the engine's state.

Waiting events are drained in micro-batches: each is stepped, all their records go to the store in one transaction
(group commit), and only then are the requests answered and the effects released. So a reply means durable, and no
step runs while a commit that may fail is in flight. When a commit fails the state is discarded and loaded again
from the store, and the driver is read-only until a probe write succeeds.

Nothing slow happens here: routes do their IO before and after. Stepping is cut into slices of about 2 ms, and short
events go ahead between the slices of a long one, so that a batch of 10,000 jobs never stalls a heartbeat, nor does
much that has become due at once. A driver that could not look at anything for long (it was stopped, its machine slept)
takes nobody for silent because of that.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Final, Protocol, TypeVar

from gpulayer.clock import Clock, Instant
from gpulayer.engine import BEAT_MS, Attention, Policy, State, due, hear_anew, next_due_ms, rebuild, step
from gpulayer.engine.effects import Effect, Void
from gpulayer.engine.events import Event, ScorersRegistered
from gpulayer.engine.records import JobImage, Record
from gpulayer.errors import GpulayerError, InternalError, StorageUnavailable
from gpulayer.faults import here, here_each
from gpulayer.ids import JobId, WorkerId
from gpulayer.server.admission import Backlog
from gpulayer.server.history import History, is_logged
from gpulayer.server.store import Batch, Live, Side
from gpulayer.server.store.carried import carried
from gpulayer.spec.job import JobState
from gpulayer.spec.request import Request

__all__ = ["Committer", "Driver", "Make", "Observer"]

T = TypeVar("T")
Make = Callable[[Instant], Event]

_SLICE_STEPS: Final = 40
_SLICE_MS: Final = 2
_BATCH_STEPS: Final = 2_000
_BATCH_MS: Final = 50
_SHORT: Final = 16  # an arrival of at most so many events may go ahead between the slices of a long one
_PROBE_FIRST_S: Final = 0.1
_PROBE_LAST_S: Final = 5.0
_TICK_REST_MS: Final = 1_000

_log = logging.getLogger(__name__)


class Committer(Protocol):
    """The part of the store that the driver uses. Both may raise StorageUnavailable."""

    def commit(self, batch: Batch) -> None: ...

    def probe(self) -> None: ...

    def load_live(self) -> Live: ...


class Observer(Protocol):
    """Told of every commit, with the state as committed; must be quick and must not change it."""

    def committed(self, state: State, records: Sequence[Record], effects: Sequence[Effect]) -> None: ...

    def annotate(self, state: State, rejected: Mapping[JobId, Request]) -> dict[JobId, str]:
        """Asked after a step that rejected these jobs: verdicts (JSON) to be stored with them."""
        ...


@dataclass(slots=True, eq=False)
class _Arrival:
    """What one caller brought: its events and rows are committed together or not at all."""

    makes: Sequence[Make]
    side: Side | None
    answer: "asyncio.Future[tuple[Effect, ...]] | None"
    came_ms: int = 0
    effects: list[Effect] = field(default_factory=list)
    is_alone: bool = False  # after a fault in a batch each of its arrivals is tried by itself

    def fail(self, error: GpulayerError) -> None:
        if self.answer is not None and not self.answer.done():
            self.answer.set_exception(error)

    def resolve(self) -> None:
        if self.answer is not None and not self.answer.done():
            self.answer.set_result(tuple(self.effects))


@dataclass(slots=True)
class _Open:
    """A micro-batch in the making."""

    batch: Batch = field(default_factory=Batch)
    arrivals: list[_Arrival] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    steps: int = 0


class _StepFailed(Exception):
    def __init__(self, arrival: _Arrival) -> None:
        super().__init__()
        self.arrival = arrival


class Driver:
    """``load`` it, then keep ``run`` going in one task; ``close`` ends that task when all is committed."""

    def __init__(self, *, store: Committer, clock: Clock, observer: Observer, policy: Policy | None = None) -> None:
        self._store = store
        self._clock = clock
        self._observer = observer
        self._policy = policy or Policy()
        self._state: State | None = None
        self._is_clean = False
        self._history = History()
        self._queue: deque[_Arrival] = deque()
        self._queued_events = 0
        self._readers: list[tuple[Callable[[State], object], asyncio.Future[object]]] = []
        self._wake = asyncio.Event()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="gpulayer-commit")
        self._failure: StorageUnavailable | None = None
        self._is_closing = False
        self._offset_ms: int | None = None
        self._tick_after_ms = 0
        self._attention = Attention()
        self._heard: frozenset[WorkerId] = frozenset()
        self._noted: list[tuple[frozenset[JobId], dict[JobId, JobState]]] = []

    @property
    def is_read_only(self) -> bool:
        """True after a commit that failed, until the store can be written again."""
        return self._failure is not None

    @property
    def backlog(self) -> Backlog:
        """What waits to be stepped; what is in a commit is past that."""
        if not self._queue:
            return Backlog()
        return Backlog(self._queued_events, self._clock.monotonic_ms() - self._queue[0].came_ms)

    def now(self) -> Instant:
        """Engine time: what the store last knew, and what has passed since this process loaded it."""
        return Instant(self._clock.monotonic_ms() + (self._offset_ms or 0), self._clock.wall_ms())

    async def load(self) -> None:
        """Build the state from the store. Raises StorageUnavailable."""
        live = await self._in_writer(self._store.load_live)
        if self._offset_ms is None:
            self._offset_ms = live.counters.now_ms - self._clock.monotonic_ms()
        try:
            state = rebuild(
                self._policy,
                live.counters,
                jobs=live.jobs,
                waiting=live.waiting,
                tasks=live.tasks,
                attempts=live.attempts,
                workers=live.workers,
                facts=live.facts,
                heard=self._heard,
            )
        except (LookupError, ValueError, TypeError, AttributeError) as error:  # of a damaged file
            raise StorageUnavailable(
                f"the rows of the control plane's store do not fit together: {type(error).__name__}: {error}",
                hint="it is damaged: gpulayer doctor looks closer, gpulayer restore FILE brings a backup back",
            ) from error
        # The store's time is that of the last record; what has passed in this process since then must not make
        # anybody look silent, so everyone counts as heard of now.
        hear_anew(state, self.now().ms)
        self._history.restart((image for _, image in live.jobs), live.attempts)
        self._state = state
        self._is_clean = True

    async def submit(self, *makes: Make, side: Side | None = None) -> tuple[Effect, ...]:
        """Step these events, in order and in one transaction with ``side``; returns their effects, durable.

        Each event is made with the time of its step. Raises StorageUnavailable while the store can't be written
        (then nothing happened), InternalError for a fault of ours.
        """
        if self._failure is not None:
            raise self._refusal()
        if self._is_closing:
            raise StorageUnavailable("the control plane is shutting down", hint="try again when it is back")
        answer: asyncio.Future[tuple[Effect, ...]] = asyncio.get_running_loop().create_future()
        self._queue.append(_Arrival(makes, side, answer, self._clock.monotonic_ms()))
        self._queued_events += len(makes)
        self._wake.set()
        return await answer

    async def use_scorers(self, names: tuple[str, ...]) -> None:
        """From now on these are asked for opinions."""
        self._policy = replace(self._policy, scorers=names)
        if self._state is None and self._failure is None:
            return  # not loaded yet
        with suppress(StorageUnavailable):  # then the state is loaded anew, by this policy
            await self.submit(lambda at: ScorersRegistered(at, names))

    async def read(self, read: Callable[[State], T]) -> T:
        """What ``read`` says of the state when nothing in it is uncommitted. Raises StorageUnavailable before the
        first load."""
        if self._is_clean and self._state is not None:
            return read(self._state)
        if self._is_closing:
            raise StorageUnavailable("the control plane is shutting down", hint="try again when it is back")
        answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._readers.append((read, answer))
        self._wake.set()
        return await answer  # type: ignore[return-value] # what ``read`` returned

    def look(self, read: Callable[[State], T]) -> T | None:
        """What ``read`` says of the state at once, although some of it may not be committed yet; None: not loaded.

        Only for what the caller would also do if that commit failed, and where a wait for it would be felt.
        """
        return None if self._state is None else read(self._state)

    @contextmanager
    def noting_ends(self, job_ids: Iterable[JobId]) -> Iterator[Mapping[JobId, JobState]]:
        """Inside, how any of these jobs ends is noted in the step that ends it, before that is committed: for events
        that are stepped after it. Where the commit fails such a job is live again, whatever is noted."""
        noted: tuple[frozenset[JobId], dict[JobId, JobState]] = (frozenset(job_ids), {})
        self._noted.append(noted)
        try:
            yield noted[1]
        finally:
            self._noted = [other for other in self._noted if other is not noted]

    def _note_ends(self, records: Iterable[Record]) -> None:
        for record in records:
            if isinstance(record, JobImage) and record.state.is_final:
                for job_ids, ends in self._noted:
                    if record.id in job_ids:
                        ends[record.id] = record.state

    def poke(self) -> None:
        """Look at the time again; for whoever moves the clock, and wants what follows from that."""
        self._attention.seen_ms = None
        self._wake.set()

    async def run(self) -> None:
        """Drive until ``close``."""
        try:
            while True:
                if self._failure is not None:
                    if not await self._recover():
                        break
                    continue
                self._wake.clear()
                if self._attention.was_away(self._clock.monotonic_ms()):
                    hear_anew(self._loaded(), self.now().ms)
                if not self._queue and not self._is_due():
                    if self._is_closing:
                        break
                    await self._sleep()
                    continue
                await self._turn()
        finally:
            self._is_closing = True
            gone = StorageUnavailable("the control plane is shutting down", hint="try again when it is back")
            for arrival in self._queue:
                arrival.fail(gone)
            self._queue.clear()
            self._queued_events = 0
            self._answer_readers(gone)
            self._writer.shutdown(wait=True)

    def close(self) -> None:
        """Take nothing more; ``run`` returns when what waits is committed."""
        self._is_closing = True
        self._wake.set()

    async def _turn(self) -> None:
        opened = _Open()
        try:
            await self._fill(opened)
            await self._commit(opened)
        except _StepFailed as failed:
            await self._discard(opened, failed.arrival)

    async def _fill(self, opened: _Open) -> None:
        """Step what waits until the batch is large enough. Only this changes the state."""
        self._is_clean = False
        started_ms = self._clock.monotonic_ms()
        state = self._loaded()
        if self._is_due():
            self._tick_after_ms = 0
            await self._step_due(opened, state, started_ms)
        while self._queue and opened.steps < _BATCH_STEPS:
            if self._queue[0].is_alone and opened.arrivals:
                return
            arrival = self._take()
            opened.arrivals.append(arrival)
            for _ in self._steps(opened, arrival):
                await asyncio.sleep(0)
                self._step_short(opened)
            if arrival.is_alone or self._clock.monotonic_ms() - started_ms > _BATCH_MS:
                return

    async def _step_due(self, opened: _Open, state: State, started_ms: int) -> None:
        """What time has brought, as much as goes into a batch. Where somebody else has something to say meanwhile, some
        of it may not be true any more (who was silent has reported), so that it is looked for anew."""
        ticks = _Arrival([], None, None)
        opened.arrivals.append(ticks)
        while events := due(state, self.now()):
            ticks.makes = [_constant(event) for event in events]
            for _ in self._steps(opened, ticks):
                await asyncio.sleep(0)
                if opened.steps >= _BATCH_STEPS or self._clock.monotonic_ms() - started_ms > _BATCH_MS:
                    return
                if self._step_short(opened):
                    break
            else:
                return

    def _take(self) -> _Arrival:
        arrival = self._queue.popleft()
        self._queued_events -= len(arrival.makes)
        return arrival

    def _step_short(self, opened: _Open) -> bool:
        """Between two slices: the short arrivals at the head of the queue. Returns whether there were any."""
        for count in range(_SLICE_STEPS):
            if not self._queue or len(self._queue[0].makes) > _SHORT or self._queue[0].is_alone:
                return count > 0
            arrival = self._take()
            opened.arrivals.append(arrival)
            for _ in self._steps(opened, arrival):
                pass
        return True

    def _steps(self, opened: _Open, arrival: _Arrival) -> Iterator[None]:
        """Step an arrival; yields where the loop should get its turn. Raises _StepFailed."""
        needs_commit = arrival.side is not None
        if arrival.side is not None:
            opened.batch.sides.append(arrival.side)
        slice_ms, count = self._clock.monotonic_ms(), 0
        for make in arrival.makes:
            needs_commit |= self._step(opened, arrival, make)
            count += 1
            if count >= _SLICE_STEPS or self._clock.monotonic_ms() - slice_ms >= _SLICE_MS:
                yield
                slice_ms, count = self._clock.monotonic_ms(), 0
        if not needs_commit:
            arrival.resolve()  # a heartbeat that changed nothing: there is nothing to wait for
        yield

    def _step(self, opened: _Open, arrival: _Arrival, make: Make) -> bool:
        """Returns whether the answer must wait for the commit."""
        state = self._loaded()
        try:
            event = make(self.now())
            made = step(state, event)
            opened.steps += 1
            opened.batch.records.extend(made.records)
            if self._noted:
                self._note_ends(made.records)
            opened.effects.extend(made.effects)
            arrival.effects.extend(made.effects)
            if is_logged(event, made.records):
                opened.batch.events.extend(self._history.rows(event, made.records))
                if made.rejected:
                    opened.batch.verdicts.update(self._observer.annotate(state, made.rejected))
                return True
        except Exception as error:
            _log.exception("a step failed")
            raise _StepFailed(arrival) from error
        return any(not isinstance(effect, Void) or bool(effect.epochs) for effect in made.effects)

    async def _commit(self, opened: _Open) -> None:
        if not opened.batch.is_empty:
            here("plane.before_commit")
            try:
                await self._in_writer(lambda: self._store.commit(opened.batch))
            except StorageUnavailable as error:
                _log.error("a commit failed: %s", error.message)
                self._failure = error
                self._drop()
                for arrival in opened.arrivals:
                    arrival.fail(self._refusal())
                return
            except Exception:
                _log.exception("a batch can't be stored")
                await self._discard(opened, opened.arrivals[0] if len(opened.arrivals) == 1 else None)
                return
            here("plane.after_commit")
            here_each("commit.after_", lambda: carried(opened.batch))
        self._is_clean = True
        try:
            self._observer.committed(self._loaded(), opened.batch.records, opened.effects)
        except Exception:
            # Effects may be lost: workers and waiters derive them from the state when they ask again.
            _log.exception("effects of a commit were not released")
        if not opened.batch.is_empty:
            here("plane.before_reply")
        for arrival in opened.arrivals:
            arrival.resolve()
        self._answer_readers(None)

    async def _discard(self, opened: _Open, guilty: _Arrival | None) -> None:
        """A fault of ours: the state may be half changed. Refuse the guilty, and try the others again, alone."""
        self._drop()
        innocent = [arrival for arrival in opened.arrivals if arrival is not guilty and arrival.answer is not None]
        if guilty is not None:
            guilty.fail(InternalError("the control plane failed to handle this; its log says why"))
            if guilty.answer is None:
                self._tick_after_ms = self._clock.monotonic_ms() + _TICK_REST_MS
        for arrival in reversed(innocent):
            if arrival.answer is not None and not arrival.answer.done():
                arrival.effects.clear()
                arrival.is_alone = True
                self._queue.appendleft(arrival)
                self._queued_events += len(arrival.makes)
        try:
            await self.load()
        except StorageUnavailable as error:
            self._failure = error
            return
        self._answer_readers(None)

    def _drop(self) -> None:
        """The state has run ahead of the store, or is half changed. Who has reported to this process is known still."""
        if self._state is not None:
            self._heard = frozenset(worker.id for worker in self._state.workers.values() if worker.is_heard)
        self._state, self._is_clean = None, False

    async def _recover(self) -> bool:
        """Read-only: load the state for readers, and probe until a write succeeds. False when closing."""
        wait_s = _PROBE_FIRST_S
        while not self._is_closing:
            for arrival in self._queue:
                arrival.fail(self._refusal())
            self._queue.clear()
            self._queued_events = 0
            try:
                if self._state is None:
                    await self.load()
                self._answer_readers(None)
                await self._in_writer(self._store.probe)
                here("plane.after_probe")
                await self.load()  # so that nobody looks silent for the time in which nobody could report
            except StorageUnavailable as error:
                self._failure = error
                if self._state is None:
                    self._answer_readers(error)
            else:
                self._failure = None
                _log.warning("the store can be written again")
                return True
            self._wake.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), wait_s)
            wait_s = min(wait_s * 2, _PROBE_LAST_S)
        return False

    async def _sleep(self) -> None:
        """Until something arrives or the next deadline passes."""
        due_ms = next_due_ms(self._loaded())
        timeout_s = None
        if due_ms is not None:
            rest_ms = max(due_ms - self.now().ms, self._tick_after_ms - self._clock.monotonic_ms(), 1)
            timeout_s = min(rest_ms, BEAT_MS) / 1000
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), timeout_s)

    def _is_due(self) -> bool:
        due_ms = next_due_ms(self._loaded())
        return due_ms is not None and due_ms <= self.now().ms and self._clock.monotonic_ms() >= self._tick_after_ms

    def _answer_readers(self, error: GpulayerError | None) -> None:
        readers, self._readers = self._readers, []
        for read, answer in readers:
            if answer.done():
                continue
            if error is not None:
                answer.set_exception(error)
                continue
            try:
                answer.set_result(read(self._loaded()))
            except Exception as failure:
                answer.set_exception(failure)

    def _loaded(self) -> State:
        if self._state is None:
            raise self._refusal()
        return self._state

    def _refusal(self) -> StorageUnavailable:
        if self._failure is None:
            return StorageUnavailable("the control plane has not loaded its state yet", hint="try again in a moment")
        return StorageUnavailable(self._failure.message, hint=self._failure.hint)

    async def _in_writer(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._writer, call)


def _constant(event: Event) -> Make:
    return lambda _at: event
