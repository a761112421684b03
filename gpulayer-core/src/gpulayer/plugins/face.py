"""All that ``gpulayer.plugins`` shows, which loads it when it is first asked for something."""

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
from gpulayer.plugins.contracts.probe import Findings, Probe, ProbeSite, ProcessKind, ProcessOnDevice
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
    "ProcessKind",
    "ProcessLauncher",
    "ProcessOnDevice",
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
