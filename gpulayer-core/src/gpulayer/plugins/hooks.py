"""The hooks: few, synchronous, positional, and mostly registrations. Their arguments are passed by name.

An implementation names the arguments that it needs, in any order; later versions may offer more. It may not have
keyword-only arguments, defaults or be ``async``: pluggy would pass over the first two and nobody would await the last,
so such a plugin is refused with that as the reason.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import pluggy

from gpulayer.plugins.contracts.context import Context
from gpulayer.plugins.contracts.environment import EnvironmentBuilder
from gpulayer.plugins.contracts.event import EventSink, PlaneEvent
from gpulayer.plugins.contracts.framework import FrameworkCheck
from gpulayer.plugins.contracts.launcher import Launcher
from gpulayer.plugins.contracts.probe import Probe
from gpulayer.plugins.contracts.problem import Problem
from gpulayer.plugins.contracts.provider import Provider
from gpulayer.plugins.contracts.scorer import Scorer
from gpulayer.plugins.contracts.stager import Stager
from gpulayer.spec.job import JobSpec

__all__ = ["API_VERSION", "DEPRECATED", "PROJECT", "REGISTER_DEADLINE_S", "hookimpl"]

PROJECT: Final = "gpulayer"
API_VERSION: Final = "1.0"
"""Of hooks and contracts together. A plugin that says ``GPULAYER_API = "1.2"`` runs where this is 1.2 or later 1.x."""

REGISTER_DEADLINE_S: Final = 5.0

DEPRECATED: Final[Mapping[str, str]] = {}
"""Hooks that the next major version takes away, and what to do instead: ``"implement gpulayer_x"``. They work; the
record of each plugin that implements one has a note of it, and docs/plugins/compatibility.md lists them."""

hookimpl: Final = pluggy.HookimplMarker(PROJECT)
_hookspec: Final = pluggy.HookspecMarker(PROJECT)


@_hookspec
def gpulayer_register_probes(ctx: Context) -> Sequence[Probe]:  # type: ignore[empty-body]
    """In the worker, at its start."""


@_hookspec
def gpulayer_register_framework_checks(ctx: Context) -> Sequence[FrameworkCheck]:  # type: ignore[empty-body]
    """In the worker, at its start."""


@_hookspec
def gpulayer_register_environments(ctx: Context) -> Sequence[EnvironmentBuilder]:  # type: ignore[empty-body]
    """In the worker, at its start."""


@_hookspec
def gpulayer_register_launchers(ctx: Context) -> Sequence[Launcher]:  # type: ignore[empty-body]
    """In the worker, at its start."""


@_hookspec
def gpulayer_register_stagers(ctx: Context) -> Sequence[Stager]:  # type: ignore[empty-body]
    """In the worker, at its start; one a URI scheme."""


@_hookspec
def gpulayer_register_scorers(ctx: Context) -> Sequence[Scorer]:  # type: ignore[empty-body]
    """In the control plane, at its start."""


@_hookspec
def gpulayer_register_providers(ctx: Context) -> Sequence[Provider]:  # type: ignore[empty-body]
    """In the control plane, at its start."""


@_hookspec
def gpulayer_check_job(spec: JobSpec, ctx: Context) -> Sequence[Problem]:  # type: ignore[empty-body]
    """In the control plane, for each job of a submission, before anything of it is kept."""


@_hookspec
def gpulayer_register_event_sinks(ctx: Context) -> Sequence[EventSink]:  # type: ignore[empty-body]
    """In the control plane, at its start: for sinks that depend on the plugin's options, or that keep something."""


@_hookspec
def gpulayer_on_event(event: PlaneEvent, ctx: Context) -> None:
    """In the control plane, after the commit, at least once, one event at a time and in order: what an ``EventSink``
    of every kind does in ``tell``."""
