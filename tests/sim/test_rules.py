"""The rules have teeth: each is broken by a world that was made for it, and holds in the same world as it is."""

from dataclasses import replace

import pytest

from gpulayer.testing.sim import Fault, HostPlan, JobPlan, Noise, Scenario, Trouble, Violation, play
from gpulayer.testing.sim.mutants import planted

QUIET = Noise(loss=0.0, doubling=0.0, stall=0.0, commit_failure=0.0)


def world(*faults, seed=0, **options):
    """One job on one machine, and nothing but what is planned."""
    wishes = {"retries": 2, "keep_for_ms": 120_000, "run_ms": 400_000, **options}
    jobs = (JobPlan(1, at_ms=5_000, **wishes),)
    hosts = (HostPlan(0, joins_ms=100, cpus=1),)
    return Scenario(seed=seed, hosts=hosts, jobs=jobs, faults=faults, noise=QUIET, trouble_ms=500_000)


def is_found(mutant, scenario):
    play(scenario)
    with planted(mutant):
        try:
            play(scenario)
        except Violation:
            return True
    return False


CUT_SHORT = world(Fault(Trouble.CUT, 299_000, 0, 20_000), Fault(Trouble.AGENT_DIES, 300_000, 0, 1_000))
CUT_LONG = world(
    Fault(Trouble.CUT, 20_000, 0, 200_000), retries=0, keep_for_ms=40_000, grace_ms=30_000, after_term_ms=60_000
)


TAKEN = Scenario(
    hosts=tuple(HostPlan(number, joins_ms=100, gpus=1) for number in range(2)),
    jobs=(JobPlan(1, at_ms=5_000, needs_device=True),),
    faults=tuple(Fault(Trouble.STRANGER, 1_000, host, 20_000) for host in range(2)),
    noise=QUIET,
    trouble_ms=60_000,
)


@pytest.mark.parametrize(
    ("mutant", "scenario"),
    [
        ("contact_unsaved", CUT_SHORT),
        ("grace_unminded", CUT_LONG),
        ("asked_again", TAKEN),
        ("detours_cost", replace(TAKEN, jobs=(replace(TAKEN.jobs[0], retries=0),))),
        ("cancel_unheard", world(cancel_after_ms=50_000)),
        ("cancel_untold", world(cancel_after_ms=50_000)),
        ("no_sigkill", world(cancel_after_ms=50_000, after_term_ms=90_000)),
    ],
)
def test_a_planted_fault_is_found_where_all_else_is_well(mutant, scenario):
    assert is_found(mutant, scenario)


@pytest.mark.parametrize(
    "fault", [Fault(Trouble.REMOVED, 11_000, 0), Fault(Trouble.PLANE_RESTORED, 11_000, lasts_ms=1_000)]
)
def test_an_exclusive_job_that_is_lost_without_its_workers_word_is_found_where_it_overlaps(fault):
    lent = world(Fault(Trouble.CUT, 10_000, 0, 60_000), fault, exclusive=True)
    assert is_found("no_hold", replace(lent, hosts=(*lent.hosts, HostPlan(1, joins_ms=14_000, cpus=1))))


def test_after_a_power_cut_that_took_its_notes_a_job_without_retries_does_not_run_again():
    """Neither the spawner's table nor the last notes of an agent are synced."""
    cuts = (Fault(Trouble.CUT_OUT, 5_005, 0, 30_000), Fault(Trouble.LOSES_POWER, 8_000, 0, 5_000))
    worlds = [world(*cuts, seed=seed, retries=0, keep_for_ms=3_600_000) for seed in range(60)]
    assert any(is_found("reboot_unread", scenario) for scenario in worlds)


def test_a_cancel_is_judged_where_nothing_goes_wrong_and_only_there():
    assert play(world(cancel_after_ms=50_000)).judged == 1
    cut = Fault(Trouble.CUT, 60_000, 0, 1_000)
    assert play(world(cut, cancel_after_ms=50_000)).judged == 0


def test_work_that_is_left_when_all_is_well_is_cancelled_too():
    report = play(replace(world(run_ms=3_000_000), jobs=tuple(JobPlan(n, run_ms=3_000_000) for n in range(8))))
    assert 0 < report.states["cancelled"] < 8
