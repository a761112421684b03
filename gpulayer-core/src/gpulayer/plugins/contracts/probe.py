"""A ``Probe`` looks at one side of a machine: its devices, where it stands, what it has."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from gpulayer.spec.machine import Device, Framework, Locality

__all__ = ["PROBE_DEADLINE_S", "Findings", "Probe", "ProbeSite", "ProcessKind", "ProcessOnDevice"]

PROBE_DEADLINE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class ProbeSite:
    """Where a probe looks. environment: the worker's own; work_dir: the disk that jobs will use."""

    work_dir: Path
    environment: Mapping[str, str] = field(repr=False)


class ProcessKind(StrEnum):
    """What a process does on a device: ``graphics`` only draws there, a desktop for example."""

    COMPUTE = "compute"
    GRAPHICS = "graphics"


@dataclass(frozen=True, slots=True)
class ProcessOnDevice:
    """One process that has a context on a device. One that both computes and draws computes.

    device: uuid. pid: as the driver tells it. memory_bytes: what it has of the device; None: not known.
    """

    device: str
    pid: int
    kind: ProcessKind = ProcessKind.COMPUTE
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Findings:
    """A part of the facts of a machine; what a probe does not know stays at its default.

    Of several probes, the first that knows a figure is believed; devices, frameworks, labels and addresses add up.
    locality: labels that the worker's owner gave win over it.
    addresses: numeric, where other machines may reach this one, best first.
    resources: (name, how many) of what jobs take a share of by name: ``("matlab", 2)``. Jobs that ask for more than is
    free wait; GPUlayer counts, the probe only says how many there are in all, GPUlayer's own use included.
    cpu_model, missing: as of ``WorkerFacts``.
    processes: all that are on these devices now, those of GPUlayer's own jobs too: the worker knows which those are,
    and takes a device that any other one computes on for busy. None: this probe does not know.
    is_silent: a driver did not answer, which these findings say: the probe is asked again as soon as if it had raised.
    """

    platform: str = ""
    cpus: int | None = None
    memory_bytes: int | None = None
    disk_bytes: int | None = None
    devices: tuple[Device, ...] = ()
    frameworks: tuple[Framework, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    locality: Locality | None = None
    addresses: tuple[str, ...] = ()
    resources: tuple[tuple[str, int], ...] = ()
    processes: tuple[ProcessOnDevice, ...] | None = None
    cpu_model: str = ""
    missing: tuple[tuple[str, str], ...] = ()
    is_silent: bool = False


@runtime_checkable
class Probe(Protocol):
    """Looks at one side of a machine.

    ``look`` is called at the worker's start and every minute; where it knows of processes, also right before a job
    starts on a device, and soon after a stranger has left one. One thread at a time calls it, as long as it keeps to
    its time: it may block for ``PROBE_DEADLINE_S``; what can hang in native code must run in a child process that the
    probe itself ends by then. It changes nothing. What is not there is no error: a machine without a device gives no
    findings. It raises only when it could not look; then the worker goes on with what this probe found last, after a
    restart with what it found in the hour before, and with nothing of it where it never answered, and asks it again
    after 2 s, 10 s and then with all others. Where it raises or is late right before a start, nothing starts on its
    devices: they are unhealthy until it answers.
    """

    @property
    def name(self) -> str: ...

    def look(self, site: ProbeSite) -> Findings: ...
