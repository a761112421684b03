"""A scenario gets as small as the rule that it breaks allows, within its time; and can be written down and read."""

import functools
from dataclasses import replace

import pytest
from hypothesis import given, settings

from gpulayer.testing.sim.minimise import QUIET, minimise
from gpulayer.testing.sim.replay import scenario_from, written
from gpulayer.testing.sim.scenario import Fault, HostPlan, JobPlan, Noise, Scenario, Trouble
from tests.sim.strategies import scenarios


def at_its_end(is_broken):
    """For tests: it is broken when trouble ends, if at all."""
    return lambda scenario: scenario.trouble_ms if is_broken(scenario) else None


def breaks_by_a_cut(scenario):
    """An exclusive job, two machines, and one that is cut off for longer than a lease."""
    return (
        any(job.exclusive for job in scenario.jobs)
        and len(scenario.hosts) > 1
        and any(fault.kind is Trouble.CUT and fault.lasts_ms > 30_000 for fault in scenario.faults)
    )


@functools.cache
def failing():
    return next(one for seed in range(100) if breaks_by_a_cut(one := Scenario.of_seed(seed)))


def test_only_what_is_needed_is_left():
    found = minimise(failing(), at_its_end(breaks_by_a_cut))
    assert found.is_smallest
    small = found.scenario
    assert breaks_by_a_cut(small)
    assert (len(small.hosts), len(small.jobs), len(small.faults)) == (2, 1, 1)
    assert small.noise == QUIET
    assert small.jobs[0] == JobPlan(number=small.jobs[0].number, at_ms=small.jobs[0].at_ms, exclusive=True)
    assert small.faults[0].lasts_ms % 10_000 == 0, "and it is told in round numbers"


def test_what_comes_after_the_break_goes_first():
    plays = []

    def breaks_at(scenario):
        plays.append(scenario)
        return 60_000 if any(job.number == 3 for job in scenario.jobs) else None

    jobs = tuple(JobPlan(number, at_ms=number * 10_000) for number in range(40))
    small = minimise(Scenario(jobs=jobs), breaks_at).scenario
    assert len(plays[1].jobs) == 7
    assert plays[1].trouble_ms == 61_000
    assert small.jobs == (jobs[3],)


def test_what_needs_two_things_at_once_keeps_both():
    both = {Trouble.AGENT_DIES, Trouble.PLANE_STOPS}

    def is_broken(scenario):
        return both <= {fault.kind for fault in scenario.faults}

    whole = next(one for seed in range(100) if is_broken(one := Scenario.of_seed(seed)))
    small = minimise(whole, at_its_end(is_broken)).scenario
    assert {fault.kind for fault in small.faults} == both
    assert len(small.faults) == 2
    assert len(small.jobs) == 0


def test_a_machine_goes_with_what_happens_to_it():
    whole = Scenario.of_seed(3)
    small = minimise(whole, at_its_end(lambda scenario: any(host.number == 2 for host in scenario.hosts))).scenario
    assert small.hosts == (HostPlan(number=2, joins_ms=whole.hosts[2].joins_ms),)
    assert small.faults == ()


def test_it_ends_when_its_time_is_over_and_says_so():
    left = 5

    def has_time():
        nonlocal left
        left -= 1
        return left > 0

    found = minimise(failing(), at_its_end(breaks_by_a_cut), has_time=has_time)
    assert not found.is_smallest
    assert found.plays <= 5
    assert breaks_by_a_cut(found.scenario)


def test_what_can_get_no_smaller_is_left_as_it_is():
    whole = failing()
    found = minimise(whole, at_its_end(lambda scenario: scenario == whole))
    assert found.scenario == whole
    assert found.is_smallest


@given(scenarios())
@settings(max_examples=30)
def test_every_scenario_can_be_written_down(scenario):
    line = written(scenario)
    assert "\n" not in line
    assert scenario_from(line) == scenario


def test_a_drawn_one_too():
    scenario = replace(Scenario.of_seed(5), scorers=("near",), store="sqlite")
    assert scenario_from(written(scenario)) == scenario


def test_what_is_usual_is_not_written():
    scenario = Scenario(
        hosts=(HostPlan(1),), jobs=(JobPlan(3),), faults=(Fault(Trouble.SLEEPS, 5, 1, 7),), noise=Noise(loss=0.0)
    )
    assert written(scenario) == (
        '{"hosts":[{"number":1}],"jobs":[{"number":3}],'
        '"faults":[{"kind":"sleeps","at_ms":5,"host":1,"lasts_ms":7}],"noise":{"loss":0.0}}'
    )


@pytest.mark.parametrize("text", ["", "[]", "3", '{"jobs": [{}]}', '{"faults": [{"kind": "rain"}]}', '{"weather": 1}'])
def test_what_is_no_scenario_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        scenario_from(text)
