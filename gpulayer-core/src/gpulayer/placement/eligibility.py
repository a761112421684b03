"""May this machine ever run this request? All reasons why not, each with what was wanted and what is there.

"Ever" means with nothing leased, no stranger on its devices, all devices that it has had healthy, and all frameworks
checked: what is merely in use is ``capacity``'s question, and what passes by itself keeps a request waiting, but is no
reason to refuse it. Nor is a figure that the worker does not know (``None``).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Final

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from gpulayer.spec.machine import Device, DeviceState, Framework, WorkerFacts
from gpulayer.spec.plain import spans
from gpulayer.spec.request import DEVICE_KINDS, FRAMEWORKS, Accelerator, FrameworkNeed, Request
from gpulayer.spec.units import format_bytes
from gpulayer.spec.verdict import Reason, ReasonCode

__all__ = [
    "awaits_checks",
    "can_compute_now",
    "failures_of",
    "framework_fails",
    "is_eligible",
    "matching_devices",
    "memory_for_jobs",
    "model_rank",
    "possible_devices",
    "why_ineligible",
    "why_not_now",
    "without_unread",
    "wrong_labels",
]

_MAX_NAMED: Final = 4  # reasons of broken devices


def is_eligible(request: Request, facts: WorkerFacts, *, name: str = "") -> bool:
    """True exactly when ``why_ineligible`` has nothing to say."""
    return not why_ineligible(request, facts, name=name)


def why_ineligible(request: Request, facts: WorkerFacts, *, name: str = "") -> tuple[Reason, ...]:
    """Every reason why a worker with these facts can never run the request, the most basic first; nothing that passes
    by itself."""
    reasons: list[Reason] = []
    if request.worker and request.worker != name:
        reasons.append(Reason(ReasonCode.WORKER_NAME, f"is {name}, not {request.worker}", request.worker, name))
    about_devices = [*_device_reasons(request, facts), *_framework_reasons(request, facts)]
    reasons.extend(about_devices or _reasons_together(request, facts))
    if request.cpus > facts.cpus:
        reasons.append(Reason(ReasonCode.CPUS, f"has {facts.cpus} cpus", str(request.cpus), str(facts.cpus)))
    if request.memory_bytes > facts.memory_bytes:
        reasons.append(_bytes_reason(ReasonCode.MEMORY, "has", request.memory_bytes, facts.memory_bytes))
    if facts.disk_bytes is not None and request.disk_bytes > facts.disk_bytes:
        reasons.append(_bytes_reason(ReasonCode.DISK, "has", request.disk_bytes, facts.disk_bytes))
    reasons.extend(_resource_reasons(request, facts))
    reasons.extend(_capability_reasons(request, facts))
    labels = dict(facts.labels)
    for key, value in request.labels:
        if labels.get(key) != value:
            has = f"{key}={labels[key]}" if key in labels else f"no label {key}"
            reasons.append(Reason(ReasonCode.LABEL, f"has {has}", f"{key}={value}", labels.get(key, "")))
    for what, wanted, here in (
        ("zone", request.zone, facts.locality.zone),
        ("region", request.region, facts.locality.region),
        ("network group", request.network_group, facts.locality.network_group),
    ):
        if wanted and wanted != here:
            message = f"is in {what} {here}" if here else f"reports no {what}"
            reasons.append(Reason(ReasonCode.LOCALITY, message, wanted, here))
    return tuple(reasons)


def why_not_now(request: Request, facts: WorkerFacts) -> tuple[Reason, ...]:
    """Of a machine that is eligible: what has to pass before the request can start there, whatever is leased; of the
    accelerator that lacks the least. Broken devices come back by themselves, and checks of frameworks will end."""
    if can_compute_now(request, facts):
        return ()
    if not request.devices:
        return _pending_reasons(request, Accelerator.CPU, facts)
    best: tuple[Reason, ...] = ()
    for group in _groups(request, facts, is_hopeful=True):
        if len(group) < request.devices:
            continue
        fitting = [device for device in group if device.state is not DeviceState.UNHEALTHY]
        reasons = _pending_reasons(request, group[0].kind, facts)
        if len(fitting) < request.devices:
            reasons = (_unhealthy(request, group, fitting), *reasons)
        reasons += _untried_reasons(request, fitting, facts)
        if not best or len(reasons) < len(best):
            best = reasons
    return best


def can_compute_now(request: Request, facts: WorkerFacts) -> bool:
    """Of an eligible machine: whether all that it takes works, and is known to, whatever is leased."""
    if not request.devices:
        return not request.frameworks or not _pending_reasons(request, Accelerator.CPU, facts)
    return _has_group(request, matching_devices(request, facts))


def awaits_checks(request: Request, facts: WorkerFacts) -> bool:
    """Of an eligible machine: whether it may turn out yet that it can never run the request."""
    if not any(framework.is_in_doubt for framework in facts.frameworks):
        return False
    return any(reason.code is ReasonCode.FRAMEWORK_UNCHECKED for reason in why_not_now(request, facts))


def matching_devices(request: Request, facts: WorkerFacts) -> list[tuple[Device, ...]]:
    """Per accelerator wanted, in order of preference, the devices that match; lowest index first. What somebody else
    computes on just now is among them, what is broken is not.

    Only kinds on which every framework of the request is known to be usable count, and devices on which it is.
    """
    return _groups(request, facts, is_hopeful=False)


def possible_devices(request: Request, facts: WorkerFacts) -> list[tuple[Device, ...]]:
    """As ``matching_devices``, as if all devices were healthy and all checks of frameworks had ended well."""
    return _groups(request, facts, is_hopeful=True)


def framework_fails(need: FrameworkNeed, kind: Accelerator, facts: WorkerFacts) -> bool:
    """Whether this version of the framework is not there, or does not compute on such devices."""
    return _framework_reason(need, kind, facts.frameworks) is not None


def wrong_labels(request: Request, facts: WorkerFacts) -> tuple[str, ...]:
    """Keys that the machine has no such value of."""
    labels = dict(facts.labels)
    return tuple(key for key, value in request.labels if labels.get(key) != value)


def _groups(request: Request, facts: WorkerFacts, *, is_hopeful: bool) -> list[tuple[Device, ...]]:
    """is_hopeful: as if all devices were healthy, and all checks of frameworks had ended well."""
    groups: list[tuple[Device, ...]] = []
    for kind in _device_kinds(request):
        if any(_framework_reason(need, kind, facts.frameworks) for need in request.frameworks):
            continue
        if not is_hopeful and request.frameworks and _pending_reasons(request, kind, facts):
            continue
        failed = _failed_on(request, kind, facts, is_hopeful=is_hopeful)
        devices = [
            device
            for device in facts.devices
            if device.kind is kind
            and (is_hopeful or device.state is not DeviceState.UNHEALTHY)
            and device.uuid not in failed
            and _device_matches(request, device, facts)
        ]
        if devices:
            groups.append(tuple(sorted(devices, key=lambda device: (model_rank(request, device), device.index))))
    return groups


def _has_group(request: Request, groups: list[tuple[Device, ...]]) -> bool:
    return any(len(group) >= request.devices for group in groups)


def _device_reasons(request: Request, facts: WorkerFacts) -> list[Reason]:
    """As if all devices were healthy."""
    if not request.devices:
        return []
    kinds = _device_kinds(request)
    there = [device for device in facts.devices if device.kind in kinds]
    wanted = str(request.devices)
    if not there:
        return [_no_device(request, facts)]
    reasons: list[Reason] = []
    count = fewest = _largest_group(there)
    few: list[str] = []  # of what some have, but not enough of them
    for what, has_it, no_device_has_it in _wanted_properties(request, facts):
        fitting = [device for device in there if has_it(device)]
        if not fitting:
            reasons.append(no_device_has_it(there))
            continue
        having = _largest_group(fitting)
        fewest = min(fewest, having)
        if having < min(request.devices, count):
            few.append(f"{_share(having, there, is_unread=any(map(_is_lost, fitting)))} {what}")
    if reasons:
        if count < request.devices:
            reasons.insert(0, Reason(ReasonCode.TOO_FEW_DEVICES, _counted(count), wanted, str(count)))
        return reasons
    groups = _groups(_without_frameworks(request), facts, is_hopeful=True)
    if not _has_group(request, groups):
        together = max((len(group) for group in groups), default=0)
        if together < fewest:  # each property is there, but not on enough of the same devices
            few.append(f"{_share(together, there)} all of it")
        message = "; ".join([_counted(count)] * (count < request.devices) + few)
        reasons.append(Reason(ReasonCode.TOO_FEW_DEVICES, message, wanted, str(together)))
    return reasons


_Property = tuple[str, Callable[[Device], bool], Callable[[Sequence[Device]], Reason]]


def _wanted_properties(request: Request, facts: WorkerFacts) -> list[_Property]:
    """Of a device: what it is called, whether one has it, and the reason where none of them has."""
    wanted: list[_Property] = []
    if request.device_models:
        models = " or ".join(request.device_models)
        wanted.append((f"the model {models}", partial(_model_matches, request), partial(_no_model, models)))
    if request.device_memory_bytes:
        size = request.device_memory_bytes
        has_memory = partial(_memory_matches, request, facts=facts)
        wanted.append((f"{format_bytes(size)} of memory", has_memory, partial(_no_memory, size, facts)))
    if request.compute_capability:
        range_ = request.compute_capability
        has_capability = partial(_capability_matches, request)
        wanted.append((f"compute capability {range_}", has_capability, partial(_no_capability, range_)))
    return wanted


def _no_model(wanted: str, there: Sequence[Device]) -> Reason:
    models = ", ".join(sorted({device.model for device in there if device.model}))
    return Reason(ReasonCode.DEVICE_MODEL, f"has {models}", wanted, models)


def _no_memory(wanted: int, facts: WorkerFacts, there: Sequence[Device]) -> Reason:
    largest = max(there, key=lambda device: memory_for_jobs(device, facts) or 0)
    reason = _bytes_reason(ReasonCode.DEVICE_MEMORY, "largest is", wanted, memory_for_jobs(largest, facts) or 0)
    shared = ", which it shares with the machine" if largest.is_memory_shared else ""
    return replace(reason, message=reason.message + shared)


def _no_capability(wanted: str, there: Sequence[Device]) -> Reason:
    best = max((device.compute_capability for device in there), key=_version_key)
    message = f"best is {best}" if best else "compute capability is not known"
    return Reason(ReasonCode.COMPUTE_CAPABILITY, message, wanted, best)


def _counted(count: int) -> str:
    return f"has {count} device" + ("" if count == 1 else "s")


def _share(count: int, there: Sequence[Device], *, is_unread: bool = False) -> str:
    """is_unread: of some of them it is not known."""
    verb = "may have" if is_unread else "has" if count == 1 else "have"
    return f"{count} of {len(there)} devices {verb}"


def _is_lost(device: Device) -> bool:
    return device.state is DeviceState.UNHEALTHY and not device.model


def without_unread(request: Request, facts: WorkerFacts) -> WorkerFacts:
    """As if there were no broken device of which something that the request asks for could not be read: for whoever
    promises, not for whoever hopes."""
    kept = tuple(
        device
        for device in facts.devices
        if not (request.device_models and _is_unread(device, device.model))
        and not (request.compute_capability and _is_unread(device, device.compute_capability))
        and not (request.device_memory_bytes and _is_lost(device))
    )
    return facts if len(kept) == len(facts.devices) else replace(facts, devices=kept)


def _unhealthy(request: Request, meant: Sequence[Device], usable: Sequence[Device]) -> Reason:
    """The broken ones by what is wrong with them, each said once, of few. usable: of those meant."""
    by_reason: dict[str, dict[str, list[int]]] = {}
    for device in meant:
        if device.state is DeviceState.UNHEALTHY:
            of_model = by_reason.setdefault(device.reason or "no reason", {})
            of_model.setdefault(device.model, []).append(device.index)
    said = []
    for reason, models in list(by_reason.items())[:_MAX_NAMED]:
        named = ", ".join(spans(numbers) + (f" ({model})" if model else "") for model, numbers in models.items())
        is_one = sum(map(len, models.values())) == 1  # a reason is of one: "it is not found any more"
        said.append(f"{'device' if is_one else 'each of devices'} {named} is unhealthy: {reason}")
    if len(by_reason) > _MAX_NAMED:
        said.append(f"and {len(by_reason) - _MAX_NAMED} more reasons")
    if usable:
        said.append(f"{len(usable)} of {len(meant)} can be used")
    return Reason(ReasonCode.DEVICE_UNHEALTHY, "; ".join(said), str(request.devices), str(len(usable)))


def _no_device(request: Request, facts: WorkerFacts) -> Reason:
    wanted = " or ".join(request.accelerators)
    has = ", ".join(sorted({str(device.kind) for device in facts.devices}))
    why = "; ".join(f"{kind}: {reason}" for kind, reason in facts.missing if kind in _device_kinds(request))
    message = (f"has {has}, not {wanted}" if has else "has no accelerator") + (f" ({why})" if why else "")
    only_cuda = request.accelerators == (Accelerator.CUDA,)
    return Reason(ReasonCode.NO_CUDA_DEVICE if only_cuda else ReasonCode.NO_ACCELERATOR, message, wanted, has)


def _framework_reasons(request: Request, facts: WorkerFacts) -> list[Reason]:
    """A framework must work on one wanted accelerator; the reasons of the kind that comes closest are given."""
    best: list[Reason] | None = None
    for kind in _device_kinds(request) if request.devices else (Accelerator.CPU,):
        if request.devices and not any(device.kind is kind for device in facts.devices):
            continue
        reasons = [reason for need in request.frameworks if (reason := _framework_reason(need, kind, facts.frameworks))]
        if best is None or len(reasons) < len(best):
            best = reasons
    if best is None:  # no device of a wanted kind: say what of the frameworks is known all the same
        best = [
            _not_installed(need)
            for need in request.frameworks
            if not any(framework.name == need.name for framework in facts.frameworks)
        ]
    return best


def _framework_reason(need: FrameworkNeed, kind: Accelerator, frameworks: tuple[Framework, ...]) -> Reason | None:
    found = [framework for framework in frameworks if framework.name == need.name]
    if not found:
        return _not_installed(need)
    fitting = [framework for framework in found if _may_be_version(need, framework)]
    if not fitting:
        versions = ", ".join(sorted({framework.version for framework in found}))
        return Reason(ReasonCode.FRAMEWORK_VERSION, f"{need.name} is {versions}", str(need), versions)
    on_kind = _tried_on(kind, {need.name}, fitting)
    if any(framework.usable or framework.is_pending for framework in on_kind):
        return None
    version = fitting[0].version
    why = on_kind[0].reason if on_kind else f"was not checked on {kind}"
    shown = f"{need.name} {version}".rstrip()
    return Reason(ReasonCode.FRAMEWORK_UNUSABLE, f"{shown}: {why}", f"{need} on {kind}", version)


def _pending_reasons(request: Request, kind: Accelerator, facts: WorkerFacts) -> tuple[Reason, ...]:
    """Of a kind that has no other reasons."""
    reasons: list[Reason] = []
    for need in request.frameworks:
        tried = _tried_on(kind, {need.name}, facts.frameworks)
        on_kind = [framework for framework in tried if _may_be_version(need, framework)]
        pending = next((framework for framework in on_kind if framework.is_pending), None)
        if pending is not None and not any(framework.usable for framework in on_kind):
            shown = f"{need.name} {pending.version}".rstrip()
            message = f"{shown} is not checked yet" + (f": {pending.reason}" if pending.reason else "")
            wanted = str(need) if kind is Accelerator.CPU else f"{need} on {kind}"
            reasons.append(Reason(ReasonCode.FRAMEWORK_UNCHECKED, message, wanted, pending.version))
    return tuple(reasons)


def _not_installed(need: FrameworkNeed) -> Reason:
    """Whether anything checks a framework of that name nobody knows where none is: a plugin may."""
    known = "" if need.name in FRAMEWORKS else f"; by themselves workers check {', '.join(FRAMEWORKS)}"
    return Reason(ReasonCode.FRAMEWORK_MISSING, f"{need.name} is not installed{known}", str(need))


def _tried_on(kind: Accelerator, names: set[str], frameworks: Iterable[Framework]) -> list[Framework]:
    """Those of these names as they were tried, or are to be tried, on devices of that kind, however that went."""
    return [one for one in frameworks if one.name in names and one.accelerator in _computing_on(kind)]


def _failed_on(request: Request, kind: Accelerator, facts: WorkerFacts, *, is_hopeful: bool) -> set[str]:
    """Devices on which a framework of the request does not compute though it does on others of their kind. is_hopeful:
    without those on which it is still to be tried."""
    tried = _tried_on(kind, {need.name for need in request.frameworks}, facts.frameworks)
    return {uuid for one in tried for uuid, why in one.failed_on if why or not is_hopeful}


def _untried_reasons(request: Request, fitting: Sequence[Device], facts: WorkerFacts) -> tuple[Reason, ...]:
    """Of devices of one kind that work, and of which too few are known to compute: those that are to be tried."""
    there = {device.uuid: device for device in fitting}
    names = {need.name for need in request.frameworks}
    on: dict[tuple[str, str], set[str]] = {}
    for kind in dict.fromkeys(device.kind for device in fitting):
        for one in _tried_on(kind, names, facts.frameworks):
            untried = {uuid for uuid, why in one.failed_on if not why and uuid in there}
            if untried:
                on.setdefault((one.name, one.version), set()).update(untried)
    if len(there.keys() - set().union(*on.values())) >= request.devices:
        return ()
    return tuple(
        Reason(
            ReasonCode.FRAMEWORK_UNCHECKED,
            f"{f'{name} {version}'.rstrip()} is not checked yet on device"
            f"{'' if len(uuids) == 1 else 's'} {spans({there[uuid].index for uuid in uuids})}",
            str(next(need for need in request.frameworks if need.name == name)),
            version,
        )
        for (name, version), uuids in on.items()
    )


def _reasons_together(request: Request, facts: WorkerFacts) -> list[Reason]:
    """Devices and frameworks are each there, but not the frameworks on enough of the devices that are meant."""
    if not request.devices or not request.frameworks or _has_group(request, _groups(request, facts, is_hopeful=True)):
        return []
    for meant in _groups(_without_frameworks(request), facts, is_hopeful=True):
        kind = meant[0].kind
        if len(meant) < request.devices:
            continue
        reasons = [reason for need in request.frameworks if (reason := _framework_reason(need, kind, facts.frameworks))]
        if reasons:
            return reasons
        failed = _failed_on(request, kind, facts, is_hopeful=True)
        count = sum(device.uuid not in failed for device in meant)
        code = ReasonCode.TOO_FEW_DEVICES if count else ReasonCode.FRAMEWORK_UNUSABLE
        message = f"{count} of {len(meant)} devices can be used{failures_of(request, meant, facts)}"
        return [Reason(code, message, str(request.devices), str(count))]
    return []


def failures_of(request: Request, devices: Sequence[Device], facts: WorkerFacts) -> str:
    """``; torch 2.6.0 on device 1 (Tesla K80): no kernel image is available``: of frameworks of the request that
    compute on some devices only, or are still to be tried on others."""
    there = {device.uuid: device for device in devices}
    names = {need.name for need in request.frameworks}
    said = dict.fromkeys(
        f"; {one.name} {one.version}".rstrip()
        + f" on device {there[uuid].index} ({there[uuid].model}): {reason or 'not checked yet'}"
        for kind in dict.fromkeys(device.kind for device in devices)
        for one in _tried_on(kind, names, facts.frameworks)
        for uuid, reason in one.failed_on
        if uuid in there and there[uuid].kind is kind
    )
    return "".join(said)


def _may_be_version(need: FrameworkNeed, framework: Framework) -> bool:
    """One that could not even say its version is no other version: why it can't be used is what counts."""
    return _version_fits(need.specifier, framework.version) or not (framework.version or framework.usable)


def _computing_on(kind: Accelerator) -> tuple[Accelerator, ...]:
    """By which accelerators frameworks compute on devices of this kind."""
    return (Accelerator.MPS, Accelerator.MLX) if kind is Accelerator.MPS else (kind,)


def _device_kinds(request: Request) -> tuple[Accelerator, ...]:
    if Accelerator.ANY in request.accelerators:
        return DEVICE_KINDS
    kinds = [kind for kind in request.accelerators if kind in DEVICE_KINDS]
    if Accelerator.MLX in kinds:  # which computes on what Metal drives: a Mac has one device for both
        kinds.insert(kinds.index(Accelerator.MLX) + 1, Accelerator.MPS)
    return tuple(dict.fromkeys(kinds))


def _largest_group(devices: list[Device]) -> int:
    """Devices of one task are all of one kind."""
    counts: dict[Accelerator, int] = {}
    for device in devices:
        counts[device.kind] = counts.get(device.kind, 0) + 1
    return max(counts.values(), default=0)


def _device_matches(request: Request, device: Device, facts: WorkerFacts) -> bool:
    return (
        _model_matches(request, device)
        and _memory_matches(request, device, facts)
        and _capability_matches(request, device)
    )


def _model_matches(request: Request, device: Device) -> bool:
    if not request.device_models or _is_unread(device, device.model):
        return True
    return model_rank(request, device) < len(request.device_models)


def _is_unread(device: Device, text: str) -> bool:
    """Of one that is broken, what could not be read may be what is wanted."""
    return not text and device.state is DeviceState.UNHEALTHY


def model_rank(request: Request, device: Device) -> int:
    """Position of the first wanted model that the device's name holds: ``A100`` matches ``NVIDIA A100-SXM4-80GB``."""
    name = device.model.casefold()
    for rank, model in enumerate(request.device_models):
        if model.casefold() in name:
            return rank
    return len(request.device_models)


def memory_for_jobs(device: Device, facts: WorkerFacts) -> int | None:
    """What shares the machine's memory, and does not say how much of it, has no more than all. None: not known."""
    if device.memory_bytes is None and device.is_memory_shared:
        return facts.memory_bytes
    return device.memory_for_jobs_bytes


def _memory_matches(request: Request, device: Device, facts: WorkerFacts) -> bool:
    there = memory_for_jobs(device, facts)
    return there is None or there >= request.device_memory_bytes


def _capability_matches(request: Request, device: Device) -> bool:
    if not request.compute_capability or _is_unread(device, device.compute_capability):
        return True
    return bool(device.compute_capability) and _version_fits(request.compute_capability, device.compute_capability)


@lru_cache(maxsize=4096)
def _version_fits(specifier: str, version: str) -> bool:
    """PEP 440; a version that does not parse fits only an empty specifier."""
    if not specifier:
        return True
    try:
        return SpecifierSet(specifier).contains(version, prereleases=True)
    except (InvalidSpecifier, InvalidVersion):
        return False


def _version_key(version: str) -> Version:
    try:
        return Version(version)
    except InvalidVersion:
        return Version("0")


def _resource_reasons(request: Request, facts: WorkerFacts) -> list[Reason]:
    reasons: list[Reason] = []
    for name, wanted in request.resources:
        has = dict(facts.resources).get(name, 0)
        if wanted > has:
            message = f"has {has} × {name}" if has else f"has no {name}"
            reasons.append(Reason(ReasonCode.RESOURCE, message, f"{name}={wanted}", f"{name}={has}" if has else ""))
    return reasons


def _capability_reasons(request: Request, facts: WorkerFacts) -> list[Reason]:
    """``has``: what it has of the same kind, beyond what every worker can do."""
    reasons: list[Reason] = []
    for capability in request.capabilities:
        if capability in facts.capabilities:
            continue
        kind, _, name = capability.partition(":")
        has = ", ".join(other for other in facts.capabilities if other.startswith(f"{kind}:"))
        message = f"can't fetch {name}: URIs" if kind == "stager" else f"has no {kind} {name}"
        reasons.append(Reason(ReasonCode.CAPABILITY, message, capability, has))
    return reasons


def _bytes_reason(code: ReasonCode, verb: str, wanted: int, has: int) -> Reason:
    return Reason(code, f"{verb} {format_bytes(has)}", format_bytes(wanted), format_bytes(has))


def _without_frameworks(request: Request) -> Request:
    return replace(request, frameworks=())
