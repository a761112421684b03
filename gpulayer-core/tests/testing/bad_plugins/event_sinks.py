"""Event sinks, and hooks that are told of events."""

from bad_plugins.caught import for_ever, given, hanging
from bad_plugins.modules import module
from gpulayer.plugins import hookimpl
from gpulayer.testing import EventSinkContract


def event_sink(test):
    return given(EventSinkContract, "sink", test)


def event_hook(test):
    return given(EventSinkContract, "plugin", test)


@given(EventSinkContract, "sink")
class GoodSink:
    name = "good"
    kinds = None

    def tell(self, event):
        pass


@event_sink("plain_name")
class SinkOfNoName(GoodSink):
    name = "Good Sink"


@event_sink("which_kinds")
class SinkOfWords(GoodSink):
    kinds = frozenset({"job.ended"})


@event_sink("every_kind")
class SinkOfJobsAlone(GoodSink):
    def tell(self, event):
        event.job.id  # noqa: B018


@event_sink("nothing_of_the_event")
class SinkThatNotes(GoodSink):
    def tell(self, event):
        event.job.tags["told"] = "yes"


@hanging(EventSinkContract, "sink", "which_kinds")
class SinkForEver(GoodSink):
    tell = for_ever


@event_hook("does_not_know")
def SinkOfKnownKinds():  # noqa: N802
    @hookimpl
    def gpulayer_on_event(event):
        if "blessed" in event.kind:
            raise ValueError(event.kind)

    return module(gpulayer_on_event=gpulayer_on_event)


@event_hook("may_be_lacking")
def SinkOfJobs():  # noqa: N802
    @hookimpl
    def gpulayer_on_event(event, ctx):
        if event.kind == "job.ended":
            assert event.job.id

    return module(gpulayer_on_event=gpulayer_on_event)


@event_hook("same_event_twice")
def SinkOfFirsts():  # noqa: N802
    known = set()

    @hookimpl
    def gpulayer_on_event(event):
        if event.id in known:
            raise ValueError("told already")
        known.add(event.id)

    return module(gpulayer_on_event=gpulayer_on_event)


@event_hook("any_language")
def SinkOfAscii():  # noqa: N802
    @hookimpl
    def gpulayer_on_event(event):
        str(event.job and event.job.name).encode("ascii")

    return module(gpulayer_on_event=gpulayer_on_event)
