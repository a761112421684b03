"""What the simulated control plane keeps its state in: a dictionary of row images, quick, or the product's own store on
a simulated disk, which loses at a power cut what was not synced.

Both keep a ``Rows`` of what is committed. The real store is held against it whenever it is opened: all that was
acknowledged is there and no half of anything else is; of a batch whose commit was under way there is all or nothing.
"""

import copy
import json
import os
import sqlite3
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final, Protocol

from sqlalchemy import func, select, text

from gpulayer.engine.records import (
    AttemptImage,
    CounterImage,
    FactsForgotten,
    FactsImage,
    JobImage,
    Record,
    TaskImage,
    WorkerImage,
)
from gpulayer.errors import StorageUnavailable
from gpulayer.ids import JobId, WorkerId
from gpulayer.server.store import Batch, IdempotencyRow, JobRow, Live, Side, Store
from gpulayer.server.store import tables as tables_
from gpulayer.server.store.codec import attempt_from_text
from gpulayer.server.store.disk import StoreDisk
from gpulayer.server.store.health import damaged, read_only
from gpulayer.server.store.mark import LOG_HEADER, check_log, mark_text
from gpulayer.spec.job import JobEntry, JobSpec
from gpulayer.syncing import SyncFailed, Syncs
from gpulayer.testing.sim.disk import DiskFault, DiskOp, SimDisk
from gpulayer.testing.sim.rules import Violation, check_terminal
from gpulayer.testing.sim.vfs import SimVfs
from gpulayer.wire.convert import spec_to_wire

__all__ = [
    "STORE_PATH",
    "MemoryStore",
    "Rows",
    "SimStore",
    "SimStoreDisk",
    "SqliteStore",
    "check_integrity",
    "submission_side",
]

STORE_PATH: Final = "/store.db"
_OWNER: Final = "sim"


@dataclass(slots=True)
class Rows:
    """The last image of every row, the immutable entries, the idempotency keys."""

    entries: dict[JobId, JobEntry] = field(default_factory=dict)
    keys: dict[str, JobId] = field(default_factory=dict)
    jobs: dict[JobId, JobImage] = field(default_factory=dict)
    tasks: dict[tuple[JobId, int], TaskImage] = field(default_factory=dict)
    attempts: dict[int, AttemptImage] = field(default_factory=dict)
    workers: dict[WorkerId, WorkerImage] = field(default_factory=dict)
    facts: dict[str, FactsImage] = field(default_factory=dict)
    counters: CounterImage | None = None
    lent_ahead: set[int] = field(default_factory=set)  # epochs that ever were
    tokens: set[str] = field(default_factory=set)
    audit: list[str] = field(default_factory=list)  # subjects, in order
    events: int = 0

    def write_batch(self, batch: Batch) -> None:
        self.events += len(batch.events)
        for side in batch.sides:
            self.audit += [entry.subject for entry in side.audit]
            self.tokens |= {row.id for row in side.tokens}
            for row in side.jobs:
                self.entries[row.id] = JobEntry.of(row.id, row.owner, row.spec)
            for key in side.idempotency:
                self.keys[key.key] = key.job_ids[0]
        for record in batch.records:
            self.write(record)

    def live(self) -> Live:
        """As a store would load it; what is final is there, too."""
        return Live(
            counters=self.counters or CounterImage(1, 1, 0),
            jobs=[(self.entries[image.id], image) for image in self.jobs.values()],
            tasks=list(self.tasks.values()),
            attempts=list(self.attempts.values()),
            workers=list(self.workers.values()),
            facts=list(self.facts.values()),
        )

    def write(self, record: Record) -> None:
        """Replaces the row of the same key. Refuses to change the end of a job."""
        match record:
            case JobImage():
                check_terminal(self.jobs.get(record.id), record)
                self.jobs[record.id] = record
            case TaskImage():
                self.tasks[record.job_id, record.index] = record
            case AttemptImage():
                self.attempts[record.epoch] = record
                if record.nodes[0].is_ahead:
                    self.lent_ahead.add(record.epoch)
            case WorkerImage():
                self.workers[record.id] = record
            case FactsImage():
                self.facts[record.digest] = record
            case FactsForgotten():
                if all(image.facts_digest != record.digest for image in self.workers.values()):
                    self.facts.pop(record.digest, None)
            case CounterImage():
                self.counters = record


def submission_side(key: str, entry: JobEntry) -> Side:
    """The rows of a submission, as the product's routes make them."""
    spec = JobSpec(
        command=("program",),
        request=entry.request,
        shape=entry.shape,
        priority=entry.priority,
        retries=entry.retries,
        retry_on=entry.retry_on,
        timeout_ms=entry.timeout_ms,
        grace_ms=entry.grace_ms,
        keep_for_ms=entry.keep_for_ms,
        exclusive=entry.exclusive,
        wait=entry.wait,
        after=entry.after,
    )
    row = JobRow(entry.id, entry.owner, _OWNER, _OWNER, 0, spec, spec_to_wire(spec))
    return Side(jobs=(row,), idempotency=(IdempotencyRow(_OWNER, key, "", (entry.id,), 0),))


class SimStore(Protocol):
    """``rows``: what is committed. must_exit: a sync has failed; the process that has the store open has to end.
    keeps_events: the rows of the event log are wanted, too.

    ``open`` comes first, and again after ``die`` and ``lose_power``; it and all else that reads or writes may raise
    StorageUnavailable.
    """

    keeps_events: bool

    @property
    def rows(self) -> Rows: ...

    @property
    def must_exit(self) -> bool: ...

    def open(self) -> bool:
        """Whether the batch whose commit was under way when it was open last is there."""
        ...

    def load(self) -> Live: ...

    def commit(self, batch: Batch) -> None: ...

    def probe(self) -> None: ...

    def die(self) -> None:
        """The process that has it open is gone."""
        ...

    def lose_power(self) -> None:
        """The same, and what was not synced."""
        ...

    def fail_writes(self) -> None:
        """No room on the disk, or every write is an input/output error, until ``heal``."""
        ...

    def break_sync(self) -> None:
        """The next sync fails."""
        ...

    def heal(self) -> None: ...

    def close(self) -> None:
        """At the end of the world, with a last look at what is there. Raises Violation."""
        ...

    def abandon(self) -> None:
        """At the end of a world that is broken."""
        ...


class MemoryStore:
    """Nothing but its rows: a batch is there or not. ``rng``: which, after a sync that failed."""

    keeps_events = False

    def __init__(self, rng: Random) -> None:
        self.rows = Rows()
        self.must_exit = False
        self._rng = rng
        self._is_failing = False
        self._is_sync_failing = False
        self._is_kept = False

    def open(self) -> bool:
        is_kept, self._is_kept, self.must_exit = self._is_kept, False, False
        return is_kept

    def load(self) -> Live:
        return self.rows.live()

    def commit(self, batch: Batch) -> None:
        if self._is_sync_failing and self._rng.random() < 0.5:
            self.rows.write_batch(batch)
            self._is_kept = True
        self.probe()
        self.rows.write_batch(batch)

    def probe(self) -> None:
        if self._is_sync_failing:
            self._is_sync_failing, self.must_exit = False, True
        if self._is_failing or self.must_exit:
            raise StorageUnavailable("the simulated disk fails")

    def die(self) -> None:
        return

    def lose_power(self) -> None:
        return

    def fail_writes(self) -> None:
        self._is_failing = True

    def break_sync(self) -> None:
        self._is_sync_failing = True

    def heal(self) -> None:
        self._is_failing = self._is_sync_failing = False

    def close(self) -> None:
        return

    def abandon(self) -> None:
        return


class _SimSyncs(Syncs):
    """The folder of the store is the only thing that is synced beside SQLite."""

    def __init__(self, disk: SimDisk, failed: SyncFailed) -> None:
        super().__init__(failed=failed)
        self._disk = disk

    def path(self, path: str | os.PathLike[str]) -> None:
        try:
            self._disk.sync_folder(os.fspath(path).rstrip("/"))
        except OSError as error:
            self.failed(os.fspath(path), error)
            raise


class SimStoreDisk(StoreDisk):
    """The store's files on a simulated disk. ``has_failed``: a sync has; where the product's process would end."""

    def __init__(self, vfs: SimVfs) -> None:
        super().__init__(_SimSyncs(vfs.disk, self._fail))
        self.vfs = vfs.name
        self.has_failed = False
        self.is_dead = False  # the process: it marks and syncs nothing any more
        self._is_marked = False  # by this process
        self._vfs = vfs
        self._disk = vfs.disk

    def check(self, path: str) -> bool:
        if not self._disk.exists(path):
            for left in (f"{path}-open", f"{path}-wal"):
                if self._disk.exists(left):
                    raise damaged(path, f"it is gone, and {left} is there")
            return False
        if self._disk.exists(f"{path}-open"):
            check_log(path, self._beginning(f"{path}-wal", LOG_HEADER))
        return True

    def _beginning(self, path: str, size: int) -> bytes:
        try:
            return self._disk.read(self._disk.open(path), 0, size)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise StorageUnavailable(f"{path} can't be read: {error}") from None

    def begin(self, making: str) -> None:
        try:
            for each in (making, f"{making}-wal", f"{making}-journal"):
                if self._disk.exists(each):
                    self._disk.delete(each)
            self._disk.open(making, create=True)
        except OSError as error:
            raise StorageUnavailable(f"the store can't be made: {error}") from None

    def give_name(self, making: str, path: str) -> None:
        try:
            self._disk.rename(making, path)
        except OSError as error:
            raise StorageUnavailable(f"the store can't be made: {error}") from None
        self.sync_names(path)

    def prepare(self, path: str) -> bool:
        return self._disk.exists(f"{path}-wal")

    def read_only(self, path: Path) -> sqlite3.Connection:
        return read_only(path, is_still=not self._disk.exists(f"{path}-wal"), vfs=self.vfs)

    def copy_before_migration(self, path: str, *, schema: str) -> None:
        """The copy is for people."""

    def note(self, path: str, count: int) -> None:
        if self.is_dead:
            return
        mark = f"{path}-open"
        is_new = not self._disk.exists(mark) or not self._is_marked
        with suppress(OSError, StorageUnavailable):
            file = self._disk.open(mark, create=True)
            self._disk.write(file, 0, mark_text(count))
            self._is_marked = True
            if is_new:
                try:
                    self._disk.sync(file)
                except OSError as error:
                    self.failed(mark, error)
                self.sync_names(path)

    def unmark(self, path: str) -> None:
        self.let_go()
        if self.is_dead:
            return
        with suppress(OSError):
            self._disk.delete(f"{path}-open")
        with suppress(StorageUnavailable):
            self.sync_names(path)

    def let_go(self) -> None:
        self._is_marked = False

    def has_log(self, path: str) -> bool:
        return self._disk.exists(f"{path}-wal")

    def remember(self, path: str) -> None:
        """Nobody takes these files away."""

    def rewrite(self, path: str) -> None:
        file = self._disk.open(path)
        self._disk.write(file, 0, self._disk.read(file, 0, len(file.content)))
        try:
            self._disk.sync(file)
        except OSError as error:
            self.failed(path, error)
            raise

    def _fail(self, _path: str, _error: OSError) -> None:
        self.has_failed = self.is_dead = True
        self._vfs.kill()  # where the process ends, nothing comes after


class SqliteStore:
    """The product's store. ``rng``: what the disk keeps, and what a cache forgets, at a power cut or a failed sync."""

    keeps_events = True

    def __init__(self, rng: Random, *, disk: SimDisk | None = None) -> None:
        self.rows = Rows()
        self.disk = disk or SimDisk()
        self._rng = rng
        self._vfs = SimVfs(self.disk, sleep=lambda _seconds: None)
        self._files = SimStoreDisk(self._vfs)
        self._store: Store | None = None
        self._under_way: Batch | None = None

    @property
    def must_exit(self) -> bool:
        return self._files.has_failed

    @property
    def vfs_name(self) -> str:
        return self._vfs.name

    def open(self) -> bool:
        """Raises Violation where something acknowledged is missing, or is there by half."""
        self._files.has_failed = self._files.is_dead = False
        self._store = Store(STORE_PATH, disk=self._files)
        with self.disk.sound():
            check_integrity(self._store)
            return self._compare(self._store)

    def load(self) -> Live:
        return self._opened().load_live()

    def commit(self, batch: Batch) -> None:
        self._under_way = batch
        self._opened().commit(batch)
        self.rows.write_batch(batch)
        self._under_way = None

    def probe(self) -> None:
        self._opened().probe()

    def die(self) -> None:
        self._vfs.kill()
        self._files.is_dead = True
        if self._store is not None:
            self._store.close()
            self._store = None
        if self._files.has_failed and self._rng.random() < 0.5:
            self.disk.drop_caches(self._rng)

    def lose_power(self) -> None:
        self.die()
        self.disk.power_cut(self._rng)

    def fail_writes(self) -> None:
        if self._rng.random() < 0.5:
            self.disk.capacity_bytes = self.disk.used_bytes() + self._rng.choice([0, 1_000, 20_000])
        else:
            self.disk.inject(DiskFault(DiskOp.WRITE, at=self._rng.randrange(1, 4), calls=None))

    def break_sync(self) -> None:
        self.disk.inject(DiskFault(DiskOp.SYNC))

    def heal(self) -> None:
        self.disk.heal()

    def end(self) -> None:
        """A clean end: SQLite writes its log back and removes it."""
        self._opened().close()
        self._store = None

    def abandon(self) -> None:
        """Let go of it, whatever is there."""
        self.die()
        self._vfs.close()

    def close(self) -> None:
        """Also looks at what is there a last time. Raises Violation."""
        self.heal()
        try:
            self.lose_power()
            self.open()
            self._opened().close()
        finally:
            self.abandon()
        if self._vfs.faults:
            raise self._vfs.faults[0]

    def _opened(self) -> Store:
        if self._store is None:
            raise StorageUnavailable("the store is not open")
        return self._store

    def _compare(self, store: Store) -> bool:
        """Whether the batch that was under way is there."""
        batch, self._under_way = self._under_way, None
        found = _stored(store)
        lacking = _difference(found, self.rows)
        if not lacking:
            return False
        if batch is not None:
            possible = copy.deepcopy(self.rows)
            possible.write_batch(batch)
            if not _difference(found, possible):
                self.rows.write_batch(batch)
                return True
        raise Violation(f"after a new start the store has {lacking}, and no whole batch explains it", promise=1)


def check_integrity(store: Store) -> None:
    """By SQLite's own full check. Raises Violation."""
    with store.reading() as connection:
        found = connection.execute(text("PRAGMA integrity_check")).scalars().all()
        dangling = connection.execute(text("PRAGMA foreign_key_check")).all()
    if found != ["ok"] or dangling:
        raise Violation(f"the store is damaged: {[*found, *dangling][:5]}", promise=9)


_Tables = dict[str, dict[Any, Any]]  # Any: by table, keys and rows of every kind


def _stored(store: Store) -> _Tables:
    live = store.load_live()
    jobs, keys, attempts, audit = tables_.jobs, tables_.idempotency, tables_.attempts, tables_.audit
    with store.reading() as connection:
        return {
            "keys": {row.key: json.loads(row.job_ids)[0] for row in connection.execute(select(keys))},
            "jobs": {row.id: row.state for row in connection.execute(select(jobs.c.id, jobs.c.state))},
            "attempts": {
                row.epoch: attempt_from_text(row.epoch, row.job_id, row.image)
                for row in connection.execute(select(attempts))
            },
            "live jobs": {image.id: image for _, image in live.all_jobs()},
            "tasks": _told({(image.job_id, image.index): image for image in live.tasks}),
            "workers": {image.id: image for image in live.workers},
            "counters": {0: live.counters},
            "tokens": dict.fromkeys(connection.execute(select(tables_.tokens.c.id)).scalars(), True),
            "audit": dict(enumerate(connection.execute(select(audit.c.subject).order_by(audit.c.seq)).scalars())),
            "events": {0: connection.execute(select(func.count()).select_from(tables_.events)).scalar_one()},
        }


def _difference(found: _Tables, known: Rows) -> str:
    """The first row that is not as it is known; empty: none."""
    expected: _Tables = {
        "keys": dict(known.keys),
        "jobs": {job_id: str(image.state) for job_id, image in known.jobs.items()},
        "attempts": dict(known.attempts),
        "live jobs": {job_id: image for job_id, image in known.jobs.items() if not image.state.is_final},
        "tasks": _told(_under_way(known)),
        "workers": dict(known.workers),
        "tokens": dict.fromkeys(known.tokens, True),
        "audit": dict(enumerate(known.audit)),
        "events": {0: known.events},
    }
    if known.counters is not None:
        expected["counters"] = {0: known.counters}
    for name, rows in expected.items():
        for key in sorted({**rows, **found[name]}, key=str):
            if found[name].get(key) != rows.get(key):
                return f"of {name} {key!r} {found[name].get(key)} instead of {rows.get(key)}"
    return ""


def _under_way(known: Rows) -> dict[tuple[JobId, int], TaskImage]:
    """Of live jobs: what is not done, and of each array the first that did not succeed."""
    found: dict[tuple[JobId, int], TaskImage] = {}
    failed: set[JobId] = set()
    for key, image in sorted(known.tasks.items()):
        if known.jobs[key[0]].state.is_final:
            continue
        is_failed = image.outcome is not None and not image.outcome.is_success
        if not image.is_done or (is_failed and key[0] not in failed):
            found[key] = image
        if is_failed:
            failed.add(key[0])
    return found


def _told(tasks: dict[tuple[JobId, int], TaskImage]) -> dict[tuple[JobId, int], TaskImage]:
    """Without those that are as ``rebuild`` makes them by itself."""
    return {
        key: task
        for key, task in tasks.items()
        if task.is_done or task.attempts or task.failures or task.avoid or task.held_until_ms
    }
