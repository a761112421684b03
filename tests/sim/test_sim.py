"""Whole fleets from seeds: nothing breaks, planted faults are found, and the same seed is the same story."""

import pytest

from gpulayer.engine.invariants import InvariantViolated
from gpulayer.testing.sim import Shape, Violation, run
from gpulayer.testing.sim.__main__ import main
from gpulayer.testing.sim.mutants import MUTANTS, planted

SEEDS_A_TEST = 20


@pytest.mark.parametrize("first", range(0, 300, SEEDS_A_TEST))
def test_no_seed_breaks_a_rule(first):
    reports = [run(seed) for seed in range(first, first + SEEDS_A_TEST)]
    assert sum(report.faults for report in reports) > 500
    assert {state for report in reports for state in report.states} >= {"succeeded", "failed", "cancelled"}


def test_a_larger_fleet_holds_too():
    report = run(7, Shape(workers=12, jobs=150))
    assert sum(report.states.values()) == 150


def test_the_same_seed_is_the_same_story():
    assert run(11, trace=True) == run(11, trace=True)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_fault_is_found(name):
    def breaks(seed):
        with planted(name):
            try:
                run(seed)
            except (Violation, InvariantViolated):
                return True
        return False

    assert any(breaks(seed) for seed in range(60)), f"60 seeds did not notice {name}"
    run(0)  # and taken out again, all is well


def test_a_failing_seed_tells_its_story(capsys):
    with planted("reused_epoch"):
        assert main(["--seeds", "0:3"]) == 1
    assert "seed 0: the stored state is not the live state" in capsys.readouterr().err
