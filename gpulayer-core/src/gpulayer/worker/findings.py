"""What a probe says of a machine, checked before it is believed. Pure, but for the probe's own objects.

A probe is somebody else's code: what it gives may be of any type and any size, and one bad value would keep a worker's
every report from being accepted. So findings are read once, value by value, into new ones, within the bounds of
``wire.workers.WorkerFactsFields``; out of bounds they are wrong as a whole. To be called inside the guard.
"""

from collections.abc import Callable
from ipaddress import ip_address
from typing import Final, TypeVar

from gpulayer.plugins.contracts.probe import Findings, ProcessKind, ProcessOnDevice
from gpulayer.plugins.results import instance_of, list_of
from gpulayer.spec.capabilities import is_plain_name
from gpulayer.spec.machine import Device, DeviceState, Framework, Locality
from gpulayer.spec.request import Accelerator

__all__ = [
    "MAX_ADDRESSES",
    "MAX_ARCHITECTURES",
    "MAX_DEVICES",
    "MAX_FRAMEWORKS",
    "MAX_LABELS",
    "MAX_MISSING",
    "MAX_RESOURCES",
    "checked_findings",
    "checked_text",
]

MAX_DEVICES: Final = 1024
MAX_FRAMEWORKS: Final = 256
MAX_LABELS: Final = 64
MAX_ADDRESSES: Final = 64
MAX_RESOURCES: Final = 64
MAX_MISSING: Final = 16
MAX_ARCHITECTURES: Final = 64
_MAX_LINKS: Final = 1024
_MAX_TEXT: Final = 4096
_MAX_WORD: Final = 64
_MAX_BYTES: Final = 2**60
_MAX_COUNT: Final = 1_000_000
_MAX_PROCESSES: Final = 4096
_MAX_PID: Final = 2**31

T = TypeVar("T")


def checked_findings(value: object) -> Findings:
    """Raises TypeError for what is no findings, ValueError for what is out of bounds."""
    found = instance_of(Findings, value)
    devices = tuple(_device(device) for device in list_of(Device, found.devices, at_most=MAX_DEVICES))
    _check_unique("device", [device.uuid for device in devices])
    frameworks = list_of(Framework, found.frameworks, at_most=MAX_FRAMEWORKS)
    addresses = list_of(str, found.addresses, at_most=MAX_ADDRESSES)
    return Findings(
        platform=checked_text("platform", found.platform),
        cpus=_known("cpus", found.cpus, least=1, most=100_000),
        memory_bytes=_known("memory_bytes", found.memory_bytes),
        disk_bytes=_known("disk_bytes", found.disk_bytes),
        devices=devices,
        frameworks=tuple(_framework(framework) for framework in frameworks),
        labels=_pairs("labels", found.labels, _label, at_most=MAX_LABELS),
        locality=None if found.locality is None else _locality(instance_of(Locality, found.locality)),
        addresses=tuple(str(ip_address(address)) for address in addresses),
        resources=_pairs("resources", found.resources, _resource, at_most=MAX_RESOURCES),
        processes=None if found.processes is None else _processes(found.processes),
        cpu_model=checked_text("cpu_model", found.cpu_model),
        missing=_pairs("missing", found.missing, _missing, at_most=MAX_MISSING),
        is_silent=instance_of(bool, found.is_silent),
    )


def checked_text(name: str, value: object, *, at_most: int = _MAX_TEXT) -> str:
    """A plain text that every part of the system can hold. Raises TypeError and ValueError that name it."""
    text = str(instance_of(str, value))  # a subclass may be anything
    if len(text) > at_most:
        raise ValueError(f"{name} has {len(text):,} characters; {at_most:,} are the most")
    if "\0" in text or (not text.isascii() and text.encode("utf-8", "replace").decode() != text):
        raise ValueError(f"{name} {text[:40]!r} is no text")
    return text


def _device(device: Device) -> Device:
    uuid = checked_text("uuid", device.uuid)
    if not uuid:
        raise ValueError("a device has no uuid")
    kind = instance_of(Accelerator, device.kind)
    if kind is Accelerator.ANY:
        raise ValueError(f"device {uuid} is of the kind any, which is for requests alone")
    return Device(
        uuid=uuid,
        index=_count("index", device.index, most=100_000),
        kind=kind,
        model=checked_text("model", device.model),
        memory_bytes=_known("memory_bytes", device.memory_bytes),
        memory_free_bytes=_known("memory_free_bytes", device.memory_free_bytes),
        compute_capability=checked_text("compute_capability", device.compute_capability),
        state=instance_of(DeviceState, device.state),
        reason=checked_text("reason", device.reason),
        links=_pairs("links", device.links, _label, at_most=_MAX_LINKS),
        memory_taken_bytes=_count("memory_taken_bytes", device.memory_taken_bytes),
        pci_address=checked_text("pci_address", device.pci_address, at_most=_MAX_WORD),
        driver=checked_text("driver", device.driver, at_most=_MAX_WORD),
        runtime=checked_text("runtime", device.runtime, at_most=_MAX_WORD),
        parent=checked_text("parent", device.parent),
        is_memory_shared=instance_of(bool, device.is_memory_shared),
        compute_mode=checked_text("compute_mode", device.compute_mode, at_most=_MAX_WORD),
        ecc=None if device.ecc is None else instance_of(bool, device.ecc),
        numa_node=_known("numa_node", device.numa_node, most=_MAX_COUNT),
        cores=checked_text("cores", device.cores),
        temperature_c=_known("temperature_c", device.temperature_c, least=-100, most=1_000),
        use_percent=_known("use_percent", device.use_percent, most=100),
    )


def _processes(found: object) -> tuple[ProcessOnDevice, ...]:
    return tuple(
        ProcessOnDevice(
            device=checked_text("device", process.device),
            pid=_count("pid", process.pid, least=1, most=_MAX_PID),
            kind=instance_of(ProcessKind, process.kind),
            memory_bytes=_known("memory_bytes", process.memory_bytes),
        )
        for process in list_of(ProcessOnDevice, found, at_most=_MAX_PROCESSES)
    )


def _framework(framework: Framework) -> Framework:
    return Framework(
        name=checked_text("name", framework.name),
        version=checked_text("version", framework.version),
        accelerator=instance_of(Accelerator, framework.accelerator),
        usable=instance_of(bool, framework.usable),
        reason=checked_text("reason", framework.reason),
        build=checked_text("build", framework.build, at_most=_MAX_WORD),
        architectures=tuple(
            checked_text("an architecture", one, at_most=_MAX_WORD)
            for one in list_of(str, framework.architectures, at_most=MAX_ARCHITECTURES)
        ),
        is_pending=instance_of(bool, framework.is_pending),
        failed_on=_pairs("failed_on", framework.failed_on, _label, at_most=MAX_DEVICES),
    )


def _locality(locality: Locality) -> Locality:
    return Locality(
        zone=checked_text("zone", locality.zone),
        region=checked_text("region", locality.region),
        network_group=checked_text("network_group", locality.network_group),
    )


def _label(name: object, value: object) -> tuple[str, str]:
    return checked_text("name", name), checked_text("value", value)


def _missing(kind: object, reason: object) -> tuple[str, str]:
    return str(Accelerator(checked_text("kind", kind))), checked_text("reason", reason)


def _resource(name: object, count: object) -> tuple[str, int]:
    text = instance_of(str, name)
    if not is_plain_name(text):
        raise ValueError(f"{text[:63]!r} can't name a resource")
    return str(text), _count(f"resource {text}", count, most=_MAX_COUNT)


def _pairs(
    name: str, values: object, checked: Callable[[object, object], tuple[str, T]], *, at_most: int
) -> tuple[tuple[str, T], ...]:
    pairs: list[tuple[str, T]] = []
    for pair in list_of(tuple, values, at_most=at_most):
        if len(pair) != 2:
            raise ValueError(f"{name} has {len(pair)} values where a name and a value are due")
        pairs.append(checked(*pair))
    _check_unique(name, [key for key, _ in pairs])
    return tuple(pairs)


def _known(name: str, value: object, *, least: int = 0, most: int = _MAX_BYTES) -> int | None:
    return None if value is None else _count(name, value, least=least, most=most)


def _count(name: str, value: object, *, least: int = 0, most: int = _MAX_BYTES) -> int:
    number = instance_of(int, value)
    if isinstance(number, bool) or not least <= number <= most:
        raise ValueError(f"{name} is {str(number)[:40]}, not a number from {least:,} to {most:,}")
    return int(number)


def _check_unique(name: str, keys: list[str]) -> None:
    seen: set[str] = set()
    for key in keys:
        if key in seen:
            raise ValueError(f"{name}: {key[:60]!r} is there twice")
        seen.add(key)
