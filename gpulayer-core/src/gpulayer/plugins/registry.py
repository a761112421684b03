"""What the plugins of this process have registered, each with the name of its plugin, in the order of use."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from gpulayer.plugins.contracts.environment import EnvironmentBuilder
from gpulayer.plugins.contracts.event import EventKind, EventSink, PlaneEvent
from gpulayer.plugins.contracts.framework import FrameworkCheck
from gpulayer.plugins.contracts.launcher import Launcher
from gpulayer.plugins.contracts.probe import Probe
from gpulayer.plugins.contracts.problem import Problem
from gpulayer.plugins.contracts.provider import Provider
from gpulayer.plugins.contracts.scorer import Scorer
from gpulayer.plugins.contracts.stager import Stager
from gpulayer.spec.job import JobSpec
from gpulayer.spec.request import Accelerator

__all__ = ["HookSink", "JobCheck", "Registered", "Registry"]

T = TypeVar("T")

JobCheck = Callable[[JobSpec], Sequence[Problem]]


@dataclass(frozen=True, slots=True)
class HookSink:
    """The hook ``gpulayer_on_event`` of a plugin, as the sink that it stands for."""

    tell: Callable[[PlaneEvent], None]
    name: str = "hook"
    kinds: frozenset[EventKind] | None = None


@dataclass(frozen=True, slots=True)
class Registered(Generic[T]):
    """``thing``, of the plugin of that name; it is asked through the host alone (``Host.call``).

    What it says of itself was read once, behind the guard, and is kept here: its attributes may be code of the plugin.
    name: what it calls itself. kind: ``launcher``, ``stager``, …; one plugin may give things of one name and several
    kinds. lifetime_s: of a scorer. accelerators: of a framework check. kinds: of an event sink; None: all.
    """

    plugin: str
    thing: T
    name: str = ""
    kind: str = ""
    lifetime_s: float = 0.0
    accelerators: tuple[Accelerator, ...] = ()
    kinds: frozenset[EventKind] | None = None

    @property
    def key(self) -> str:
        """Names it among all that its plugin has registered."""
        return f"{self.kind} {self.name}".strip()


@dataclass(frozen=True, slots=True)
class Registry:
    """Sequences by (priority, plugin name): of probes, the first that knows a figure is believed. Mappings by the name
    that each gives itself: ``process`` is always among the launchers, ``system`` among the environments."""

    probes: tuple[Registered[Probe], ...] = ()
    framework_checks: tuple[Registered[FrameworkCheck], ...] = ()
    environments: Mapping[str, Registered[EnvironmentBuilder]] = field(default_factory=dict)
    launchers: Mapping[str, Registered[Launcher]] = field(default_factory=dict)
    stagers: Mapping[str, Registered[Stager]] = field(default_factory=dict)
    scorers: tuple[Registered[Scorer], ...] = ()
    providers: Mapping[str, Registered[Provider]] = field(default_factory=dict)
    job_checks: tuple[Registered[JobCheck], ...] = ()
    event_sinks: tuple[Registered[EventSink], ...] = ()
