"""Scenarios as data: drawn, reduced, written down, and played."""

from dataclasses import replace

import pytest

from gpulayer.testing.sim import Fault, HostPlan, JobPlan, Noise, Scenario, Shape, Trouble, Violation, play
from gpulayer.testing.sim.mutants import planted
from gpulayer.testing.sim.scenario import HOST_TROUBLES, PLANE_TROUBLES

QUIET = Noise(loss=0.0, doubling=0.0, stall=0.0, commit_failure=0.0)
NAMES = {"Scenario": Scenario, "HostPlan": HostPlan, "JobPlan": JobPlan, "Fault": Fault, "Noise": Noise}


def story(*faults, **options):
    """One job of two minutes on one of two machines, and what goes wrong meanwhile."""
    job = JobPlan(1, at_ms=5_000, run_ms=120_000, **options)
    hosts = (HostPlan(0, joins_ms=100, cpus=1), HostPlan(1, joins_ms=4_000, cpus=1))
    return play(Scenario(hosts=hosts, jobs=(job,), faults=faults, noise=QUIET, trouble_ms=300_000))


def test_without_faults_a_job_runs_once():
    report = story()
    assert (report.states, report.attempts, report.faults) == ({"succeeded": 1}, 1, 0)


@pytest.mark.parametrize("kind", HOST_TROUBLES)
@pytest.mark.parametrize("lasts_ms", [1, 25_000, 40_000, 200_000])
def test_whatever_happens_to_its_host_a_job_comes_to_its_end(kind, lasts_ms):
    report = story(Fault(kind, 30_000, 0, lasts_ms, amount=-1 if kind is Trouble.WALL_JUMPS else 0))
    assert report.states == {"succeeded": 1}
    assert report.kinds == {kind.value: 1}


@pytest.mark.parametrize("kind", PLANE_TROUBLES)
@pytest.mark.parametrize("lasts_ms", [1, 25_000, 40_000, 200_000])
def test_whatever_happens_to_the_control_plane_no_job_is_run_again(kind, lasts_ms):
    report = story(Fault(kind, 30_000, None, lasts_ms, amount=-86_400_000))
    assert (report.states, report.attempts) == ({"succeeded": 1}, 2 if kind is Trouble.PLANE_RESTORED else 1)


@pytest.mark.parametrize("kind", [Trouble.PROVIDER_ERRS, Trouble.PROVIDER_HANGS])
def test_a_machine_that_a_provider_made_without_saying_so_works_and_is_given_back(kind):
    report = story(Fault(kind, 10, None, 200_000, amount=3))
    assert (report.states, report.kinds) == ({"succeeded": 1}, {kind.value: 3})


@pytest.mark.parametrize("lasts_ms", [20_000, 60_000])
def test_a_worker_that_is_drained_while_the_control_plane_is_away_is_resumed_after_that(lasts_ms):
    """A person asks for the one, and when that is done for the other."""
    away = Fault(Trouble.PLANE_LOSES_POWER, 28_000, None, 33_000)
    jobs = (JobPlan(1, at_ms=120_000),)
    for seed in range(5):
        faults = (away, Fault(Trouble.DRAINED, 29_000, 0, lasts_ms))
        hosts = (HostPlan(0, joins_ms=100),)
        scenario = Scenario(seed, hosts=hosts, jobs=jobs, faults=faults, noise=QUIET, trouble_ms=300_000)
        assert play(scenario).states == {"succeeded": 1}


def test_where_a_message_takes_seconds_no_rule_is_taken_for_broken():
    drawn = [Scenario.of_seed(seed, Shape(workers=2, trouble_ms=200_000, trouble=2)) for seed in range(910018, 910024)]
    assert sum(play(replace(scenario, noise=Noise(mean_ms=2_000.0))).judged for scenario in drawn)


def test_a_job_without_retries_is_lost_with_its_host():
    assert story(Fault(Trouble.SPOT_LOST, 30_000, 0, 1_000), retries=0, keep_for_ms=40_000).states == {"lost": 1}


def test_an_exclusive_job_whose_workers_folder_was_copied_waits_until_the_original_must_have_ended_it():
    """In the simulated world a machine that is cut off works on, as its copy can't know."""
    copied = Fault(Trouble.COPIED, 30_000, 0, 60_000)
    report = story(copied, exclusive=True)
    assert (report.states, report.attempts) == ({"succeeded": 1}, 2)
    with planted("start_anew_believed"), pytest.raises(Violation, match=r"starts on w[01].* while it runs on w0"):
        story(copied, exclusive=True)


def test_an_agent_that_waited_for_its_spawner_lends_what_its_machine_has_by_then():
    """It looked at its machine when it began to wait, and its probe was wrong."""
    faults = (
        Fault(Trouble.AGENT_AND_SPAWNER_STOP, 10_000, 0, 80_000),
        Fault(Trouble.AGENT_DIES, 20_000, 0, 4_000),
        Fault(Trouble.PROBE_LIES, 20_000, 0, 10_000, 1),
    )
    jobs = tuple(JobPlan(number, 120_000 + 7 * number, run_ms=400 + 37 * number) for number in range(12))
    for seed in range(6):  # what it lies is drawn
        play(Scenario(seed, hosts=(HostPlan(0),), jobs=jobs, faults=faults, noise=QUIET, trouble_ms=200_000))


def test_every_kind_of_fault_is_drawn():
    assert {fault.kind for seed in range(60) for fault in Scenario.of_seed(seed).faults} == set(Trouble)


def test_a_scenario_is_written_as_it_is_made():
    drawn = Scenario.of_seed(5)
    assert eval(repr(drawn), {**NAMES, "Trouble": Trouble}) == drawn


@pytest.mark.parametrize("seed", range(6))
def test_any_part_of_a_scenario_can_be_taken_out(seed):
    drawn = Scenario.of_seed(seed)
    play(replace(drawn, faults=drawn.faults[::2]))
    play(replace(drawn, jobs=drawn.jobs[1::2]))
    play(replace(drawn, hosts=drawn.hosts[1:]))
    play(replace(drawn, noise=QUIET))


def test_taking_a_fault_out_leaves_the_jobs_and_hosts_as_they_were():
    drawn = Scenario.of_seed(9)
    fewer = replace(drawn, faults=())
    assert (fewer.jobs, fewer.hosts) == (drawn.jobs, drawn.hosts)
