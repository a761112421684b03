"""The real store on a simulated disk: power cuts, full disks, and errors at every call that it makes.

A stream of the engine's own batches goes into the product's ``Store``, whose files lose at a power cut what was not
synced. Whenever it is opened anew, all that was acknowledged is there, no batch is there by half, and SQLite finds
nothing damaged (``gpulayer.testing.sim.store`` looks).
"""

import copy
import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

from gpulayer import engine
from gpulayer.clock import Instant
from gpulayer.engine.events import (
    CancelRequested,
    DrainRequested,
    Event,
    JobSubmitted,
    NodePhase,
    NodeReport,
    WorkerJoined,
    WorkerReported,
    WorkerResumed,
)
from gpulayer.errors import Blame, GpulayerError, StorageUnavailable
from gpulayer.ids import Digest, JobId, WorkerId
from gpulayer.server.history import History, is_logged
from gpulayer.server.store import AuditEntry, Batch, IdempotencyRow, JobRow, Side, Store, TokenRow
from gpulayer.server.store import disk as disk_
from gpulayer.server.store import store as store_
from gpulayer.server.store.schema import alembic_config
from gpulayer.spec.job import JobEntry, JobSpec, RetryOn
from gpulayer.spec.machine import WorkerFacts
from gpulayer.spec.outcome import EndedBy, Outcome
from gpulayer.testing.sim.disk import DiskFault, DiskOp, SimDisk
from gpulayer.testing.sim.rules import Violation
from gpulayer.testing.sim.store import STORE_PATH, SqliteStore
from gpulayer.wire.convert import spec_to_wire
from tests.soak.frame import Proof, Say, Tally

CUTS_A_DISK: Final = 8
MOST_COMMITS: Final = 20
SHORT_LOG_PAGES: Final = 40
WALL_MS: Final = 1_700_000_000_000


class Stream:
    """What a control plane would write, at random: jobs with their keys and audit, workers, reports, cancels, now and
    then a token. ``turn`` steps some of it, ``commit`` writes it, ``reload`` begins from what is stored."""

    def __init__(self, rng: Random, store: SqliteStore) -> None:
        self._rng = rng
        self._store = store
        self._history = History()
        self._batch = Batch()
        self._ms = 0
        rows = store.rows
        self._number = max([0, *(int(job, 16) for job in rows.entries), *map(int, rows.tokens)])
        self._seqs: dict[WorkerId, int] = {}
        self._state = engine.State()
        self.reload()

    def reload(self) -> None:
        live = self._store.load()
        self._history.restart((image for _, image in live.jobs), live.attempts)
        self._batch = Batch()
        self._state = engine.rebuild(
            engine.Policy(),
            live.counters,
            jobs=live.jobs,
            waiting=live.waiting,
            tasks=live.tasks,
            attempts=live.attempts,
            workers=live.workers,
            facts=live.facts,
        )
        engine.check(self._state)

    def commit(self) -> None:
        batch, self._batch = self._batch, Batch()
        self._store.commit(batch)

    def probe(self) -> None:
        self._store.probe()

    def turn(self) -> None:
        rng, state = self._rng, self._state
        for event in engine.due(state, self._at()):
            self._apply(event)
        match rng.randrange(8):
            case 0 | 1 | 2:
                self._submit()
            case 3:
                number, room = rng.randrange(4), rng.randrange(3)
                worker, digest = WorkerId(f"w{number}"), Digest(f"{number % 2 * 10 + room:064x}")
                facts = WorkerFacts("linux", "1", 2 + number % 2, 2**33, disk_bytes=room * 10**9)
                self._apply(WorkerJoined(self._at(), worker, worker, facts, digest))
            case 4 if state.jobs:
                self._apply(CancelRequested(self._at(), rng.choice(list(state.jobs)), None, "somebody"))
            case 5 if state.workers:
                kind = rng.choice((DrainRequested, WorkerResumed, WorkerResumed))
                self._apply(kind(self._at(), rng.choice(list(state.workers))))
            case 6:
                self._number += 1
                row = TokenRow(f"{self._number:012d}", "client", "t", "hash", 0, None)
                told = AuditEntry(self._ms, "somebody", "token.make", row.id, "{}")
                self._batch.sides.append(Side(tokens=(row,), audit=(told,)))
            case _ if state.workers:
                self._report(rng.choice(list(state.workers)))
            case _:
                pass

    def _submit(self) -> None:
        rng = self._rng
        self._number += 1
        spec = JobSpec(
            command=("run",),
            env=(("PAYLOAD", "x" * rng.choice((0, 100, 3_000, 40_000))),),  # so that SQLite's log is written back often
            retries=rng.randrange(3),
            retry_on=rng.choice(list(RetryOn)),
            priority=rng.randrange(3),
        )
        job_id = JobId(f"{self._number:016x}")
        row = JobRow(job_id, "owner", "owner", "test", self._ms, spec, spec_to_wire(spec))
        key = IdempotencyRow("owner", f"key {self._number}", "digest", (job_id,), self._ms)
        told = AuditEntry(self._ms, "somebody", "job.submit", job_id, "{}")
        self._batch.sides.append(Side(jobs=(row,), idempotency=(key,), audit=(told,)))
        self._apply(JobSubmitted(self._at(), JobEntry.of(job_id, "owner", spec)))

    def _report(self, worker_id: WorkerId) -> None:
        rng, worker = self._rng, self._state.workers[worker_id]
        items = []
        for epoch, node in worker.leases.items():
            phase = rng.choice((NodePhase.STAGING, NodePhase.RUNNING, NodePhase.ENDED))
            if phase is NodePhase.RUNNING and epoch in self._state.ahead.get(worker_id, ()):
                continue  # a worker starts what it has room for
            outcome = Outcome(EndedBy.PROGRAM, rng.choice((0, 1)), None, "seen", rng.choice(list(Blame)))
            items.append(NodeReport(epoch, node, phase, outcome if phase is NodePhase.ENDED else None, None))
        seq = self._seqs[worker_id] = self._seqs.get(worker_id, 0) + 1
        holding = tuple(worker.leases)
        boot = max(worker.boot, 1)
        self._apply(WorkerReported(self._at(), worker_id, boot, seq, holding, None, tuple(items)))

    def _apply(self, event: Event) -> None:
        made = engine.step(self._state, event)
        self._batch.records.extend(made.records)
        if is_logged(event, made.records):
            self._batch.events.extend(self._history.rows(event, made.records))

    def _at(self) -> Instant:
        self._ms = max(self._ms, self._state.now_ms) + self._rng.choice((1, 100, 5_000))
        return Instant(self._ms, WALL_MS + self._ms)


def cut_power(runs: int, *, seed: int, say: Say, most: int = MOST_COMMITS) -> Tally:
    """``runs`` power cuts, several to a disk, with at most so many commits before each."""
    tally, number = Tally(), 0
    while tally.runs < runs:
        rng = Random(f"power {seed} {number}")
        try:
            _life_of_a_disk(rng, tally, min(CUTS_A_DISK, runs - tally.runs), most)
        except (AssertionError, GpulayerError) as error:
            tally.violations.append(f"disk {number} of seed {seed}, power cut {tally.runs}: {error}")
            tally.runs += 1
        number += 1
        say(f"{tally.runs:,} of {runs:,} power cuts")
    return tally


def _life_of_a_disk(rng: Random, tally: Tally, cuts: int, most: int) -> None:
    store = SqliteStore(rng)
    try:
        _make(rng, store)
        stream = Stream(rng, store)
        for _ in range(cuts):
            if rng.random() < 0.5:
                tally.faults += _fail_one_sync(rng, store, stream)
            for _ in range(rng.randrange(1, most + 1)):
                for _ in range(rng.choice((1, 1, 3, 30))):
                    stream.turn()
                stream.commit()
                if rng.random() < 1 / most:
                    tally.faults += _fail_for_a_while(rng, store, stream)
            tally.runs += 1
            tally.faults += 1
            _cut(rng, store, stream)
            store.open()
            stream.reload()
    finally:
        store.close()


def _make(rng: Random, store: SqliteStore) -> None:
    """Often on a disk that fails a sync just then: not all of SQLite's own are looked at by it."""
    if rng.random() < 0.5:
        store.disk.inject(DiskFault(DiskOp.SYNC, at=rng.randrange(1, 8)))
    try:
        store.open()
    except StorageUnavailable:
        store.die()
        store.open()
    store.heal()


def _fail_one_sync(rng: Random, store: SqliteStore, stream: Stream) -> bool:
    """At the first commit after a start: one of its syncs is that of the name of SQLite's log, and SQLite does not look
    whether it worked. Whether anything failed by it."""
    store.disk.inject(DiskFault(DiskOp.SYNC, at=rng.randrange(1, 5)))
    try:
        stream.turn()
        stream.commit()
        has_failed = store.must_exit
    except StorageUnavailable:
        has_failed = True
    if has_failed:
        _go_on(store)
        stream.reload()
    store.heal()
    return has_failed


def _fail_for_a_while(rng: Random, store: SqliteStore, stream: Stream) -> bool:
    """As the driver: after a sync that failed the process ends, after another error it is read-only until a probe
    succeeds. Whether anything failed by it."""
    has_failed = False
    trouble = rng.choice((store.fail_writes, store.fail_writes, store.break_sync, store.break_sync))
    trouble()
    try:
        for _ in range(10):
            stream.turn()
            stream.commit()
    except StorageUnavailable:
        if trouble == store.break_sync and not store.must_exit:
            raise Violation("a sync failed, and the process goes on") from None
        has_failed = True
        _go_on(store)
        stream.reload()
    store.heal()
    return has_failed


def _go_on(store: SqliteStore) -> None:
    if store.must_exit:
        store.die()
        store.heal()
        store.open()
    else:
        _until_writable(store)


def _until_writable(store: SqliteStore) -> None:
    for _ in range(3):
        try:
            store.probe()
        except StorageUnavailable:
            if store.must_exit:
                store.die()
                store.heal()
                store.open()
                return
        else:
            return
    store.heal()
    store.probe()


def _cut(rng: Random, store: SqliteStore, stream: Stream) -> None:
    """Between two commits, or at any call of one, of a clean end or of a start."""
    moment = rng.choice(("idle", "commit", "commit", "end", "start"))
    if moment == "start":
        store.lose_power()
    store.disk.inject(*(DiskFault(op, at=rng.randrange(1, 12), calls=None) for op in (DiskOp.WRITE, DiskOp.SYNC)))
    try:
        match moment:
            case "commit":
                for _ in range(rng.choice((1, 1, 3, 30))):
                    stream.turn()
                stream.commit()
            case "end":
                store.end()
            case "start":
                store.open()
            case _:
                pass
    except StorageUnavailable:
        pass
    store.heal()
    store.lose_power()


# At every call.


@dataclass(frozen=True, slots=True)
class Call:
    """The ``at``-th call of its kind fails, and with ``lasts`` all after it, until somebody mends the disk.
    loses_power: after the error; else the process goes on or ends, as the product's does."""

    op: DiskOp
    at: int
    number: int
    lasts: bool
    loses_power: bool


def fail_each_call(runs: int, *, seed: int, say: Say) -> Tally:
    """A fixed workload (open, migrate, commit, write the log back, probe, end, open again), and an error at each read,
    write and sync of it. With fewer runs than there are calls: some of them, spread evenly."""
    with _short_log():
        return _fail_each_call(runs, seed, say)


@contextmanager
def _short_log() -> Iterator[None]:
    """SQLite writes its log back after so few pages that a short workload gets there."""
    usual, store_._LOG_PAGES = store_._LOG_PAGES, SHORT_LOG_PAGES  # type: ignore[misc]
    try:
        yield
    finally:
        store_._LOG_PAGES = usual  # type: ignore[misc]


def _fail_each_call(runs: int, seed: int, say: Say) -> Tally:
    tally = Tally()
    old = _old_disk()
    calls = _calls(old)
    step = max(1.0, len(calls) / runs)
    chosen = [calls[int(place * step)] for place in range(min(runs, len(calls)))]
    for done, call in enumerate(chosen, 1):
        tally.runs += 1
        tally.faults += 1
        try:
            _workload(old, call, seed)
        except (AssertionError, GpulayerError) as error:
            tally.violations.append(f"{call}: {error}")
        say(f"{done:,} of {len(chosen):,} calls")
    return tally


def _calls(old: SimDisk) -> list[Call]:
    counts = _workload(old, None, 0)
    made = []
    ways = {DiskOp.READ: (False, True), DiskOp.WRITE: (False, True, False), DiskOp.SYNC: (False, True, False, True)}
    for op, lasting in ways.items():
        for at in range(1, counts[op] + 1):
            for number in (errno.EIO, errno.ENOSPC) if op is DiskOp.WRITE else (errno.EIO,):
                made += [Call(op, at, number, lasts, place > 1) for place, lasts in enumerate(lasting)]
    return made


def _old_disk() -> SimDisk:
    """A store of an older version, at rest."""
    from alembic import command  # noqa: PLC0415 - slow to import

    store = SqliteStore(Random(0))
    store.disk.open(STORE_PATH, create=True)
    made = store_._engine(STORE_PATH, store.vfs_name)
    with made.begin() as connection:
        command.upgrade(alembic_config(connection), "0003")
    made.dispose()
    store.disk.sync_folder("")
    disk = copy.deepcopy(store.disk)
    store.abandon()
    return disk


def _workload(old: SimDisk, call: Call | None, seed: int) -> dict[DiskOp, int]:
    """Returns how many calls there were. Raises Violation."""
    rng = Random(f"calls {seed}")
    store = SqliteStore(rng, disk=copy.deepcopy(old))
    before = dict(store.disk.calls)
    if call is not None:
        store.disk.inject(DiskFault(call.op, call.at, call.number, None if call.lasts else 1))
    try:
        for actions in ((_write_some, _write_much, _probe, _write_some), (_write_some,)):
            stream = _started(store, rng)
            for act in actions:
                _carried_out(store, stream, act, call)
            store.end()
        return {op: store.disk.calls[op] - before.get(op, 0) for op in DiskOp}
    finally:
        store.close()


def _started(store: SqliteStore, rng: Random) -> Stream:
    for _ in range(4):
        try:
            store.open()
            return Stream(rng, store)
        except StorageUnavailable:
            store.die()  # whoever started it starts it again
    store.heal()
    store.open()
    return Stream(rng, store)


def _carried_out(store: SqliteStore, stream: Stream, act: Callable[["Stream"], None], call: Call | None) -> None:
    try:
        act(stream)
    except StorageUnavailable:
        assert call is not None
        if call.loses_power:
            store.lose_power()
            store.heal()
            store.open()
        else:
            if call.op is DiskOp.SYNC and not store.must_exit:
                raise Violation("a sync failed, and the process goes on") from None
            _go_on(store)
        stream.reload()
        act(stream)


def _write_some(stream: Stream) -> None:
    for _ in range(3):
        stream.turn()
        stream.commit()


def _write_much(stream: Stream) -> None:
    """More than SQLite's log takes before it is written back."""
    for _ in range(3):
        for _ in range(15):
            stream.turn()
        stream.commit()


def _probe(stream: Stream) -> None:
    stream.probe()


# Planted faults.


def _apart(take: Callable[[Side], Side], leave: Callable[[Side], Side]) -> Callable[[Any], Any]:  # Any: a method
    """A batch in two transactions."""

    def patch(commit: Any) -> Any:
        def broken(self: Store, batch: Batch) -> None:
            commit(self, Batch(batch.records, batch.events, [leave(side) for side in batch.sides], batch.verdicts))
            commit(self, Batch(sides=[take(side) for side in batch.sides]))

        return broken

    return patch


def _acks_first(commit: Any) -> Any:
    """It is answered when the batch is in memory; the disk gets it with the next one."""
    waiting: dict[int, Batch] = {}

    def broken(self: Store, batch: Batch) -> None:
        before = waiting.pop(id(self), None)
        if before is not None:
            commit(self, before)
        waiting[id(self)] = batch

    return broken


MUTANTS: Final[dict[str, tuple[object, str, Callable[[Any], Any]]]] = {
    "synchronous_off": (store_, "_SYNCHRONOUS", lambda _: "OFF"),
    "synchronous_normal": (store_, "_SYNCHRONOUS", lambda _: "NORMAL"),
    "acks_before_commit": (Store, "commit", _acks_first),
    "audit_apart": (Store, "commit", _apart(lambda s: Side(audit=s.audit), lambda s: replace(s, audit=()))),
    "keys_apart": (
        Store,
        "commit",
        _apart(lambda s: Side(idempotency=s.idempotency), lambda s: replace(s, idempotency=())),
    ),
    "names_not_synced": (disk_.StoreDisk, "sync_names", lambda _: lambda self, path: None),
    "goes_on_after_a_failed_sync": (store_, "sync_error", lambda _: lambda error: None),
    "log_not_saved": (disk_.StoreDisk, "save_log", lambda _: lambda self, path: None),
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    owner, attribute, patch = MUTANTS[name]
    sound = getattr(owner, attribute)
    setattr(owner, attribute, patch(sound))
    try:
        yield
    finally:
        setattr(owner, attribute, sound)


ENOUGH: Final = 200  # power cuts, to notice a planted fault in


def find_mutants(runs: int, *, seed: int, say: Say) -> Tally:
    """Each planted fault is looked for in at most ``runs`` power cuts; too few are no reason to complain."""
    tally, caught = Tally(), 0
    for name in MUTANTS:
        number, found = 0, False
        while number < runs and not found:
            one = Tally()
            with planted(name):
                one = cut_power(min(CUTS_A_DISK, runs - number), seed=seed + number, say=lambda _: None, most=3)
            number += one.runs
            found = bool(one.violations)
            tally.faults += one.faults
            say(f"{name}: {number:,} power cuts")
        tally.runs += number
        caught += found
        if not found and runs >= ENOUGH:
            tally.violations.append(f"{number} power cuts did not notice {name}")
    tally.mutants = (caught, len(MUTANTS))
    return tally


PROOFS: Final = (
    Proof(1, "power cuts that drop unsynced writes", cut_power, sample=24, full=1_000, unit="cuts"),
    Proof(9, "an error at each call of the store", fail_each_call, sample=24, full=5_000, unit="calls"),
    Proof(14, "planted faults of the store", find_mutants, sample=ENOUGH, full=1_000, unit="cuts"),
)
