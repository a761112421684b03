"""Every named fault point, each with kill -9: the jobs that it hits end as their programs did, once.

A *chain* is one worker (or one control plane) whose every life is armed with the next point, under a stream of small
jobs; it goes on until every point has been died at. So thirty deaths cost thirty starts and not thirty set-ups, and
later deaths meet what earlier ones left.
"""

AGENT = [
    "agent.in_admission",
    "agent.after_admission",
    "agent.before_recovery",
    "agent.before_baseline",
    "agent.before_journal",
    "agent.after_journal",
    "agent.before_spawn",
    "agent.after_spawn",
    "agent.before_journal:2",
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


def names(lives):
    return [life.split(":")[0] for life in lives]
