"""Which devices framework checks see, and what their answers are worth by that. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from gpulayer.spec.machine import Device, DeviceState, Framework, WorkerFacts
from gpulayer.spec.request import Accelerator
from gpulayer.variables import DEVICE_VARIABLES
from gpulayer.worker.check_answers import Answer
from gpulayer.worker.devices import device_variables

__all__ = [
    "is_narrow",
    "offered_devices",
    "seen_devices",
    "taken_devices",
    "visible_devices",
    "wanted_devices",
    "with_what_was_known",
    "without_untried",
]

_ROOM_BYTES: Final = 8 * 2**30  # on a device with less memory a check, half a gigabyte, is in the way of a job
_IN_USE: Final = "somebody computes on every such device"
_BROKEN: Final = "no such device works now"


def is_narrow(device: Device) -> bool:
    """Whether a check on it would be in the way of a job."""
    room = device.memory_for_jobs_bytes
    return device.compute_mode.startswith("exclusive") or (room is not None and room < _ROOM_BYTES)


def visible_devices(facts: WorkerFacts) -> dict[str, Accelerator]:
    """The devices that are offered, in the order in which programs see them."""
    return {device.uuid: device.kind for device in facts.devices if device.state is not DeviceState.UNHEALTHY}


def offered_devices(facts: WorkerFacts) -> frozenset[tuple[str, Accelerator, str, str]]:
    """Those that work, with what the answers of checks depend on."""
    return frozenset(
        (device.uuid, device.kind, device.driver, device.runtime)
        for device in facts.devices
        if device.state is not DeviceState.UNHEALTHY
    )


def taken_devices(facts: WorkerFacts, lent: Collection[str]) -> frozenset[str]:
    """Devices on which nothing is tried now: jobs of this worker or somebody else have them."""
    return frozenset(lent) | {device.uuid for device in facts.devices if device.state is DeviceState.BUSY}


def wanted_devices(accelerators: Collection[Accelerator], facts: WorkerFacts) -> frozenset[str]:
    """The devices that a check for these would compute on."""
    kinds = {Accelerator.MPS if one is Accelerator.MLX else one for one in accelerators}
    return frozenset(uuid for uuid, kind, *_ in offered_devices(facts) if kind in kinds)


def without_untried(answer: Answer, facts: WorkerFacts, taken: frozenset[str]) -> Answer:
    """Of a kind of which every device is taken, or broken, nothing is said: what was known of it stands. Where it
    computes on none of those that are free, one that is taken is not checked yet."""
    offered = offered_devices(facts)
    why = dict.fromkeys((device.kind for device in facts.devices), _BROKEN)
    why |= dict.fromkeys((kind for _, kind, *_ in offered), _IN_USE)
    for uuid, kind, *_ in offered:
        if uuid not in taken:
            why.pop(kind, None)
    if Accelerator.MPS in why:
        why[Accelerator.MLX] = why[Accelerator.MPS]
    untried = frozenset(one.accelerator for one in answer.frameworks if one.accelerator in why)
    partly = {kind for uuid, kind, *_ in offered if uuid in taken}
    frameworks: list[Framework] = []
    for one in answer.frameworks:
        if one.accelerator in untried:
            told = replace(one, usable=False, reason=why[one.accelerator], is_pending=True, failed_on=())
        elif one.usable or one.is_pending:
            told = one
        elif one.failed_on and one.accelerator in partly:  # it may compute on those that it could not see
            told = replace(one, is_pending=True)
            untried |= {one.accelerator}
        else:
            told = replace(one, failed_on=())
        frameworks.append(told)
    return replace(answer, frameworks=tuple(frameworks), again=answer.again | untried, waits=untried)


def seen_devices(
    facts: WorkerFacts, environment: Mapping[str, str], *, taken: Collection[str] = ()
) -> Mapping[str, str]:
    """The variables by which a check sees what the worker offers and nobody has; where there is no device, not even a
    broken one, what the worker sees: then it can say why there is nothing."""
    offered = [device for device in facts.devices if device.state is not DeviceState.UNHEALTHY]
    if facts.devices:
        return device_variables([device for device in offered if device.uuid not in taken])
    return {name: environment[name] for name in sorted(DEVICE_VARIABLES) if name in environment}


def with_what_was_known(answer: Answer, before: Collection[Framework], taken: Collection[str]) -> tuple[Framework, ...]:
    """Where an answer says of an accelerator only what passes, what was found there before stands, and so it does of
    single devices that are taken."""
    by_name = {(one.name, one.accelerator): one for one in before}
    known: list[Framework] = []
    for one in answer.frameworks:
        earlier = by_name.get((one.name, one.accelerator))
        if earlier is None or earlier.is_pending or one.version not in ("", earlier.version):
            known.append(one)
        elif one.accelerator in answer.again and (earlier.usable or one.accelerator in answer.waits):
            known.append(earlier)
        else:
            still = [(uuid, why) for uuid, why in earlier.failed_on if uuid in taken and one.usable]
            known.append(replace(one, failed_on=tuple(sorted({*one.failed_on, *still}))))
    return tuple(known)
