"""The contract of event sinks (``gpulayer_on_event``), as tests."""

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from types import MappingProxyType, ModuleType
from typing import ClassVar, cast

import pytest

from gpulayer import __version__
from gpulayer.plugins.contracts.context import Context, Where
from gpulayer.plugins.contracts.event import EVENT_DEADLINE_S, EventKind, JobSummary, PlaneEvent
from gpulayer.testing.contracts.contract import Ask, Contract, within
from gpulayer.testing.contracts.plugin import hook_of
from gpulayer.testing.values import UNICODE, an_event

__all__ = ["EventSinkContract"]


class _Later(StrEnum):
    """Kinds are added; this one nobody knows."""

    JOB_BLESSED = "job.blessed"


class EventSinkContract(Contract):
    """``class TestMine(EventSinkContract)`` with a fixture ``plugin``, the module that implements the hook, and
    ``options`` for a receiver that takes everything: an event that can't be handed on is told again."""

    deadline_s: ClassVar[float] = EVENT_DEADLINE_S

    @pytest.fixture
    def plugin(self) -> ModuleType:
        raise NotImplementedError("a fixture `plugin` gives the module that takes events")

    @pytest.fixture
    def options(self) -> Mapping[str, str]:
        return {}

    @pytest.fixture
    def context(self, options: Mapping[str, str]) -> Context:
        return Context(Where.PLANE, "under-test", __version__, MappingProxyType(dict(options)))

    @pytest.fixture
    def ask(self, plugin: ModuleType, context: Context) -> Ask:
        return lambda: _tell(plugin, context, an_event(EventKind.JOB_ENDED))

    @pytest.mark.parametrize("kind", list(EventKind))
    def test_it_takes_every_kind(self, kind: EventKind, plugin: ModuleType, context: Context) -> None:
        within(self.deadline_s, lambda: _tell(plugin, context, an_event(kind)))

    def test_it_passes_over_a_kind_that_it_does_not_know(self, plugin: ModuleType, context: Context) -> None:
        later = replace(an_event(EventKind.JOB_ENDED), kind=cast("EventKind", _Later.JOB_BLESSED))
        within(self.deadline_s, lambda: _tell(plugin, context, later))

    def test_it_takes_the_same_event_twice(self, plugin: ModuleType, context: Context) -> None:
        event = an_event(EventKind.JOB_ENDED)
        _tell(plugin, context, event)
        _tell(plugin, context, event)

    def test_it_takes_an_event_that_lacks_what_may_be_lacking(self, plugin: ModuleType, context: Context) -> None:
        _tell(plugin, context, an_event(EventKind.JOB_ENDED, job=None, worker="", details={}))

    def test_it_takes_words_of_any_language(self, plugin: ModuleType, context: Context) -> None:
        job = JobSummary("7f3a", UNICODE, UNICODE, {UNICODE: ""}, "failed", exit_code=1, ended_by="program")
        _tell(plugin, context, an_event(EventKind.JOB_ENDED, job=job, details={"evidence": UNICODE * 100}))

    def test_it_changes_nothing_of_the_event(self, plugin: ModuleType, context: Context) -> None:
        event = an_event(EventKind.JOB_ENDED)
        before = (dict(event.details), dict(event.job.tags) if event.job else {})
        _tell(plugin, context, event)
        assert (dict(event.details), dict(event.job.tags) if event.job else {}) == before


def _tell(plugin: ModuleType, context: Context, event: PlaneEvent) -> None:
    hook_of(plugin, "gpulayer_on_event")(event=event, ctx=context)
