"""What scorers say: who is asked, who waits for it and for how long, and what becomes of it."""

from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulayer.clock import Instant
from gpulayer.engine import Policy, State, ahead, check, due, next_due_ms, opinions, rebuild, schedule, step
from gpulayer.engine.effects import AskScorer, Assign, Notify
from gpulayer.engine.events import (
    JobSubmitted,
    NodePhase,
    NodeReport,
    OpinionsGiven,
    OpinionsLapsed,
    WorkerJoined,
    WorkerRemoved,
    WorkerReported,
)
from gpulayer.engine.opinions import awaited
from gpulayer.engine.state import Pace
from gpulayer.engine.turn import Turn, job_image, worker_image
from gpulayer.errors import Blame
from gpulayer.ids import Digest, JobId, WorkerId
from gpulayer.spec.job import Gang, JobEntry, JobSpec, JobState
from gpulayer.spec.machine import Device, DeviceState, Locality, WorkerFacts
from gpulayer.spec.opinion import Mark, Refusal
from gpulayer.spec.outcome import EndedBy, Outcome
from gpulayer.spec.request import Accelerator, Request

WAIT_MS = 2_500
PLAIN = Request()
DEAR = Refusal("too dear until 22:00")
DONE = Outcome(EndedBy.PROGRAM, exit_code=0, blame=Blame.USER)


@pytest.fixture
def scored(plane):
    """A plane with one scorer."""
    return with_scorers(plane, "night")


def with_scorers(plane, *names, lease_ttl_ms=30_000):
    """What is due at once after a submission is stepped with it, as the driver does."""
    plane.state.policy = Policy(lease_ttl_ms=lease_ttl_ms, scorers=names)
    submit = plane.submit

    def submit_and_ask(*args, **options):
        job_id = submit(*args, **options)
        plane.pass_time(0)
        return job_id

    plane.submit = submit_and_ask
    return plane


def digest(plane, worker):
    return plane.state.workers[WorkerId(worker)].facts_digest


def answer(plane, *, scorer="night", request=PLAIN, lifetime_ms=60_000, **said):
    """``w1=Mark(0.3)``: what it thinks of that worker's facts."""
    pairs = tuple((digest(plane, worker), opinion) for worker, opinion in said.items())
    return plane.step(OpinionsGiven(plane.at, scorer, request, lifetime_ms, pairs))


def asked(made):
    return [(one.scorer, one.request, one.digests) for one in made.effects if isinstance(one, AskScorer)]


def assigned(made):
    return [(effect.worker, effect.job_id) for effect in made.effects if isinstance(effect, Assign)]


def test_without_scorers_nobody_is_asked_and_nothing_is_kept(plane):
    plane.join()
    plane.submit()
    assert asked(plane.last) == []
    assert (plane.state.opinions, plane.state.undecided) == ({}, {})
    assert plane.state.jobs[JobId("j1")].state is JobState.STAGING


def test_a_first_job_asks_and_waits_for_the_answer(scored):
    scored.join("w1")
    scored.join("w2", cpus=4)
    made = scored.step(JobSubmitted(scored.at, JobEntry.of(JobId("j1"), "me", JobSpec(command=("true",)))))
    assert made.effects == ()
    assert next_due_ms(scored.state) == 0
    (due_now,) = due(scored.state, scored.at)
    made = scored.step(due_now)
    assert made.effects == (AskScorer("night", Request(), (digest(scored, "w1"), digest(scored, "w2"))),)
    assert scored.job().state is JobState.QUEUED
    assert awaited(scored.state, Request()) == ("night",)
    made = answer(scored, w1=Mark(0.2), w2=Mark(0.9))
    assert made.effects == (Assign(WorkerId("w2"), 1, 0, JobId("j1")), Notify(JobId("j1"), JobState.STAGING))
    attempt = scored.state.attempts[1]
    assert attempt.placement == "w2: of 2 that fit and are free, scorer night marks it highest"


def test_marks_come_after_the_accelerator_that_was_named_first(scored):
    scored.join("w1", gpus=1)
    scored.join("w2", gpus=2)
    request = Request(accelerators=(Accelerator.CUDA, Accelerator.CPU), devices=1)
    scored.submit(request=request)
    made = answer(scored, request=request, w1=Mark(0.1), w2=Mark(0.8))
    assert assigned(made) == [("w2", "j1")]  # packing alone would have taken the smaller


def test_no_opinion_counts_half(scored):
    for name in ("w1", "w2", "w3"):
        scored.join(name, labels=(("name", name),))
    scored.submit()
    answer(scored, w1=Mark(0.4), w2=None, w3=Mark(0.6))
    assert assigned(scored.last) == [("w3", "j1")]
    scored.submit("j2", request=Request(cpus=2))
    answer(scored, request=Request(cpus=2), w1=Mark(0.4), w2=None, w3=Mark(0.6))
    assert assigned(scored.last) == [("w2", "j2")]


def test_marks_of_several_scorers_are_averaged_and_each_is_waited_for(plane):
    with_scorers(plane, "a", "b")
    plane.join("w1")
    plane.join("w2", cpus=4)
    plane.submit()
    assert [scorer for scorer, _, _ in asked(plane.last)] == ["a", "b"]
    answer(plane, scorer="a", w1=Mark(1.0), w2=Mark(0.5))
    assert assigned(plane.last) == []
    assert awaited(plane.state, Request()) == ("b",)
    answer(plane, scorer="b", w1=Mark(0.1), w2=Mark(0.9))
    assert assigned(plane.last) == [("w2", "j1")]
    assert plane.state.attempts[1].placement.endswith("scorer b marks it highest")


def test_who_is_known_is_not_asked_again_while_the_answer_holds(scored):
    scored.join()
    scored.submit()
    answer(scored, w1=Mark(0.5))
    scored.end("w1", scored.run("w1"))
    assert not scored.state.classes
    scored.submit("j2")
    assert asked(scored.last) == []
    assert assigned(scored.last) == [("w1", "j2")]


def test_a_lifetime_that_is_over_is_asked_about_again_only_while_somebody_waits(scored):
    scored.join("w1", cpus=1)
    scored.submit()
    answer(scored, w1=Mark(0.5), lifetime_ms=5_000)
    assert scored.pass_time(6_000) == []
    scored.submit("j2")  # waits for w1, which is busy
    assert len(asked(scored.last)) == 1
    answer(scored, w1=Mark(0.5), lifetime_ms=5_000)
    scored.pass_time(4_999)
    assert asked(scored.last) == []
    assert scored.pass_time(1) == [OpinionsLapsed(scored.at, Request(), 1)]
    assert len(asked(scored.last)) == 1


def test_nobody_is_placed_between_the_end_of_a_refusal_and_its_renewal(scored):
    scored.join()
    scored.submit()
    answer(scored, w1=DEAR, lifetime_ms=5_000)
    assert assigned(scored.last) == []
    scored.pass_time(5_000)
    assert assigned(scored.last) == []
    assert len(asked(scored.last)) == 1
    answer(scored, w1=Mark(0.5))
    assert assigned(scored.last) == [("w1", "j1")]


def test_a_refused_worker_gets_nothing_of_that_class_and_other_classes_do(scored):
    scored.join("w1", cpus=4)
    scored.submit("j1")
    answer(scored, w1=DEAR)
    scored.submit("j2", request=Request(cpus=2))
    answer(scored, request=Request(cpus=2), w1=None)
    assert assigned(scored.last) == [("w1", "j2")]
    scored.end("w1", scored.epoch("j2"))
    assert assigned(scored.last) == []
    assert scored.job("j1").state is JobState.QUEUED


def test_who_is_placed_where_others_are_refused_is_told_so(scored):
    scored.join("w1")
    scored.join("w2", cpus=4)
    scored.submit()
    answer(scored, w1=DEAR, w2=None)
    assert scored.state.attempts[1].placement == (
        "w2: the only worker that fits and is free, of those that no scorer refuses"
    )


def test_a_gang_starts_only_where_no_node_is_refused(scored):
    for name in ("w1", "w2", "w3"):
        scored.join(name, labels=(("name", name),))
    scored.submit(shape=Gang(2))
    answer(scored, w1=DEAR, w2=DEAR, w3=None)
    assert assigned(scored.last) == []
    answer(scored, w2=Mark(0.1))
    assert assigned(scored.last) == [("w3", "j1"), ("w2", "j1")]


def test_silence_is_no_opinion_once_the_wait_has_passed(scored):
    scored.join()
    scored.submit()
    assert scored.pass_time(WAIT_MS - 1) == []
    assert scored.pass_time(1) == [OpinionsLapsed(scored.at, Request(), 1)]
    assert assigned(scored.last) == [("w1", "j1")]


def test_a_report_at_the_end_of_the_wait_finds_nobody_held(scored):
    scored.join("w1")
    scored.submit("j1", wait=True)
    scored.now_ms += WAIT_MS
    scored.report("w1", boot=2, recovered=())  # checked by the invariants: the pair falls silent in this very step
    scored.pass_time(0)
    assert scored.job("j1").state is JobState.STAGING


def test_a_scorer_that_stays_silent_is_asked_again_after_a_while(scored):
    scored.join("w1", cpus=1)
    scored.submit()
    scored.pass_time(WAIT_MS)
    scored.submit("j2")
    assert asked(scored.last) == []
    scored.pass_time(10_000)
    assert len(asked(scored.last)) == 1
    scored.pass_time(WAIT_MS)
    assert asked(scored.last) == []


def test_a_late_answer_counts_from_then_on(scored):
    scored.join("w1", cpus=1)
    scored.submit()
    scored.pass_time(WAIT_MS)
    scored.submit("j2")
    answer(scored, w1=DEAR)
    scored.end("w1", scored.epoch())
    assert assigned(scored.last) == []


def test_opinions_of_what_nobody_asked_change_nothing(scored):
    scored.join()
    answer(scored, w1=DEAR)
    answer(scored, scorer="stranger", w1=DEAR)
    assert scored.last.records == scored.last.effects == ()
    assert scored.state.opinions == {}


def test_a_new_worker_is_asked_about_and_does_not_hold_up_the_others(scored):
    scored.join("w1", cpus=1)
    scored.submit()
    answer(scored, w1=None)
    scored.submit("j2")
    scored.join("w2", cpus=4)
    assert asked(scored.last) == [("night", Request(), (digest(scored, "w2"),))]
    assert assigned(scored.last) == []
    scored.end("w1", scored.epoch("j1"))
    assert assigned(scored.last) == [("w1", "j2")]
    scored.submit("j3", retries=0)
    answer(scored, w2=None)
    assert assigned(scored.last) == [("w2", "j3")]


def test_a_new_worker_is_used_without_an_opinion_when_its_wait_has_passed(scored):
    scored.join("w1", cpus=1)
    scored.submit()
    answer(scored, w1=None)
    scored.submit("j2")
    scored.join("w2", cpus=4)
    scored.pass_time(WAIT_MS)
    assert scored.state.attempts[2].nodes[0].allocation.worker == "w2"


def test_new_facts_are_another_machine(scored):
    scored.join("w1")
    scored.submit("j1")
    answer(scored, w1=DEAR)
    facts = WorkerFacts("linux-x86_64", "0.2.0", 8, 8 * 10**9)
    scored.report("w1", facts=facts, facts_digest=Digest("f" * 64))
    assert asked(scored.last) == [("night", Request(), (Digest("f" * 64),))]
    answer(scored, w1=None)
    assert assigned(scored.last) == [("w1", "j1")]


def test_equal_machines_are_asked_about_once(scored):
    facts = WorkerFacts("linux-x86_64", "0.1.0", 2, 8 * 10**9)
    for name in ("w1", "w2"):
        scored.step(WorkerJoined(scored.at, WorkerId(name), name, facts, Digest("a" * 64)))
        scored.report(name, recovered=())
    scored.submit()
    assert asked(scored.last) == [("night", Request(), (Digest("a" * 64),))]


def test_what_no_worker_could_run_is_rejected_without_asking(scored):
    scored.join("w1", cpus=1)
    scored.submit(request=Request(cpus=2))
    assert scored.job().reason_code == "no_worker_fits"
    assert asked(scored.last) == []
    assert scored.last.rejected == {JobId("j1"): Request(cpus=2)}


@pytest.mark.parametrize("lifetime_ms", [-(10**9), 0, 1, 999])
def test_a_lifetime_of_nothing_is_a_second(scored, lifetime_ms):
    scored.join()
    scored.submit()
    answer(scored, w1=DEAR, lifetime_ms=lifetime_ms)
    assert scored.pass_time(999) == []
    assert len(scored.pass_time(1)) == 1


def test_a_lifetime_without_end_is_an_hour(scored):
    scored.join()
    scored.submit()
    answer(scored, w1=DEAR, lifetime_ms=10**15)
    for _ in range(3_600 // 20):
        scored.pass_time(19_999)
        scored.report("w1")
    assert asked(scored.last) == []
    scored.pass_time(3_600_000 // 20_000)
    assert len(asked(scored.last)) == 1


def test_two_scorers_whose_opinions_never_hold_at_once_do_not_hold_up_for_ever(plane):
    with_scorers(plane, "a", "b", lease_ttl_ms=10**9)
    plane.join("w1")
    plane.submit()
    for _ in range(40):
        now = [scorer for scorer, _, _ in asked(plane.last)]
        for scorer in ("a", "b"):
            if JobId("j1") in plane.state.jobs and plane.state.jobs[JobId("j1")].state is JobState.QUEUED and now:
                plane.pass_time(1_500)
                answer(plane, scorer=scorer, w1=Mark(0.5), lifetime_ms=1_000)
    assert plane.state.jobs[JobId("j1")].state is JobState.STAGING


@pytest.mark.parametrize("scorers", [("night",), ("night", "second")])
@pytest.mark.parametrize("end", ["answer", "lapse", "report", "silent", "removed", "other facts", "flowing figures"])
def test_whatever_ends_the_last_wait_ends_the_hold(plane, scorers, end):
    with_scorers(plane, *scorers)
    facts = WorkerFacts("linux-x86_64", "0.1.0", 2, 8 * 10**9, disk_bytes=10**10)
    plane.join("w1", gpus=1)
    plane.step(WorkerJoined(plane.at, WorkerId("w2"), "w2", facts, Digest("2" * 64)))
    plane.report("w2", recovered=())
    plane.submit()
    (opinions,) = plane.state.opinions.values()
    assert opinions.held_until_ms == plane.now_ms + WAIT_MS
    for scorer in scorers:
        answer(plane, scorer=scorer, w1=Mark(0.2))
    assert (opinions.held_until_ms, assigned(plane.last)) == (plane.now_ms + WAIT_MS, [])
    match end:
        case "answer":
            for scorer in scorers:
                answer(plane, scorer=scorer, w2=Mark(0.1))
            assert assigned(plane.last) == [("w1", "j1")]
        case "lapse":
            plane.pass_time(WAIT_MS)
        case "report":
            plane.now_ms += WAIT_MS
            plane.report("w2", boot=2, recovered=())
        case "silent":
            plane.state.workers[WorkerId("w1")].heard_ms += 10**6
            plane.pass_time(33_000)
        case "removed":
            plane.step(WorkerRemoved(plane.at, WorkerId("w2")))
            plane.pass_time(WAIT_MS)
        case "other facts":
            plane.report("w2", facts=replace(facts, cpus=4), facts_digest=Digest("4" * 64))
            for scorer in scorers:
                answer(plane, scorer=scorer, w2=Mark(0.1))
            plane.pass_time(WAIT_MS)
        case "flowing figures":
            plane.report("w2", facts=replace(facts, disk_bytes=1), facts_digest=Digest("4" * 64))
            for scorer in scorers:
                answer(plane, scorer=scorer, w2=Mark(0.1))
    assert opinions.held_until_ms <= plane.now_ms
    assert all(until_ms <= plane.now_ms for until_ms in opinions.waits.values())
    assert plane.job().state is JobState.STAGING


def test_what_falls_silent_at_a_report_is_used_in_that_step(scored):
    scored.join("w1", cpus=1)
    scored.submit("j1")
    answer(scored, w1=None, lifetime_ms=3_600_000)
    scored.submit("j2", request=Request(memory_bytes=1))
    scored.now_ms += WAIT_MS
    scored.end("w1", scored.epoch("j1"))
    assert assigned(scored.last) == [("w1", "j2")]


def test_workers_that_come_one_by_one_are_all_heard_of_before_the_first_job_is_placed(scored):
    scored.submit()
    scored.join("w1")
    scored.join("w2", cpus=4)
    answer(scored, w1=Mark(0.1))
    assert assigned(scored.last) == []
    answer(scored, w2=Mark(0.9))
    assert assigned(scored.last) == [("w2", "j1")]


# Figures that flow ---------------------------------------------------------------------------------------------------


GPU = Device("GPU-1", 0, Accelerator.CUDA, "NVIDIA A100", 40 * 10**9, memory_free_bytes=40 * 10**9)
STILL = WorkerFacts("linux-x86_64", "0.1.0", 1, 8 * 10**9, disk_bytes=100 * 10**9, devices=(GPU,))
FLOWN = {
    "disk": replace(STILL, disk_bytes=99 * 10**9),
    "disk unknown": replace(STILL, disk_bytes=None),
    "device memory": replace(STILL, devices=(replace(GPU, memory_free_bytes=10**9),)),
}
CHANGED = {
    "cpus": replace(STILL, cpus=2),
    "label": replace(STILL, labels=(("zone", "a"),)),
    "device state": replace(STILL, devices=(replace(GPU, state=DeviceState.BUSY),)),
    "devices": replace(STILL, devices=()),
    "locality": replace(STILL, locality=Locality(zone="b")),
}


def still(plane, *names):
    for name in names or ("w1",):
        plane.step(WorkerJoined(plane.at, WorkerId(name), name, STILL, Digest("0" * 64)))
        plane.report(name, recovered=())
    plane.submit()


@pytest.mark.parametrize("facts", FLOWN.values(), ids=FLOWN)
def test_what_was_said_stands_for_its_lifetime_when_only_flowing_figures_change(scored, facts):
    still(scored)
    answer(scored, w1=DEAR, lifetime_ms=5_000)
    scored.report("w1", facts=facts, facts_digest=Digest("1" * 64))
    assert (asked(scored.last), assigned(scored.last)) == ([], [])
    scored.pass_time(4_999)
    assert asked(scored.last) == []
    scored.pass_time(1)
    assert asked(scored.last) == [("night", PLAIN, (Digest("1" * 64),))]  # by what it is like now
    answer(scored, w1=None)
    assert assigned(scored.last) == [("w1", "j1")]


@pytest.mark.parametrize("facts", CHANGED.values(), ids=CHANGED)
def test_what_was_said_counts_no_more_when_anything_else_changes(scored, facts):
    still(scored)
    answer(scored, w1=DEAR)
    scored.report("w1", facts=facts, facts_digest=Digest("1" * 64))
    assert asked(scored.last) == [("night", PLAIN, (Digest("1" * 64),))]


def test_a_machine_whose_figures_flow_can_be_used_all_the_time(scored):
    still(scored)
    answer(scored, w1=None)
    for number in range(1, 50):
        facts = replace(STILL, disk_bytes=number)
        scored.submit(f"next{number}", retries=0)
        assert not asked(scored.last)
        scored.report("w1", facts=facts, facts_digest=Digest(f"{number:064x}"))
        assert not asked(scored.last)
        scored.end("w1", min(scored.state.attempts))
        assert assigned(scored.last) == [("w1", f"next{number}")]
    (opinions,) = scored.state.opinions.values()
    assert len(opinions.said["night"]) == len(opinions.usable) == 1


def test_words_on_equal_machines_stay_with_those_whose_figures_are_as_they_were(scored):
    still(scored, "w1", "w2")
    answer(scored, w1=DEAR)
    scored.report("w1", facts=FLOWN["disk"], facts_digest=Digest("1" * 64))
    scored.report("w2", facts=FLOWN["device memory"], facts_digest=Digest("2" * 64))
    scored.report("w1", facts=STILL, facts_digest=Digest("0" * 64))
    assert asked(scored.last) == []
    assert {opinion for said in scored.state.opinions[PLAIN].said.values() for opinion, _ in said.values()} == {DEAR}


def test_a_fresher_word_on_the_new_figures_is_not_replaced_by_the_old_one(scored):
    still(scored)
    answer(scored, w1=DEAR)
    scored.step(OpinionsGiven(scored.at, "night", PLAIN, 60_000, ((Digest("1" * 64), None),)))
    scored.report("w1", facts=FLOWN["disk"], facts_digest=Digest("1" * 64))
    assert assigned(scored.last) == [("w1", "j1")]


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


def restarted(plane, **policy):
    """Another process, a long time later."""
    state = rebuild(
        Policy(**policy),
        None,
        jobs=[(job.entry, job_image(job)) for job in plane.state.jobs.values()],
        workers=[worker_image(worker) for worker in plane.state.workers.values()],
        facts=[SimpleNamespace(digest=digest, facts=facts) for digest, facts in plane.state.facts.items()],
    )
    state.next_epoch, state.next_seq = plane.state.next_epoch, plane.state.next_seq
    plane.state, plane.now_ms = state, plane.now_ms + 1_000_000
    state.now_ms = plane.now_ms
    for worker in state.workers.values():
        worker.heard_ms = plane.now_ms
    return plane


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


# Bounds --------------------------------------------------------------------------------------------------------------


def test_opinions_of_requests_that_nobody_has_any_more_are_forgotten_some_day(scored):
    scored.join()
    for number in range(900):
        request = Request(memory_bytes=1_000 + number)
        scored.submit(f"j{number}", request=request)
        answer(scored, request=request, w1=None)
        scored.end("w1", scored.epoch(f"j{number}"))
    assert len(scored.state.opinions) <= 800


def test_opinions_that_are_over_are_forgotten_when_nobody_waits_for_them(scored):
    scored.join()
    for number in range(20):
        request = Request(memory_bytes=1_000 + number)
        scored.submit(f"j{number}", request=request)
        if number % 2:
            answer(scored, request=request, w1=None, lifetime_ms=60_000)
        scored.cancel(f"j{number}")
    assert len(scored.state.opinions) == 20
    scored.now_ms += 20_000
    scored.report("w1")
    assert len(scored.state.opinions) == 10
    scored.now_ms += 50_000
    scored.report("w1")
    assert scored.state.opinions == {}


def test_words_on_machines_that_are_gone_are_forgotten_when_they_are_over(scored):
    scored.submit("waits", request=Request(cpus=3))
    for number in range(20):
        scored.join(f"w{number}", cpus=3, labels=(("n", str(number)),))
        answer(scored, request=Request(cpus=3), lifetime_ms=1_000, **{f"w{number}": DEAR})
        scored.step(WorkerRemoved(scored.at, WorkerId(f"w{number}")))
    scored.join("stays", cpus=3)
    answer(scored, request=Request(cpus=3), lifetime_ms=2_000, stays=DEAR)
    scored.pass_time(2_000)
    opinions = scored.state.opinions[Request(cpus=3)]
    assert len(opinions.said["night"]) == 1


MACHINES, CLASSES = 30, 24
SPOKEN = {
    "awaited": lambda _machine, _kind: False,
    "refused": lambda _machine, _kind: DEAR,
    "marked": lambda _machine, _kind: Mark(0.5),
    "each its own zone": lambda machine, kind: None if machine % 3 == kind % 3 else DEAR,
    "each its own machine": lambda machine, kind: None if machine == kind else DEAR,
    "awaited in part": lambda machine, kind: machine == kind and DEAR,
}


@pytest.mark.parametrize("spoken", SPOKEN.values(), ids=SPOKEN)
def test_an_opinion_costs_a_look_at_its_machines_and_not_at_those_of_all_classes(scored, spoken, monkeypatch):
    for number in range(MACHINES):
        scored.join(f"w{number}", cpus=2, labels=(("n", str(number)),))
    scored.state.policy = replace(scored.state.policy, scorers=())
    for number in range(MACHINES):
        scored.submit(f"full{number}", request=Request(cpus=2))
        scored.state.paces[WorkerId(f"w{number}")] = Pace(50.0, scored.now_ms, 1)
    scored.state.policy = replace(scored.state.policy, scorers=("night",))
    looks = 0

    def counted(function):
        def look(*args):
            nonlocal looks
            looks += 1
            return function(*args)

        return look

    for owner, name in ((opinions, "may_take"), (ahead, "_may_go"), (schedule, "_share"), (schedule, "takes_work")):
        monkeypatch.setattr(owner, name, counted(getattr(owner, name)))
    dearest = 0
    for kind in range(CLASSES):
        request = Request(memory_bytes=1 + kind)
        spec = JobSpec(command=("true",), request=request)
        events = [JobSubmitted(scored.at, JobEntry.of(JobId(f"j{kind}"), "me", spec))]
        events.append(OpinionsLapsed(scored.at, request, 1))
        said = [(digest(scored, f"w{machine}"), spoken(machine, kind)) for machine in range(MACHINES)]
        said = [(of, opinion) for of, opinion in said if opinion is not False]
        events += [OpinionsGiven(scored.at, "night", request, 60_000, (pair,)) for pair in said]
        for event in events:
            looks = 0
            step(scored.state, event)
            dearest = max(dearest, looks)
    assert dearest <= 4 * (MACHINES + CLASSES)
    assert 4 * (MACHINES + CLASSES) < MACHINES * CLASSES // 3


def test_many_classes_at_a_start_are_asked_for_a_few_at_a_time(scored):
    scored.join()
    for number in range(15):
        scored.submit(f"j{number}", request=Request(memory_bytes=1 + number))
    restarted(scored, scorers=("night",))
    scored.report("w1")
    assert asked(scored.last) == []
    assert [len(due(scored.state, scored.at))] == [2]
    assert len(scored.pass_time(0)) == 15
    assert all(known.opinions.asked["night"] for known in scored.state.classes.values())


OPINIONS = st.sampled_from([None, Mark(0.0), Mark(1.0), DEAR])
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(1, 2), st.booleans()),
        st.tuples(st.just("pass"), st.sampled_from([1, 100, 1_000, 2_500, 10_000])),
        st.tuples(
            st.just("answer"),
            st.sampled_from(["a", "b"]),
            st.integers(1, 2),
            st.tuples(OPINIONS, OPINIONS, OPINIONS),
            st.sampled_from([-1, 0, 1_000, 30_000, 10**12]),
        ),
        st.tuples(st.just("end"), st.integers(0, 5)),
        st.tuples(st.just("join"), st.integers(0, 2)),
        st.tuples(st.just("flow"), st.integers(0, 2), st.integers(0, 3)),
    ),
    min_size=5,
    max_size=40,
)


class World:
    """Workers w0, w1, w2 with 1, 2 and 3 cores; w1 is there from the start."""

    def __init__(self, scorers):
        self.state = State(policy=Policy(lease_ttl_ms=10**9, scorers=scorers))
        self.now_ms, self.seqs, self.count = 1_000, {}, 0
        self.join(1)

    @property
    def at(self):
        return Instant(self.now_ms, 0)

    def take(self, event):
        made = step(self.state, event)
        check(self.state, made.effects)
        if isinstance(event, (OpinionsGiven, OpinionsLapsed)):
            turn = Turn(deepcopy(self.state), self.at, has_new_head=True)
            ahead.lend(turn)  # all classes, once more
            assert turn.effects == []

    def submit(self, cpus, wait):
        spec = JobSpec(command=("true",), request=Request(cpus=cpus), wait=wait)
        self.take(JobSubmitted(self.at, JobEntry.of(JobId(f"j{self.count}"), "me", spec)))
        self.count += 1
        self.let_pass(0)

    def let_pass(self, ms):
        self.now_ms += ms
        for _ in range(10):
            for event in due(self.state, self.at):
                self.take(event)
        next_ms = next_due_ms(self.state)
        assert next_ms is None or next_ms > self.now_ms

    def answer(self, scorer, cpus, opinions, lifetime_ms):
        workers = [self.state.workers.get(WorkerId(f"w{number}")) for number in range(3)]
        said = tuple((of.facts_digest, opinion) for of, opinion in zip(workers, opinions, strict=True) if of)
        self.take(OpinionsGiven(self.at, scorer, Request(cpus=cpus), lifetime_ms, said))

    def end(self, number):
        if self.state.attempts:
            epoch = sorted(self.state.attempts)[number % len(self.state.attempts)]
            worker = self.state.attempts[epoch].nodes[0].allocation.worker
            self.report(worker, NodeReport(epoch, 0, NodePhase.ENDED, DONE))

    def join(self, number):
        name, facts = f"w{number}", WorkerFacts("linux", "1", 1 + number, 2**33)
        self.take(WorkerJoined(self.at, WorkerId(name), name, facts, Digest(f"d{number}")))
        self.report(WorkerId(name))

    def flow(self, number, disk_bytes):
        known = self.state.workers.get(WorkerId(f"w{number}"))
        if known is not None:
            facts = replace(known.facts, disk_bytes=disk_bytes)
            self.report(known.id, facts=facts, facts_digest=Digest(f"d{number} {disk_bytes}"))

    def report(self, worker, *items, **more):
        self.seqs[worker] = self.seqs.get(worker, -1) + 1
        holding = tuple(self.state.workers[worker].leases)
        self.take(WorkerReported(self.at, worker, 1, self.seqs[worker], holding, (), items, **more))


@given(st.sampled_from([("a",), ("a", "b")]), ACTIONS)
@settings(max_examples=150, deadline=None)
def test_whatever_scorers_say_no_refused_pair_begins_and_their_silence_ends_all_waiting(scorers, actions):
    world = World(scorers)
    for what, *more in actions:
        match what:
            case "submit":
                world.submit(*more)
            case "pass":
                world.let_pass(*more)
            case "answer":
                world.answer(*more)
            case "end":
                world.end(*more)
            case "join":
                world.join(*more)
            case "flow":
                world.flow(*more)
    world.let_pass(3_600_000)  # the longest that an opinion lasts; from now on scorers say nothing
    for _ in range(world.count):
        world.let_pass(WAIT_MS)
        while world.state.attempts:
            world.end(0)
    assert world.state.jobs == {}
