"""What a worker reports of its machine: facts, never promises.

``None`` means "not known"; it is never written as 0, because a request must not be refused for a figure that
nobody measured.
"""

from dataclasses import dataclass, field, replace
from enum import StrEnum

from gpulayer.spec.request import Accelerator

__all__ = ["Device", "DeviceState", "Framework", "Locality", "WorkerFacts"]


class DeviceState(StrEnum):
    """Only ``usable`` devices are lent; the others say why in ``Device.reason``. What is ``busy`` will be free again,
    so work that wants it waits; it counts among what a machine has."""

    USABLE = "usable"
    BUSY = "busy"  # somebody whom this worker has not lent it to computes on it
    UNHEALTHY = "unhealthy"


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator of a worker. ``links``: (uuid of the peer, link name), strongest first.

    memory_taken_bytes: what programs that only draw have of it, a desktop for example: jobs get so much less.
    """

    uuid: str
    index: int
    kind: Accelerator
    model: str
    memory_bytes: int | None = None
    memory_free_bytes: int | None = None
    compute_capability: str = ""
    state: DeviceState = DeviceState.USABLE
    reason: str = ""
    links: tuple[tuple[str, str], ...] = ()
    memory_taken_bytes: int = 0

    @property
    def memory_for_jobs_bytes(self) -> int | None:
        """None: not known."""
        return None if self.memory_bytes is None else max(0, self.memory_bytes - self.memory_taken_bytes)


@dataclass(frozen=True, slots=True)
class Framework:
    """A framework that the worker's Python has, and whether it computed on ``accelerator`` when checked."""

    name: str
    version: str
    accelerator: Accelerator
    usable: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Locality:
    """As the worker's owner names it, compared as text; empty where nobody said."""

    zone: str = ""
    region: str = ""
    network_group: str = ""


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """Everything placement knows of a machine. Stored once by its digest, shared by equal machines.

    enforces: which of a job's limits it can hold jobs to: ``memory``, ``cpus``, ``pids``, ``cores``.
    addresses: numeric, where other machines may reach it, best first; never a name, which others may not resolve.
    resources: (name, how many in all) of what is counted by name, sorted. capabilities: see ``Request``; sorted.
    """

    platform: str
    version: str
    cpus: int
    memory_bytes: int
    disk_bytes: int | None = None
    devices: tuple[Device, ...] = ()
    frameworks: tuple[Framework, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    locality: Locality = field(default_factory=Locality)
    enforces: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    resources: tuple[tuple[str, int], ...] = ()
    capabilities: tuple[str, ...] = ()

    def without_flowing_figures(self) -> "WorkerFacts":
        """What stays as it is while a machine only works: without free disk and free memory of devices."""
        devices = tuple(replace(device, memory_free_bytes=None, memory_taken_bytes=0) for device in self.devices)
        return replace(self, disk_bytes=None, devices=devices)
