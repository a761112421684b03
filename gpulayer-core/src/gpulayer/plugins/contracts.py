"""What a plugin is held to. Typed objects act; registering them is another matter (``registry``).

A ``Probe`` looks at the machine. A ``Launcher`` separates plan from act: ``plan`` is pure, so a launch can be tested
and shown by value; ``act`` carries one out. Both run in the worker and never see its token or the control plane.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from gpulayer.spec.assignment import Assignment
from gpulayer.spec.machine import Device, Framework, Locality, WorkerFacts

__all__ = [
    "PROBE_DEADLINE_S",
    "Findings",
    "LaunchPlan",
    "LaunchSite",
    "Launched",
    "Launcher",
    "Machine",
    "NotLaunched",
    "Probe",
    "ProbeSite",
    "Starter",
]

PROBE_DEADLINE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class ProbeSite:
    """Where a probe looks. environment: the worker's own; work_dir: the disk that jobs will use."""

    work_dir: Path
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Findings:
    """A part of the facts of a machine; what a probe does not know stays at its default.

    Of several probes, the first that knows a figure is believed; devices, frameworks, labels and addresses add up.
    addresses: numeric, where other machines may reach this one, best first.
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


class Probe(Protocol):
    """Looks at one side of a machine.

    ``look`` is called in a thread, at the worker's start and every minute, and may block for ``PROBE_DEADLINE_S``;
    what can hang in native code must run in a child process that the probe itself ends by then. It changes nothing.
    What is not there is no error: a machine without a device gives no findings. It raises only when it could not look.
    """

    @property
    def name(self) -> str: ...

    def look(self, site: ProbeSite) -> Findings: ...


@dataclass(frozen=True, slots=True)
class Machine:
    """What ``plan`` may know of the worker: its facts, and its own environment, of which an allow-list is handed on."""

    facts: WorkerFacts
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class LaunchSite:
    """The folders and files of one node of an attempt; they exist when ``act`` is called.

    err_path: where stderr is kept, for a job whose streams are apart; None: with stdout, in order.
    """

    work_dir: Path
    output_dir: Path
    log_path: Path
    exit_path: Path
    err_path: Path | None = None


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """One program to start. env is complete: nothing is added to it or inherited. err_path: see ``LaunchSite``;
    log_bytes: see ``Limits``."""

    key: str
    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str]
    log_path: Path
    exit_path: Path
    err_path: Path | None = None
    log_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Launched:
    """It runs, or ran: the starter tells of its end."""

    pid: int


@dataclass(frozen=True, slots=True)
class NotLaunched:
    """exit_code: 126 or 127 where the command is at fault, None where the machine is."""

    exit_code: int | None
    message: str
    hint: str = ""


class Starter(Protocol):
    """The worker's spawner, as far as launchers see it. Starting a key again starts nothing and tells what is known."""

    async def start(self, plan: LaunchPlan) -> Launched | NotLaunched: ...


class Launcher(Protocol):
    """How the processes of an attempt are started.

    ``plan`` is pure and quick: no IO, no clock, no environment but the machine's; the same arguments give an equal
    plan. ``act`` runs in the worker's event loop, must not block it, and may be repeated with the same plan (after a
    restart of the worker); it waits for nothing but the starter.
    """

    @property
    def name(self) -> str: ...

    def plan(self, attempt: Assignment, site: LaunchSite, machine: Machine) -> LaunchPlan: ...

    async def act(self, plan: LaunchPlan, starter: Starter) -> Launched | NotLaunched: ...
