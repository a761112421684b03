"""Everything durable, in one SQLite file (WAL, ``synchronous=FULL``).

``commit`` is called by one thread (the driver's) and writes a whole micro-batch in one transaction: all of it or
nothing. Reads use connections of their own and see the last commit. Methods block; the driver and the routes run
them in threads. Errors of the database leave here as ``StorageUnavailable`` alone.
"""

import errno
import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from sqlalchemy import Connection, Engine, QueuePool, Table, create_engine, event, select
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, InterfaceError, ProgrammingError

from gpulayer import __version__
from gpulayer.engine.events import NodePhase
from gpulayer.engine.records import (
    AttemptImage,
    CounterImage,
    FactsForgotten,
    FactsImage,
    JobImage,
    TaskImage,
    WorkerImage,
)
from gpulayer.errors import BadRequest, DiskFull, InternalError, StorageUnavailable
from gpulayer.faults import here, here_each
from gpulayer.ids import Digest, JobId, WorkerId
from gpulayer.server.store import tables
from gpulayer.server.store.carried import carried
from gpulayer.server.store.codec import (
    EntryReader,
    ScheduleWriter,
    attempt_from_text,
    attempt_to_text,
    dump,
    facts_from_text,
    facts_to_text,
    outcome_from_text,
    outcome_to_text,
    submission_to_text,
)
from gpulayer.server.store.disk import StoreDisk, sync_error
from gpulayer.server.store.health import check_contents, damaged, how_to_use, is_damage, restoring
from gpulayer.server.store.mark import check_newest
from gpulayer.server.store.rows import (
    AuditEntry,
    AuditRow,
    Batch,
    EventRow,
    IdempotencyRow,
    IdentityRow,
    JobRow,
    Live,
    SecretRow,
    StartRow,
    TokenRow,
)
from gpulayer.server.store.schema import ensure_schema, expected
from gpulayer.server.store.tables import SCHEMA_VERSION
from gpulayer.server.store.trail import chained
from gpulayer.spec.job import JobState
from gpulayer.spec.outcome import EndedBy
from gpulayer.spec.worker import WorkerState
from gpulayer.wire.trail import FIRST_HASH

__all__ = ["IDEMPOTENCY_KEPT_MS", "Store", "job_image"]

IDEMPOTENCY_KEPT_MS: Final = 7 * 86_400_000
KEYS_AT_A_TIME: Final = 1_000  # forgotten with one commit, which others wait for
_BUSY_TIMEOUT_MS: Final = 5_000
_SYNCHRONOUS: Final = "FULL"  # SQLite's log is synced by every commit; with less a power cut takes answered commits
_LOG_PAGES: Final = 1_000  # so many are in SQLite's log before it is written back
_LOG_KEPT_BYTES: Final = 64 * 1024 * 1024  # what SQLite's log keeps of what a long read made it grow by

_STATES: Final = {str(state): state for state in JobState}  # a quarter of the time of JobState(text)
_NOT_NOW: Final = "nothing was written; free space or repair the disk, then try again"
_READ_ONLY: Final = {"gpulayer_read": True}

Row = tuple[Any, ...]  # Any: whatever the columns hold

_JOB_IMAGE: Final = (
    "state",
    "is_live",
    "reason_code",
    "reason_message",
    "stop",
    "stop_grace_ms",
    "started_wall_ms",
    "ended_wall_ms",
    "outcome",
    "outputs",
    "stop_by",
)
_JOB_SPEC: Final = (
    "id",
    "seq",
    "name",
    "owner",
    "submitter",
    "client",
    "spec",
    "schedule",
    "submitted_wall_ms",
    "verdicts",
    "token_id",
)


class Store:
    """Opens or makes the store at ``path`` (a file on a local disk, mode 0600).

    Raises Conflict for a newer schema, StorageUnavailable for a file that is damaged or can't be used, which is left as
    it is; a store of an older schema is copied before it is brought up to date (``health``).

    ``was_left_open``: nobody closed it; its last owner died. After a sync of SQLite's that failed ``disk.failed`` is
    told, and where that returns, StorageUnavailable is raised: what was acknowledged before is durable, and nobody
    may go on with this store but by opening it anew.
    """

    def __init__(self, path: str, *, disk: StoreDisk | None = None) -> None:
        self._path = path
        self._disk = disk or StoreDisk()
        if not self._disk.check(path):
            self._make()
        self.was_left_open = self._disk.prepare(path)
        if self.was_left_open:
            self._disk.save_log(path)
        found = self._disk.check_start(path)
        check_newest(path, noted=self._disk.noted(path), connect=self._disk.read_only)
        if found < SCHEMA_VERSION:
            self._disk.copy_before_migration(path, schema=found)
        self._engine = _engine(path, self._disk.vfs)
        try:
            with self._mapped():
                ensure_schema(self._engine)
            self._disk.sync_names(path)
            with closing(self._disk.read_only(Path(path))) as connection:
                check_contents(connection, path, tables=expected())
            self._audited = self._last_audit()
            self._count = self._counted()
            self._disk.remember(path)
        except BaseException:
            self._engine.dispose()
            raise

    def _make(self) -> None:
        """An empty store, under its name only when it is whole, so that an empty file of that name is always damage."""
        making = f"{self._path}.new"
        self._disk.begin(making)
        engine = _engine(making, self._disk.vfs)
        try:
            with self._mapped():
                ensure_schema(engine)
                _settle(engine)
        except StorageUnavailable as error:
            if _is_full(error.__cause__):
                raise DiskFull(f"there is no room left to make {self._path}", hint="free space on that disk") from error
            raise
        finally:
            engine.dispose()
        self._disk.give_name(making, self._path)

    def close(self) -> None:
        """Gives the connections back; what was committed stays. Where SQLite's log can't be written back (the disk is
        full), it stays beside the store, and so does the mark that says so."""
        if self._is_written_back():
            self._disk.unmark(self._path)
            self._engine.dispose()
            return
        self._engine.dispose()  # which tries once more
        if self._disk.has_log(self._path):
            self._disk.let_go()
        else:
            self._disk.unmark(self._path)

    def misses(self) -> bool:
        """Whether its files were removed or replaced. Quick."""
        return bool(self._disk.misses(self._path))

    def check_place(self) -> None:
        """Ends like a failed sync where the store's files were removed or replaced under this process: what it wrote
        and writes would be gone with it. A copy of what was there is made first. Raises StorageUnavailable."""
        missed = self._disk.misses(self._path)
        if not missed:
            return
        try:
            copy = self._rescue()
            kept = f"all that was answered is in the copy {copy}. To go on with it: {how_to_use(copy, self._path)}"
        except (OSError, sqlite3.Error, DBAPIError) as error:
            kept = f"and what it held can't be copied: {error}"
        gone = OSError(errno.ESTALE, f"it was removed or replaced while it was in use; {kept}")
        self._disk.failed(missed, gone)
        raise StorageUnavailable(f"the control plane's store is gone: {missed}: {gone.strerror}", hint=_NOT_NOW)

    def _rescue(self) -> str:
        """By a connection that is open still: a new one would find nothing."""
        copy = self._disk.make_rescue(self._path)
        with closing(self._engine.raw_connection()) as connection:
            connection.cursor().execute("VACUUM INTO ?", (copy,))
        self._disk.rewrite(copy)
        self._disk.sync_names(self._path)
        return copy

    def _is_written_back(self) -> bool:
        try:
            with closing(self._engine.raw_connection()) as connection:
                busy, pages, written = connection.cursor().execute("PRAGMA wal_checkpoint(FULL)").fetchone()
        except (sqlite3.Error, DBAPIError):
            return False
        return not busy and pages == written

    def _counted(self) -> int:
        with self.reading() as connection:
            return int(connection.execute(select(tables.counters.c.probed)).scalar_one())

    def _acknowledge(self) -> None:
        """A commit is durable. Where nobody knows of one before it, the count is too small, never too large."""
        self._count += 1
        self._disk.note(self._path, self._count)
        self.check_place()

    def settle(self) -> None:
        """All of it is in the one file, synced. Closing does that, too, and says nothing where it fails. Raises
        StorageUnavailable."""
        with self._mapped():
            _settle(self._engine)
        self._disk.unmark(self._path)  # its log is empty now; the next commit marks it again

    def commit(self, batch: Batch) -> None:
        """Write the batch durably, in one transaction. Raises StorageUnavailable, and then nothing is written."""
        rows = _split(batch)
        seq, after = self._audited
        audit = chained(rows.audit, seq=seq, after=after)
        with self._mapped(), self._engine.begin() as connection:
            for statement, parameters in rows.statements():
                if parameters:
                    connection.exec_driver_sql(statement, parameters)
            if audit:
                connection.exec_driver_sql(_INSERT_AUDIT, [_audit_columns(row) for row in audit])
            connection.exec_driver_sql(_COUNT)
            here("plane.in_transaction")
            here_each("commit.in_", lambda: carried(batch))
        with self._mapped():
            self._disk.reach_sync(self._path)
        if audit:
            self._audited = (audit[-1].seq, audit[-1].hash)
        self._acknowledge()

    def begin_generation(self, *, first: int, marker: EventRow) -> None:
        """Of a store that was restored: every number that it gives out from now on is ``first`` at least, since what it
        gave out after the backup is not known. ``marker``: the row of the log that says so, and from whose number the
        log goes on. No worker is this machine's own any more. To be followed by a commit of what else follows.
        """
        row = (first, marker.at_ms, marker.wall_ms, __version__, marker.job_id, marker.worker, marker.kind, marker.body)
        with self._mapped(), self._engine.begin() as connection:
            connection.exec_driver_sql("UPDATE counters SET next_epoch = ?, next_seq = ?", (first, first))
            # A signature over a counter of the lost time opens no session; its worker signs anew above this one.
            connection.exec_driver_sql("UPDATE identities SET counter = ?, is_local = 0", (first,))
            connection.exec_driver_sql(_insert(tables.events, ("seq", *_EVENT)), row)

    def highest(self) -> int:
        """Of all numbers that this store has given out."""
        with self.reading() as connection:
            found = connection.exec_driver_sql(
                "SELECT max(next_epoch, next_seq, COALESCE((SELECT max(seq) FROM events), 0),"
                " COALESCE((SELECT max(counter) FROM identities), 0)) FROM counters"
            ).scalar_one()
        return int(found)

    def probe(self) -> None:
        """A small durable write. Raises StorageUnavailable while writing is not possible."""
        with self._mapped(), self._engine.begin() as connection:
            connection.exec_driver_sql(_COUNT)
            here("plane.in_probe")
        self._acknowledge()

    def load_live(self) -> Live:
        """All that is not final, for ``engine.rebuild``; and where the audit trail stands, for the next commit: of one
        that failed nobody knows whether it is there after all. Raises StorageUnavailable, also for rows that can't be
        what was written."""
        try:
            return self._load_live()
        except (LookupError, ValueError, TypeError, AttributeError, BadRequest) as error:
            raise damaged(self._path, f"a row can't be read: {type(error).__name__}: {error}") from error

    def _load_live(self) -> Live:
        self._audited = self._last_audit()
        self._count = self._counted()
        reader = EntryReader()
        jobs, tasks, attempts = tables.jobs, tables.tasks, tables.attempts
        with self.reading() as connection:
            counters = connection.execute(select(tables.counters)).one()
            used = select(tables.workers.c.facts_digest).where(tables.workers.c.state != str(WorkerState.GONE))
            facts = connection.execute(select(tables.facts).where(tables.facts.c.digest.in_(used))).all()
            workers = connection.execute(select(tables.workers).order_by(tables.workers.c.id)).all()
            waiting_rows = connection.exec_driver_sql(_SELECT_WAITING).cursor.fetchall()
            rows = connection.exec_driver_sql(_SELECT_BEGUN).all()
            of_live = select(tasks).join(jobs, jobs.c.id == tasks.c.job_id).where(jobs.c.is_live)
            task_rows = connection.execute(of_live.order_by(jobs.c.seq, tasks.c.task_index)).all()
            attempt_rows = connection.execute(
                select(attempts.c.epoch, attempts.c.job_id, attempts.c.image)
                .where(attempts.c.is_live)
                .order_by(attempts.c.epoch)
            ).all()
        return Live(
            counters=CounterImage(counters.next_epoch, counters.next_seq, counters.now_ms),
            jobs=[
                (reader.entry(id_, owner, spec), job_image(id_, seq, image)) for id_, owner, spec, seq, *image in rows
            ],
            tasks=[
                TaskImage(
                    job_id=JobId(row.job_id),
                    index=row.task_index,
                    is_done=bool(row.is_done),
                    attempts=row.attempts,
                    failures=row.failures,
                    avoid=tuple(WorkerId(worker) for worker in json.loads(row.avoid)),
                    program_failures=row.program_failures,
                    held_until_ms=row.held_until_ms,
                )
                for row in task_rows
            ],
            attempts=[attempt_from_text(row.epoch, row.job_id, row.image) for row in attempt_rows],
            workers=[
                WorkerImage(
                    id=WorkerId(row.id),
                    name=row.name,
                    state=WorkerState(row.state),
                    is_draining=bool(row.is_draining),
                    facts_digest=Digest(row.facts_digest),
                    boot=row.boot,
                    seen_wall_ms=row.seen_wall_ms,
                )
                for row in workers
            ],
            facts=[FactsImage(Digest(row.digest), facts_from_text(row.facts)) for row in facts],
            waiting=[(reader.entry(id_, owner, spec), seq) for id_, owner, spec, seq in waiting_rows],
        )

    def _last_audit(self) -> tuple[int, str]:
        """Number and hash of the newest entry: this store's only writer goes on from it."""
        table = tables.audit
        with self.reading() as connection:
            row = connection.execute(select(table.c.seq, table.c.hash).order_by(table.c.seq.desc()).limit(1)).first()
        return (0, FIRST_HASH) if row is None else (row.seq, row.hash)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection for reads: one snapshot, as of its first query. Raises StorageUnavailable, also for a row whose
        JSON is none: what is in the store was written here."""
        try:
            with self._mapped(), self._engine.connect() as connection:
                yield connection.execution_options(**_READ_ONLY)
        except json.JSONDecodeError as error:
            raise damaged(self._path, f"a row can't be read: {error}") from error

    @contextmanager
    def _mapped(self) -> Iterator[None]:
        """The one table of the database's errors: what the disk or the file did, and what we did wrong."""
        try:
            yield
        except (IntegrityError, ProgrammingError, DataError, InterfaceError) as error:
            raise InternalError(f"the store refused what was to be written: {error.orig}") from error
        except (DBAPIError, sqlite3.Error) as error:
            cause = error.orig if isinstance(error, DBAPIError) else error
            lost = sync_error(cause)
            if lost is not None:
                self._disk.failed(self._path, lost)
            if is_damage(cause):
                raise StorageUnavailable(
                    f"the control plane's store is damaged: {cause}",
                    hint="nothing was written. End the control plane; gpulayer doctor looks closer, and"
                    f" {restoring(Path(self._path).parent)} brings a backup back, once that folder is moved away",
                ) from error
            raise StorageUnavailable(f"the control plane's store can't be used now: {cause}", hint=_NOT_NOW) from error
        except OSError as error:
            raise StorageUnavailable(
                f"the control plane's store can't be used now: {error.strerror}", hint=_NOT_NOW
            ) from error


def _settle(engine: Engine) -> None:
    """Write SQLite's log back into its file. Raises sqlite3.OperationalError."""
    connection = engine.raw_connection()
    try:
        (busy, *_) = connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    finally:
        connection.close()
    if busy:
        raise sqlite3.OperationalError("its log can't be written back while others read it")


def _is_full(error: BaseException | None) -> bool:
    cause = error.orig if isinstance(error, DBAPIError) else error
    return isinstance(cause, sqlite3.Error) and getattr(cause, "sqlite_errorname", "") == "SQLITE_FULL"


def job_image(job_id: str, seq: int, row: Sequence[Any]) -> JobImage:  # Any: columns differ in type
    """The image from the columns of ``_JOB_IMAGE``, in that order."""
    state, _, reason_code, reason_message, stop, stop_grace_ms, started, ended, outcome, outputs, stop_by = row
    return JobImage(
        JobId(job_id),
        seq,
        _STATES[state],
        reason_code,
        reason_message,
        None if stop is None else EndedBy(stop),
        stop_grace_ms,
        started,
        ended,
        outcome_from_text(outcome),
        None if outputs is None else Digest(outputs),
        stop_by,
    )


def _image_columns(image: JobImage) -> Row:
    return (
        str(image.state),
        not image.state.is_final,
        image.reason_code,
        image.reason_message,
        None if image.stop is None else str(image.stop),
        image.stop_grace_ms,
        image.started_wall_ms,
        image.ended_wall_ms,
        outcome_to_text(image.outcome),
        image.outputs,
        image.stop_by,
    )


def _is_untouched(task: TaskImage) -> bool:
    """As ``rebuild`` makes a job's first task by itself, so that a row for it would tell nothing. A task gets back to
    that when its first attempt is given back; then it has a row."""
    return task.index == 0 and not (task.is_done or task.attempts or task.failures or task.avoid or task.held_until_ms)


class _Split:
    """A batch by table: the last image of each key wins."""

    def __init__(self) -> None:
        self.new_jobs: dict[JobId, JobRow] = {}
        self.jobs: dict[JobId, JobImage] = {}
        self.tasks: dict[tuple[JobId, int], TaskImage] = {}
        self.attempts: dict[int, AttemptImage] = {}
        self.workers: dict[WorkerId, WorkerImage] = {}
        self.facts: dict[Digest, FactsImage] = {}
        self.forgotten_facts: list[Row] = []
        self.forgotten_events = 0
        self.forgotten_keys_ms = 0
        self.counters: CounterImage | None = None
        self.events: list[Row] = []
        self.idempotency: list[IdempotencyRow] = []
        self.tokens: dict[str, TokenRow] = {}
        self.identities: dict[WorkerId, IdentityRow] = {}
        self.raised: list[tuple[WorkerId, int]] = []
        self.starts: list[StartRow] = []
        self.forgotten: list[WorkerId] = []
        self.forgotten_tokens: list[str] = []
        self.secrets: list[SecretRow] = []
        self.forgotten_secrets: list[JobId] = []
        self.audit: list[AuditEntry] = []
        self.sink_cursors: list[tuple[str, int]] = []
        self.verdicts: dict[JobId, str] = {}
        self.schedules = ScheduleWriter()

    def statements(self) -> Iterator[tuple[str, list[Row]]]:
        """In an order in which no row comes before one that it refers to."""
        yield _INSERT_JOB, [self._new_job(job_id) for job_id in self.new_jobs]
        changed = [image for job_id, image in self.jobs.items() if job_id not in self.new_jobs]
        yield _UPDATE_JOB, [(*_image_columns(image), image.id) for image in changed]
        yield (
            _UPDATE_VERDICTS,
            [(verdicts, job_id) for job_id, verdicts in self.verdicts.items() if job_id not in self.new_jobs],
        )
        yield (
            _UPSERT_TASK,
            [
                (
                    *(task.job_id, task.index, task.is_done, task.attempts),
                    *(task.failures, dump(task.avoid), task.program_failures, task.held_until_ms),
                )
                for task in self.tasks.values()
                if task.job_id not in self.new_jobs or not _is_untouched(task)
            ],
        )
        yield (
            _UPSERT_ATTEMPT,
            [
                (attempt.epoch, attempt.job_id, attempt.phase is not NodePhase.ENDED, attempt_to_text(attempt))
                for attempt in self.attempts.values()
            ],
        )
        yield _UPSERT_FACTS, [(image.digest, facts_to_text(image.facts)) for image in self.facts.values()]
        yield (
            _UPSERT_WORKER,
            [
                (
                    worker.id,
                    worker.name,
                    str(worker.state),
                    worker.is_draining,
                    worker.facts_digest,
                    worker.boot,
                    worker.seen_wall_ms,
                )
                for worker in self.workers.values()
            ],
        )
        if self.counters is not None:
            yield _UPDATE_COUNTERS, [(self.counters.next_epoch, self.counters.next_seq, self.counters.now_ms, 1)]
        yield _INSERT_EVENT, self.events
        yield _FORGET_EVENTS, [(self.forgotten_events,)] if self.forgotten_events else []
        yield _FORGET_FACTS, self.forgotten_facts  # only now: a worker, or an event, may have got them again
        yield (
            _UPSERT_IDEMPOTENCY,
            [(row.owner, row.key, row.body_digest, dump(row.job_ids), row.wall_ms) for row in self.idempotency],
        )
        yield _FORGET_KEYS, [(self.forgotten_keys_ms,)] if self.forgotten_keys_ms else []
        yield (
            _UPSERT_TOKEN,
            [
                (
                    row.id,
                    row.kind,
                    row.name,
                    row.secret_hash,
                    row.created_wall_ms,
                    row.expires_wall_ms,
                    row.is_revoked,
                    row.is_local,
                    row.role,
                    row.owner,
                    row.max_uses,
                    row.uses,
                    dump(dict(row.labels)),
                    row.max_devices,
                    row.used_wall_ms,
                    row.replaces,
                    dump(row.removed_keys),
                )
                for row in self.tokens.values()
            ],
        )
        yield (
            _UPSERT_IDENTITY,
            [
                (
                    *(row.worker, row.public_key, row.counter, row.is_local),
                    *(row.token_id, dump(dict(row.labels)), row.max_devices),
                    *(row.boot, row.instance, row.started_wall_ms),
                )
                for row in self.identities.values()
            ],
        )
        yield _RAISE_COUNTER, [(counter, worker, counter) for worker, counter in self.raised]
        yield (
            _RAISE_START,
            [(row.boot, row.instance, row.wall_ms, row.worker, row.boot, row.boot) for row in self.starts],
        )
        yield _FORGET_IDENTITY, [(worker,) for worker in self.forgotten]
        yield _FORGET_TOKEN, [(id_,) for id_ in self.forgotten_tokens]
        yield _UPSERT_SECRET, [(row.job_id, row.name, row.sealed) for row in self.secrets]
        yield _FORGET_SECRETS, [(job_id,) for job_id in self.forgotten_secrets]
        yield _UPSERT_SINK_CURSOR, self.sink_cursors

    def _new_job(self, job_id: JobId) -> Row:
        row, image = self.new_jobs[job_id], self.jobs[job_id]
        return (
            row.id,
            image.seq,
            row.spec.name,
            row.owner,
            row.submitter,
            row.client,
            submission_to_text(row.submission),
            self.schedules.text(row.spec),
            row.submitted_wall_ms,
            self.verdicts.get(job_id),
            row.token_id,
            *_image_columns(image),
        )


def _split(batch: Batch) -> _Split:
    split = _Split()
    split.verdicts = batch.verdicts
    for record in batch.records:
        match record:
            case JobImage():
                split.jobs[record.id] = record
            case TaskImage():
                split.tasks[record.job_id, record.index] = record
            case AttemptImage():
                split.attempts[record.epoch] = record
            case WorkerImage():
                split.workers[record.id] = record
            case FactsImage():
                split.facts[record.digest] = record
            case FactsForgotten():
                pass  # events name them: they go when the last of these does (``retention``)
            case CounterImage():
                split.counters = record
    for side in batch.sides:
        split.new_jobs.update((row.id, row) for row in side.jobs)
        split.idempotency.extend(side.idempotency)
        split.tokens.update((row.id, row) for row in side.tokens)
        split.identities.update((row.worker, row) for row in side.identities)
        split.raised.extend(side.counters)
        split.starts.extend(side.starts)
        split.forgotten.extend(side.forget_identities)
        split.forgotten_tokens.extend(side.forget_tokens)
        split.secrets.extend(side.secrets)
        split.forgotten_secrets.extend(side.forget_secrets)
        split.audit.extend(side.audit)
        split.sink_cursors.extend(side.sink_cursors)
        split.forgotten_events = max(split.forgotten_events, side.forget_events)
        split.forgotten_keys_ms = max(split.forgotten_keys_ms, side.forget_idempotency_ms)
        split.forgotten_facts.extend((digest, digest, side.facts_after, f"%{digest}%") for digest in side.forget_facts)
    split.events = [
        (row.at_ms, row.wall_ms, __version__, row.job_id, row.worker, row.kind, row.body) for row in batch.events
    ]
    return split


def _audit_columns(row: AuditRow) -> Row:
    entry = row.entry
    return row.seq, entry.wall_ms, entry.actor, entry.action, entry.subject, entry.details, row.hash


def _insert(table: Table, names: tuple[str, ...]) -> str:
    columns, marks = ", ".join(names), ", ".join("?" for _ in names)
    return f"INSERT INTO {table.name} ({columns}) VALUES ({marks})"  # noqa: S608 - names of the metadata


def _upsert(table: Table) -> str:
    """Insert, or replace the row of the same key."""
    names = tuple(column.name for column in table.columns)
    keys = tuple(column.name for column in table.primary_key.columns)
    changes = ", ".join(f"{name} = excluded.{name}" for name in names if name not in keys)
    return f"{_insert(table, names)} ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {changes}"


def _update(table: Table, names: tuple[str, ...], where: str) -> str:
    changes = ", ".join(f"{name} = ?" for name in names)
    return f"UPDATE {table.name} SET {changes} WHERE {where} = ?"  # noqa: S608 - names of the metadata


# The hot statements are texts made of the metadata's names: executemany of a text takes half of what a Core
# construct does. Their parameters come in the order of the columns.
_EVENT: Final = ("at_ms", "wall_ms", "engine", "job_id", "worker", "kind", "body")
_INSERT_JOB: Final = _insert(tables.jobs, (*_JOB_SPEC, *_JOB_IMAGE))
_UPDATE_JOB: Final = _update(tables.jobs, _JOB_IMAGE, "id")
_UPDATE_VERDICTS: Final = _update(tables.jobs, ("verdicts",), "id")
_UPSERT_TASK: Final = _upsert(tables.tasks)
_UPSERT_ATTEMPT: Final = _upsert(tables.attempts)
_UPSERT_FACTS: Final = _upsert(tables.facts)
_UPSERT_WORKER: Final = _upsert(tables.workers)
_UPDATE_COUNTERS: Final = _update(tables.counters, ("next_epoch", "next_seq", "now_ms"), "id")
_INSERT_EVENT: Final = _insert(tables.events, _EVENT)
_UPSERT_IDEMPOTENCY: Final = _upsert(tables.idempotency)
_UPSERT_TOKEN: Final = _upsert(tables.tokens)
_UPSERT_IDENTITY: Final = _upsert(tables.identities)
_RAISE_COUNTER: Final = "UPDATE identities SET counter = ? WHERE worker = ? AND counter < ?"
_RAISE_START: Final = (
    "UPDATE identities SET boot = ?, instance = ?, started_wall_ms = ? "
    "WHERE worker = ? AND (boot < ? OR (boot = ? AND instance = ''))"
)
_UPSERT_SECRET: Final = _upsert(tables.secrets)
_UPSERT_SINK_CURSOR: Final = _upsert(tables.sink_cursors)
_INSERT_AUDIT: Final = _insert(tables.audit, tuple(column.name for column in tables.audit.columns))
_COUNT: Final = "UPDATE counters SET probed = probed + 1"
_FORGET_FACTS: Final = (
    "DELETE FROM facts WHERE digest = ? AND NOT EXISTS (SELECT 1 FROM workers WHERE facts_digest = ?)"
    " AND NOT EXISTS (SELECT 1 FROM events WHERE seq > ? AND body LIKE ?)"
)
_FORGET_EVENTS: Final = "DELETE FROM events WHERE seq <= ? AND seq < (SELECT max(seq) FROM events)"
_FORGET_KEYS: Final = (
    "DELETE FROM idempotency WHERE rowid IN"  # noqa: S608 - a number of ours
    f" (SELECT rowid FROM idempotency WHERE wall_ms < ? ORDER BY wall_ms LIMIT {KEYS_AT_A_TIME})"
)
_FORGET_SECRETS: Final = "DELETE FROM secrets WHERE job_id = ?"
_ONLY_WAITS: Final = (
    "state = 'queued' AND reason_code = '' AND reason_message = '' AND stop IS NULL AND stop_grace_ms = 0"
    " AND started_wall_ms IS NULL AND ended_wall_ms IS NULL AND outcome IS NULL AND outputs IS NULL AND stop_by = ''"
)
_SELECT_WAITING: Final = f"SELECT id, owner, schedule, seq FROM jobs WHERE is_live AND {_ONLY_WAITS} ORDER BY seq"  # noqa: S608
_SELECT_BEGUN: Final = (
    f"SELECT id, owner, schedule, seq, {', '.join(_JOB_IMAGE)} FROM jobs"  # noqa: S608
    f" WHERE is_live AND ({_ONLY_WAITS}) IS NOT TRUE ORDER BY seq"
)
_FORGET_IDENTITY: Final = "DELETE FROM identities WHERE worker = ?"
_FORGET_TOKEN: Final = "DELETE FROM tokens WHERE id = ?"  # noqa: S105 - a statement


def _engine(path: str, vfs: str) -> Engine:
    # SQLite itself never makes the file: one that was taken away would be there again, empty.
    name = f"file:{quote(path)}?mode=rw{f'&vfs={vfs}' if vfs else ''}"

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(name, uri=True, check_same_thread=False)

    engine = create_engine("sqlite+pysqlite://", creator=connect, poolclass=QueuePool, pool_size=8)

    @event.listens_for(engine, "connect")
    def _prepare(connection: Any, _record: object) -> None:  # Any: the driver's own connection
        connection.isolation_level = None  # transactions begin and end where this module says
        connection.execute(f"PRAGMA busy_timeout={_BUSY_TIMEOUT_MS}")
        (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
        if mode != "wal":  # the file system shares no memory between those who map a file
            raise StorageUnavailable(
                f"{path} lies where SQLite can't keep its log (journal mode {mode} instead of wal)",
                hint="use a --state folder on a local disk",
            )
        for pragma in (
            f"synchronous={_SYNCHRONOUS}",
            "foreign_keys=ON",
            f"wal_autocheckpoint={_LOG_PAGES}",
            f"journal_size_limit={_LOG_KEPT_BYTES}",
        ):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # IMMEDIATE takes the write lock before anything is read, so that no transaction fails half way for it.
        is_read = connection.get_execution_options().get("gpulayer_read", False)
        connection.exec_driver_sql("BEGIN" if is_read else "BEGIN IMMEDIATE")

    return engine
