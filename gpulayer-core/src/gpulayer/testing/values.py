"""Values to ask plugins about: machines, attempts, jobs and events as they come, and odd ones that are legal too."""

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from gpulayer.ids import Epoch, JobId
from gpulayer.plugins.contracts.event import EventKind, JobSummary, PlaneEvent
from gpulayer.plugins.contracts.launcher import LaunchSite
from gpulayer.plugins.examples import UNICODE, odd_jobs
from gpulayer.spec.assignment import Assignment, NodeKey
from gpulayer.spec.machine import Device, Locality, WorkerFacts
from gpulayer.spec.request import Accelerator

__all__ = [
    "UNICODE",
    "an_assignment",
    "an_event",
    "cuda_devices",
    "machine_facts",
    "odd_jobs",
    "odd_machines",
    "site_in",
]

_GIB: Final = 2**30


def machine_facts(**changes: Any) -> WorkerFacts:  # Any: fields of WorkerFacts
    """Of a small Linux machine without devices."""
    return replace(WorkerFacts(platform="linux-x86_64", version="0.1.0", cpus=8, memory_bytes=32 * _GIB), **changes)


def cuda_devices(count: int, *, model: str = "NVIDIA H100 80GB HBM3", memory_gib: int = 80) -> tuple[Device, ...]:
    """Equal ones, ``GPU-0`` and on."""
    return tuple(
        Device(f"GPU-{index}", index, Accelerator.CUDA, model, memory_gib * _GIB, memory_gib * _GIB, "9.0")
        for index in range(count)
    )


def odd_machines() -> tuple[WorkerFacts, ...]:
    """One of which nothing is known, one whose labels are not ASCII, one of a kind that nobody has met, a big one."""
    return (
        WorkerFacts(platform="unknown", version="", cpus=1, memory_bytes=0),
        machine_facts(labels=(("", ""), ("ort", UNICODE)), locality=Locality(UNICODE, UNICODE, UNICODE)),
        machine_facts(devices=(Device("X-1", 0, Accelerator.XPU, UNICODE),), platform="plan9-mips"),
        machine_facts(cpus=100_000, memory_bytes=2**50, devices=cuda_devices(64)),
    )


def an_assignment(**changes: Any) -> Assignment:  # Any: fields of Assignment
    """An attempt of a job that asks for no device."""
    plain = Assignment(
        key=NodeKey(Epoch(7), 0), job_id=JobId("7f3a000000000001"), attempt=1, command=("python", "train.py")
    )
    return replace(plain, **changes)


def site_in(folder: Path) -> LaunchSite:
    """The folders and files of an attempt, below ``folder``; none of them is made."""
    return LaunchSite(folder / "work", folder / "output", folder / "log", folder / "exit.json")


def an_event(kind: EventKind, **changes: Any) -> PlaneEvent:  # Any: fields of PlaneEvent
    """As a control plane tells of that kind: of a job ``train`` of ``ada``'s that failed in the end, or of ``box``."""
    number, at_ms = list(EventKind).index(kind), 1_764_514_800_000
    event = PlaneEvent(f"5b0c7e1a9d2f4e68-{1000 + number}-{at_ms + number:x}", 1000 + number, at_ms + number, kind)
    if kind.partition(".")[0] == "worker":
        event = replace(event, worker="box", details=MappingProxyType({"worker_id": "fedcba9876543210"}))
    else:
        event = replace(event, job=_summary(kind), details=MappingProxyType(_details(kind)))
    return replace(event, **changes)


def _summary(kind: EventKind) -> JobSummary:
    tags = MappingProxyType({"team": "vision"})
    state = {EventKind.JOB_SUBMITTED: "queued", EventKind.JOB_UNREACHABLE: "unreachable", EventKind.JOB_ENDED: "failed"}
    summary = JobSummary("7f3a000000000001", "train", "ada", tags, state.get(kind, "running"))
    return replace(summary, exit_code=3, ended_by="program") if kind is EventKind.JOB_ENDED else summary


def _details(kind: EventKind) -> dict[str, str | int | None]:
    attempt: dict[str, str | int | None] = {"attempt": 1, "workers": "box"}
    match kind:
        case EventKind.JOB_SUBMITTED:
            return {}
        case EventKind.JOB_RETRIED:
            lost = {"ended_by": "worker_lost", "blame": "infrastructure", "evidence": "the machine failed"}
            return {**lost, **attempt, "attempt": 2}
        case EventKind.JOB_UNREACHABLE:
            return {**attempt, "reason": "its worker has not reported for a while"}
        case EventKind.JOB_ENDED:
            return {"ended_by": "program", "blame": "user", "evidence": "", **attempt}
        case _:
            return attempt
