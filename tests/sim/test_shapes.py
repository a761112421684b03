"""Hypothesis makes up the machines, the jobs and what goes wrong; what breaks a rule it makes small by itself."""

import pytest
from hypothesis import Phase, find, given, settings

from gpulayer.engine.invariants import InvariantViolated
from gpulayer.testing.sim import Violation, play
from gpulayer.testing.sim.mutants import planted
from tests.sim.strategies import scenarios


@given(scenarios())
@settings(max_examples=25)
def test_no_shape_of_workload_breaks_a_rule(scenario):
    report = play(scenario)
    assert sum(report.states.values()) == len(scenario.jobs)


def is_broken(scenario):
    try:
        play(scenario)
    except (Violation, InvariantViolated):
        return True
    return False


@pytest.mark.parametrize(
    "name",
    ["endless_retries", *(pytest.param(name, marks=pytest.mark.soak) for name in ("one_retry_more", "keeps_nothing"))],
)
def test_a_planted_fault_is_found_and_made_small(name):
    search = settings(max_examples=250, derandomize=True, database=None, phases=[Phase.generate, Phase.shrink])
    with planted(name):
        small = find(scenarios(most_hosts=2, most_jobs=3, most_faults=3), is_broken, settings=search)
    assert len(small.jobs) <= 1
    assert len(small.faults) <= 1
    assert not is_broken(small), "it is the planted fault that broke it"
