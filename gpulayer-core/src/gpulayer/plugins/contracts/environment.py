"""An ``EnvironmentBuilder`` makes what a job's program finds around it: its variables, its Python, its libraries."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from gpulayer.spec.machine import WorkerFacts

__all__ = [
    "ENVIRONMENT_DEADLINE_S",
    "ENVIRONMENT_PLAN_DEADLINE_S",
    "BuildFailed",
    "BuildSite",
    "Environment",
    "EnvironmentBuilder",
    "EnvironmentPlan",
    "EnvironmentRequest",
]

ENVIRONMENT_PLAN_DEADLINE_S: Final = 2.0
ENVIRONMENT_DEADLINE_S: Final = 1800.0


@dataclass(frozen=True, slots=True)
class EnvironmentRequest:
    """``name``: of the builder. ``work_dir``: the job's work folder, its source in it."""

    name: str
    work_dir: Path


@dataclass(frozen=True, slots=True)
class EnvironmentPlan:
    """What will be built. ``key`` names its content: equal keys share one build, and a finished one is used again.

    Empty: there is nothing to build or to keep; what ``build`` answers then is used again for an equal plan, as long as
    the machine is the same. ``steps``: for people and for ``build``. Plans are compared by value.
    """

    key: str = ""
    steps: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class BuildSite:
    """``folder``: empty, of this key alone, and kept once the build has ended well; with an empty key the job's work
    folder, which is not to be changed. ``environment``: the worker's.

    log: say a line, for people: it goes to the worker's log, and the last ones to the record of an attempt that ends
    because of this build. is_cancelled: nobody waits for it any more; a build that looks ends sooner.
    """

    folder: Path
    facts: WorkerFacts
    environment: Mapping[str, str] = field(repr=False)
    log: Callable[[str], None] = field(repr=False)
    is_cancelled: Callable[[], bool] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Environment:
    """All variables that a program gets before its job's own: nothing is added to them or inherited."""

    variables: Mapping[str, str] = field(repr=False)


class BuildFailed(Exception):
    """The job asked for what can't be built: its user is told ``message``, and it does not run again.

    is_users: False where the machine or the network is at fault, and another try may do.
    """

    def __init__(self, message: str, *, hint: str = "", is_users: bool = True) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.is_users = is_users


@runtime_checkable
class EnvironmentBuilder(Protocol):
    """``plan`` reads the work folder and nothing else, for ``ENVIRONMENT_PLAN_DEADLINE_S`` at most, once an attempt;
    for attempts without a source, whose work folder is empty, once for all of them. It may raise BuildFailed.

    ``build`` may take ``ENVIRONMENT_DEADLINE_S``, and is repeated, in an emptied folder, where it has not ended well.
    Builds of one key never run side by side. It raises BuildFailed; any other failure is the plugin's, and the attempt
    is placed elsewhere.
    """

    @property
    def name(self) -> str: ...

    def plan(self, request: EnvironmentRequest) -> EnvironmentPlan: ...

    def build(self, plan: EnvironmentPlan, site: BuildSite) -> Environment: ...
