"""What is free on a worker, and taking a request's share of it."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpulayer.ids import WorkerId
from gpulayer.placement.eligibility import can_compute_now, matching_devices, model_rank
from gpulayer.placement.subsets import MOST_JOINED, best_subset, named_by_index, topology_of, why_these
from gpulayer.spec.machine import Device, DeviceState, WorkerFacts
from gpulayer.spec.request import Request

__all__ = ["Allocation", "Free", "allocate", "usable_capacity", "why_devices"]


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

    Devices: of the first accelerator in the request's order that has enough free ones; of those as many as there are of
    the model that was named first, then of the next; of the last model that is needed, those that are joined best with
    the rest and among themselves (``subsets``).
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
        there = [device for device in devices if device.uuid in free.devices]
        if len(there) >= request.devices:
            chosen = tuple(device.uuid for device in _chosen(request, devices, there))
            return Allocation(worker, chosen, request.cpus, request.memory_bytes, request.resources)
    return None


def why_devices(request: Request, facts: WorkerFacts, free: Free, allocation: Allocation) -> str:
    """Why just these devices of what was ``free``: ``devices 2,3: NV12, the fastest pair free``. Empty where there was
    nothing to choose from."""
    for devices in matching_devices(request, facts):
        there = [device for device in devices if device.uuid in free.devices]
        chosen = [device for device in there if device.uuid in allocation.devices]
        if not chosen or len(chosen) != len(allocation.devices):
            continue
        if len(there) == len(chosen):
            return ""
        named_first, last = _models(request, there)
        if named_first:
            return f"{named_by_index(chosen)}: all that is free of the model named first, then the next"
        if len(last) == len(chosen):
            return ""
        if len(devices) > MOST_JOINED:
            return f"{named_by_index(chosen)}: the first that are free, as on any worker with over {MOST_JOINED}"
        return why_these(last, chosen)
    return ""


def _chosen(request: Request, devices: Sequence[Device], there: Sequence[Device]) -> Sequence[Device]:
    """devices: all that match; there: those of them that are free, both by model, then by index."""
    if len(there) == request.devices or len(devices) > MOST_JOINED:
        return there[: request.devices]
    named_first, last = _models(request, there)
    # By all that match, free or not: so that every mask of one machine is one of the same topology.
    places = sorted(devices, key=lambda device: device.index)
    bits = {device.uuid: 1 << number for number, device in enumerate(places)}
    best = best_subset(
        topology_of(places),
        free=sum(bits[device.uuid] for device in there),
        count=request.devices,
        required=sum(bits[device.uuid] for device in named_first),
        allowed=sum(bits[device.uuid] for device in last),
    )
    taken = {places[number].uuid for number in best}
    return [device for device in there if device.uuid in taken]


def _models(request: Request, there: Sequence[Device]) -> tuple[Sequence[Device], Sequence[Device]]:
    """Of more than enough devices, by model: those that are taken anyway, and those of which some are."""
    if not request.device_models:
        return (), there
    last = model_rank(request, there[request.devices - 1])
    return (
        [device for device in there if model_rank(request, device) < last],
        [device for device in there if model_rank(request, device) == last],
    )


def _less(free: tuple[tuple[str, int], ...], taken: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    left = dict(free)
    for name, count in taken:
        left[name] = left.get(name, 0) - count
    return tuple(sorted(left.items()))
