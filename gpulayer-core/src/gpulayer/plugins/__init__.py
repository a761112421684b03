"""What a plugin is written with: ``hookimpl`` to mark hooks, the contracts of what they register, and their values.

A plugin is a module that an entry point of the group ``gpulayer`` names. It says which API it was written for,
``GPULAYER_API = "1.0"``, and implements hooks of ``gpulayer.plugins.hooks``; ``gpulayer.testing`` proves it.
A launcher that changes some of what ``process`` plans asks ``ProcessLauncher().plan`` for that.

The face is lazy: what a process is told of its plugins (``plugins.settings``) is read at its very start, long before it
needs any of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gpulayer.plugins.builtin.process import ProcessLauncher
    from gpulayer.plugins.contracts.context import Context, Where
    from gpulayer.plugins.contracts.environment import (
        BuildFailed,
        BuildSite,
        Environment,
        EnvironmentBuilder,
        EnvironmentPlan,
        EnvironmentRequest,
    )
    from gpulayer.plugins.contracts.event import EventKind, EventRefused, EventSink, JobSummary, PlaneEvent
    from gpulayer.plugins.contracts.framework import CheckScript, FrameworkCheck
    from gpulayer.plugins.contracts.launcher import (
        ActingLauncher,
        Launched,
        Launcher,
        LaunchPlan,
        LaunchRefused,
        LaunchSite,
        Machine,
        NotLaunched,
        Starter,
    )
    from gpulayer.plugins.contracts.probe import Findings, Probe, ProbeSite
    from gpulayer.plugins.contracts.problem import Problem, Severity
    from gpulayer.plugins.contracts.provider import (
        MachineState,
        NoCapacity,
        Offer,
        ProvidedMachine,
        Provider,
        ProviderRefused,
        WorkerStart,
    )
    from gpulayer.plugins.contracts.scorer import Mark, Pair, Refusal, ScoreBatch, Scorer
    from gpulayer.plugins.contracts.stager import StageFailed, Stager, StageSite
    from gpulayer.plugins.hooks import API_VERSION, hookimpl
    from gpulayer.spec.assignment import Assignment
    from gpulayer.spec.capabilities import is_plain_name
    from gpulayer.spec.job import JobSpec
    from gpulayer.spec.machine import Device, DeviceState, Framework, Locality, WorkerFacts
    from gpulayer.spec.request import Accelerator, FrameworkNeed, Request

__all__ = [
    "API_VERSION",
    "Accelerator",
    "ActingLauncher",
    "Assignment",
    "BuildFailed",
    "BuildSite",
    "CheckScript",
    "Context",
    "Device",
    "DeviceState",
    "Environment",
    "EnvironmentBuilder",
    "EnvironmentPlan",
    "EnvironmentRequest",
    "EventKind",
    "EventRefused",
    "EventSink",
    "Findings",
    "Framework",
    "FrameworkCheck",
    "FrameworkNeed",
    "JobSpec",
    "JobSummary",
    "LaunchPlan",
    "LaunchRefused",
    "LaunchSite",
    "Launched",
    "Launcher",
    "Locality",
    "Machine",
    "MachineState",
    "Mark",
    "NoCapacity",
    "NotLaunched",
    "Offer",
    "Pair",
    "PlaneEvent",
    "Probe",
    "ProbeSite",
    "Problem",
    "ProcessLauncher",
    "ProvidedMachine",
    "Provider",
    "ProviderRefused",
    "Refusal",
    "Request",
    "ScoreBatch",
    "Scorer",
    "Severity",
    "StageFailed",
    "StageSite",
    "Stager",
    "Starter",
    "Where",
    "WorkerFacts",
    "WorkerStart",
    "hookimpl",
    "is_plain_name",
]

_HOMES: Final = {
    "plugins.builtin.process": ("ProcessLauncher",),
    "plugins.contracts.context": ("Context", "Where"),
    "plugins.contracts.environment": (
        "BuildFailed",
        "BuildSite",
        "Environment",
        "EnvironmentBuilder",
        "EnvironmentPlan",
        "EnvironmentRequest",
    ),
    "plugins.contracts.event": ("EventKind", "EventRefused", "EventSink", "JobSummary", "PlaneEvent"),
    "plugins.contracts.framework": ("CheckScript", "FrameworkCheck"),
    "plugins.contracts.launcher": (
        "ActingLauncher",
        "Launched",
        "Launcher",
        "LaunchPlan",
        "LaunchRefused",
        "LaunchSite",
        "Machine",
        "NotLaunched",
        "Starter",
    ),
    "plugins.contracts.probe": ("Findings", "Probe", "ProbeSite"),
    "plugins.contracts.problem": ("Problem", "Severity"),
    "plugins.contracts.provider": (
        "MachineState",
        "NoCapacity",
        "Offer",
        "ProvidedMachine",
        "Provider",
        "ProviderRefused",
        "WorkerStart",
    ),
    "plugins.contracts.scorer": ("Mark", "Pair", "Refusal", "ScoreBatch", "Scorer"),
    "plugins.contracts.stager": ("StageFailed", "Stager", "StageSite"),
    "plugins.hooks": ("API_VERSION", "hookimpl"),
    "spec.assignment": ("Assignment",),
    "spec.capabilities": ("is_plain_name",),
    "spec.job": ("JobSpec",),
    "spec.machine": ("Device", "DeviceState", "Framework", "Locality", "WorkerFacts"),
    "spec.request": ("Accelerator", "FrameworkNeed", "Request"),
}


def __getattr__(name: str) -> Any:  # Any: the face hands on whatever the modules define
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"gpulayer.{module}"), name)
    raise AttributeError(f"module 'gpulayer.plugins' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
