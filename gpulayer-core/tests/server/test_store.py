"""The store: what is committed comes back, all of a batch or nothing, whatever the schema's age."""

import json
import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine, select

from gpulayer.clock import Instant
from gpulayer.engine import Policy, State, check, due, rebuild, step
from gpulayer.engine.events import (
    CancelRequested,
    DrainRequested,
    Event,
    JobSubmitted,
    NodePhase,
    NodeReport,
    WorkerJoined,
    WorkerRemoved,
    WorkerReported,
    WorkerResumed,
)
from gpulayer.engine.records import AttemptImage, NodeImage, TaskImage
from gpulayer.errors import Blame, Conflict, DiskFull, StorageUnavailable
from gpulayer.ids import Digest, Epoch, JobId, WorkerId
from gpulayer.server.history import History, is_logged
from gpulayer.server.store import AuditEntry, Batch, IdempotencyRow, IdentityRow, JobRow, Side, Store, log, reads
from gpulayer.server.store.codec import attempt_from_text, attempt_to_text
from gpulayer.server.store.schema import alembic_config
from gpulayer.server.store.tables import SCHEMA_VERSION, metadata
from gpulayer.server.store.tables import facts as facts_table
from gpulayer.spec.job import JobEntry, JobSpec, RetryOn
from gpulayer.spec.machine import Device, WorkerFacts
from gpulayer.spec.outcome import EndedBy, Outcome
from gpulayer.spec.request import Accelerator, Request
from gpulayer.wire.convert import spec_to_wire


@pytest.fixture
def store(tmp_path):
    made = Store(str(tmp_path / "store.db"))
    yield made
    made.close()


def _job(number: int, **fields) -> JobRow:
    spec = JobSpec(command=("run", str(number)), **fields)
    return JobRow(JobId(f"{number:016x}"), "owner", "me", "test", 1000 + number, spec, spec_to_wire(spec))


class _World:
    """Random events through the engine into a store, in batches."""

    def __init__(self, seed: int, store: Store) -> None:
        self.random = random.Random(seed)
        self.store = store
        self.state = State()
        self.history = History()
        self.ms = 0
        self.jobs: list[JobRow] = []
        self.batch = Batch()
        self.seqs: dict[str, int] = {}

    def at(self) -> Instant:
        self.ms += self.random.choice((1, 100, 5_000))
        return Instant(self.ms, 1_700_000_000_000 + self.ms)

    def apply(self, event: Event) -> None:
        made = step(self.state, event)
        self.batch.records.extend(made.records)
        if is_logged(event, made.records):
            self.batch.events.extend(self.history.rows(event, made.records))

    def turn(self) -> None:
        rnd = self.random
        for event in due(self.state, self.at()):
            self.apply(event)
        match rnd.randrange(8):
            case 0 | 1:
                request = rnd.choice((Request(), Request(cpus=2), Request((Accelerator.CUDA,), devices=1)))
                row = _job(
                    len(self.jobs) + 1,
                    request=request,
                    retries=rnd.randrange(3),
                    retry_on=rnd.choice(list(RetryOn)),
                    priority=rnd.randrange(3),
                    exclusive=rnd.random() < 0.2,
                    wait=rnd.random() < 0.8,
                )
                self.jobs.append(row)
                self.batch.sides.append(Side(jobs=(row,)))
                self.apply(JobSubmitted(self.at(), JobEntry.of(row.id, row.owner, row.spec)))
            case 2:
                number = rnd.randrange(6)
                facts, digest = self.facts_of(number)
                self.apply(WorkerJoined(self.at(), WorkerId(f"w{number}"), f"name{number}", facts, digest))
            case 3 if self.jobs:
                self.apply(
                    CancelRequested(self.at(), rnd.choice(self.jobs).id, rnd.choice((None, 5)), rnd.choice("ab"))
                )
            case 4 if self.state.workers:
                worker = rnd.choice(list(self.state.workers))
                event = rnd.choice((DrainRequested, WorkerResumed, WorkerResumed))
                self.apply(event(self.at(), worker))
                if rnd.random() < 0.1:
                    self.apply(WorkerRemoved(self.at(), worker))
            case _ if self.state.workers:
                self.report(rnd.choice(list(self.state.workers)))
            case _:
                pass
        if rnd.random() < 0.4:
            self.commit()

    def facts_of(self, number: int) -> tuple[WorkerFacts, Digest]:
        """Workers whose numbers are 3 apart share their facts, of which one figure goes up and down."""
        number, disk = number % 3, self.random.randrange(4)
        gpus = tuple(Device(f"g{number}.{n}", n, Accelerator.CUDA, "X") for n in range(number))
        facts = WorkerFacts("linux", "1", 2 + number, 2**33, disk_bytes=disk * 10**9, devices=gpus)
        return facts, Digest(f"{number * 10 + disk:064x}")

    def report(self, worker_id: WorkerId) -> None:
        rnd, worker = self.random, self.state.workers[worker_id]
        items = []
        for epoch, node in worker.leases.items():
            phase = rnd.choice((NodePhase.STAGING, NodePhase.RUNNING, NodePhase.ENDED))
            if phase is NodePhase.RUNNING and epoch in self.state.ahead.get(worker_id, ()):
                continue  # a worker starts what it has room for
            ended_by = rnd.choice(list(EndedBy))
            outcome = Outcome(ended_by, rnd.choice((0, 1, None)), None, "seen \u2192", rnd.choice(list(Blame)))
            is_end = phase is NodePhase.ENDED
            tree = Digest("ab" * 32) if is_end and rnd.random() < 0.5 else None
            items.append(NodeReport(epoch, node, phase, outcome if is_end else None, tree))
        seq = self.seqs[worker_id] = self.seqs.get(worker_id, 0) + 1
        boot = 1 + seq // 20
        holding = tuple(worker.leases)
        recovered = holding if boot > worker.boot and rnd.random() < 0.5 else None
        facts, digest = self.facts_of(int(worker_id[1:])) if rnd.random() < 0.3 else (None, None)
        self.apply(
            WorkerReported(
                *(self.at(), worker_id, boot, seq, holding, recovered, tuple(items)),
                facts=facts,
                facts_digest=digest,
                leaving=rnd.random() < 0.02,
            )
        )

    def commit(self) -> None:
        self.store.commit(self.batch)
        self.batch = Batch()


def _comparable(state: State) -> object:
    """Everything but what may be forgotten: when a worker was heard, and the numbers of its reports."""
    return (
        {
            id_: (
                job.entry,
                job.seq,
                job.state,
                job.stop,
                job.stop_by,
                job.stop_grace_ms,
                job.reason_code,
                job.outcome,
                job.tasks,
            )
            for id_, job in state.jobs.items()
        },
        state.attempts,
        {
            id_: (w.name, w.state, w.facts, w.facts_digest, w.free, w.boot, w.is_draining, sorted(w.leases.items()))
            for id_, w in state.workers.items()
        },
        (state.next_epoch, state.next_seq),
    )


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
def test_the_state_rebuilt_from_the_store_is_the_live_state(seed, tmp_path_factory) -> None:
    folder = tmp_path_factory.mktemp("world")
    store = Store(str(folder / "s.db"))
    try:
        world = _World(seed, store)
        for _ in range(80):
            world.turn()
        world.commit()
        live = store.load_live()
        again = rebuild(
            Policy(),
            live.counters,
            jobs=live.jobs,
            waiting=live.waiting,
            tasks=live.tasks,
            attempts=live.attempts,
            workers=live.workers,
            facts=live.facts,
        )
        check(again)
        assert _comparable(again) == _comparable(world.state)
        assert {image.digest: image.facts for image in live.facts} == world.state.facts
        assert _kept_facts(store) >= {worker.facts_digest for worker in live.workers}  # and what the log names
        with store.reading() as connection:
            page, _ = reads.page_of_jobs(connection, states=(), name="", before_seq=None, limit=500)
            assert [job.image.id for job in page] == [row.id for row in world.jobs[::-1]]
            assert all(job.submission == row.submission for job, row in zip(page, world.jobs[::-1], strict=True))
    finally:
        store.close()
        shutil.rmtree(folder)


def _kept_facts(store: Store) -> set[str]:
    with store.reading() as connection:
        return {row.digest for row in connection.execute(select(facts_table.c.digest))}


def test_facts_are_kept_while_anybody_has_them_and_no_longer(store) -> None:
    world = _World(0, store)
    figures = [WorkerFacts("linux", "1", 2, 2**33, disk_bytes=figure) for figure in range(5)]

    def joins(worker: str, figure: int) -> None:
        event = WorkerJoined(world.at(), WorkerId(worker), worker, figures[figure], Digest(f"{figure:064x}"))
        world.apply(event)

    def kept() -> set[int]:
        """What the sweep leaves when all rows of the log are old, but for the newest."""
        world.commit()
        store.commit(Batch(sides=[Side(forget_events=10**9)]))
        with store.reading() as connection:
            named, seen = log.named_facts(connection, after=0, limit=10**6)
            unnamed = log.unnamed_facts(connection, named)
        store.commit(Batch(sides=[Side(forget_facts=tuple(unnamed), facts_after=seen)]))
        return {int(digest, 16) for digest in _kept_facts(store)}

    joins("a", 0)
    joins("b", 0)
    assert kept() == {0}
    joins("a", 1)
    assert kept() == {0, 1}
    joins("b", 1)
    assert kept() == {1}
    for figure in (2, 3, 1, 3, 2, 4, 3):  # a figure that flaps, in one batch and in many
        joins("a", figure)
    assert kept() == {1, 3}
    for figure in (2, 4, 2, 4):
        joins("a", figure)
        assert kept() == {1, figure}
    joins("b", 0)  # nobody has the others for a moment, and another worker enrols with them in the same batch
    joins("c", 1)
    assert kept() == {0, 1, 4}
    world.apply(WorkerRemoved(world.at(), WorkerId("c")))
    assert kept() == {0, 1, 4}  # the row of a removed worker stays, and what it names
    joins("a", 1)
    joins("a", 4)
    assert kept() == {0, 1, 4}
    assert {int(image.digest, 16) for image in store.load_live().facts} == {0, 4}


def _attempt(**node) -> AttemptImage:
    fields = {"devices": (), "cpus": 1, "memory_bytes": 0, "phase": NodePhase.ASSIGNED, "outcome": None}
    one = NodeImage(**{"worker": WorkerId("w"), "worker_name": "w", "outputs": None, **fields, **node})
    phase = NodePhase.ENDED if one.outcome else one.phase
    return AttemptImage(
        Epoch(7), JobId("j"), 0, 1, phase, (one,), None, False, None, None, None, one.outcome, "only one fits"
    )


def test_what_is_lent_ahead_is_stored_as_such_and_what_an_older_version_stored_is_read() -> None:
    licence = {"resources": (("licence", 2), ("seat", 1))}
    for flags in (
        {},
        {"is_ahead": True},
        {"is_ahead": True, "is_revoked": True},
        {"is_revoked": True},
        licence,
        {"is_revoked": True, **licence},
    ):
        image = _attempt(**flags)
        assert attempt_from_text(7, "j", attempt_to_text(image)) == image
    before = json.loads(attempt_to_text(_attempt()))
    assert len(before["nodes"][0]) == 8  # as all rows had before anything was lent ahead


def test_a_task_whose_only_attempt_was_given_back_has_had_none_after_a_new_start(store) -> None:
    row, world = _job(1), _World(1, store)
    world.batch.sides.append(Side(jobs=(row,)))
    world.apply(JobSubmitted(world.at(), JobEntry.of(row.id, row.owner, row.spec)))
    world.commit()
    for attempts in (1, 0):
        world.batch.records.append(TaskImage(row.id, 0, is_done=False, attempts=attempts, failures=0, avoid=()))
        world.commit()
        assert sum(task.attempts for task in store.load_live().tasks) == attempts


def test_what_waits_at_a_worker_or_was_given_back_is_no_attempt_to_readers(store) -> None:
    row, preempted = _job(1), Outcome(EndedBy.PREEMPTED, blame=Blame.CAPACITY)
    world = _World(1, store)
    world.batch.sides.append(Side(jobs=(row,)))
    world.apply(JobSubmitted(world.at(), JobEntry.of(row.id, row.owner, row.spec)))
    world.batch.records += [
        replace(_attempt(is_ahead=True), epoch=Epoch(1), job_id=row.id),
        replace(_attempt(is_revoked=True, outcome=preempted), epoch=Epoch(2), job_id=row.id),
        replace(_attempt(outcome=preempted), epoch=Epoch(3), job_id=row.id),
    ]
    world.commit()
    with store.reading() as connection:
        assert [image.epoch for image in reads.attempts_of(connection, [row.id])[row.id]] == [3]
        assert [image.epoch for image in reads.attempts_of(connection, [row.id, JobId("x")])[row.id]] == [3]


def test_a_batch_is_written_whole_or_not_at_all(store) -> None:
    world = _World(1, store)
    row = _job(1)
    world.batch.sides.append(Side(jobs=(row,)))
    world.apply(JobSubmitted(world.at(), JobEntry.of(row.id, "owner", row.spec)))
    world.commit()
    clash = _job(2)
    world.batch.sides.append(Side(jobs=(clash, row)))  # the second is there already
    for again in (clash, row):
        world.apply(JobSubmitted(world.at(), JobEntry.of(again.id, "owner", again.spec)))
    with pytest.raises(Exception, match="UNIQUE"):
        world.commit()
    with store.reading() as connection:
        assert reads.count_jobs(connection) == {"queued": 1}
        assert len(reads.job_events(connection, row.id, after=0, limit=10)) == 1


def test_the_first_migration_makes_what_the_metadata_says(tmp_path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'm.db'}")
    with engine.begin() as connection:
        command.upgrade(alembic_config(connection), "head")
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    engine.dispose()
    Store(str(tmp_path / "fresh.db")).close()
    assert _schema(tmp_path / "m.db") == _schema(tmp_path / "fresh.db")
    store = Store(str(tmp_path / "m.db"))
    store.probe()
    store.close()


def _schema(path: Path) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(path)
    try:
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        found: list[tuple[object, ...]] = [("version", *connection.execute("SELECT * FROM alembic_version"))]
        for table in sorted(tables):
            found += [(table, *row) for row in connection.execute(f"PRAGMA table_xinfo({table})")]
            indexes = connection.execute(f"PRAGMA index_list({table})").fetchall()
            found += sorted((table, row[1], row[2], row[4]) for row in indexes)
            found += sorted((table, *row[2:5]) for row in connection.execute(f"PRAGMA foreign_key_list({table})"))
        found += sorted(connection.execute("SELECT name, tbl_name, sql FROM sqlite_master WHERE type = 'trigger'"))
        return found
    finally:
        connection.close()


def _old_store(path: Path, revision: str, newest: Path) -> None:
    """A store as the version of that schema made it, with the rows of a new one as far as it had their columns."""
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        command.upgrade(alembic_config(connection), revision)
    engine.dispose()
    connection = sqlite3.connect(path)
    connection.execute("ATTACH ? AS newest", (str(newest),))
    connection.execute("DELETE FROM counters")
    for table in ("facts", "workers", "counters", "jobs", "tasks", "attempts", "events", "idempotency", "identities"):
        names = ", ".join(row[1] for row in connection.execute(f"PRAGMA main.table_info({table})"))
        connection.execute(f"INSERT INTO main.{table} ({names}) SELECT {names} FROM newest.{table}")
    connection.executemany(
        "INSERT INTO tokens VALUES (?, ?, ?, 'hash', 1, ?, ?, ?, ?)",
        [
            ("client000001", "client", "local", None, False, True, None),
            ("join00000001", "join", "box", 900_001, False, False, "w0"),
            ("join00000002", "join", "", 900_001, True, False, None),
        ],
    )
    connection.commit()
    connection.close()


@pytest.mark.parametrize("revision", ["0001", "0002"])
def test_a_store_of_an_older_schema_is_brought_up_to_date_with_all_that_is_in_it(tmp_path, store, revision) -> None:
    world = _World(3, store)
    for _ in range(60):
        world.turn()
    keys = tuple(IdentityRow(WorkerId(f"w{number}"), f"key{number}", 7, number == 0) for number in range(2))
    world.batch.sides.append(Side(identities=keys))
    world.commit()
    before = store.load_live()
    with store.reading() as connection:
        listed, _ = reads.page_of_jobs(connection, states=(), name="", before_seq=None, limit=500)
    store.close()
    path = tmp_path / "old.db"
    _old_store(path, revision, tmp_path / "store.db")
    again = Store(str(path))
    try:
        after = again.load_live()
        jobs = [(replace(entry, owner="local"), image) for entry, image in before.all_jobs()]
        tasks = list(before.tasks)
        if revision == "0001":  # who asked for a job's end was not kept, nor whose failures a task had
            jobs = [(entry, replace(image, stop_by="")) for entry, image in jobs]
            tasks = [replace(task, program_failures=0) for task in tasks]
        assert after.all_jobs() == jobs
        assert list(after.tasks) == tasks
        assert (after.attempts, after.workers, after.facts) == (before.attempts, before.workers, before.facts)
        assert after.counters == before.counters
        with again.reading() as connection:
            found, _ = reads.page_of_jobs(connection, states=(), name="", before_seq=None, limit=500)
            assert [(job.image.id, job.owner, job.token_id) for job in found] == [
                (job.image.id, "local", job.owner) for job in listed
            ]
            tokens = {row.id: row for row in reads.read_tokens(connection)}
            identities = {row.worker: row for row in reads.read_identities(connection)}
            assert reads.read_audit(connection, after=0, limit=10) == []
        assert [(row.uses, row.max_uses, row.is_revoked, row.owner) for row in tokens.values()] == [
            (0, 1, False, ""),
            (1, 1, False, ""),
            (0, 1, True, ""),
        ]
        assert (identities[WorkerId("w0")].token_id, identities[WorkerId("w1")].token_id) == ("join00000001", "")
        again.commit(Batch(sides=[Side(audit=(AuditEntry(1, "system", "plane.start"),))]))
    finally:
        again.close()
    Store(str(tmp_path / "fresh.db")).close()
    assert _schema(path) == _schema(tmp_path / "fresh.db")


def test_an_older_store_gets_an_id_of_its_own_which_stays_and_knows_of_no_sink(tmp_path) -> None:
    ids = []
    for name in ("one.db", "two.db"):
        engine = create_engine(f"sqlite:///{tmp_path / name}")
        with engine.begin() as connection:
            command.upgrade(alembic_config(connection), "0003")
        engine.dispose()
    for name in ("one.db", "two.db", "one.db", "fresh.db", "fresh.db"):
        store = Store(str(tmp_path / name))
        with store.reading() as connection:
            ids.append(log.read_store_id(connection))
            assert log.read_sink_cursors(connection) == {}
        store.close()
    assert all(re.fullmatch("[0-9a-f]{16}", id_) for id_ in ids)
    assert [ids.index(id_) for id_ in ids] == [0, 1, 0, 3, 3]


def test_the_log_is_read_in_pages_with_what_it_is_about(store) -> None:
    world = _World(3, store)
    for _ in range(60):
        world.turn()
    world.batch.sides += [Side(sink_cursors=(("a/b", 3), ("c/d", 4))), Side(sink_cursors=(("a/b", 5),))]
    world.commit()
    with store.reading() as connection:
        rows, after = [], 0
        while (page := log.read_log(connection, after=after, limit=7, kinds={"job_submitted"}, leaving="}")).rows:
            rows += page.rows
            after = page.rows[-1].seq
            assert {row.job_id for row in page.rows if row.job_id is not None} == set(page.jobs)
            for id_, job in page.jobs.items():
                assert job == reads.read_job(connection, id_)
            assert set(page.workers.values()) <= {"name0", "name1", "name2"}
        assert [row.seq for row in rows] == list(range(1, log.last_seq(connection) + 1))
        assert sum(row.kind == "job_submitted" for row in rows) == len(world.jobs)
        some = log.read_log(connection, after=0, limit=1_000, kinds={"job_submitted"}, leaving="nothing ends so")
        assert {row.kind for row in some.rows if row.body} == {"job_submitted"}
        assert log.read_sink_cursors(connection) == {"a/b": 5, "c/d": 4}


def test_a_store_of_a_newer_version_is_refused(tmp_path) -> None:
    path = str(tmp_path / "s.db")
    Store(path).close()
    connection = sqlite3.connect(path)
    connection.execute("UPDATE alembic_version SET version_num = '0999'")
    connection.commit()
    connection.close()
    with pytest.raises(Conflict, match=f"schema 0999.*{SCHEMA_VERSION}"):
        Store(path)


def test_a_file_that_is_no_store_is_refused_and_left_alone(tmp_path) -> None:
    path = tmp_path / "s.db"
    path.write_bytes(b"not a database, but somebody's file" * 100)
    with pytest.raises(StorageUnavailable, match="is damaged: it is no SQLite file"):
        Store(str(path))
    assert path.read_bytes().startswith(b"not a database")


def test_opening_a_store_imports_no_alembic(tmp_path) -> None:
    code = (
        "import sys; from gpulayer.server.store import Store; "
        f"Store({str(tmp_path / 's.db')!r}).close(); Store({str(tmp_path / 's.db')!r}).close(); "
        "sys.exit('alembic' in sys.modules or 'sqlmodel' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_idempotency_keys_are_dropped_after_their_time(store) -> None:
    rows = tuple(IdempotencyRow("o", f"k{n}", "d", (JobId("j"),), n) for n in range(3))
    store.commit(Batch(sides=[Side(idempotency=rows)]))
    store.commit(Batch(sides=[Side(forget_idempotency_ms=2)]))
    with store.reading() as connection:
        assert reads.find_idempotency(connection, "o", "k1") is None
        assert reads.find_idempotency(connection, "o", "k2") == rows[2]


def test_however_many_keys_have_had_their_time_one_commit_drops_the_oldest_thousand(store) -> None:
    rows = tuple(IdempotencyRow("o", f"k{n}", "d", (JobId("j"),), n) for n in range(2_500))
    store.commit(Batch(sides=[Side(idempotency=rows)]))
    for left in (1_500, 500, 0):
        store.commit(Batch(sides=[Side(forget_idempotency_ms=10**9)]))
        with store.reading() as connection:
            assert connection.exec_driver_sql("SELECT count(*) FROM idempotency").scalar_one() == left
            assert log.has_keys_before(connection, wall_ms=10**9) is (left > 0)


@pytest.mark.parametrize("kib", [*range(60, 320, 20)])
def test_a_disk_with_little_room_makes_no_half_store_and_the_next_start_works(disk_of, fill, kib) -> None:
    folder = disk_of(1_000)
    fill(folder / "filler")
    os.truncate(folder / "filler", (1_000 - kib) * 1_024)
    path = folder / "store.db"
    with pytest.raises(DiskFull):
        Store(str(path))
    assert not path.exists()
    (folder / "filler").unlink()
    Store(str(path)).close()
    Store(str(path)).close()


def test_a_log_that_grew_under_a_long_read_shrinks_when_that_is_over(tmp_path, monkeypatch) -> None:
    module = sys.modules[Store.__module__]
    monkeypatch.setattr(module, "_LOG_PAGES", 20)
    monkeypatch.setattr(module, "_LOG_KEPT_BYTES", 200_000)
    path, log_file = str(tmp_path / "s.db"), tmp_path / "s.db-wal"
    store = Store(path)
    try:
        with store.reading() as connection:
            reads.count_jobs(connection)
            for number in range(40):
                entry = AuditEntry(number, "somebody", "x", "", json.dumps("y" * 20_000))
                store.commit(Batch(sides=[Side(audit=(entry,))]))
            assert log_file.stat().st_size > 800_000
        for _ in range(3):
            store.probe()
        assert log_file.stat().st_size <= 200_000
    finally:
        store.close()


def test_where_sqlite_can_not_keep_its_log_the_store_is_refused(tmp_path, monkeypatch) -> None:
    class Refusing(sqlite3.Connection):
        def execute(self, statement, *arguments):
            if statement == "PRAGMA journal_mode=WAL":
                statement = "PRAGMA journal_mode=DELETE"
            return super().execute(statement, *arguments)

    real = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: real(*a, **k, factory=Refusing))
    with pytest.raises(StorageUnavailable, match=r"journal mode delete instead of wal"):
        Store(str(tmp_path / "s.db"))


def test_what_a_dead_owner_left_in_the_log_is_written_anew_before_anything_else(tmp_path, monkeypatch) -> None:
    path = tmp_path / "s.db"
    program = (
        "import os, sys\n"
        "from gpulayer.server.store import AuditEntry, Batch, Side, Store\n"
        "store = Store(sys.argv[1])\n"
        "store.commit(Batch(sides=[Side(audit=(AuditEntry(1, 'somebody', 'x'),))]))\n"
        "os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(path)], check=True, timeout=60)
    log_file = tmp_path / "s.db-wal"
    left, written = log_file.read_bytes(), bytearray()
    assert left

    def noted(descriptor, piece, offset):
        written.extend(piece)
        return real(descriptor, piece, offset)

    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", noted)
    store = Store(str(path))
    try:
        assert store.was_left_open
        assert bytes(written) == left
        with store.reading() as connection:
            assert len(reads.read_audit(connection, after=0, limit=10)) == 1
    finally:
        store.close()
    again = Store(str(path))
    assert not again.was_left_open
    again.close()
