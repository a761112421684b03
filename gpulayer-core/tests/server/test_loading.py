"""What a start reads of jobs that wait: no more than that they do, if there is no more to tell."""

import sqlite3
from contextlib import closing

import pytest

from gpulayer.clock import Instant
from gpulayer.engine import State, step
from gpulayer.engine.events import JobSubmitted
from gpulayer.errors import Blame
from gpulayer.ids import JobId
from gpulayer.server.store import Batch, JobRow, Side, Store, statements
from gpulayer.server.store.codec import outcome_to_text
from gpulayer.spec.job import JobEntry, JobSpec
from gpulayer.spec.outcome import EndedBy, Outcome
from gpulayer.wire.convert import spec_to_wire

OTHERS = {
    "state": "running",
    "reason_code": "x",
    "reason_message": "x",
    "stop": str(EndedBy.CANCEL),
    "stop_grace_ms": 5,
    "started_wall_ms": 5,
    "ended_wall_ms": 5,
    "outcome": outcome_to_text(Outcome(EndedBy.CANCEL, None, None, "", Blame.USER)),
    "outputs": "00",
    "stop_by": "x",
    "begun": 1,
}
IDS = [JobId(f"{number:016x}") for number in range(3)]


@pytest.fixture
def store(tmp_path):
    """With jobs that wait."""
    state, batch, spec = State(), Batch(), JobSpec(("true",))
    for id_ in IDS:
        batch.records += step(state, JobSubmitted(Instant(1, 1), JobEntry.of(id_, "owner", spec))).records
        batch.sides.append(Side(jobs=(JobRow(id_, "owner", "me", "test", 1, spec, spec_to_wire(spec)),)))
    made = Store(str(tmp_path / "store.db"))
    made.commit(batch)
    yield made
    made.close()


def test_a_job_that_only_waits_has_no_image_of_its_own_and_the_one_that_it_would_have(store) -> None:
    live = store.load_live()
    assert [entry.id for entry, _ in live.waiting] == IDS
    assert live.jobs == []
    with store.reading() as connection:
        rows = connection.exec_driver_sql(f"SELECT id, seq, {', '.join(statements.JOB_IMAGE)} FROM jobs").all()
    assert [image for _, image in live.all_jobs()] == [statements.job_image(*row[:2], row[2:]) for row in rows]


@pytest.mark.parametrize("column", [column for column in statements.JOB_IMAGE if column != "is_live"])
def test_whatever_else_there_is_to_tell_of_a_job_is_loaded(store, tmp_path, column) -> None:
    """Each column of an image: one that is new must be looked at as well."""
    with closing(sqlite3.connect(tmp_path / "store.db", isolation_level=None)) as other:
        other.execute(f"UPDATE jobs SET {column} = ? WHERE id = ?", [OTHERS[column], IDS[1]])
    live = store.load_live()
    assert [entry.id for entry, _ in live.jobs] == [IDS[1]]
    assert [entry.id for entry, _ in live.all_jobs()] == IDS
