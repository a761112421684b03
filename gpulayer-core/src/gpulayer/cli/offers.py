"""What stands below the table of ``gpulayer resources``: how devices are linked, and what can't be used and why."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from gpulayer.spec.machine import Device
from gpulayer.spec.request import Accelerator
from gpulayer.spec.topology import drawn

if TYPE_CHECKING:
    from gpulayer.wire.workers import DeviceFields, WorkerRecord

__all__ = ["link_lines", "unusable_lines"]

_NAMED: Final = 8  # of workers with the same links


def link_lines(workers: "Sequence[WorkerRecord]") -> list[str]:
    """One matrix for all workers whose devices are linked alike."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for worker in workers:
        devices = [_device(fields) for fields in worker["devices"]]
        if any(device.links for device in devices):
            alike.setdefault(tuple(drawn(devices)), []).append(worker["name"])
    lines: list[str] = []
    for matrix, names in alike.items():
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        lines += ["", f"links of {', '.join(names[:_NAMED])}{more}", *(f"  {line}" for line in matrix)]
    return lines


def unusable_lines(workers: "Sequence[WorkerRecord]") -> list[str]:
    """Devices and kinds of them, and frameworks of what there are devices for."""
    said: list[str] = []
    for worker in workers:
        name = worker["name"]
        said += [f"{name}: no {kind}: {reason}" for kind, reason in worker.get("missing", {}).items()]
        for device in worker["devices"]:
            if device["reason"]:
                said.append(f"{name}: device {device['index']} is {device['state']}: {device['reason']}")
        kinds = {device["kind"] for device in worker["devices"]}
        for framework in worker["frameworks"]:
            if not framework["usable"] and framework["accelerator"] in kinds and framework["reason"]:
                said.append(f"{name}: {framework['name']} on {framework['accelerator']}: {framework['reason']}")
    return ["", "can't be used", *(f"  {line}" for line in said)] if said else []


def _device(fields: "DeviceFields") -> Device:
    kind = fields["kind"] if fields["kind"] in list(Accelerator) else Accelerator.ANY  # a newer worker's
    return Device(
        fields["uuid"], fields["index"], Accelerator(kind), fields["model"], links=tuple(fields["links"].items())
    )
