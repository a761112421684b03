"""What scorers say: who is asked, who waits for it and for how long, and what becomes of it."""

from copy import deepcopy
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulayer.clock import Instant
from gpulayer.engine import Policy, State, ahead, check, due, next_due_ms, step
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
from gpulayer.engine.turn import Turn
from gpulayer.ids import Digest, JobId, WorkerId
from gpulayer.spec.job import Gang, JobEntry, JobSpec, JobState
from gpulayer.spec.machine import WorkerFacts
from gpulayer.spec.opinion import Mark
from gpulayer.spec.request import Accelerator, Request
from tests.scored_planes import DEAR, DONE, WAIT_MS, answer, asked, assigned, digest, with_scorers


@pytest.fixture
def scored(plane):
    """A plane with one scorer."""
    return with_scorers(plane, "night")


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
