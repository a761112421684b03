"""One verdict a worker for one request, with the smallest change that would make it fit.

Pure and lazy: the queue never calls this; people, scripts, agents and rejections do.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gpulayer.ids import JobId, WorkerId
from gpulayer.placement.capacity import Free, allocate
from gpulayer.placement.change import smallest_change
from gpulayer.placement.choose import Candidate, Rank, rank
from gpulayer.placement.eligibility import (
    can_compute_now,
    failures_of,
    matching_devices,
    why_ineligible,
    why_not_now,
)
from gpulayer.placement.ends import Held, free_by
from gpulayer.spec.machine import Device, DeviceState, WorkerFacts
from gpulayer.spec.opinion import NO_OPINION, Mark, Opinion, Refusal
from gpulayer.spec.request import Request
from gpulayer.spec.units import format_bytes, format_duration
from gpulayer.spec.verdict import PASSING, FieldChange, Reason, ReasonCode, Verdict, VerdictKind
from gpulayer.spec.worker import WorkerState

__all__ = ["WorkerView", "choice", "explain", "starts_by"]


@dataclass(frozen=True, slots=True)
class WorkerView:
    """What explaining needs of a worker. ``holders``: job of each leased device; ``resource_holders``: jobs of each
    resource, by its name; ``jobs``: all jobs there; ``held``: what each of them has, and until when. opinions: what
    scorers, by name, think of the request there; None: nothing. kept_for: a job that stands before this request, which
    may not have what is free there because of that one, and in how many milliseconds that begins at the latest."""

    id: WorkerId
    name: str
    state: WorkerState
    facts: WorkerFacts
    free: Free
    holders: tuple[tuple[str, JobId], ...] = ()
    jobs: tuple[JobId, ...] = ()
    resource_holders: tuple[tuple[str, JobId], ...] = ()
    opinions: tuple[tuple[str, Opinion | None], ...] = ()
    held: tuple[Held, ...] = ()
    kept_for: tuple[JobId, int] | None = None


def explain(request: Request, workers: Iterable[WorkerView]) -> tuple[Verdict, ...]:
    """Verdicts sorted: eligible (best first), busy, ineligible; then by name.

    The score is the mean mark where any scorer gave one, else it says how well the worker would be filled.
    """
    known = [worker for worker in workers if worker.state is not WorkerState.GONE]
    has_marks = any(isinstance(opinion, Mark) for worker in known for _, opinion in worker.opinions)
    verdicts = [_verdict(request, worker, has_marks=has_marks) for worker in known]
    order = list(VerdictKind)
    verdicts.sort(key=lambda pair: (order.index(pair[0].kind), pair[1] or _NO_RANK, pair[0].worker))
    return tuple(verdict for verdict, _ in verdicts)


def choice(verdicts: Iterable[Verdict]) -> str | None:
    """The worker that a task would get now, of sorted verdicts."""
    return next((verdict.worker for verdict in verdicts if verdict.kind is VerdictKind.ELIGIBLE), None)


def starts_by(verdicts: Iterable[Verdict], *, nodes: int = 1) -> int | None:
    """When at the latest as many workers can take a node each, if nobody else gets there first: by time limits alone.
    None where that is not known, and where they can now."""
    moments: list[int] = []
    for verdict in verdicts:
        if verdict.kind is VerdictKind.ELIGIBLE:
            moments.append(0)
        elif verdict.until_ms is not None:
            moments.append(verdict.until_ms)
    return (sorted(moments)[nodes - 1] or None) if len(moments) >= nodes else None


_MAX_NAMED: Final = 4
_OF_DEVICES: Final = (ReasonCode.DEVICE_UNHEALTHY, ReasonCode.DEVICES_BUSY)
_NO_RANK: Final = Rank(False, 0, 0.0, 0, 0, "")


def _verdict(request: Request, worker: WorkerView, *, has_marks: bool) -> tuple[Verdict, Rank | None]:
    """Only what is eligible has a rank."""
    reasons = why_ineligible(request, worker.facts, name=worker.name)
    if reasons:
        fits_with = smallest_change(request, worker.facts, name=worker.name)
        return Verdict(worker.name, VerdictKind.INELIGIBLE, reasons, fits_with=fits_with), None
    refusals = _refusals(worker.opinions)
    if refusals:
        return Verdict(worker.name, VerdictKind.INELIGIBLE, refusals), None
    if worker.state is WorkerState.DRAINING:
        draining = Reason(ReasonCode.DRAINING, f"draining until `gpulayer worker resume {worker.name}`")
        return Verdict(worker.name, VerdictKind.BUSY, (draining,)), None
    if worker.state is not WorkerState.READY:
        message = "offline" if worker.state is WorkerState.SILENT else "still joining"
        return Verdict(worker.name, VerdictKind.BUSY, (Reason(ReasonCode.OFFLINE, message),)), None
    allocation = allocate(request, worker.id, worker.facts, worker.free)
    if allocation is None:
        busy = _busy_reasons(request, worker)
        verdict = Verdict(
            worker.name,
            VerdictKind.BUSY,
            busy,
            busy_with=_busy_with(request, worker, busy),
            until_ms=_until(request, worker),
            fits_with=_fits_now(request, worker, busy),
        )
        return verdict, None
    if worker.kept_for is not None:
        job, begins_ms = worker.kept_for
        message = f"kept for job {job}, which begins there within {format_duration(begins_ms)}"
        reason = Reason(ReasonCode.RESERVED, f"{message}; what its --timeout ends before that may run until then")
        return Verdict(worker.name, VerdictKind.BUSY, (reason,), busy_with=(job,)), None
    mark = _mean_mark(worker.opinions)
    place = rank(request, Candidate(worker.id, worker.name, worker.facts, worker.free, allocation, mark))
    score = round(mark, 3) if has_marks else place.score
    return Verdict(worker.name, VerdictKind.ELIGIBLE, _marks(worker.opinions), score=score), place


def _refusals(opinions: Sequence[tuple[str, Opinion | None]]) -> tuple[Reason, ...]:
    return tuple(
        Reason(ReasonCode.PLUGIN_REJECTED, f"scorer {name}: {opinion.reason}")
        for name, opinion in opinions
        if isinstance(opinion, Refusal)
    )


def _marks(opinions: Sequence[tuple[str, Opinion | None]]) -> tuple[Reason, ...]:
    return tuple(
        Reason(ReasonCode.PLUGIN_MARKED, f"scorer {name} marks it {opinion.value:.3g}")
        for name, opinion in opinions
        if isinstance(opinion, Mark)
    )


def _mean_mark(opinions: Sequence[tuple[str, Opinion | None]]) -> float:
    marks = [opinion.value if isinstance(opinion, Mark) else NO_OPINION for _, opinion in opinions]
    return sum(marks) / len(marks) if marks else NO_OPINION


def _busy_reasons(request: Request, worker: WorkerView) -> tuple[Reason, ...]:
    free, facts = worker.free, worker.facts
    reasons = list(why_not_now(request, facts))
    if request.devices and not reasons and not _has_free_devices(request, worker):
        meant = _meant(request, facts)
        count = sum(device.uuid in free.devices for device in meant)
        which = "such devices" if _is_choosy(request, facts) else "devices"
        message = f"{count} of {len(meant)} {which} free{_used_by(_holders(request, worker))}{_strangers(meant)}"
        message += failures_of(request, facts.devices, facts)
        reasons.append(Reason(ReasonCode.DEVICES_BUSY, message, str(request.devices), str(count)))
    if request.cpus > free.cpus:
        message = f"{free.cpus} of {facts.cpus} cpus free{_used_by(worker.jobs)}"
        reasons.append(Reason(ReasonCode.CPUS_BUSY, message, str(request.cpus), str(free.cpus)))
    if request.memory_bytes > free.memory_bytes:
        message = f"{format_bytes(free.memory_bytes)} of {format_bytes(facts.memory_bytes)} memory free"
        wanted, has = format_bytes(request.memory_bytes), format_bytes(free.memory_bytes)
        reasons.append(Reason(ReasonCode.MEMORY_BUSY, message, wanted, has))
    for name, count in _missing_resources(request, worker):
        there, left = dict(facts.resources)[name], max(0, free.count_of(name))
        message = f"{left} of {there} {name} free{_used_by(_resource_holders(worker, name))}"
        reasons.append(Reason(ReasonCode.RESOURCE_BUSY, message, f"{name}={count}", f"{name}={left}"))
    return tuple(reasons)


def _fits_now(request: Request, worker: WorkerView, busy: tuple[Reason, ...]) -> tuple[FieldChange, ...]:
    """Where broken devices are waited for: as many as work. Where devices are that others have: as many as are free."""
    for reason in busy:
        few = replace(request, devices=int(reason.has)) if reason.code in _OF_DEVICES else request
        if not 0 < few.devices < request.devices:
            continue
        is_broken = reason.code is ReasonCode.DEVICE_UNHEALTHY
        if can_compute_now(few, worker.facts) if is_broken else allocate(few, worker.id, worker.facts, worker.free):
            return (FieldChange("devices", reason.has),)
    return ()


def _until(request: Request, worker: WorkerView) -> int | None:
    """Workers with a device that is broken, or that a stranger has, may stay busy for longer than any job."""
    found = free_by(request, worker.id, worker.facts, worker.held)
    return found[0] if found else None


def _meant(request: Request, facts: WorkerFacts) -> list[Device]:
    """All devices that match and work, in whosever hands they are."""
    return [device for group in matching_devices(request, facts) for device in group]


def _is_choosy(request: Request, facts: WorkerFacts) -> bool:
    """Whether there are devices that would not do though they work."""
    works = sum(device.state is not DeviceState.UNHEALTHY for device in facts.devices)
    return works != len(_meant(request, facts))


def _strangers(devices: Sequence[Device]) -> str:
    """``; device 0 is busy: python (pid 4711, user ann) computes on it``."""
    busy = [device for device in devices if device.state is DeviceState.BUSY]
    said = [f"device {device.index} is busy: {device.reason or 'no reason'}" for device in busy[:_MAX_NAMED]]
    if len(busy) > _MAX_NAMED:
        said.append(f"and {len(busy) - _MAX_NAMED} more are")
    return "".join(f"; {one}" for one in said)


def _has_free_devices(request: Request, worker: WorkerView) -> bool:
    devices_alone = replace(request, cpus=0, memory_bytes=0, resources=())
    return allocate(devices_alone, worker.id, worker.facts, worker.free) is not None


def _missing_resources(request: Request, worker: WorkerView) -> list[tuple[str, int]]:
    return [(name, count) for name, count in request.resources if count > worker.free.count_of(name)]


def _resource_holders(worker: WorkerView, resource: str) -> tuple[JobId, ...]:
    return tuple(dict.fromkeys(job for name, job in worker.resource_holders if name == resource))


def _busy_with(request: Request, worker: WorkerView, busy: tuple[Reason, ...]) -> tuple[JobId, ...]:
    """Where resources alone are wanting, whoever has those: nobody else's end would help."""
    if all(reason.code in PASSING for reason in busy):
        return ()
    if any(reason.code is not ReasonCode.RESOURCE_BUSY for reason in busy):
        return _holders(request, worker)
    missing = [name for name, _ in _missing_resources(request, worker)]
    return tuple(dict.fromkeys(job for name in missing for job in _resource_holders(worker, name)))


def _holders(request: Request, worker: WorkerView) -> tuple[JobId, ...]:
    if not request.devices:
        return tuple(dict.fromkeys(worker.jobs))
    meant = {device.uuid for device in _meant(request, worker.facts)}
    return tuple(dict.fromkeys(job for uuid, job in worker.holders if uuid in meant))


def _used_by(holders: tuple[JobId, ...]) -> str:
    jobs = tuple(dict.fromkeys(holders))  # an array may hold it many times
    if not jobs:
        return ""
    if len(jobs) == 1:
        return f" (job {jobs[0]} uses the rest)"
    more = f" and {len(jobs) - 2} more" if len(jobs) > 2 else ""
    return f" (jobs {jobs[0]}, {jobs[1]}{more} use the rest)"
