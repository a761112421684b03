"""One verdict a worker for one request, with the smallest change that would make it fit.

Pure and lazy: the queue never calls this; people, scripts, agents and rejections do.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gpulayer.ids import JobId, WorkerId
from gpulayer.placement.capacity import Free, allocate
from gpulayer.placement.choose import Candidate, Rank, rank
from gpulayer.placement.eligibility import (
    can_compute_now,
    failures_of,
    is_eligible,
    matching_devices,
    memory_for_jobs,
    why_ineligible,
    why_not_now,
)
from gpulayer.spec.machine import Device, DeviceState, WorkerFacts
from gpulayer.spec.opinion import NO_OPINION, Mark, Opinion, Refusal
from gpulayer.spec.request import DEVICE_KINDS, Request
from gpulayer.spec.units import format_bytes, parse_bytes
from gpulayer.spec.verdict import PASSING, FieldChange, Reason, ReasonCode, Verdict, VerdictKind
from gpulayer.spec.worker import WorkerState

__all__ = ["WorkerView", "choice", "explain", "smallest_change"]


@dataclass(frozen=True, slots=True)
class WorkerView:
    """What explaining needs of a worker. ``holders``: job of each leased device; ``resource_holders``: jobs of each
    resource, by its name; ``jobs``: all jobs there. opinions: what scorers, by name, think of the request there; None:
    nothing."""

    id: WorkerId
    name: str
    state: WorkerState
    facts: WorkerFacts
    free: Free
    holders: tuple[tuple[str, JobId], ...] = ()
    jobs: tuple[JobId, ...] = ()
    resource_holders: tuple[tuple[str, JobId], ...] = ()
    opinions: tuple[tuple[str, Opinion | None], ...] = ()


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


def smallest_change(request: Request, facts: WorkerFacts, *, name: str) -> tuple[FieldChange, ...]:
    """The fields to change, and to what, so that this worker fits; empty where nothing of this kind would help.

    Numeric fields fall to exactly what the worker has; identity fields (model, capability, labels, frameworks,
    worker, locality) are dropped. The accelerator is never changed: other hardware is another job. Nor is a resource
    that the worker has none of, or a capability: without its licence or its launcher it is another job as well. The
    result is verified by running eligibility on it.
    """
    reasons = why_ineligible(request, facts, name=name)
    changed = request
    changes: list[FieldChange] = []
    for reason in reasons:
        match reason.code:
            case ReasonCode.CPUS:
                changed, change = replace(changed, cpus=facts.cpus), FieldChange("cpus", str(facts.cpus))
            case ReasonCode.MEMORY:
                changed = replace(changed, memory_bytes=facts.memory_bytes)
                change = FieldChange("memory", _exact(facts.memory_bytes))
            case ReasonCode.DISK if facts.disk_bytes is not None:
                changed = replace(changed, disk_bytes=facts.disk_bytes)
                change = FieldChange("disk", _exact(facts.disk_bytes))
            case ReasonCode.DEVICE_MEMORY:
                level = _memory_level(request, facts)
                changed, change = (
                    replace(changed, device_memory_bytes=level),
                    FieldChange("device_memory", _exact(level)),
                )
            case ReasonCode.TOO_FEW_DEVICES if reason.has.isdigit() and int(reason.has) > 0:
                changed, change = replace(changed, devices=int(reason.has)), FieldChange("devices", reason.has)
            case ReasonCode.RESOURCE if _has_some_of_each(request, facts):
                less, change = _fewer_resources(request, facts)
                changed = replace(changed, resources=less)
            case ReasonCode.DEVICE_MODEL:
                changed, change = replace(changed, device_models=()), FieldChange("device_model", "")
            case ReasonCode.COMPUTE_CAPABILITY:
                changed, change = replace(changed, compute_capability=""), FieldChange("compute_capability", "")
            case ReasonCode.LABEL:
                key = reason.wanted.partition("=")[0]
                changed = replace(changed, labels=tuple(label for label in changed.labels if label[0] != key))
                change = FieldChange("label", "")
            case ReasonCode.WORKER_NAME:
                changed, change = replace(changed, worker=""), FieldChange("worker", "")
            case _:
                return ()
        if change not in changes:
            changes.append(change)
    return tuple(changes) if changes and is_eligible(changed, facts, name=name) else ()


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
        busy_with, fits_with = _busy_with(request, worker, busy), _fits_now(request, worker, busy)
        return Verdict(worker.name, VerdictKind.BUSY, busy, busy_with=busy_with, fits_with=fits_with), None
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


def _used_by(jobs: tuple[JobId, ...]) -> str:
    if not jobs:
        return ""
    if len(jobs) == 1:
        return f" (job {jobs[0]} uses the rest)"
    more = f" and {len(jobs) - 2} more" if len(jobs) > 2 else ""
    return f" (jobs {jobs[0]}, {jobs[1]}{more} use the rest)"


def _has_some_of_each(request: Request, facts: WorkerFacts) -> bool:
    there = dict(facts.resources)
    return all(there.get(name, 0) > 0 for name, _ in request.resources)


def _fewer_resources(request: Request, facts: WorkerFacts) -> tuple[tuple[tuple[str, int], ...], FieldChange]:
    """As many as the worker has, and that as one flag: ``--resource licence=1,seat=2``."""
    there = dict(facts.resources)
    less = tuple((name, min(count, there[name])) for name, count in request.resources)
    value = ",".join(f"{name}={count}" for name, count in less if count != dict(request.resources)[name])
    return less, FieldChange("resources", value)


def _memory_level(request: Request, facts: WorkerFacts) -> int:
    """The largest memory that enough devices have; what is not known is taken to be enough."""
    kinds = DEVICE_KINDS if not set(request.accelerators) & set(DEVICE_KINDS) else request.accelerators
    there = [memory_for_jobs(device, facts) for device in facts.devices if device.kind in kinds]
    sizes = sorted((request.device_memory_bytes if one is None else one for one in there), reverse=True)
    return sizes[min(request.devices, len(sizes)) - 1] if sizes else 0


def _exact(count: int) -> str:
    """A size to type: as it is told of beside it, where that is no more than there is; else exactly ``count`` in the
    largest unit that does, else the next smaller tenth of a gigabyte."""
    told = format_bytes(count).replace(" ", "")
    if 0 < parse_bytes(told) <= count:
        return told
    for unit, factor in (("GiB", 2**30), ("GB", 10**9), ("MiB", 2**20), ("MB", 10**6)):
        if count and count % factor == 0:
            return f"{count // factor}{unit}"
    tenths = count // 10**8
    return f"{tenths / 10:g}GB" if tenths else str(count)
