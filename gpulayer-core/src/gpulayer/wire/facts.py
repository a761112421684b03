"""What a worker reports of its machine, to wire schemas and back."""

from collections.abc import Iterable
from typing import Final

from gpulayer.errors import BadRequest
from gpulayer.spec.machine import Device, DeviceState, Framework, Locality, WorkerFacts
from gpulayer.spec.request import Accelerator
from gpulayer.wire.choice import choice
from gpulayer.wire.workers import DeviceFields, FrameworkFields, WorkerFactsFields

__all__ = ["device_to_wire", "facts_from_wire", "facts_to_wire"]

_NOTHING_KNOWN: Final = Device("", 0, Accelerator.CPU, "")
_MAY_BE_LEFT_OUT: Final = (
    "memory_taken_bytes",
    "pci_address",
    "driver",
    "runtime",
    "parent",
    "is_memory_shared",
    "compute_mode",
    "ecc",
    "numa_node",
    "cores",
    "temperature_c",
    "use_percent",
)


def facts_to_wire(facts: WorkerFacts) -> WorkerFactsFields:
    """None, for what is not known, stays None."""
    fields: WorkerFactsFields = {
        "platform": facts.platform,
        "version": facts.version,
        "cpus": facts.cpus,
        "memory_bytes": facts.memory_bytes,
        "disk_bytes": facts.disk_bytes,
        "devices": [device_to_wire(device) for device in facts.devices],
        "frameworks": [_framework_to_wire(framework) for framework in facts.frameworks],
        "labels": dict(facts.labels),
        "locality": {
            "zone": facts.locality.zone,
            "region": facts.locality.region,
            "network_group": facts.locality.network_group,
        },
        "enforces": list(facts.enforces),
        "addresses": list(facts.addresses),
        "resources": dict(facts.resources),
        "capabilities": list(facts.capabilities),
    }
    if facts.cpu_model:
        fields["cpu_model"] = facts.cpu_model
    if facts.missing:
        fields["missing"] = dict(facts.missing)
    if facts.python:
        fields["python"] = facts.python
    if facts.python_version:
        fields["python_version"] = facts.python_version
    return fields


def device_to_wire(device: Device) -> DeviceFields:
    """None, for what is not known, stays None."""
    fields: DeviceFields = {
        "uuid": device.uuid,
        "index": device.index,
        "kind": str(device.kind),
        "model": device.model,
        "memory_bytes": device.memory_bytes,
        "memory_free_bytes": device.memory_free_bytes,
        "compute_capability": device.compute_capability,
        "state": str(device.state),
        "reason": device.reason,
        "links": dict(device.links),
    }
    for name in _MAY_BE_LEFT_OUT:
        value = getattr(device, name)
        if value != getattr(_NOTHING_KNOWN, name):
            fields[name] = value
    return fields


def _framework_to_wire(framework: Framework) -> FrameworkFields:
    fields: FrameworkFields = {
        "name": framework.name,
        "version": framework.version,
        "accelerator": str(framework.accelerator),
        "usable": framework.usable,
        "reason": framework.reason,
    }
    if framework.build:
        fields["build"] = framework.build
    if framework.architectures:
        fields["architectures"] = list(framework.architectures)
    if framework.is_pending:
        fields["pending"] = True
    if framework.failed_on:
        fields["failed_on"] = dict(framework.failed_on)
    return fields


def facts_from_wire(fields: WorkerFactsFields) -> WorkerFacts:
    """Labels are sorted, so that equal facts have one digest. Raises BadRequest, also for a device named twice."""
    devices = tuple(
        Device(
            uuid=device["uuid"],
            index=device["index"],
            kind=choice(Accelerator, device["kind"], "facts.devices.kind"),
            model=device["model"],
            memory_bytes=device["memory_bytes"],
            memory_free_bytes=device["memory_free_bytes"],
            compute_capability=device["compute_capability"],
            state=choice(DeviceState, device["state"], "facts.devices.state"),
            reason=device["reason"],
            links=tuple(device["links"].items()),
            memory_taken_bytes=device.get("memory_taken_bytes", 0),
            pci_address=device.get("pci_address", ""),
            driver=device.get("driver", ""),
            runtime=device.get("runtime", ""),
            parent=device.get("parent", ""),
            is_memory_shared=device.get("is_memory_shared", False),
            compute_mode=device.get("compute_mode", ""),
            ecc=device.get("ecc"),
            numa_node=device.get("numa_node"),
            cores=device.get("cores", ""),
            temperature_c=device.get("temperature_c"),
            use_percent=device.get("use_percent"),
        )
        for device in fields["devices"]
    )
    _check_unique((device.uuid for device in devices), "facts.devices.uuid")
    return WorkerFacts(
        platform=fields["platform"],
        version=fields["version"],
        cpus=fields["cpus"],
        memory_bytes=fields["memory_bytes"],
        disk_bytes=fields["disk_bytes"],
        devices=devices,
        frameworks=tuple(
            Framework(
                name=framework["name"],
                version=framework["version"],
                accelerator=choice(Accelerator, framework["accelerator"], "facts.frameworks.accelerator"),
                usable=framework["usable"],
                reason=framework["reason"],
                build=framework.get("build", ""),
                architectures=tuple(framework.get("architectures", ())),
                is_pending=framework.get("pending", False) and not framework["usable"],
                failed_on=tuple(sorted(framework.get("failed_on", {}).items())),
            )
            for framework in fields["frameworks"]
        ),
        labels=tuple(sorted(fields["labels"].items())),
        locality=Locality(**fields["locality"]),
        enforces=tuple(sorted(fields.get("enforces", ()))),
        addresses=tuple(fields.get("addresses", ())),
        resources=tuple(sorted(fields.get("resources", {}).items())),
        capabilities=tuple(sorted(fields.get("capabilities", ()))),
        cpu_model=fields.get("cpu_model", ""),
        missing=tuple(sorted(fields.get("missing", {}).items())),
        python=fields.get("python", ""),
        python_version=fields.get("python_version", ""),
    )


def _check_unique(values: Iterable[str], where: str) -> None:
    seen: set[str] = set()
    for value in values:
        if value in seen:
            raise BadRequest(f"{where}: {value!r} stands twice")
        seen.add(value)
