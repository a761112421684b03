"""Everything durable, in one SQLite file (WAL, ``synchronous=FULL``).

``commit`` is called by one thread (the driver's) and writes a whole micro-batch in one transaction: all of it or
nothing. It has a connection of its own. Reads share a few others and see the last commit. Methods block; the driver
and the routes run them in threads. Errors of the database leave here as ``StorageUnavailable`` alone.
"""

import errno
import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from sqlalchemy import Connection, Engine, QueuePool, Select, create_engine, event, func, select
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, InterfaceError, ProgrammingError, SQLAlchemyError

from gpulayer import __version__
from gpulayer.engine.records import (
    CounterImage,
    FactsImage,
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
    attempt_from_text,
    facts_from_text,
    outcome_from_text,
)
from gpulayer.server.store.disk import StoreDisk, sync_error
from gpulayer.server.store.health import check_contents, damaged, how_to_use, is_damage, restoring
from gpulayer.server.store.mark import check_newest
from gpulayer.server.store.rows import (
    Batch,
    EventRow,
    Live,
)
from gpulayer.server.store.schema import ensure_schema, expected
from gpulayer.server.store.statements import (
    COUNT,
    INSERT_AUDIT,
    INSERT_NUMBERED_EVENT,
    SELECT_BEGUN,
    SELECT_WAITING,
    audit_columns,
    job_image,
    split,
)
from gpulayer.server.store.tables import SCHEMA_VERSION
from gpulayer.server.store.trail import chained
from gpulayer.spec.job import JobState
from gpulayer.spec.worker import WorkerState
from gpulayer.wire.trail import FIRST_HASH

__all__ = ["IDEMPOTENCY_KEPT_MS", "Store"]

IDEMPOTENCY_KEPT_MS: Final = 7 * 86_400_000
_BUSY_TIMEOUT_MS: Final = 5_000
_SYNCHRONOUS: Final = "FULL"  # SQLite's log is synced by every commit; with less a power cut takes answered commits
_LOG_PAGES: Final = 1_000  # so many are in SQLite's log before it is written back
_WRITER_PAGES: Final = 128  # the only writer's stay right, so they are kept
# Each commit makes a reader's pages worthless, and the system keeps the file's once for all. So many SQLite gets in one
# piece with the first of them, for as long as the connection lives; more would come and go amid everything else.
_READER_PAGES: Final = 20
_READERS_KEPT: Final = 4  # connections; a plane reads in as many threads
_STATEMENTS_KEPT: Final = 32  # of each connection, prepared; a list of ids is another text for each length
_LOG_KEPT_BYTES: Final = 64 * 1024 * 1024  # what SQLite's log keeps of what a long read made it grow by

_NOT_NOW: Final = "nothing was written; free space or repair the disk, then try again"
_READ_ONLY: Final = {"gpulayer_read": True}


def _nothing() -> bool:
    return False


class Store:
    """Opens or makes the store at ``path`` (a file on a local disk, mode 0600).

    Raises Conflict for a newer schema, StorageUnavailable for a file that is damaged or can't be used, which is left as
    it is; a store of an older schema is copied before it is brought up to date (``health``).

    ``was_left_open``: nobody closed it; its last owner died. After a sync of SQLite's that failed ``disk.failed`` is
    told, and where that returns, StorageUnavailable is raised: what was acknowledged before is durable, and nobody
    may go on with this store but by opening it anew.
    """

    def __init__(self, path: str, *, disk: StoreDisk | None = None, spend: Callable[[], bool] = _nothing) -> None:
        """spend: asked where a commit finds no room; True: there is some now."""
        self._path = path
        self._spend = spend
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
        self._writing = _engine(path, self._disk.vfs)
        self._readers = _readers(path, self._disk.vfs)
        try:
            with self._mapped():
                ensure_schema(self._writing)
            self._disk.sync_names(path)
            with closing(self._disk.read_only(Path(path))) as connection:
                check_contents(connection, path, tables=expected())
            self._audited = self._last_audit()
            self._count = self._counted()
            self._disk.remember(path)
        except BaseException:
            self._dispose()
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
            self._dispose()
            return
        self._dispose()  # which tries once more
        if self._disk.has_log(self._path):
            self._disk.let_go()
        else:
            self._disk.unmark(self._path)

    def _dispose(self) -> None:
        self._readers.dispose()
        self._writing.dispose()

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
        except (OSError, sqlite3.Error, SQLAlchemyError) as error:
            kept = f"and what it held can't be copied: {error}"
        gone = OSError(errno.ESTALE, f"it was removed or replaced while it was in use; {kept}")
        self._disk.failed(missed, gone)
        raise StorageUnavailable(f"the control plane's store is gone: {missed}: {gone.strerror}", hint=_NOT_NOW)

    def _rescue(self) -> str:
        """By the writer's connection, which is open still: a new one would find nothing."""
        copy = self._disk.make_rescue(self._path)
        with closing(self._writing.raw_connection()) as connection:
            connection.cursor().execute("VACUUM INTO ?", (copy,))
        self._disk.rewrite(copy)
        self._disk.sync_names(self._path)
        return copy

    def _is_written_back(self) -> bool:
        try:
            with closing(self._writing.raw_connection()) as connection:
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
            _settle(self._writing)
        self._disk.unmark(self._path)  # its log is empty now; the next commit marks it again

    def commit(self, batch: Batch) -> None:
        """Write the batch durably, in one transaction. Raises StorageUnavailable, and then nothing is written."""
        try:
            self._commit(batch)
        except StorageUnavailable as error:
            if not _is_full(error.__cause__) or not self._spend():
                raise
            self._commit(batch)

    def _commit(self, batch: Batch) -> None:
        rows = split(batch)
        seq, after = self._audited
        audit = chained(rows.audit, seq=seq, after=after)
        with self._mapped(), self._writing.begin() as connection:
            for statement, parameters in rows.statements():
                if parameters:
                    connection.exec_driver_sql(statement, parameters)
            if audit:
                connection.exec_driver_sql(INSERT_AUDIT, [audit_columns(row) for row in audit])
            connection.exec_driver_sql(COUNT)
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
        with self._mapped(), self._writing.begin() as connection:
            connection.exec_driver_sql("UPDATE counters SET next_epoch = ?, next_seq = ?", (first, first))
            # A signature over a counter of the lost time opens no session; its worker signs anew above this one.
            connection.exec_driver_sql("UPDATE identities SET counter = ?, is_local = 0", (first,))
            connection.exec_driver_sql(INSERT_NUMBERED_EVENT, row)

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
        with self._mapped(), self._writing.begin() as connection:
            connection.exec_driver_sql(COUNT)
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
            waiting_rows = connection.exec_driver_sql(SELECT_WAITING).cursor.fetchall()
            rows = connection.exec_driver_sql(SELECT_BEGUN).all()
            of_live = select(tasks).join(jobs, jobs.c.id == tasks.c.job_id).where(jobs.c.is_live)
            under_way = of_live.where(~tasks.c.is_done).order_by(jobs.c.seq, tasks.c.task_index)
            task_rows = [*connection.execute(under_way), *connection.execute(_first_failed())]
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
                    outcome=outcome_from_text(row.outcome),
                    outputs=None if row.outputs is None else Digest(row.outputs),
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
        """A connection for reads: one snapshot, as of its first query. Raises StorageUnavailable, also for a row with
        JSON that is none, or with a word that nobody writes: what is in the store was written here."""
        try:
            with self._mapped(), self._readers.connect() as connection:
                yield connection.execution_options(**_READ_ONLY)
        except ValueError as error:
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


def _first_failed() -> Select[Any]:  # Any: rows of several types
    """Of each live array the first element, by number, that is done and did not succeed."""
    jobs, tasks = tables.jobs, tables.tasks
    first = (
        select(tasks.c.job_id, func.min(tasks.c.task_index).label("task_index"))
        .join(jobs, jobs.c.id == tasks.c.job_id)
        .where(jobs.c.is_live, tasks.c.is_done, tasks.c.state != str(JobState.SUCCEEDED))
        .group_by(tasks.c.job_id)
        .subquery()
    )
    return select(tasks).join(first, (first.c.job_id == tasks.c.job_id) & (first.c.task_index == tasks.c.task_index))


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


def _engine(path: str, vfs: str) -> Engine:
    """For one thread, which writes; whoever else asks for its only connection waits."""
    return _connecting(path, vfs, kept=1, more=0, pages=_WRITER_PAGES)


def _readers(path: str, vfs: str) -> Engine:
    """Last in, first out: few connections are enough mostly."""
    return _connecting(path, vfs, kept=_READERS_KEPT, more=_READERS_KEPT, pages=_READER_PAGES)


def _connecting(path: str, vfs: str, *, kept: int, more: int, pages: int) -> Engine:
    # SQLite itself never makes the file: one that was taken away would be there again, empty.
    name = f"file:{quote(path)}?mode=rw{f'&vfs={vfs}' if vfs else ''}"

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(name, uri=True, check_same_thread=False, cached_statements=_STATEMENTS_KEPT)

    engine = create_engine(
        "sqlite+pysqlite://",
        creator=connect,
        poolclass=QueuePool,
        pool_size=kept,
        max_overflow=more,
        pool_use_lifo=True,
    )

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
            f"cache_size={pages}",
        ):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # IMMEDIATE takes the write lock before anything is read, so that no transaction fails half way for it.
        is_read = connection.get_execution_options().get("gpulayer_read", False)
        connection.exec_driver_sql("BEGIN" if is_read else "BEGIN IMMEDIATE")

    return engine
