"""What a plugin is written with: ``hookimpl`` to mark hooks, and the contracts of what they register.

A plugin is a module that an entry point of the group ``gpulayer`` names. It says which API it was written for,
``GPULAYER_API = "1.0"``, and implements hooks of ``gpulayer.plugins.hooks``; ``gpulayer.testing`` proves it.
"""

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

__all__ = [
    "API_VERSION",
    "ActingLauncher",
    "BuildFailed",
    "BuildSite",
    "CheckScript",
    "Context",
    "Environment",
    "EnvironmentBuilder",
    "EnvironmentPlan",
    "EnvironmentRequest",
    "EventKind",
    "EventRefused",
    "EventSink",
    "Findings",
    "FrameworkCheck",
    "JobSummary",
    "LaunchPlan",
    "LaunchRefused",
    "LaunchSite",
    "Launched",
    "Launcher",
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
    "ProvidedMachine",
    "Provider",
    "ProviderRefused",
    "Refusal",
    "ScoreBatch",
    "Scorer",
    "Severity",
    "StageFailed",
    "StageSite",
    "Stager",
    "Starter",
    "Where",
    "WorkerStart",
    "hookimpl",
]
