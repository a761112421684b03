"""The simulated control plane: the real engine behind group commits, crashes, stops and reloads.

It plays the part of ``server/driver``: events wait, are stepped in micro-batches, and only what is committed is
answered; after a commit that failed it is read-only until the disk can be written, and after a sync that failed it
ends and is started again. It dies at every point of that. What it commits to is a ``SimStore``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpulayer import engine
from gpulayer.clock import Instant
from gpulayer.engine.effects import AskScorer, Assign, Effect
from gpulayer.engine.events import (
    CancelRequested,
    Event,
    JobSubmitted,
    KeepForPassed,
    LeaseExpired,
    OpinionsGiven,
    PlaneRestored,
    ScorersRegistered,
    WorkerReported,
    WorkerWentSilent,
)
from gpulayer.engine.invariants import InvariantViolated
from gpulayer.engine.records import AttemptImage, JobImage, Record
from gpulayer.errors import StorageUnavailable
from gpulayer.ids import Epoch, JobId, WorkerId
from gpulayer.server.history import History, is_logged
from gpulayer.server.mailbox import Mailboxes, Order, orders_of
from gpulayer.server.store import Batch, EventRow, Live
from gpulayer.spec.job import JobEntry, JobState
from gpulayer.testing.sim.clockwork import Clockwork, Timepiece
from gpulayer.testing.sim.keeping import check_kept
from gpulayer.testing.sim.rules import Ledger, Shrunk, Violation, check_after, check_detour, durable_view
from gpulayer.testing.sim.scenario import Fault, Trouble
from gpulayer.testing.sim.scorers import Said, SimScorers
from gpulayer.testing.sim.store import Rows, SimStore, submission_side
from gpulayer.testing.sim.troubles import DEATHS, NEED_PLANE
from gpulayer.testing.sim.words import counted, lasting

__all__ = ["PLANE", "Commands", "SimPlane"]

Reply = Callable[[tuple[Effect, ...] | None], None]  # None: 503, nothing was done
Commands = tuple[str, tuple[Order, ...]]  # cursor, orders
PLANE: Final = "plane"  # as an entity that has troubles
HOLD_MS: Final = 25_000
WHOLE_CHECK: Final = 64  # steps: so often everything is looked at, and not only what a step has touched
WHOLE_COMPARE: Final = 16  # commits: so often what is stored is compared with what is live
LEAST_SILENCE_MS: Final = 30_000  # the lease
AWAY_MS: Final = 11_500  # so long it notices that it was stopped, and looks once a second
REFUSED_MS: Final = 10_000  # who was refused for a commit that failed has tried again by then
_RESTART_MS: Final = 1_000
MOST_SILENCE_MS: Final = 45_000  # of one that is lent anything: the lease, its tenth, and what it takes to see that
_PROBE_MS: Final = (100, 5_000)


@dataclass(slots=True)
class _Waiting:
    make: Callable[[Instant], Event]
    reply: Reply
    key: str = ""
    entry: JobEntry | None = None
    cancels: JobId | None = None


_Done = list[tuple[_Waiting, engine.Step]]


@dataclass(slots=True)
class SimPlane:
    """``state`` is None while the plane is down. ``commit_failure``: probability that a commit fails. ``armed``: where
    it dies as soon as it gets there, and how long until it is started again. ``cancelled`` is told of every cancel of a
    live job, once that is committed; ``given_up`` of what a worker is thought to have ended by itself."""

    clock: Clockwork
    piece: Timepiece
    scorers: SimScorers
    store: SimStore
    ledger: Ledger
    cancelled: Callable[[JobId], None]
    given_up: Callable[[WorkerId, Epoch], None]
    commit_failure: float = 0.01
    armed: dict[Trouble, int] = field(default_factory=dict)
    state: engine.State | None = None
    incarnation: int = 0
    mailboxes: Mailboxes = field(default_factory=lambda: Mailboxes("0"))
    seats: dict[WorkerId, str] = field(default_factory=dict)  # who has it, of those with one folder; durable
    polls: dict[WorkerId, list[Callable[[], None]]] = field(default_factory=dict)
    _queue: list[_Waiting] = field(default_factory=list)
    _keys: set[str] = field(default_factory=set)  # of submissions under way
    _readers: list[Callable[[], None]] = field(default_factory=list)
    _is_committing: bool = False
    _is_read_only: bool = False
    _history: History = field(default_factory=History)
    _is_restored: bool = False  # when it starts next
    _under_way: tuple[list[Record], list[Effect]] | None = None  # stepped, and not known to be committed
    _origin_ms: int = 0
    _attention: engine.Attention = field(default_factory=engine.Attention)
    _late: list[Callable[[], None]] | None = None  # while it is stopped: what it will find
    _stopped_ms: int = 0  # since when
    _away_ms: int = 0  # in all, for how long
    _heard_ms: dict[WorkerId, int] = field(default_factory=dict)  # by the time that it listened
    _anew_ms: int = 0  # when everybody counted as heard of, by the same time
    _reported: set[WorkerId] = field(default_factory=set)  # to this start of it
    _stopping: set[WorkerId] = field(default_factory=set)  # they have said so to this state, and not started anew
    _shrunk: Shrunk = field(default_factory=Shrunk)
    _ends: dict[JobId, JobState] = field(default_factory=dict)  # of jobs, stepped by this state
    _stepped: int = 0
    _untold: list[tuple[Event, engine.Step]] = field(default_factory=list)  # for the story, once it has happened
    _commits: int = 0

    # Life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Load the live state from the store. Time goes on from the last commit, downtime not counted. Where the store
        can't be opened, whoever started it does so again."""
        if self.state is not None:
            return
        self.incarnation += 1
        try:
            is_kept = self.store.open()
            live = self.store.load()
            if is_kept and self._under_way is not None:
                self.ledger.committed(*self._under_way)
            self._under_way = None
            if self._is_restored:
                live = self._begin_generation(live)
        except StorageUnavailable as error:
            self.clock.say(f"control plane can't start: {error.message}")
            self.store.die()
            self.clock.after(_RESTART_MS, self.start)
            return
        self.state = self._of(live)
        self._origin_ms = self.piece.now_ms - self.state.now_ms
        self.mailboxes = Mailboxes(str(self.incarnation))
        self.polls.clear()
        self._queue.clear()
        self._keys.clear()
        self._readers.clear()
        self._heard_ms.clear()
        self._reported.clear()
        self._is_committing = self._is_read_only = False
        self._attention, self._late = engine.Attention(self.piece.now_ms), None
        jobs = counted(len(self.state.jobs), "live job")
        self.clock.say(f"start {self.incarnation} of the control plane, with {jobs}")
        engine.check(self.state, shrunk=self._shrunk.workers)
        for worker in self.state.workers:
            self._heard_ms[worker] = self._listened_ms
        self._after(1000, self._tick)

    def crash(self, why: str, restart_ms: int) -> None:
        """Memory is lost, the disk stays; after so long it starts again."""
        if self.state is None:
            return
        if why in DEATHS:  # the others were told already
            self.clock.say(DEATHS[why].format(lasts=lasting(restart_ms)))
        if why == Trouble.PLANE_LOSES_POWER and not self.store.keeps_events:
            why = Trouble.PLANE_DIES  # to what is in memory it makes no difference
        self.clock.fault(why, PLANE, lasts_ms=restart_ms)
        self.state = self._late = None
        if why == Trouble.PLANE_LOSES_POWER:
            self.store.lose_power()
        else:
            self.store.die()
        self._untold.clear()
        self.clock.after(restart_ms, self.start)

    def why_not(self, fault: Fault) -> str:
        """Why nothing would come of this one now; empty where something does."""
        if fault.kind in NEED_PLANE and self.state is None:
            return "it is not running"
        return "it does already" if fault.kind is Trouble.PLANE_STOPS and self._late is not None else ""

    def restore(self, restart_ms: int) -> None:
        """It ends, a backup is made, and the next one is restored from that."""
        self._is_restored = self._is_restored or self.state is not None
        self.crash(Trouble.PLANE_RESTORED, restart_ms)

    def _begin_generation(self, live: Live) -> Live:
        """As ``server.restoring`` does, in a store that nobody has seen yet."""
        state = self._of(live)
        first = state.next_epoch + state.next_seq
        event = PlaneRestored(Instant(state.now_ms, self.piece.wall_now_ms), first)
        result = engine.step(state, event)
        events = self._history.rows(event, result.records) if self.store.keeps_events else []
        self.store.commit(Batch(list(result.records), events, []))
        self._is_restored = False
        self.ledger.committed(result.records, result.effects)
        return self.store.load()

    def register(self, scorers: tuple[str, ...]) -> None:
        """From now on it has these, and every later start of it."""
        self.scorers.names = scorers
        self.arrive(lambda: self.handle(lambda at: ScorersRegistered(at, scorers), lambda _: None))

    @property
    def disk(self) -> Rows:
        """What is committed."""
        return self.store.rows

    def stop(self, lasts_ms: int) -> None:
        """Nothing runs; what is sent to it waits."""
        if self.state is None or self._late is not None:
            return
        self.clock.fault(Trouble.PLANE_STOPS, PLANE, lasts_ms=lasts_ms)
        self._late, self._stopped_ms, incarnation = [], self.piece.now_ms, self.incarnation
        self.clock.after(lasts_ms, lambda: self.go_on() if incarnation == self.incarnation else None)

    def go_on(self) -> None:
        """It was stopped: time has passed, and what has come meanwhile is unread."""
        late, self._late = self._late, None
        if late is None or self.state is None:
            return
        self.clock.say("the control plane goes on")
        if self.piece.now_ms - self._stopped_ms > AWAY_MS:
            self._away_ms += self.piece.now_ms - self._stopped_ms
        incarnation = self.incarnation
        self._look()
        for what in late:
            if incarnation == self.incarnation:
                self.arrive(what)

    def arrive(self, what: Callable[[], None]) -> None:
        """A message, or a moment that this process waited for. Lost while it is down."""
        if self._late is not None:
            self._late.append(what)
        elif self.state is not None:
            what()

    # Requests -----------------------------------------------------------------------------------------------------

    def submit(self, key: str, entry: JobEntry, reply: Callable[[JobId | None], None]) -> None:
        """A submission with its idempotency key: the same key is the same job, also while the first is under way."""
        known = self.disk.keys.get(key)
        if known is not None:
            reply(known)
            return
        if key in self._keys:
            return  # the real driver joins the two; here the client asks again
        self._keys.add(key)

        def answer(effects: tuple[Effect, ...] | None) -> None:
            reply(None if effects is None else entry.id)

        self._enqueue(_Waiting(lambda at: JobSubmitted(at, entry, self._ends_for(entry)), answer, key, entry))

    def _ends_for(self, entry: JobEntry) -> tuple[tuple[JobId, JobState], ...]:
        """As the product's routes note them: in the step that ends them, before that is committed."""
        assert self.state is not None
        gone = [after.job for after in entry.after if after.job not in self.state.jobs]
        return tuple((job_id, self._end_of(job_id)) for job_id in gone)

    def _end_of(self, job_id: JobId) -> JobState:
        return self._ends.get(job_id) or self.disk.jobs[job_id].state

    def handle(self, make: Callable[[Instant], Event], reply: Reply) -> None:
        """One event; ``reply`` is called once it is committed."""
        self._enqueue(_Waiting(make, reply))

    def cancel(self, job_id: JobId, reply: Callable[[bool], None]) -> None:
        """May be repeated."""
        self._enqueue(
            _Waiting(lambda at: CancelRequested(at, job_id), lambda effects: reply(effects is not None), cancels=job_id)
        )

    def poll(self, worker: WorkerId, cursor: str, reply: Callable[[Commands], None]) -> None:
        """The held GET of commands: what came after the cursor, or everything outstanding where it is not ours."""
        self._poll(worker, cursor, reply, self.piece.now_ms + HOLD_MS)

    def write(self, kind: str, worker: WorkerId, epoch: int, reply: Callable[[bool], None]) -> None:
        """Bytes for an attempt, and the fence: a yes needs no commit to wait for, a no does (``routes.workers``)."""
        if self.is_lent(worker, epoch):
            self.ledger.wrote(kind, worker, epoch, is_accepted=True)
            reply(True)
        elif self._is_committing:
            self._readers.append(lambda: self.write(kind, worker, epoch, reply))
        else:
            self.ledger.wrote(kind, worker, epoch, is_accepted=False)
            reply(False)

    @property
    def is_busy(self) -> bool:
        """Something waits to be stepped or to be committed."""
        return self._is_committing or bool(self._queue)

    def knows(self, worker: WorkerId) -> bool:
        """It has joined, and was not removed."""
        return self.state is not None and worker in self.state.workers

    def is_lent(self, worker: WorkerId, epoch: int) -> bool:
        """May this worker write for this attempt?"""
        known = self.state.workers.get(worker) if self.state is not None else None
        return known is not None and epoch in known.leases

    def _poll(self, worker: WorkerId, cursor: str, reply: Callable[[Commands], None], until_ms: int) -> None:
        if self.state is None or worker not in self.state.workers:
            return
        if self._is_committing:  # what is not committed yet must not be told
            self._readers.append(lambda: self._poll(worker, cursor, reply, until_ms))
            return
        if self.mailboxes.knows(worker, cursor):
            self.mailboxes.acknowledge(worker, cursor)
        else:
            self.mailboxes.reset(worker, orders_of(self.state, engine.outstanding(self.state, worker)))
        now, orders = self.mailboxes.waiting(worker)
        if orders or not cursor or self.piece.now_ms >= until_ms:
            reply((now, tuple(orders)))
            return

        def held() -> None:
            self._poll(worker, cursor, reply, until_ms)

        def let_go() -> None:
            if held in self.polls.get(worker, ()):
                self.polls[worker].remove(held)
                held()

        self.polls.setdefault(worker, []).append(held)
        self._after(until_ms - self.piece.now_ms, let_go)

    # Batches ------------------------------------------------------------------------------------------------------

    def _enqueue(self, waiting: _Waiting) -> None:
        self._queue.append(waiting)
        if not self._is_committing:
            self._batch()

    def _batch(self) -> None:
        if self.state is None or not self._queue:
            return
        if self._is_read_only:
            self._refuse(self._queue)
            return
        if self._struck(Trouble.PLANE_DIES_BEFORE_STEP):
            return
        self._look()
        batch, self._queue = self._queue, []
        at = self._instant()
        events: list[EventRow] = []
        done = [(waiting, self._step(waiting.make(at), events)) for waiting in batch]
        records = [record for _, result in done for record in result.records]
        self._is_committing = True
        if not records:
            self._tell()
            self._committed(done)
            return
        if self._struck(Trouble.PLANE_DIES_STEPPED):
            return
        dice = self.clock.dice("commit")
        is_noise = dice.random() < self.commit_failure
        if is_noise:
            self.clock.fault("commit_failed", PLANE, after_ms=REFUSED_MS)
        if is_noise:
            self._after(5, lambda: self._commit_failed(done))
        else:
            sides = [submission_side(waiting.key, waiting.entry) for waiting in batch if waiting.entry is not None]
            self._after(dice.spread_ms(3), lambda: self._commit(done, Batch(records, events, sides)))

    def _step(self, event: Event, events: list[EventRow]) -> engine.Step:
        assert self.state is not None
        match event:
            case WorkerReported():
                self._heard(event)
            case LeaseExpired() | KeepForPassed() | WorkerWentSilent():
                self._check_silence(event.worker)
            case _:
                pass
        kept = dict(self.state.reservations)
        result = engine.step(self.state, event)
        if self.store.keeps_events and is_logged(event, result.records):
            events += self._history.rows(event, result.records)
        if self.clock.story is not None:
            self._untold.append((event, result))
        for record in result.records:
            if isinstance(record, JobImage) and record.state.is_final:
                self._ends[record.id] = record.state
        self._check_step(event, result)
        check_kept(self.state, kept, event, result.effects)
        self._stepped += 1
        try:
            if self._stepped % WHOLE_CHECK:
                engine.check_touched(self.state, result.records, result.effects, shrunk=self._shrunk.workers)
            else:
                engine.check(self.state, result.effects, shrunk=self._shrunk.workers)
        except InvariantViolated:
            self._tell()
            raise
        return result

    def _tell(self) -> None:
        untold, self._untold = self._untold, []
        for event, result in untold:
            if self.clock.story is not None:
                self.clock.story.committed(self.clock.now_ms, event, result.records, result.effects)

    def _commit(self, done: _Done, batch: Batch) -> None:
        """A crash before this moment loses the batch, a crash after it loses only the answers."""
        self._under_way = batch.records, [effect for _, result in done for effect in result.effects]
        dies = Trouble.PLANE_DIES_IN_COMMIT in self.armed
        if dies and self.clock.dice("torn commit").random() < 0.5:
            self._struck(Trouble.PLANE_DIES_IN_COMMIT)
            return
        restart_ms = self.armed.pop(Trouble.PLANE_FSYNC_FAILS, _RESTART_MS)
        if restart_ms != _RESTART_MS:
            self.store.break_sync()
        try:
            self.store.commit(batch)
        except StorageUnavailable as error:
            if self.store.must_exit:
                self.clock.say(f"control plane ends: {error.message}")
                self.crash(Trouble.PLANE_FSYNC_FAILS, restart_ms)
            else:
                self._commit_failed(done)
            return
        self._tell()
        self.ledger.committed(*self._under_way)
        self._under_way = None
        if not (self._struck(Trouble.PLANE_DIES_IN_COMMIT) or self._struck(Trouble.PLANE_DIES_COMMITTED)):
            self._after(1, lambda: self._committed(done))

    def _committed(self, done: _Done) -> None:
        self._is_committing = False
        self._commits += 1
        if self._commits % WHOLE_COMPARE == 0:
            self.compare_with_disk()
        assert self.state is not None
        effects = [effect for _, result in done for effect in result.effects]
        records = [record for _, result in done for record in result.records]
        changed = self.mailboxes.deliver(self.state, records, effects)
        for waiting, result in done:
            self._keys.discard(waiting.key)
            waiting.reply(result.effects)
            if waiting.cancels is not None and waiting.cancels in self.state.jobs:
                self.cancelled(waiting.cancels)
        if records and self._struck(Trouble.PLANE_DIES_ANSWERED):
            return
        for effect in effects:
            if isinstance(effect, AskScorer):
                self._ask(effect)
        for worker in sorted(changed):
            for held in self.polls.pop(worker, ()):
                held()
        self._answer_readers()
        self._batch()

    def _ask(self, asked: AskScorer) -> None:
        def give(lifetime_ms: int, said: Said) -> None:
            self.arrive(
                lambda: self.handle(
                    lambda at: OpinionsGiven(at, asked.scorer, asked.request, lifetime_ms, said), lambda _effects: None
                )
            )

        self.scorers.ask(asked, give)

    def _commit_failed(self, done: _Done) -> None:
        """Discard and reload, for the state has run ahead of what is stored; and read only until a probe succeeds."""
        self.clock.say("a commit of the control plane fails: what was in it has not happened")
        self._is_committing, self._is_read_only = False, True
        self._untold.clear()
        self._reload()
        self._refuse([waiting for waiting, _ in done])
        self._refuse(self._queue)
        self._answer_readers()
        self._probe(_PROBE_MS[0])

    def _probe(self, wait_ms: int) -> None:
        try:
            self.store.probe()
        except StorageUnavailable:
            if self.store.must_exit:
                self.crash(Trouble.PLANE_FSYNC_FAILS, _RESTART_MS)
                return
            self._after(wait_ms, lambda: self._probe(min(2 * wait_ms, _PROBE_MS[1])))
            return
        self._is_read_only = False
        self._reload()
        self._batch()

    def _reload(self) -> None:
        assert self.state is not None
        heard = [worker.id for worker in self.state.workers.values() if worker.is_heard]
        now_ms = self._instant().ms
        self.state = self._of(self.store.load(), heard)
        engine.hear_anew(self.state, now_ms)
        self._anew_ms = self._listened_ms

    def _refuse(self, refused: list[_Waiting]) -> None:
        several, refused[:] = list(refused), []
        for waiting in several:
            self._keys.discard(waiting.key)
            waiting.reply(None)

    def _answer_readers(self) -> None:
        readers, self._readers = self._readers, []
        for read in readers:
            read()

    # Time ---------------------------------------------------------------------------------------------------------

    def _after(self, delay_ms: int, what: Callable[[], None]) -> None:
        """In this life, and later where it is stopped then."""
        incarnation = self.incarnation
        self.piece.after(delay_ms, lambda: self.arrive(what) if incarnation == self.incarnation else None)

    def _instant(self) -> Instant:
        return Instant(self.piece.now_ms - self._origin_ms, self.piece.wall_now_ms)

    def _look(self) -> None:
        assert self.state is not None
        if self._attention.was_away(self.piece.now_ms):
            engine.hear_anew(self.state, self._instant().ms)
            self._anew_ms = self._listened_ms

    def _tick(self) -> None:
        self._look()
        if not self._is_committing and not self._is_read_only and self.state is not None:
            for event in engine.due(self.state, self._instant()):
                self._queue.append(_Waiting(lambda _, event=event: event, lambda _: None))  # type: ignore[misc]
            self._batch()
        self._after(1000, self._tick)

    def _struck(self, point: Trouble) -> bool:
        """Whether it dies here."""
        restart_ms = self.armed.pop(point, None)
        if restart_ms is None:
            return False
        self.crash(point, restart_ms)
        return True

    # Rules --------------------------------------------------------------------------------------------------------

    @property
    def _listened_ms(self) -> int:
        return self.piece.now_ms - self._away_ms

    def _heard(self, event: WorkerReported) -> None:
        assert self.state is not None
        known = self.state.workers.get(event.worker)
        if known is None or (event.boot, event.seq) <= (known.boot, known.seq):
            return  # it comes late or twice, and says nothing of now
        self._heard_ms[event.worker] = self._listened_ms
        self._reported.add(event.worker)
        if event.stopping:
            self._stopping.add(event.worker)
        elif event.boot > known.boot:
            self._stopping.discard(event.worker)
        facts = event.facts or known.facts
        self._shrunk.report(known, facts)

    def _check_step(self, event: Event, result: engine.Step) -> None:
        """What is lent goes to who is there, and not once it was cancelled; what can't run again is waited for."""
        assert self.state is not None
        for effect in result.effects:
            if isinstance(effect, Assign):
                lent = f"job {effect.job_id} is lent to {effect.worker}"
                silent_ms = self._listened_ms - max(self._heard_ms.get(effect.worker, 0), self._anew_ms)
                if effect.worker not in self._reported or silent_ms > MOST_SILENCE_MS:
                    raise Violation(f"{lent}, which is not heard", promise=3)
                if effect.worker in self._stopping or self.state.workers[effect.worker].is_draining:
                    raise Violation(f"{lent}, which is to take nothing more", promise=13)
                if not self.scorers.names:
                    task = effect.job_id, self.state.attempts[effect.epoch].task_index
                    check_detour(self.state, self.ledger.last_of(task, result.records), effect)
                check_after(self.state, effect.job_id, self._end_of)
                if self.state.jobs[effect.job_id].stop is not None:
                    raise Violation(f"{lent}, and was cancelled", promise=8)
        if not isinstance(event, LeaseExpired | KeepForPassed):
            return
        for record in result.records:
            if isinstance(record, AttemptImage) and record.epoch == event.epoch and record.outcome is not None:
                entry = self.disk.entries[record.job_id]
                silent_ms = self._listened_ms - self._heard_ms.get(event.worker, 0)
                is_last = isinstance(event, KeepForPassed) or entry.retries == 0
                if isinstance(event, KeepForPassed) or entry.exclusive:
                    self.given_up(event.worker, event.epoch)
                wanted_ms = 0 if entry.exclusive or not is_last else entry.keep_for_ms
                if record.stop is None and silent_ms < wanted_ms * LEAST_SILENCE_MS // 33_000:
                    heard = f"{lasting(silent_ms)} after it heard {event.worker}, not {lasting(wanted_ms)}"
                    raise Violation(f"the control plane gives job {record.job_id} up {heard}", promise=6)

    def _check_silence(self, worker: WorkerId) -> None:
        silent_ms = self._listened_ms - self._heard_ms.get(worker, self._listened_ms)
        if silent_ms < LEAST_SILENCE_MS:
            heard = f"{lasting(silent_ms)} ago: its lease is {lasting(LEAST_SILENCE_MS)}"
            raise Violation(f"{worker} is taken for silent, and was heard {heard}", promise=11)

    def compare_with_disk(self) -> None:
        """What would be loaded now is what is live: nothing that scheduling needs lives in memory alone. Only while
        nothing is on its way to the disk."""
        assert self.state is not None
        engine.check(self.state, shrunk=self._shrunk.workers)
        live, stored = durable_view(self.state), durable_view(self._of(self.disk.live(), is_told=False))
        if live != stored:
            differing = [name for name in live if live[name] != stored[name]]
            how = f"{differing}: {live[differing[0]]} != {stored[differing[0]]}"
            raise Violation(f"the stored state is not the live state: {how}", promise=1)

    def _of(self, live: Live, heard: Sequence[WorkerId] = (), *, is_told: bool = True) -> engine.State:
        """is_told: the event log goes on from here."""
        if is_told:
            self._ends.clear()
            self._stopping.clear()  # which of a start's reports was its last is not stored: a late one counts anew
        if is_told and self.store.keeps_events:
            self._history.restart((image for _, image in live.jobs), live.attempts)
        return engine.rebuild(
            engine.Policy(scorers=self.scorers.names),
            live.counters,
            jobs=live.jobs,
            waiting=live.waiting,
            tasks=live.tasks,
            attempts=live.attempts,
            workers=live.workers,
            facts=live.facts,
            heard=heard,
        )
