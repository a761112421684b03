"""Whole fleets from seeds: nothing breaks, planted faults are found, and the same seed is the same story."""

import os
from collections import Counter

import pytest

from gpulayer.engine.invariants import InvariantViolated
from gpulayer.testing.sim import Scenario, Shape, Stuck, Trouble, Violation, run
from gpulayer.testing.sim.__main__ import main
from gpulayer.testing.sim.mutants import MUTANTS, planted

SEEDS_A_TEST = 20


@pytest.mark.parametrize("first", range(0, 300, SEEDS_A_TEST))
def test_no_seed_breaks_a_rule(first):
    reports = [run(seed) for seed in range(first, first + SEEDS_A_TEST)]
    assert sum(report.faults for report in reports) > 1000
    assert {state for report in reports for state in report.states} >= {"succeeded", "failed", "cancelled"}
    assert sum(report.fenced for report in reports) > 0


def test_every_kind_of_fault_is_drawn():
    drawn = Counter(fault.kind for seed in range(60) for fault in Scenario.of_seed(seed).faults)
    assert set(drawn) == set(Trouble)


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

    assert any(breaks(seed) for seed in range(FIRST_SEEDS.get(name, 0), 1_000)), f"no seed noticed {name}"
    run(0)  # and taken out again, all is well


FIRST_SEEDS: dict[str, int] = {}  # those that most seeds do not notice: from just before one that does


def test_a_failing_seed_tells_its_story(capsys):
    with planted("reused_epoch"):
        assert main(["--seeds", "0:3"]) == 1
    assert "seed 0: the stored state is not the live state" in capsys.readouterr().err


def test_what_is_broken_is_safety_or_liveness():
    with planted("no_vanish_check"):
        broken = next(error for seed in range(60) if (error := _broken(seed)) is not None)
    asked = "liveness" if isinstance(broken, Stuck) else "safety"
    assert broken.__notes__[0].endswith(asked)


def _broken(seed):
    try:
        run(seed)
    except Violation as error:
        return error
    return None


@pytest.mark.soak
def test_soak_no_seed_breaks_a_rule():
    """``GPULAYER_SOAK_SEEDS`` seeds (3,000 unless said otherwise; about 9 a second on one core) from 1,000,000 on."""
    for seed in range(1_000_000, 1_000_000 + int(os.environ.get("GPULAYER_SOAK_SEEDS", "3000"))):
        run(seed)


@pytest.mark.soak
@pytest.mark.parametrize("name", MUTANTS)
def test_soak_a_planted_fault_is_found_often(name):
    found = 0
    for seed in range(1_000):
        with planted(name):
            try:
                run(seed)
            except (Violation, InvariantViolated):
                found += 1
                if found == 3:
                    return
    raise AssertionError(f"only {found} of 1,000 seeds noticed {name}")
