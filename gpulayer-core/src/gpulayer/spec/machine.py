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
    """One accelerator of a worker, or a slice of one. ``links``: (uuid of the peer, link name), strongest first.

    memory_taken_bytes: what programs that only draw have of it, a desktop for example: jobs get so much less.
    pci_address: as ``0000:3b:00.0``. driver: its version. runtime: the newest CUDA (ROCm, Level Zero) that the driver
    supports. parent: uuid of the whole one of a slice. is_memory_shared: its memory is the machine's.
    compute_mode: how many processes it takes, as the vendor says: ``default``, ``exclusive_process``, ``prohibited``.
    ecc: whether its memory corrects errors. numa_node, cores: what stands nearest to it; cores as Linux lists them,
    ``0-31,64-95``. Empty texts and None: not known.
    mask_index: its number for its vendor's variables now, where that is another one than ``index``, which stays as it
    was; set by the worker alone, and never told to others.
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
    pci_address: str = ""
    driver: str = ""
    runtime: str = ""
    parent: str = ""
    is_memory_shared: bool = False
    compute_mode: str = ""
    ecc: bool | None = None
    numa_node: int | None = None
    cores: str = ""
    temperature_c: int | None = None
    use_percent: int | None = None
    mask_index: int | None = None

    @property
    def memory_for_jobs_bytes(self) -> int | None:
        """None: not known."""
        return None if self.memory_bytes is None else max(0, self.memory_bytes - self.memory_taken_bytes)

    def without_readings(self) -> "Device":
        """Without what is only for people to read: nothing is placed by it."""
        return replace(self, memory_free_bytes=None, temperature_c=None, use_percent=None)

    def without_flowing_figures(self) -> "Device":
        """What stays as it is while it only works."""
        return replace(self.without_readings(), memory_taken_bytes=0)


@dataclass(frozen=True, slots=True)
class Framework:
    """A framework that the worker's Python has, and whether it computed on ``accelerator`` when checked.

    version: empty where it could not say. build: what it was built for, as ``cuda 12.6`` or ``cpu``. architectures: of
    devices that are compiled in, as ``sm_90``. Empty: not known.
    is_pending: not checked yet, so that work which wants it waits; ``usable`` is False meanwhile, and ``reason`` says
    what the check waits for, empty: for its end. failed_on: (uuid of a device, why) where it does not compute though it
    does on others of that accelerator; why is empty where it did not, and a check is to say whether it does now.
    """

    name: str
    version: str
    accelerator: Accelerator
    usable: bool
    reason: str = ""
    build: str = ""
    architectures: tuple[str, ...] = ()
    is_pending: bool = False
    failed_on: tuple[tuple[str, str], ...] = ()

    @property
    def is_in_doubt(self) -> bool:
        """Whether a check is still to say where it computes."""
        return self.is_pending or any(not why for _, why in self.failed_on)


@dataclass(frozen=True, slots=True)
class Locality:
    """As the worker's owner names it, else as it was found; compared as text; empty where nobody said."""

    zone: str = ""
    region: str = ""
    network_group: str = ""


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """Everything placement knows of a machine. Stored once by its digest, shared by equal machines.

    enforces: which of a job's limits it can hold jobs to: ``memory``, ``cpus``, ``pids``, ``cores``.
    addresses: numeric, where other machines may reach it, best first; never a name, which others may not resolve.
    resources: (name, how many in all) of what is counted by name, sorted. capabilities: see ``Request``; sorted.
    cpu_model: empty where it is not known. missing: (kind of device, why) where something says that there should be one
    of that kind and none can be used, because a driver does not answer for example, or where not all are offered;
    sorted. python, python_version: those of the jobs, which was asked for ``frameworks``; empty: not known.
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
    cpu_model: str = ""
    missing: tuple[tuple[str, str], ...] = ()
    python: str = ""
    python_version: str = ""

    def without_readings(self) -> "WorkerFacts":
        """All that anything is placed by."""
        return replace(self, devices=tuple(device.without_readings() for device in self.devices))

    def without_flowing_figures(self) -> "WorkerFacts":
        """What stays as it is while a machine only works: without free disk, and what devices are used for."""
        devices = tuple(device.without_flowing_figures() for device in self.devices)
        return replace(self, disk_bytes=None, devices=devices)
