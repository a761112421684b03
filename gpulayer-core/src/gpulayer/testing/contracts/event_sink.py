"""The contract of event sinks, as tests: of an ``EventSink``, or of a module that implements ``gpulayer_on_event``."""

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from types import MappingProxyType, ModuleType
from typing import ClassVar, cast

import pytest

from gpulayer import __version__
from gpulayer.plugins.contracts.context import Context, Where
from gpulayer.plugins.contracts.event import (
    EVENT_DEADLINE_S,
    EventKind,
    EventRefused,
    EventSink,
    JobSummary,
    PlaneEvent,
)
from gpulayer.testing.contracts.contract import Ask, Contract, check_plain_name, within
from gpulayer.testing.contracts.plugin import hook_of
from gpulayer.testing.values import UNICODE, an_event

__all__ = ["EventSinkContract"]


class _Later(StrEnum):
    """Kinds are added; this one nobody knows."""

    JOB_BLESSED = "job.blessed"


class EventSinkContract(Contract):
    """``class TestMine(EventSinkContract)`` with a fixture ``sink``; or with ``plugin``, the module that implements
    ``gpulayer_on_event``, and its ``options``. Whoever receives from it takes everything: what can't be handed on is
    told again."""

    deadline_s: ClassVar[float] = EVENT_DEADLINE_S

    @pytest.fixture
    def plugin(self) -> ModuleType:
        raise NotImplementedError("a fixture `sink` gives what is to be tested, or `plugin` the module")

    @pytest.fixture
    def options(self) -> Mapping[str, str]:
        return {}

    @pytest.fixture
    def sink(self, plugin: ModuleType, options: Mapping[str, str]) -> EventSink:
        return _OfAHook(plugin, Context(Where.PLANE, "under-test", __version__, MappingProxyType(dict(options))))

    @pytest.fixture
    def ask(self, sink: EventSink) -> Ask:
        return lambda: sink.tell(an_event(EventKind.JOB_ENDED))

    def test_it_is_an_event_sink_with_a_plain_name(self, sink: EventSink) -> None:
        assert isinstance(sink, EventSink), "an event sink has a name, kinds and a method tell"
        check_plain_name(sink.name)

    def test_it_says_which_kinds_it_wants(self, sink: EventSink) -> None:
        if sink.kinds is None:
            return
        assert isinstance(sink.kinds, frozenset), "None is for all"
        assert {type(kind) for kind in sink.kinds} == {EventKind}, "kinds are members of EventKind"

    @pytest.mark.parametrize("kind", list(EventKind))
    def test_it_takes_every_kind_that_it_wants(self, kind: EventKind, sink: EventSink) -> None:
        if sink.kinds is None or kind in sink.kinds:
            within(self.deadline_s, lambda: sink.tell(an_event(kind)))

    def test_it_passes_over_a_kind_that_it_does_not_know(self, sink: EventSink) -> None:
        later = replace(an_event(EventKind.JOB_ENDED), kind=cast("EventKind", _Later.JOB_BLESSED))
        self._tell(sink, later)

    def test_it_takes_the_same_event_twice(self, sink: EventSink) -> None:
        event = an_event(EventKind.JOB_ENDED)
        within(self.deadline_s, lambda: sink.tell(event))
        within(self.deadline_s, lambda: sink.tell(event))

    def test_it_takes_an_event_that_lacks_what_may_be_lacking(self, sink: EventSink) -> None:
        self._tell(sink, an_event(EventKind.JOB_ENDED, job=None, worker="", details={}))

    def test_it_takes_words_of_any_language(self, sink: EventSink) -> None:
        job = JobSummary("7f3a", UNICODE, UNICODE, {UNICODE: ""}, "failed", exit_code=1, ended_by="program")
        within(
            self.deadline_s,
            lambda: sink.tell(an_event(EventKind.JOB_ENDED, job=job, details={"evidence": UNICODE * 100})),
        )

    def test_it_changes_nothing_of_the_event(self, sink: EventSink) -> None:
        tags, details = {"team": "vision"}, {"attempt": 1}
        job = JobSummary("7f3a", "a job", "somebody", tags, "succeeded")
        within(self.deadline_s, lambda: sink.tell(an_event(EventKind.JOB_ENDED, job=job, details=details)))
        assert (tags, details) == ({"team": "vision"}, {"attempt": 1})

    def _tell(self, sink: EventSink, event: PlaneEvent) -> None:
        """It may refuse it for good; anything else would have it told again."""
        try:
            within(self.deadline_s, lambda: sink.tell(event))
        except EventRefused:
            return


class _OfAHook:
    """What GPUlayer makes of such a module."""

    name = "on-event"
    kinds: frozenset[EventKind] | None = None

    def __init__(self, plugin: ModuleType, context: Context) -> None:
        self._hook = hook_of(plugin, "gpulayer_on_event")
        self._context = context

    def tell(self, event: PlaneEvent) -> None:
        self._hook(event=event, ctx=self._context)
