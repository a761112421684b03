"""A ``Launcher`` says how the processes of an attempt are started: a plan first, by value, then the act."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from gpulayer.spec.assignment import Assignment
from gpulayer.spec.machine import WorkerFacts

__all__ = [
    "ACT_DEADLINE_S",
    "PLAN_DEADLINE_S",
    "ActingLauncher",
    "LaunchPlan",
    "LaunchRefused",
    "LaunchSite",
    "Launched",
    "Launcher",
    "Machine",
    "NotLaunched",
    "Starter",
]

PLAN_DEADLINE_S: Final = 2.0
ACT_DEADLINE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Machine:
    """What ``plan`` may know of the worker: its facts, and the variables of the environment that was built for the job.

    Everything that the program is to see comes from ``variables`` and from the attempt's own ``env``.
    """

    facts: WorkerFacts
    variables: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class LaunchSite:
    """The folders and files of one node of an attempt; they exist when the plan is carried out.

    err_path: where stderr is kept, for a job whose streams are apart; None: with stdout, in order.
    inputs: by name, where what was fetched lies.
    """

    work_dir: Path
    output_dir: Path
    log_path: Path
    exit_path: Path
    err_path: Path | None = None
    inputs: tuple[tuple[str, Path], ...] = ()


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """One program to start. key and files: as given. cwd: the work folder, or below it. env is complete, nothing is
    inherited; over it is set what GPUlayer itself says: ``GPULAYER_JOB_ID``, ``GPULAYER_ATTEMPT``,
    ``GPULAYER_OUTPUT_DIR``, ``GPULAYER_INPUT_<NAME>``, and the variables that show the attempt's devices and no other.
    log_bytes: see ``Limits``."""

    key: str
    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str]
    log_path: Path
    exit_path: Path
    err_path: Path | None = None
    log_bytes: int = 0


class LaunchRefused(Exception):
    """The job can't be started in this way, on any machine: its user is told, and it does not run again."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


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
    """The worker's spawner, as far as launchers see it. Starting a key again starts nothing and tells what is known.

    ``start`` blocks until the program runs or could not be started. It takes the plan as it is, or changed within the
    bounds of ``LaunchPlan``; it raises TypeError and ValueError for another, and anything else is not the launcher's to
    handle. What it has started runs on, whatever ``act`` does then; after ``act`` it starts nothing.
    """

    def start(self, plan: LaunchPlan) -> Launched | NotLaunched: ...


@runtime_checkable
class Launcher(Protocol):
    """``plan`` is pure and quick: no IO, no clock, no environment but the machine's; the same arguments give an equal
    plan, and a restarted worker asks again. It may take ``PLAN_DEADLINE_S``. It raises LaunchRefused; any other failure
    is the plugin's, and the attempt is placed elsewhere. The worker's spawner then starts what was planned.
    """

    @property
    def name(self) -> str: ...

    def plan(self, attempt: Assignment, site: LaunchSite, machine: Machine) -> LaunchPlan: ...


@runtime_checkable
class ActingLauncher(Launcher, Protocol):
    """One that does more than have its plan started: ``act`` is then called instead, in a thread, for
    ``ACT_DEADLINE_S`` at most. It may be repeated with the same plan, after a restart of the worker. It has the
    starter start the program, and gives back what that said; or NotLaunched, or it raises LaunchRefused.
    """

    def act(self, plan: LaunchPlan, starter: Starter) -> Launched | NotLaunched: ...
