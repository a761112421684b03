"""What is free on a worker, and taking a request's share of it."""

from dataclasses import dataclass

from gpulayer.ids import WorkerId
from gpulayer.placement.eligibility import can_compute_now, matching_devices
from gpulayer.spec.machine import DeviceState, WorkerFacts
from gpulayer.spec.request import Request

__all__ = ["Allocation", "Free", "allocate", "usable_capacity"]


@dataclass(frozen=True, slots=True)
class Allocation:
    """A worker's devices, cores, memory and resources (by name) given to one node of an attempt."""

    worker: WorkerId
    devices: tuple[str, ...]
    cpus: int
    memory_bytes: int
    resources: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Free:
    """What of a worker is not leased. ``devices``: uuids of usable devices. ``resources``: (name, how many), sorted."""

    cpus: int
    memory_bytes: int
    devices: frozenset[str]
    resources: tuple[tuple[str, int], ...] = ()

    def less(self, allocation: Allocation) -> "Free":
        """A new value, not checked: what does not fit shows as a negative number."""
        return Free(
            self.cpus - allocation.cpus,
            self.memory_bytes - allocation.memory_bytes,
            self.devices.difference(allocation.devices) if allocation.devices else self.devices,
            _less(self.resources, allocation.resources) if allocation.resources else self.resources,
        )

    def count_of(self, resource: str) -> int:
        """How many of it are free; 0 where nobody knows of it."""
        return next((count for name, count in self.resources if name == resource), 0)


def usable_capacity(facts: WorkerFacts) -> Free:
    """What a worker has when nothing is leased; devices that are busy or unhealthy do not count."""
    return Free(
        facts.cpus,
        facts.memory_bytes,
        frozenset(device.uuid for device in facts.devices if device.state is DeviceState.USABLE),
        facts.resources,
    )


def allocate(request: Request, worker: WorkerId, facts: WorkerFacts, free: Free) -> Allocation | None:
    """The request's share of what is free, or None where it does not fit now.

    Devices: of the first accelerator in the request's order that has enough free ones, those of lowest index.
    """
    if request.cpus > free.cpus or request.memory_bytes > free.memory_bytes:
        return None
    if any(count > free.count_of(name) for name, count in request.resources):
        return None
    if not request.devices:
        if not can_compute_now(request, facts):
            return None
        return Allocation(worker, (), request.cpus, request.memory_bytes, request.resources)
    for devices in matching_devices(request, facts):
        chosen = [device.uuid for device in devices if device.uuid in free.devices][: request.devices]
        if len(chosen) == request.devices:
            return Allocation(worker, tuple(chosen), request.cpus, request.memory_bytes, request.resources)
    return None


def _less(free: tuple[tuple[str, int], ...], taken: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    left = dict(free)
    for name, count in taken:
        left[name] = left.get(name, 0) - count
    return tuple(sorted(left.items()))
