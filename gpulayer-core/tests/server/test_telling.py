"""What event sinks are told of each row of the event log."""

import json
from dataclasses import replace

import pytest

from gpulayer.engine.events import NodePhase
from gpulayer.engine.records import AttemptImage, JobImage, NodeImage
from gpulayer.errors import Blame
from gpulayer.ids import Epoch, JobId, WorkerId
from gpulayer.plugins import EventKind
from gpulayer.server.store import LogPage, LogRow, StoredJob
from gpulayer.server.telling import LEAVING, TOLD, event_of
from gpulayer.spec.job import FINAL_STATES, JobState
from gpulayer.spec.outcome import EndedBy, Outcome

JOB, WORKER = JobId("0123456789abcdef"), WorkerId("fedcba9876543210")
LOST = Outcome(EndedBy.WORKER_LOST, evidence="silent for 33 s", blame=Blame.INFRASTRUCTURE)
DONE = Outcome(EndedBy.PROGRAM, exit_code=3, blame=Blame.USER)


def attempt(number: int, *workers: str, outcome: Outcome | None = None) -> AttemptImage:
    nodes = tuple(NodeImage(WORKER, name, (), 1, 0, NodePhase.RUNNING, outcome, None) for name in workers)
    phase = NodePhase.RUNNING if outcome is None else NodePhase.ENDED
    return AttemptImage(Epoch(number), JOB, 0, number, phase, nodes, None, False, None, None, None, outcome, "")


def stored(*attempts: AttemptImage, state: JobState = JobState.RUNNING, outcome: Outcome | None = None) -> StoredJob:
    submission = {"name": "train", "command": ["true"], "tags": {"team": "a"}}
    image = JobImage(JOB, 1, state, "", "", None, 0, None, None, outcome, None)
    return StoredJob(submission, "ada", "ada", "cli", 1, image, None, attempts)


def told(kind: str, body: object = None, job: StoredJob | None = None, *, of_worker: bool = False):
    text = json.dumps(body or {}, separators=(",", ":"))
    row = LogRow(7, 255, kind, text, None if of_worker else JOB, WORKER if of_worker else None)
    page = LogPage([row], {} if job is None else {JOB: job}, {WORKER: "box"})
    return event_of(row, page, store_id="abcd")


def test_an_event_says_which_row_it_is_of_and_what_is_known_of_its_job_now() -> None:
    event = told("job_submitted", {}, stored(state=JobState.SUCCEEDED, outcome=replace(DONE, exit_code=0)))
    assert (event.id, event.seq, event.at_ms, event.kind) == ("abcd-7-ff", 7, 255, EventKind.JOB_SUBMITTED)
    job = event.job
    assert (job.id, job.name, job.owner, dict(job.tags)) == (JOB, "train", "ada", {"team": "a"})
    assert (job.state, job.exit_code, job.signal, job.ended_by) == ("succeeded", 0, None, "program")
    assert (event.worker, dict(event.details)) == ("", {})


def test_a_start_says_on_which_workers_which_attempt_runs() -> None:
    job = stored(attempt(1, "a", outcome=LOST), attempt(2, "b", "c"))
    event = told("attempt_running", {"attempt": 2, "epoch": 2}, job)
    assert event.kind is EventKind.JOB_STARTED
    assert dict(event.details) == {"attempt": 2, "workers": "b,c"}


def test_a_further_attempt_is_a_retry_that_says_how_the_one_before_ended() -> None:
    job = stored(attempt(1, "a", outcome=LOST), attempt(2, "b"))
    assert told("attempt_assigned", {"attempt": 1}, job) is None
    event = told("attempt_assigned", {"attempt": 2}, job)
    assert event.kind is EventKind.JOB_RETRIED
    assert dict(event.details) == {
        "ended_by": "worker_lost",
        "blame": "infrastructure",
        "evidence": "silent for 33 s",
        "attempt": 2,
        "workers": "b",
    }


@pytest.mark.parametrize("state", sorted(FINAL_STATES))
def test_every_final_state_is_an_end(state) -> None:
    job = stored(attempt(1, "a", outcome=DONE), state=state, outcome=DONE)
    event = told(f"job_{state}", {"code": "", "message": ""}, job)
    assert (event.kind, event.job.state, event.job.exit_code) == (EventKind.JOB_ENDED, state, 3)
    assert dict(event.details) == {
        "ended_by": "program",
        "blame": "user",
        "evidence": "",
        "attempt": 1,
        "workers": "a",
    }


def test_a_job_that_never_began_ends_with_the_reason() -> None:
    event = told("job_rejected", {"code": "gpu", "message": "no worker has a GPU"}, stored(state=JobState.REJECTED))
    assert event.kind is EventKind.JOB_ENDED
    assert (dict(event.details), event.job.ended_by) == ({"reason": "no worker has a GPU"}, None)


def test_an_unreachable_job_says_where_it_was() -> None:
    event = told("job_unreachable", {"code": "x", "message": "silent"}, stored(attempt(1, "a")))
    assert event.kind is EventKind.JOB_UNREACHABLE
    assert dict(event.details) == {"attempt": 1, "workers": "a", "reason": "silent"}


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("worker_joined", EventKind.WORKER_JOINED),
        ("worker_went_silent", EventKind.WORKER_SILENT),
        ("drain_requested", EventKind.WORKER_DRAINING),
        ("worker_resumed", EventKind.WORKER_RESUMED),
        ("worker_removed", EventKind.WORKER_REMOVED),
    ],
)
def test_workers_come_and_go_by_name(kind, wanted) -> None:
    event = told(kind, of_worker=True)
    assert (event.kind, event.worker, event.job) == (wanted, "box", None)
    assert dict(event.details) == {"worker_id": WORKER}


def test_the_last_report_of_a_worker_that_was_stopped_is_its_silence_and_other_reports_are_nothing() -> None:
    assert told("worker_reported", {"leaving": False}, of_worker=True) is None
    body = {"boot": 1, "leaving": True}
    assert json.dumps(body, separators=(",", ":")).endswith(LEAVING)
    event = told("worker_reported", body, of_worker=True)
    assert (event.kind, dict(event.details)) == (EventKind.WORKER_SILENT, {"worker_id": WORKER, "left": 1})


@pytest.mark.parametrize("kind", ["job_queued", "attempt_ended", "attempt_staging", "cancel_requested", "what_comes"])
def test_other_rows_of_a_job_are_told_to_nobody(kind) -> None:
    assert kind not in TOLD
    assert told(kind, {"attempt": 1}, stored(attempt(1, "a"))) is None


def test_a_row_of_a_job_that_is_not_in_the_store_is_told_to_nobody() -> None:
    assert told("job_submitted") is None


def test_every_kind_of_event_is_told_of_some_row() -> None:
    job = stored(attempt(1, "a", outcome=LOST), attempt(2, "b"))
    events = [told(kind, {"attempt": 2}, job, of_worker=kind.startswith(("worker", "drain"))) for kind in TOLD]
    assert {event.kind for event in events} == set(EventKind)
