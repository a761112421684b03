"""What opinions decide besides where a job runs: one that does not wait, and what is lent ahead."""

import pytest

from gpulayer.engine.effects import Notify
from gpulayer.ids import JobId
from gpulayer.spec.job import JobState
from gpulayer.spec.request import Request
from tests.scored_planes import DEAR, WAIT_MS, answer, asked, assigned, restarted, with_scorers


@pytest.fixture
def scored(plane):
    """A plane with one scorer."""
    return with_scorers(plane, "night")


# --no-wait -----------------------------------------------------------------------------------------------------------


def test_a_job_that_does_not_wait_is_decided_when_the_opinions_are_in(scored):
    scored.join()
    scored.submit("j1", wait=False)
    assert scored.job("j1").state is JobState.QUEUED
    answer(scored, w1=None)
    assert assigned(scored.last) == [("w1", "j1")]
    assert scored.state.undecided == {}


def test_a_job_that_does_not_wait_is_turned_away_where_all_are_refused(scored):
    scored.join()
    scored.submit("j1", wait=False)
    made = answer(scored, w1=DEAR)
    assert scored.job("j1").state is JobState.REJECTED
    assert scored.job("j1").reason_code == "no_capacity"
    assert scored.job("j1").reason_message == "every worker that fits is busy or refused by a scorer: 1 cpu"
    assert made.effects == (Notify(JobId("j1"), JobState.REJECTED),)
    assert made.rejected == {JobId("j1"): Request()}
    assert (scored.state.jobs, scored.state.undecided, scored.state.classes) == ({}, {}, {})


def test_a_job_that_does_not_wait_is_decided_at_once_by_what_is_known(scored):
    scored.join("w1", cpus=1)
    scored.submit("j1")
    answer(scored, w1=None)
    scored.submit("j2", wait=False)
    assert scored.job("j2").state is JobState.REJECTED


def test_a_job_that_does_not_wait_is_decided_when_the_wait_has_passed(scored):
    scored.join("w1", cpus=1)
    scored.submit("j1", wait=False)
    scored.submit("j2", wait=False)
    scored.pass_time(WAIT_MS - 1)
    assert {job.state for job in scored.state.jobs.values()} == {JobState.QUEUED}
    scored.pass_time(1)
    assert scored.job("j1").state is JobState.STAGING
    assert scored.job("j2").state is JobState.REJECTED
    assert scored.state.undecided == {}


def test_workers_that_keep_coming_do_not_put_the_decision_off(scored):
    scored.join("w1", cpus=1)
    scored.submit("j1")
    answer(scored, w1=None)
    scored.join("w2", labels=(("n", "2"),))
    scored.submit("j2", wait=False)
    for number in range(3, 8):
        scored.join(f"w{number}", labels=(("n", str(number)),))
        scored.pass_time(WAIT_MS // 5)
    assert scored.job("j2").state is JobState.STAGING  # on w2, whose scorer has stayed silent
    assert scored.state.undecided == {} or JobId("j2") not in scored.state.undecided[Request(), 1]


def test_a_cancelled_job_is_decided_no_more(scored):
    scored.join()
    scored.submit("j1", wait=False)
    scored.cancel()
    assert scored.job().state is JobState.CANCELLED
    assert scored.pass_time(WAIT_MS) == []
    assert scored.state.undecided == {}


@pytest.mark.parametrize("policy", [{}, {"scorers": ("night",)}, {"scorers": ("another",)}])
def test_a_job_that_does_not_wait_is_decided_after_a_restart_too(scored, policy):
    scored.join()
    scored.submit("j1", wait=False)
    restarted(scored, **policy)
    scored.pass_time(0)
    assert scored.state.jobs[JobId("j1")].state is JobState.QUEUED
    scored.pass_time(WAIT_MS)
    assert scored.job("j1").state is JobState.REJECTED


def test_after_a_restart_the_worker_that_reports_is_asked_about_and_taken(scored):
    scored.join()
    scored.submit("j1", wait=False)
    scored.submit("j2")
    restarted(scored, scorers=("night",))
    scored.pass_time(0)
    scored.report("w1")
    assert len(asked(scored.last)) == 1
    answer(scored, w1=None)
    assert assigned(scored.last) == [("w1", "j1"), ("w1", "j2")]


def test_without_scorers_any_more_a_restart_places_what_waited(scored):
    scored.join()
    scored.submit("j1", wait=False)
    restarted(scored)
    scored.pass_time(0)
    scored.report("w1")
    assert assigned(scored.last) == [("w1", "j1")]


# Lending ahead -------------------------------------------------------------------------------------------------------


def warm_up(plane, worker="w1", ends=8):
    """A worker on which attempts end quickly, one after the other."""
    for number in range(ends):
        plane.submit(f"{worker}-warm{number}", request=Request(worker=worker))
        answer(plane, request=Request(worker=worker), lifetime_ms=3_600_000, **{worker: None})
        plane.now_ms += 5
        plane.end(worker, plane.epoch(f"{worker}-warm{number}"))


def busy(plane):
    plane.join("w1", cpus=1)
    warm_up(plane)
    plane.submit("now", request=Request(worker="w1"))
    plane.now_ms += 1
    plane.run("w1", "now")


def test_what_a_scorer_refuses_is_not_lent_ahead(scored):
    busy(scored)
    scored.submit("next")
    answer(scored, w1=DEAR)
    assert assigned(scored.last) == []
    assert scored.state.ahead == {}


def test_what_waited_for_its_opinion_is_lent_ahead_when_that_comes(scored):
    busy(scored)
    scored.submit("next")
    assert scored.state.ahead == {}
    answer(scored, w1=None)
    assert assigned(scored.last) == [("w1", "next")]
    assert scored.state.attempts[scored.epoch("next")].is_ahead


def test_what_is_refused_everywhere_does_not_keep_others_from_being_lent_ahead(scored):
    busy(scored)
    scored.submit("refused", priority=5)
    answer(scored, w1=DEAR)
    scored.submit("next", request=Request(worker="w1"))
    assert assigned(scored.last) == [("w1", "next")]


def test_what_waits_ahead_is_not_called_back_for_a_worker_that_is_refused(scored):
    busy(scored)
    scored.submit("next")
    answer(scored, w1=None)
    scored.join("w2", cpus=4)
    assert not scored.state.attempts[scored.epoch("next")].nodes[0].is_revoked


def test_what_cannot_be_lent_keeps_its_workers_from_what_opinions_open_later(scored):
    busy(scored)
    first, second = Request(memory_bytes=1), Request(memory_bytes=2)
    scored.submit("first", request=first, retries=0)
    answer(scored, request=first, w1=None)
    scored.submit("second", request=second)
    answer(scored, request=second, w1=None)
    assert assigned(scored.last) == []


def test_what_opinions_open_makes_way_for_itself(scored):
    busy(scored)
    scored.submit("low")
    answer(scored, w1=None)
    assert scored.state.attempts[scored.epoch("low")].is_ahead
    request = Request(memory_bytes=1)
    scored.submit("high", request=request, priority=5, retries=0)
    assert not scored.state.attempts[scored.epoch("low")].nodes[0].is_revoked
    answer(scored, request=request, w1=None)
    assert scored.state.attempts[scored.epoch("low")].nodes[0].is_revoked
