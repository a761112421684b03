"""The smallest change of a request with which a machine would fit, and what it is to apply one.

As a formula: of all changes with which ``is_eligible`` holds, the least

    (fields changed, identity fields changed, Σ (wanted - has) / wanted, positions in ``FIELDS``, -devices)

compared item by item. A number may fall to what the machine has and to nothing between; an identity field
(``IDENTITY``) is given up as far as it stands in the way: a model, a range or a name as a whole, labels one by one, of
frameworks the version. Memory of a device, devices, model, capability and frameworks hang together, so they are
enumerated; of the other fields each has one remedy, which is needed wherever the field is a reason.

Never changed: the accelerator, frameworks that are not there or do not compute on it, a resource that the machine has
none of, and capabilities. Whether the program would run without them nobody here can tell, and what says "fits" must be
true. Nothing is suggested where those are the reason.
"""

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product
from typing import Final

from gpulayer.placement.eligibility import (
    framework_fails,
    is_eligible,
    memory_for_jobs,
    possible_devices,
    why_ineligible,
    without_unread,
    wrong_labels,
)
from gpulayer.spec.machine import Device, WorkerFacts
from gpulayer.spec.request import DEVICE_KINDS, Accelerator, FrameworkNeed, Request
from gpulayer.spec.units import format_bytes, parse_bytes
from gpulayer.spec.verdict import FieldChange, ReasonCode

__all__ = ["FIELDS", "IDENTITY", "apply_changes", "size_of_change", "smallest_change"]

FIELDS: Final = (
    *("device_memory", "devices", "device_model", "compute_capability", "framework"),
    *("cpus", "memory", "disk", "resources", "label", "worker", "zone", "region", "network_group"),
)
IDENTITY: Final = frozenset(
    {"device_model", "compute_capability", "framework", "label", "worker", "zone", "region", "network_group"}
)

_NEVER: Final = frozenset({ReasonCode.CAPABILITY, ReasonCode.NO_ACCELERATOR, ReasonCode.NO_CUDA_DEVICE})

Size = tuple[int, int, float, tuple[int, ...], int]


def smallest_change(request: Request, facts: WorkerFacts, *, name: str) -> tuple[FieldChange, ...]:
    """The fields to change, and to what, so that this worker fits; empty where it fits, and where nothing of this kind
    would help. Nothing is hoped of a broken device that could not be read. The result is verified by applying it as it
    is told, roundings of sizes included."""
    if is_eligible(request, facts, name=name):
        return ()
    facts = without_unread(request, facts)
    reasons = why_ineligible(request, facts, name=name)
    if any(reason.code in _NEVER for reason in reasons):
        return ()
    base = _with_single_remedies(request, facts, name)
    if base is None:
        return ()
    best = min(_possible(base, facts), key=lambda changed: size_of_change(request, changed), default=None)
    if best is None:
        return ()
    changes = _changes(request, best)
    return changes if is_eligible(apply_changes(request, changes), facts, name=name) else ()


def size_of_change(request: Request, changed: Request) -> Size:
    """The formula, for a request that was made of the other by changes of this kind."""
    cuts = 0.0
    fields: list[str] = []
    for field, wanted, has in _numbers(request, changed):
        if wanted != has:
            cuts += (wanted - has) / wanted
            fields.append(field)
    fields.extend(field for field, wanted, has in _identities(request, changed) if wanted != has)
    positions = tuple(sorted({FIELDS.index(field) for field in fields}))
    identities = sum(FIELDS[position] in IDENTITY for position in positions)
    return len(positions), identities, cuts, positions, -changed.devices


def apply_changes(request: Request, changes: Iterable[FieldChange]) -> Request:
    """The request with these changes as they are told to people. Raises UsageError for a size that is none."""
    for change in changes:
        match change.field:
            case "cpus":
                request = replace(request, cpus=int(change.value))
            case "devices":
                request = replace(request, devices=int(change.value))
            case "memory":
                request = replace(request, memory_bytes=parse_bytes(change.value))
            case "disk":
                request = replace(request, disk_bytes=parse_bytes(change.value))
            case "device_memory":
                request = replace(request, device_memory_bytes=parse_bytes(change.value))
            case "resources":
                told = (one.partition("=") for one in change.value.split(","))
                fewer = dict(request.resources) | {key: int(count) for key, _, count in told}
                request = replace(request, resources=tuple(sorted(fewer.items())))
            case "device_model":
                request = replace(request, device_models=())
            case "compute_capability":
                request = replace(request, compute_capability="")
            case "framework":
                told_needs = shlex.split(change.value)
                needs = tuple(
                    need if str(need) in told_needs else FrameworkNeed(need.name) for need in request.frameworks
                )
                request = replace(request, frameworks=needs)
            case "label":
                kept = shlex.split(change.value)
                labels = tuple(label for label in request.labels if "=".join(label) in kept)
                request = replace(request, labels=labels)
            case "worker":
                request = replace(request, worker="")
            case "zone":
                request = replace(request, zone="")
            case "region":
                request = replace(request, region="")
            case "network_group":
                request = replace(request, network_group="")
            case _:
                raise ValueError(f"no field of a change: {change.field}")
    return request


def _with_single_remedies(request: Request, facts: WorkerFacts, name: str) -> Request | None:
    """What has one remedy, remedied; None where it has none."""
    there = dict(facts.resources)
    if any(there.get(resource, 0) <= 0 for resource, _ in request.resources):
        return None
    if facts.cpus < 1:
        return None
    wrong = set(wrong_labels(request, facts)) if request.labels else set()
    locality = facts.locality
    return replace(
        request,
        cpus=min(request.cpus, facts.cpus),
        memory_bytes=min(request.memory_bytes, facts.memory_bytes),
        disk_bytes=request.disk_bytes if facts.disk_bytes is None else min(request.disk_bytes, facts.disk_bytes),
        resources=tuple((key, min(count, there[key])) for key, count in request.resources),
        labels=tuple(label for label in request.labels if label[0] not in wrong),
        worker=request.worker if request.worker == name else "",
        zone=request.zone if request.zone == locality.zone else "",
        region=request.region if request.region == locality.region else "",
        network_group=request.network_group if request.network_group == locality.network_group else "",
    )


def _possible(base: Request, facts: WorkerFacts) -> Iterator[Request]:
    """What the devices and frameworks of this machine allow, and all that may be the least of it."""
    for frameworks in _framework_choices(base, facts):
        with_these = replace(base, frameworks=frameworks)
        if not base.devices:
            if is_eligible(with_these, facts, name=base.worker):
                yield with_these
            continue
        models = [base.device_models, ()] if base.device_models else [()]
        ranges = [base.compute_capability, ""] if base.compute_capability else [""]
        for model, range_ in product(models, ranges):
            yield from _of_devices(replace(with_these, device_models=model, compute_capability=range_), facts)


def _of_devices(request: Request, facts: WorkerFacts) -> Iterator[Request]:
    """As many devices as are wanted with what memory that many have, and fewer only where each then has more."""
    groups = possible_devices(replace(request, device_memory_bytes=0), facts)
    wanted = request.device_memory_bytes
    sizes = [sorted((_memory(device, facts, wanted) for device in group), reverse=True) for group in groups]
    most = min(request.devices, max(map(len, sizes), default=0))
    level = -1
    for count in range(most, 0, -1):
        here = max(size[count - 1] for size in sizes if len(size) >= count)
        if here > level:
            level = here
            yield replace(request, devices=count, device_memory_bytes=level)
        if level >= wanted:
            return


def _memory(device: Device, facts: WorkerFacts, wanted: int) -> int:
    """No more than is wanted counts; what is not known is taken to be enough."""
    there = memory_for_jobs(device, facts)
    return wanted if there is None else min(wanted, there)


def _framework_choices(request: Request, facts: WorkerFacts) -> list[tuple[FrameworkNeed, ...]]:
    """The frameworks as they are wanted; and by kind, those whose version is in the way in any version. That is one
    field, however many of them it is."""
    choices = [request.frameworks]
    kinds = DEVICE_KINDS if request.devices else (Accelerator.CPU,)
    for kind in kinds:
        loosened = tuple(
            FrameworkNeed(need.name) if framework_fails(need, kind, facts) else need for need in request.frameworks
        )
        if loosened not in choices:
            choices.append(loosened)
    return choices


def _numbers(request: Request, changed: Request) -> Iterator[tuple[str, int, int]]:
    yield "device_memory", request.device_memory_bytes, changed.device_memory_bytes
    yield "devices", request.devices, changed.devices
    yield "cpus", request.cpus, changed.cpus
    yield "memory", request.memory_bytes, changed.memory_bytes
    yield "disk", request.disk_bytes, changed.disk_bytes
    fewer = dict(changed.resources)
    for name, wanted in request.resources:
        yield "resources", wanted, fewer[name]


def _identities(request: Request, changed: Request) -> Iterator[tuple[str, object, object]]:
    yield "device_model", request.device_models, changed.device_models
    yield "compute_capability", request.compute_capability, changed.compute_capability
    yield "framework", request.frameworks, changed.frameworks
    yield "label", request.labels, changed.labels
    yield "worker", request.worker, changed.worker
    yield "zone", request.zone, changed.zone
    yield "region", request.region, changed.region
    yield "network_group", request.network_group, changed.network_group


def _changes(request: Request, changed: Request) -> tuple[FieldChange, ...]:
    """In the order of ``FIELDS``."""
    fewer = dict(changed.resources)
    told = {
        "device_memory": _exact(changed.device_memory_bytes),
        "devices": str(changed.devices),
        "framework": shlex.join(map(str, changed.frameworks)),
        "cpus": str(changed.cpus),
        "memory": _exact(changed.memory_bytes),
        "disk": _exact(changed.disk_bytes),
        "resources": ",".join(f"{key}={fewer[key]}" for key, count in request.resources if count != fewer[key]),
        "label": shlex.join(map("=".join, changed.labels)),
    }
    pairs = [*_numbers(request, changed), *_identities(request, changed)]
    different = {field for field, wanted, has in pairs if wanted != has}
    return tuple(FieldChange(field, told.get(field, "")) for field in FIELDS if field in different)


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
