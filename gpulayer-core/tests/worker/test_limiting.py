"""Limits in the spawner's words, and what is told of an end that has to do with them."""

from dataclasses import replace

import pytest

from gpulayer.ids import Epoch, JobId
from gpulayer.protocol.messages import ProcessExited
from gpulayer.spawner.messages import ExitRecord, SpawnLimits
from gpulayer.spec.assignment import Assignment, NodeKey
from gpulayer.spec.limits import Limits
from gpulayer.worker.limiting import spawn_limits, unenforced
from gpulayer.worker.starting import end_of

KEY = NodeKey(Epoch(7), 0)
JOB = Assignment(key=KEY, job_id=JobId("abc"), attempt=1, command=("true",))
ALL = ("cores", "cpus", "memory", "pids")
RECORD = ExitRecord(
    key="7.0",
    exit_code=0,
    signal=None,
    reason="exited",
    message="",
    ended_at_wall_ms=5,
    log_bytes=7,
    log_complete=True,
    tree_clean=True,
)


def test_a_job_that_asked_for_nothing_is_limited_in_its_log_alone():
    assert spawn_limits(JOB, log_bytes=30) == SpawnLimits(log_bytes=30)


def test_limits_are_handed_on_and_the_weight_follows_the_cores_counted():
    limits = Limits(cpus=3, memory_bytes=10, pids=20, nice=5, pin_cores=True)
    expected = SpawnLimits(cpus=3, cpu_weight=3, memory_bytes=10, pids=20, pin_cores=3, log_bytes=30)
    assert spawn_limits(replace(JOB, cpus=3, limits=limits), log_bytes=30) == expected
    assert spawn_limits(replace(JOB, cpus=4, limits=Limits(pin_cores=True)), log_bytes=0).pin_cores == 1


def test_what_can_not_be_enforced_is_said_by_the_flag_that_asked_for_it():
    limits = Limits(cpus=2, memory_bytes=10**9, pids=20, pin_cores=True)
    assert unenforced(limits, ALL) == []
    assert unenforced(Limits(), ()) == []
    assert unenforced(limits, ()) == [
        "--memory 1 GB was not enforced: its worker has no memory control group",
        "--cpus 2 was not enforced: its worker has no cpu control group",
        "--pids 20 was not enforced: its worker has no pids control group",
        "--pin-cores was not done: its worker's system can't pin a process to cores",
    ]


KILLED = {"exit_code": None, "signal": 9, "reason": "signaled"}
WITH_MEMORY = {"oom_kills": 1, "memory_peak_bytes": 64_000_000}
EVIDENCE = "1 process killed by the kernel (oom_kill), limit 64 MB, peak 64 MB"


@pytest.mark.parametrize(
    ("changes", "is_out_of_memory", "evidence"),
    [
        ({**KILLED, **WITH_MEMORY}, True, f"out of memory: {EVIDENCE}"),
        ({"exit_code": 137, **WITH_MEMORY}, True, f"out of memory: {EVIDENCE}"),
        ({"exit_code": 0, **WITH_MEMORY}, False, f"it went on without memory that it wanted: {EVIDENCE}"),
        ({**KILLED, "signal": 15, **WITH_MEMORY}, False, f"it went on without memory that it wanted: {EVIDENCE}"),
        ({**KILLED, "oom_kills": 0}, False, ""),
        ({**KILLED, "oom_kills": None}, False, ""),
        ({"exit_code": 137, "oom_kills": 0}, False, ""),
    ],
)
def test_out_of_memory_is_what_failed_after_the_kernel_killed_for_memory(changes, is_out_of_memory, evidence):
    record = replace(RECORD, **changes)
    end = end_of(KEY, record, limits=Limits(memory_bytes=64_000_000), enforces=ALL)
    expected = ProcessExited(KEY, record.exit_code, record.signal, is_out_of_memory, evidence)
    assert end == expected


def test_the_evidence_has_everything_a_line_each():
    record = replace(
        RECORD,
        **KILLED,
        oom_kills=2,
        message="pinned to 1 core",
        tree_clean=False,
        survivors=(4,),
        memory_peak_bytes=None,
    )
    end = end_of(KEY, record, limits=Limits(pids=3), enforces=("memory",))
    assert end.evidence.splitlines() == [
        "out of memory: 2 processes killed by the kernel (oom_kill)",
        "--pids 3 was not enforced: its worker has no pids control group",
        "pinned to 1 core",
        "processes that could not be ended: 4",
    ]
