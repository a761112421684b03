"""Every named fault point, each with kill -9: the jobs that it hits end as their programs did, once.

A *chain* is one worker (or one control plane) whose every life is armed with the next point, under a stream of small
jobs; it goes on until every point has been died at. So thirty deaths cost thirty starts and not thirty set-ups, and
later deaths meet what earlier ones left.
"""

from pathlib import Path

import pytest

from gpulayer.faults import POINTS

pytestmark = pytest.mark.timeout(600)  # quick where nothing else runs; a machine may be busy

AGENT = [
    "agent.in_admission",
    "agent.after_admission",
    "agent.before_recovery",
    "agent.before_baseline",
    "agent.before_journal",
    "agent.after_journal",
    "agent.before_spawn",
    "agent.after_spawn",
    "agent.before_report:3",
    "agent.after_report:3",
    "agent.before_log_piece",
    "agent.after_log_piece:2",
    "agent.after_exit",
    "agent.after_journal:3",
    "agent.before_outputs",
    "agent.in_outputs",
    "agent.before_acceptance",
    "agent.after_acceptance",
    "agent.before_forget",
    "agent.before_delete",
    "agent.in_delete",
]


def test_an_agent_that_dies_at_every_named_point_runs_each_job_once(scene):
    worker = scene.add_worker("chained", *AGENT)
    jobs = scene.traffic(lambda: len(worker.deaths) == len(AGENT))
    assert worker.fired == names(AGENT)
    for job in jobs:
        scene.check(job, attempts=[1])
    scene.check_workers()


PLANE = [
    "plane.after_enrol",
    "plane.after_lock",
    "plane.before_endpoint",
    "plane.before_commands",
    "plane.before_log_piece",
    "plane.after_log_piece:2",
    "plane.before_outputs",
    "plane.after_outputs",
    "blobs.before_rename",
    "blobs.after_rename",
    "plane.before_commit:4",
    "plane.in_transaction:5",
    "plane.after_commit:6",
    "plane.before_reply:7",
]


def test_a_control_plane_that_dies_at_every_named_point_loses_no_job_and_runs_none_twice(make_scene):
    scene = make_scene()
    scene.plane.lives.extend(PLANE)
    scene.plane.start()
    scene.add_worker("steady")
    jobs = scene.traffic(lambda: len(scene.plane.deaths) == len(PLANE))
    assert scene.plane.fired == names(PLANE)
    for job in jobs:
        scene.check(job, attempts=[1])
    assert {job.id for job in jobs} == {job["id"] for job in scene.ask(lambda client: client.jobs())}
    scene.check_workers()


# The program had not begun, or its end is on disk: no attempt is lost by these.
SPAWNER_HARMLESS = [
    "spawner.before_entry",
    "spawner.after_record",
    "spawner.before_removal",
    "spawner.after_removal",
]
SPAWNER_COSTLY = [
    "spawner.after_entry",
    "spawner.after_launch",
    "spawner.after_pid",
    "spawner.in_output",
    "spawner.after_exit",
    "spawner.before_record",
    "spawner.in_record",
]


def test_a_spawner_that_dies_while_it_has_nothing_to_lose_costs_no_attempt(scene):
    worker = scene.add_worker("chained", ";".join(SPAWNER_HARMLESS))
    jobs = scene.traffic(lambda: len(worker.fired_below) == len(SPAWNER_HARMLESS), width=1)
    assert worker.fired_below == names(SPAWNER_HARMLESS)
    for job in jobs:
        scene.check(job, attempts=[1])
    scene.check_workers()


def test_a_spawner_that_dies_over_a_job_costs_it_an_attempt_and_nothing_of_the_lost_one_is_left(scene):
    worker = scene.add_worker("chained", ";".join(SPAWNER_COSTLY))
    # Who writes a record when the spawner died over it is the watchdog, and it dies over it as well.
    deaths = [*names(SPAWNER_COSTLY), "spawner.in_record"]
    jobs = scene.traffic(lambda: len(worker.fired_below) == len(deaths), width=1, retries=20)
    assert worker.fired_below == deaths
    for job in jobs:
        scene.check(job, attempts=range(1, 20), excused=frozenset({"worker_lost"}))
    scene.check_workers()


# The spawner dies with its watchdog beside it, which dies over the cleaning up: the next spawner does it instead.
BOTH = [
    "spawner.in_output,watchdog.before_cleaning",
    "spawner.in_output:2,watchdog.in_cleaning",
    "spawner.in_output:3,watchdog.after_cleaning",
]


def test_a_watchdog_that_dies_over_its_spawners_death_leaves_nothing_running_and_the_job_runs_again(scene):
    # A start of the spawner that fails is tried again by the same agent.
    worker = scene.add_worker("chained", ";".join(["watchdog.before_spawner", *BOTH]))
    deaths = ["watchdog.before_spawner", *names(",".join(BOTH).split(","))]
    jobs = scene.traffic(lambda: len(worker.fired_below) == len(deaths), width=1, retries=20)
    assert worker.fired_below == deaths
    for job in jobs:
        scene.check(job, attempts=range(1, 8), excused=frozenset({"worker_lost"}))
    scene.check_workers()


# A write that fails once: what was to be written is written later, and no end is lost or changed by it.
def test_a_write_that_fails_at_a_named_point_is_made_again_or_costs_an_attempt(make_scene):
    scene = make_scene()
    scene.plane.lives.append("blobs.before_rename:7:enospc,plane.before_log_piece:2:eio")
    scene.plane.start()
    worker = scene.add_worker("one", "agent.before_journal:2:enospc,spawner.before_entry:2:eio,spawner.in_record:2:eio")
    jobs = scene.traffic(lambda: len(scene.plane.fired + worker.fired + worker.fired_below) == 5, width=1)
    for job in jobs:
        scene.check(job, attempts=[1, 2], excused=frozenset({"worker_lost"}))
    scene.check_workers()


def test_every_fault_point_is_died_at_by_a_test_of_this_folder():
    here = Path(__file__).parent
    text = "".join(file.read_text(encoding="utf-8") for file in here.glob("test_*.py"))
    assert [name for name in POINTS if name not in text] == []


def names(lives):
    return [life.split(":")[0] for life in lives]
