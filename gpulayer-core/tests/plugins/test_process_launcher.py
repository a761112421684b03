"""The plans of the process launcher, by value."""

from dataclasses import replace
from pathlib import Path

from gpulayer.ids import Epoch, JobId
from gpulayer.plugins import LaunchPlan, LaunchSite, Machine
from gpulayer.plugins.builtin.process import ProcessLauncher
from gpulayer.spec.assignment import Assignment, NodeKey
from gpulayer.spec.limits import DEFAULT_LOG_BYTES
from gpulayer.spec.machine import WorkerFacts

SITE = LaunchSite(Path("/w/work"), Path("/w/out"), Path("/w/log"), Path("/w/exit.json"))
JOB = Assignment(key=NodeKey(Epoch(7), 0), job_id=JobId("abc"), attempt=2, command=("echo", "a b"))
FACTS = WorkerFacts(platform="linux-x86_64", version="0", cpus=8, memory_bytes=1)


def plan(job=JOB, **environment):
    return ProcessLauncher().plan(job, SITE, Machine(FACTS, environment))


def test_the_whole_plan():
    assert plan(PATH="/bin", HOME="/h") == LaunchPlan(
        key="7.0",
        argv=("echo", "a b"),
        cwd=Path("/w/work"),
        env={"PATH": "/bin", "HOME": "/h"},
        log_path=Path("/w/log"),
        exit_path=Path("/w/exit.json"),
        log_bytes=DEFAULT_LOG_BYTES,
    )


def test_the_jobs_own_variables_win_over_those_of_its_environment():
    made = plan(replace(JOB, env=(("HOME", "/mine"), ("PYTHONPATH", "/mine"))), HOME="/h", LANG="C").env
    assert made == {"HOME": "/mine", "PYTHONPATH": "/mine", "LANG": "C"}


def test_equal_inputs_give_equal_plans():
    assert plan(HOME="/h") == plan(HOME="/h")
