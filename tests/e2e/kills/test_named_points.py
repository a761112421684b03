"""Every named fault point, each with kill -9: the jobs that it hits end as their programs did, once.

The points are those of ``gpulayer.faults.POINTS``; nothing here lists them. A point that none of these chains reaches
fails its chain, and one that no chain goes through fails the last test. Those of a command are in ``test_clients``.
"""

import random

import pytest

from gpulayer.faults import POINTS
from gpulayer.testing.distribution import install_plugin
from tests.e2e.kills import chains
from tests.e2e.kills.test_clients import CLIENT, CONTEXTS

pytestmark = pytest.mark.timeout(600)  # quick where nothing else runs; a machine may be busy


# The control plane ----------------------------------------------------------------------------------------------------


def test_a_control_plane_that_dies_all_along_its_first_start_serves_in_the_end(tmp_path):
    chains.die_in_setup(tmp_path, rng=random.Random(0))


def test_a_control_plane_that_dies_at_every_named_point_loses_no_job_and_runs_none_twice(tmp_path):
    chains.die_in_traffic(tmp_path, chains.traffic_points(), rng=random.Random(0))


def test_a_control_plane_that_dies_over_what_time_brings_does_it_in_its_next_life(tmp_path):
    chains.die_in_sweeps(tmp_path, rng=random.Random(0))


# The agent ------------------------------------------------------------------------------------------------------------

# Of these an early reach tells little: of a report without a job, of the first piece of a log.
LATER = {"agent.before_report": 3, "agent.after_report": 3, "agent.after_log_piece": 2, "agent.after_journal": 3}
BUILT = [point for point in POINTS if point.startswith("agent.") and chains.thing_of(point) == "environment"]
AGENT = [point for point in POINTS if point.startswith("agent.") and point not in BUILT]

BUILDER = """
import os
from gpulayer.plugins import hookimpl
from gpulayer.plugins.contracts.environment import Environment, EnvironmentPlan

GPULAYER_API = "1.0"


class Builder:
    name = "anew"

    def plan(self, request):
        return EnvironmentPlan(os.urandom(8).hex(), (("made",),))

    def build(self, plan, site):
        (site.folder / "made").write_text("made")
        return Environment({"PATH": os.environ["PATH"]})


@hookimpl
def gpulayer_register_environments(ctx):
    return [Builder()]
"""


def die(scene, points, **options):
    """Every life of a worker dies at the next of these, under jobs that may run once."""
    worker = scene.add_worker("chained", *(chains.life_of(point, LATER.get(point, 1)) for point in points))
    jobs = []

    def stir(_thing):
        scene.jobs_to_come(jobs, retries=len(jobs) % 2, **options)

    chains.die_at_each(scene, points, lambda: worker.fired, stir)
    for job in jobs:
        scene.check(job, attempts=[1])
    scene.check_workers()


def test_an_agent_that_dies_at_every_named_point_runs_each_job_once(scene):
    brought = scene.folder / "brought"
    brought.write_text("an input")
    die(scene, AGENT, inputs={"brought": f"file://{brought}"})


def test_an_agent_that_dies_over_an_environment_builds_it_anew_and_runs_each_job_once(make_scene, tmp_path):
    install_plugin(tmp_path / "plugins", "anew", BUILDER)
    scene = make_scene()
    scene.environment["PYTHONPATH"] = f"{scene.environment.get('PYTHONPATH', '')}:{tmp_path / 'plugins'}"
    scene.plane.start()
    # A worker each: of three deaths in a row the builder would be suspected.
    workers = [scene.add_worker(f"worker{count}", point) for count, point in enumerate(BUILT)]
    jobs = [scene.submit(environment="anew", worker=worker.name, retries=0) for worker in workers]
    for job in jobs:
        scene.check(job, attempts=[1])
    assert [worker.fired for worker in workers] == [[point] for point in BUILT]


# The spawner and the watchdog -----------------------------------------------------------------------------------------

# The program had not begun, or its end is on disk: no attempt is lost by these.
HARMLESS = {"before_entry", "in_entry", "after_record", "before_removal", "in_removal", "after_removal"}
SPAWNER = [point for point in POINTS if point.startswith("spawner.")]
SPAWNER_HARMLESS = [point for point in SPAWNER if point.partition(".")[2] in HARMLESS]
SPAWNER_COSTLY = [point for point in SPAWNER if point not in SPAWNER_HARMLESS]
WATCHDOG = [point for point in POINTS if point.startswith("watchdog.")]


def die_below(scene, lives, deaths, **options):
    """deaths: what of ``lives`` happens, in order."""
    worker = scene.add_worker("chained", ";".join(lives))
    jobs = []
    chains.die_at_each(
        scene,
        deaths,
        lambda: worker.fired_below,
        lambda _: scene.jobs_to_come(jobs, width=1, **options),
    )
    return jobs


def test_a_spawner_that_dies_while_it_has_nothing_to_lose_costs_no_attempt(scene):
    for job in die_below(scene, SPAWNER_HARMLESS, SPAWNER_HARMLESS, retries=0):
        scene.check(job, attempts=[1])
    scene.check_workers()


def test_a_spawner_that_dies_over_a_job_costs_it_an_attempt_and_nothing_of_the_lost_one_is_left(scene):
    # Who writes a record when the spawner died over it is the watchdog, and it dies over it as well.
    deaths = [each for point in SPAWNER_COSTLY for each in [point] * (2 if point == "spawner.in_record" else 1)]
    for job in die_below(scene, SPAWNER_COSTLY, deaths, retries=20):
        scene.check(job, attempts=range(1, 20), excused=frozenset({"worker_lost"}))
    scene.check_workers()


def test_a_watchdog_that_dies_over_its_spawners_death_leaves_nothing_running_and_the_job_runs_again(scene):
    # A start of the spawner that fails is tried again by the same agent. Else the spawner dies with its watchdog beside
    # it, which dies over the cleaning up: the next spawner does it instead.
    first, *others = WATCHDOG
    assert first == "watchdog.before_spawner"
    lives = [f"spawner.in_output:{count},{point}" for count, point in enumerate(others, 1)]
    deaths = [first, *(each for point in others for each in ("spawner.in_output", point))]
    for job in die_below(scene, [first, *lives], deaths, retries=20):
        scene.check(job, attempts=range(1, 8), excused=frozenset({"worker_lost"}))
    scene.check_workers()


def test_every_fault_point_is_died_at():
    plane = [*chains.setup_points(), *chains.traffic_points(), *chains.sweep_points()]
    died_at = [*plane, *AGENT, *BUILT, *SPAWNER, *WATCHDOG, *CLIENT, *CONTEXTS]
    assert sorted(died_at) == sorted(POINTS)
    assert len(plane) >= 60
