"""How long what a scorer said holds: while figures flow, and until nobody needs it any more."""

from dataclasses import replace

import pytest

from gpulayer.engine import ahead, due, opinions, rooms, step
from gpulayer.engine.events import (
    JobSubmitted,
    OpinionsGiven,
    OpinionsLapsed,
    WorkerJoined,
    WorkerRemoved,
)
from gpulayer.engine.state import Pace
from gpulayer.ids import Digest, JobId, WorkerId
from gpulayer.spec.job import JobEntry, JobSpec
from gpulayer.spec.machine import Device, DeviceState, Locality, WorkerFacts
from gpulayer.spec.opinion import Mark
from gpulayer.spec.request import Accelerator, Request
from tests.scored_planes import DEAR, PLAIN, answer, asked, assigned, digest, restarted, with_scorers


@pytest.fixture
def scored(plane):
    """A plane with one scorer."""
    return with_scorers(plane, "night")


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

    for owner, name in ((opinions, "may_take"), (ahead, "_may_go"), (rooms, "fits"), (rooms, "takes_work")):
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
