"""The simulated control plane: the real engine behind group commits, crashes and reloads.

It plays the part of ``server/driver``: events wait, are stepped in micro-batches, and only what is committed is
answered. What it is committed to is a ``SimStore``. After a commit that failed nothing is taken until a probe succeeds;
after a failed sync the process ends and is started again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gpulayer import engine
from gpulayer.clock import Instant
from gpulayer.engine.effects import AskScorer, Effect
from gpulayer.engine.events import Event, JobSubmitted, OpinionsGiven
from gpulayer.errors import StorageUnavailable
from gpulayer.ids import JobId, WorkerId
from gpulayer.server.history import History, is_logged
from gpulayer.server.mailbox import Mailboxes, Order, orders_of
from gpulayer.server.store import Batch, EventRow, Live
from gpulayer.spec.job import JobEntry
from gpulayer.testing.sim.clockwork import Clockwork
from gpulayer.testing.sim.rules import Violation, durable_view
from gpulayer.testing.sim.scorers import Said, SimScorers
from gpulayer.testing.sim.store import Ledger, MemoryStore, SimStore, submission_side

__all__ = ["Commands", "SimPlane"]

Reply = Callable[[tuple[Effect, ...] | None], None]  # None: 503, nothing was done
Commands = tuple[str, tuple[Order, ...]]  # cursor, orders
WALL_MS = 1_700_000_000_000


@dataclass(slots=True)
class _Waiting:
    make: Callable[[Instant], Event]
    reply: Reply
    key: str = ""
    entry: JobEntry | None = None


@dataclass(slots=True)
class SimPlane:
    """``commit_failure``: probability that a commit fails. ``state`` is None while the plane is down."""

    clock: Clockwork
    scorers: SimScorers = field(init=False)
    commit_failure: float = 0.01
    store: SimStore = field(default_factory=MemoryStore)
    state: engine.State | None = None
    incarnation: int = 0
    faults: int = 0
    mailboxes: Mailboxes = field(default_factory=lambda: Mailboxes("0"))
    polls: dict[WorkerId, Callable[[], None]] = field(default_factory=dict)
    _queue: list[_Waiting] = field(default_factory=list)
    _keys: set[str] = field(default_factory=set)  # of submissions under way
    _readers: list[Callable[[], None]] = field(default_factory=list)
    _is_committing: bool = False
    _is_read_only: bool = False
    _history: History = field(default_factory=History)
    _origin_ms: int = 0

    def __post_init__(self) -> None:
        self.scorers = SimScorers(self.clock)

    def start(self) -> None:
        """Load the live state from the store. Time goes on from the last commit, downtime not counted. Where the store
        can't be opened, it is tried again until it can."""
        self.incarnation += 1
        incarnation = self.incarnation
        try:
            self.store.open()
            live = self.store.load()
        except StorageUnavailable as error:
            self.clock.say(f"control plane can't start: {error.message}")
            self.store.die()
            self.clock.after(1000, lambda: self.start() if incarnation == self.incarnation else None)
            return
        self._history.restart((image for _, image in live.jobs), live.attempts)
        self.state = self._of(live)
        self._is_read_only = False
        self._origin_ms = self.clock.now_ms - self.state.now_ms
        self.mailboxes = Mailboxes(str(self.incarnation))
        self.polls.clear()
        self._queue.clear()
        self._keys.clear()
        self._readers.clear()
        self._is_committing = False
        self.clock.say(f"control plane starts, incarnation {self.incarnation}: {len(self.state.jobs)} live jobs")
        self.clock.after(1000, lambda: self._tick(incarnation))

    @property
    def disk(self) -> Ledger:
        """What is committed."""
        return self.store.ledger

    def crash(self) -> None:
        """Memory is lost, the disk stays; ``start`` brings it back."""
        self.clock.say("control plane dies")
        self.faults += 1
        self.state = None
        self.store.die()

    def lose_power(self) -> None:
        """Memory is lost, and what was not synced."""
        self.clock.say("control plane loses power")
        self.faults += 1
        self.state = None
        self.store.lose_power()

    def submit(self, key: str, entry: JobEntry, reply: Callable[[JobId | None], None]) -> None:
        """A submission with its idempotency key: the same key is the same job, also while the first is under way."""
        if self.state is None:
            return
        known = self.disk.keys.get(key)
        if known is not None:
            reply(known)
            return
        if key in self._keys:
            return  # the real driver joins the two; here the client asks again
        self._keys.add(key)
        self._enqueue(
            _Waiting(
                lambda at: JobSubmitted(at, entry),
                lambda effects: reply(None if effects is None else entry.id),
                key,
                entry,
            )
        )

    def handle(self, make: Callable[[Instant], Event], reply: Reply) -> None:
        """One event; ``reply`` is called once it is committed. Lost while the plane is down."""
        if self.state is not None:
            self._enqueue(_Waiting(make, reply))

    def poll(self, worker: WorkerId, cursor: str, reply: Callable[[Commands], None]) -> None:
        """The held GET of commands: what came after the cursor, or everything outstanding where it is not ours."""
        if self.state is None or worker not in self.state.workers:
            return
        if self._is_committing:  # what is not committed yet must not be told
            self._readers.append(lambda: self.poll(worker, cursor, reply))
            return
        if self.mailboxes.knows(worker, cursor):
            self.mailboxes.acknowledge(worker, cursor)
        else:
            self.mailboxes.reset(worker, orders_of(self.state, engine.outstanding(self.state, worker)))
        now, orders = self.mailboxes.waiting(worker)
        if orders or not cursor:
            reply((now, tuple(orders)))
        else:
            self.polls[worker] = lambda: self.poll(worker, cursor, reply)

    @property
    def all_faults(self) -> int:
        """Its own, and those of its scorers."""
        return self.faults + self.scorers.faults

    @property
    def is_busy(self) -> bool:
        """Something waits to be stepped or to be committed."""
        return self._is_committing or bool(self._queue)

    def is_lent(self, worker: WorkerId, epoch: int) -> bool:
        """May this worker write for this attempt? The fence of logs and outputs."""
        known = self.state.workers.get(worker) if self.state is not None else None
        return known is not None and epoch in known.leases

    def _enqueue(self, waiting: _Waiting) -> None:
        if self._is_read_only:
            self._keys.discard(waiting.key)
            waiting.reply(None)
            return
        self._queue.append(waiting)
        if not self._is_committing:
            self._batch()

    def _batch(self) -> None:
        if self.state is None or not self._queue:
            return
        batch, self._queue = self._queue, []
        at = Instant(self.clock.now_ms - self._origin_ms, self.clock.now_ms + WALL_MS)
        done = []
        events: list[EventRow] = []
        for waiting in batch:
            event = waiting.make(at)
            result = engine.step(self.state, event)
            if self.store.keeps_events and is_logged(event, result.records):
                events += self._history.rows(event, result.records)
            self.clock.say(f"engine: {event}")
            engine.check(self.state, result.effects)
            done.append((waiting, result))
        records = [record for _, result in done for record in result.records]
        self._is_committing = True
        incarnation = self.incarnation
        if not records:
            self._committed(done, incarnation)
            return
        if self.clock.chance(self.commit_failure):
            self.faults += 1
            self.clock.after(5, lambda: self._commit_failed(done, incarnation))
            return

        def commit() -> None:
            # A crash before this moment loses the batch, a crash after it loses only the answers.
            if incarnation != self.incarnation or self.state is None:
                return
            sides = [submission_side(waiting.key, waiting.entry) for waiting, _ in done if waiting.entry is not None]
            try:
                self.store.commit(Batch(records, events, sides))
            except StorageUnavailable as error:
                self._store_failed(done, error, incarnation)
            else:
                self.clock.after(1, lambda: self._committed(done, incarnation))

        self.clock.after(self.clock.spread_ms(3), commit)

    def _committed(self, done: list[tuple[_Waiting, engine.Step]], incarnation: int) -> None:
        if incarnation != self.incarnation or self.state is None:
            return
        self._is_committing = False
        self._compare_with_disk()
        assert self.state is not None
        effects = [effect for _, result in done for effect in result.effects]
        records = [record for _, result in done for record in result.records]
        changed = self.mailboxes.deliver(self.state, records, effects)
        for effect in effects:
            if isinstance(effect, AskScorer):
                self._ask(effect)
        for waiting, result in done:
            self._keys.discard(waiting.key)
            waiting.reply(result.effects)
        for worker in sorted(changed):
            held = self.polls.pop(worker, None)
            if held is not None:
                held()
        self._answer_readers()
        self._batch()

    def _ask(self, asked: AskScorer) -> None:
        def give(lifetime_ms: int, said: Said) -> None:
            self.handle(
                lambda at: OpinionsGiven(at, asked.scorer, asked.request, lifetime_ms, said), lambda _effects: None
            )

        self.scorers.ask(asked, give)

    def _store_failed(
        self, done: list[tuple[_Waiting, engine.Step]], error: StorageUnavailable, incarnation: int
    ) -> None:
        self.faults += 1
        if self.store.must_exit:
            self.clock.say(f"control plane ends, for a sync failed: {error.message}")
            self.state = None
            self.store.die()
            self.clock.after(self.clock.spread_ms(2_000), lambda: self._again(incarnation))
            return
        self.clock.say(f"control plane is read-only: {error.message}")
        self._is_read_only = True
        self._commit_failed(done, incarnation)
        self.clock.after(100, lambda: self._probe(incarnation, 200))

    def _again(self, incarnation: int) -> None:
        if incarnation == self.incarnation and self.state is None:
            self.start()

    def _probe(self, incarnation: int, wait_ms: int) -> None:
        if incarnation != self.incarnation or self.state is None:
            return
        try:
            self.store.probe()
        except StorageUnavailable as error:
            if self.store.must_exit:
                self._store_failed([], error, incarnation)
            else:
                self.clock.after(wait_ms, lambda: self._probe(incarnation, min(wait_ms * 2, 5_000)))
            return
        self.clock.say("control plane can write again")
        self._is_read_only = False
        self._commit_failed([], incarnation)  # loads anew, so that nobody looks silent for that time

    def _commit_failed(self, done: list[tuple[_Waiting, engine.Step]], incarnation: int) -> None:
        """Discard and reload: the state has run ahead of what is stored."""
        if incarnation != self.incarnation or self.state is None:
            return
        self.clock.say("commit failed: state discarded, reloaded")
        now_ms = self.state.now_ms
        heard = [worker.id for worker in self.state.workers.values() if worker.is_heard]
        live = self.store.load()
        self._history.restart((image for _, image in live.jobs), live.attempts)
        self.state = self._of(live, heard)
        self.state.now_ms = max(self.state.now_ms, now_ms)
        for worker in self.state.workers.values():
            worker.heard_ms = self.state.now_ms
        self._is_committing = False
        refused = [waiting for waiting, _ in done]
        if self._is_read_only:
            refused += self._queue
            self._queue = []
        for waiting in refused:
            self._keys.discard(waiting.key)
            waiting.reply(None)
        self._answer_readers()
        self._batch()

    def _answer_readers(self) -> None:
        readers, self._readers = self._readers, []
        for read in readers:
            read()

    def _tick(self, incarnation: int) -> None:
        if incarnation != self.incarnation or self.state is None:
            return
        if not self._is_committing and not self._is_read_only:
            at = Instant(self.clock.now_ms - self._origin_ms, 0)
            for event in engine.due(self.state, at):
                self._queue.append(_Waiting(lambda _, event=event: event, lambda _: None))  # type: ignore[misc]
            self._batch()
        self.clock.after(1000, lambda: self._tick(incarnation))

    def _of(self, live: Live, heard: Sequence[WorkerId] = ()) -> engine.State:
        return engine.rebuild(
            engine.Policy(scorers=self.scorers.names),
            live.counters,
            jobs=live.jobs,
            tasks=live.tasks,
            attempts=live.attempts,
            workers=live.workers,
            facts=live.facts,
            heard=heard,
        )

    def _compare_with_disk(self) -> None:
        """What would be loaded now is what is live: nothing that scheduling needs lives in memory alone."""
        assert self.state is not None
        live, stored = durable_view(self.state), durable_view(self._of(self.store.ledger.live()))
        if live != stored:
            differing = [name for name in live if live[name] != stored[name]]
            raise Violation(
                f"the stored state is not the live state: {differing}: {live[differing[0]]} != {stored[differing[0]]}"
            )
