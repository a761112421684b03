"""Event sinks hear of everything that was committed: in order, at least once, each at its own pace.

Sinks are the tests'; the plane, its store and its log are real, and so is the guard around each call.
"""

import json
import sqlite3
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gpulayer.clock import ManualClock, SystemClock
from gpulayer.errors import StorageUnavailable
from gpulayer.plugins import EventKind, EventRefused, PlaneEvent
from gpulayer.plugins.guard import Guard
from gpulayer.plugins.host import Host
from gpulayer.plugins.registry import HookSink, Registered, Registry
from gpulayer.plugins.settings import PluginSettings
from gpulayer.server import plugins as server_plugins
from gpulayer.server.announcing import Announcer, Pace
from gpulayer.server.store import Side, log

PACE = Pace(gather_s=0.0, save_s=0.01)
MINUTE_MS = 60_000


class Late:
    """Hangs until it is released, and then fails."""

    def __init__(self) -> None:
        self.released = threading.Event()


class Sink:
    """Keeps what it is told; ``answers`` are taken first: exceptions are raised, events are waited for."""

    def __init__(self, name: str = "kept", *answers: object, kinds: frozenset[EventKind] | None = None) -> None:
        self.name = name
        self.kinds = kinds
        self.seen: list[PlaneEvent] = []
        self.calls = 0
        self.answers = list(answers)

    def tell(self, event: PlaneEvent) -> None:
        self.calls += 1
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, threading.Event):
            assert answer.wait(20)
        elif isinstance(answer, Late):
            assert answer.released.wait(20)
            raise RuntimeError("too late")
        elif isinstance(answer, Exception):
            raise answer
        self.seen.append(event)

    @property
    def told(self) -> list[tuple[str, str]]:
        return [(str(event.kind), event.job.name if event.job else event.worker) for event in self.seen]


class Scene:
    """A plane with sinks. ``again`` is a start of the whole plane; ``crash`` the same without a word before."""

    def __init__(self, live) -> None:
        self.live = live
        self.announcer: Announcer | None = None

    def tell(self, *sinks: Sink, pace: Pace = PACE) -> None:
        guard = Guard(clock=self.live.clock)
        registry = Registry(
            event_sinks=tuple(
                Registered(f"plugin-{sink.name}", sink, sink.name, "event sink", kinds=sink.kinds) for sink in sinks
            )
        )
        self.host = Host(registry, guard, lambda: ())
        self.faults = guard.faults_of
        self.announcer = Announcer(self.live.plane, self.host, pace=pace)
        self.live.call(self.announcer.start)

    def quiet(self) -> None:
        if self.announcer is not None:
            self.live.call(self.announcer.close)
            self.announcer = None
            self.host.close()

    def again(self, *sinks: Sink, pace: Pace = PACE) -> None:
        self.quiet()
        self.live.restart()
        self.tell(*sinks, pace=pace)

    def submit(self, *names: str) -> None:
        for name in names:
            self.live.submit(name=name)

    def advance(self, ms: int) -> None:
        async def advance() -> None:
            self.live.clock.advance(ms)
            assert self.announcer is not None
            self.announcer.poke()

        self.live.call(advance)

    def advance_until(self, check: Callable[[], object], step_ms: int = MINUTE_MS) -> int:
        """How long it took by the clock."""
        before_ms = self.live.clock.now_ms

        def look() -> bool:
            if check():
                return True
            self.advance(step_ms)
            return False

        self.live.until(look, 30)
        return self.live.clock.now_ms - before_ms

    def cursor(self, sink: Sink) -> int | None:
        found = self.live.call(lambda: self.live.plane.query(log.read_sink_cursors))
        return found.get(f"plugin-{sink.name}/{sink.name}")

    def newest(self) -> int:
        return self.live.call(lambda: self.live.plane.query(log.last_seq))


@pytest.fixture
def scene(make_plane) -> Iterator[Scene]:
    live = make_plane(clock=ManualClock())
    live.host = lambda: Host(Registry(), Guard(clock=live.clock), lambda: ())
    made = Scene(live.start())
    yield made
    made.quiet()


def names(sink: Sink) -> list[str]:
    return [name for kind, name in sink.told if kind == "job.submitted"]


def test_a_sink_is_told_of_a_job_from_its_submission_to_its_end(scene) -> None:
    sink = Sink()
    scene.tell(sink)
    worker = scene.live.worker("box")
    worker.report()
    scene.live.submit(name="one")
    (command,) = worker.commands(hold_s=5)
    worker.report(worker.running(command["epoch"]), holding=[command["epoch"]])
    worker.report(worker.ended(command["epoch"], exit_code=3))
    worker.report(leaving=True)
    scene.live.until(lambda: len(sink.seen) == 5)
    assert sink.told == [
        ("worker.joined", "box"),
        ("job.submitted", "one"),
        ("job.started", "one"),
        ("job.ended", "one"),
        ("worker.silent", "box"),
    ]
    assert dict(sink.seen[2].details) == {"attempt": 1, "workers": "box"}
    assert sink.seen[3].job is not None
    assert sink.seen[3].job.exit_code == 3
    assert [event.seq for event in sink.seen] == sorted({event.seq for event in sink.seen})
    store_id = scene.live.call(lambda: scene.live.plane.query(log.read_store_id))
    assert all(event.id.startswith(f"{store_id}-{event.seq}-") for event in sink.seen)


def test_a_new_sink_begins_with_what_happens_next_and_one_that_was_away_goes_on_where_it_was(scene) -> None:
    scene.submit("before")
    first, second = Sink("first"), Sink("second")
    scene.tell(first)
    scene.submit("one")
    scene.live.until(lambda: names(first) == ["one"])
    scene.again()  # both are away
    scene.submit("two")
    scene.again(first, second)
    scene.submit("three")
    scene.live.until(lambda: names(first) == ["one", "two", "three"] and names(second) == ["three"])


def test_where_a_sink_is_survives_a_start_in_good_order_without_a_repetition(scene) -> None:
    sink = Sink()
    scene.tell(sink, pace=Pace(gather_s=0.0, save_s=3600))
    scene.submit("one", "two")
    scene.live.until(lambda: len(names(sink)) == 2)
    scene.again(sink)
    scene.submit("three")
    scene.live.until(lambda: len(names(sink)) == 3)
    assert names(sink) == ["one", "two", "three"]


def test_where_a_sink_is_is_written_down_while_it_is_told(scene) -> None:
    sink = Sink()
    scene.tell(sink)
    scene.submit("one")
    scene.live.until(lambda: sink.seen and scene.cursor(sink) == sink.seen[-1].seq)
    before = scene.newest()
    assert before == sink.seen[-1].seq  # and that writes nothing into the log


def test_a_sink_that_fails_is_told_again_after_growing_waits_and_the_others_are_not_kept_waiting(scene) -> None:
    bad, good = Sink("bad", *[RuntimeError("not now")] * 2), Sink("good")
    scene.tell(bad, good)
    scene.submit("one", "two")
    scene.live.until(lambda: names(good) == ["one", "two"] and bad.calls == 1)
    scene.advance(999)
    scene.live.until(lambda: scene.faults("plugin-bad")[0] == 1)
    assert bad.calls == 1
    scene.advance(1)
    scene.live.until(lambda: bad.calls == 2 and scene.faults("plugin-bad")[0] == 2)
    scene.advance(1_999)
    assert bad.calls == 2
    scene.advance(1)
    scene.live.until(lambda: names(bad) == ["one", "two"])
    assert bad.calls == 4
    assert "not now" in scene.faults("plugin-bad")[1][0].message


def test_an_event_that_a_sink_fails_at_twenty_times_is_given_up_and_its_record_says_so(scene) -> None:
    sink = Sink("bad", *[RuntimeError("never this one")] * 20)
    scene.tell(sink)
    scene.submit("one", "two")
    took_ms = scene.advance_until(lambda: names(sink) == ["two"])
    assert sink.calls == 21
    assert took_ms > 60 * MINUTE_MS  # it had more than an hour
    notes = [fault.message for fault in scene.faults("plugin-bad")[1]]
    assert notes[-1].startswith("event ")
    assert notes[-1].endswith("(job.submitted) was given up after 20 tries")


def test_an_event_that_a_sink_refuses_is_passed_over_at_once_and_that_is_no_failure_of_the_sink(scene) -> None:
    sink = Sink("picky", EventRefused("too large"))
    scene.tell(sink)
    scene.submit("one", "two")
    scene.live.until(lambda: names(sink) == ["two"])
    (fault,) = scene.faults("plugin-picky")[1]
    assert fault.message.endswith("(job.submitted) was refused: too large")


def test_a_sink_that_hangs_holds_up_itself_alone_and_is_not_called_a_second_time_meanwhile(scene) -> None:
    released = threading.Event()
    hung, good = Sink("hung", released), Sink("good")
    scene.tell(hung, good, pace=Pace(gather_s=0.0, save_s=0.01, deadline_s=0.05))
    scene.submit("one", "two")
    scene.live.until(lambda: names(good) == ["one", "two"] and scene.faults("plugin-hung")[0] == 1)
    for _ in range(100):  # longer than any number of tries
        scene.advance(5 * MINUTE_MS)
    assert (hung.calls, scene.faults("plugin-hung")[0]) == (1, 1), "and its event is not given up meanwhile"
    released.set()
    scene.advance_until(lambda: names(hung) == ["one", "two"])
    assert hung.calls == 2  # what was late was told


def test_a_sink_is_told_again_when_the_call_that_was_late_has_failed_and_each_call_is_one_try(scene) -> None:
    first, second = Late(), Late()
    sink = Sink("late", first, second)
    scene.tell(sink, pace=Pace(gather_s=0.0, save_s=0.01, deadline_s=0.05, tries=2))
    scene.submit("one", "two")
    for number, late in enumerate((first, second), 1):
        scene.live.until(lambda number=number: scene.faults("plugin-late")[0] == number)
        assert sink.calls == number
        late.released.set()
        scene.advance_until(lambda number=number: sink.calls > number)
    scene.live.until(lambda: names(sink) == ["two"])
    assert scene.faults("plugin-late")[1][-1].message.endswith("was given up after 2 tries")


def test_the_plane_ends_while_a_sink_hangs_and_tells_it_the_event_at_its_next_start(scene) -> None:
    released = threading.Event()
    hung = Sink("hung", released)
    scene.tell(hung)
    scene.submit("one")
    scene.live.until(lambda: hung.calls == 1)
    scene.again(after := Sink("hung"))
    scene.live.until(lambda: names(after) == ["one"])
    released.set()


def test_a_sink_is_told_of_the_kinds_that_it_wants(scene) -> None:
    sink = Sink(kinds=frozenset({EventKind.WORKER_JOINED}))
    scene.tell(sink)
    scene.submit("one")
    scene.live.worker("box")
    scene.live.until(lambda: sink.told == [("worker.joined", "box")])


def test_what_is_no_longer_kept_is_passed_over_and_noted(scene) -> None:
    sink = Sink()
    scene.tell(sink)
    scene.submit("one")
    scene.live.until(lambda: names(sink) == ["one"])
    scene.again()
    scene.submit("two", "three")
    scene.quiet()
    gone = scene.newest() - 1
    connection = sqlite3.connect(scene.live.settings.layout.store)
    connection.execute("DELETE FROM events WHERE seq <= ?", (gone,))
    connection.commit()
    connection.close()
    scene.again(sink)
    scene.live.until(lambda: names(sink) == ["one", "three"])
    (fault,) = scene.faults("plugin-kept")[1]
    assert fault.message.endswith(f"to {gone}: they are no longer kept")


def test_a_row_that_can_not_be_understood_is_passed_over_and_noted(scene) -> None:
    sink = Sink()
    scene.submit("one")
    scene.tell(sink)
    scene.submit("two")
    scene.live.until(lambda: names(sink) == ["two"])
    scene.again()
    scene.submit("three", "four")
    scene.quiet()
    bad = scene.newest() - 1
    connection = sqlite3.connect(scene.live.settings.layout.store)
    connection.execute("UPDATE events SET body = '{' WHERE seq = ?", (bad,))
    connection.commit()
    connection.close()
    scene.again(sink)
    scene.live.until(lambda: names(sink) == ["two", "four"])
    (fault,) = scene.faults("plugin-kept")[1]
    assert f"it has missed event {bad} (job_submitted)" in fault.message


def test_sinks_at_the_same_place_are_told_from_one_read(scene) -> None:
    real, found = scene.live.plane.query, []

    async def query(read, *args, **kwargs):
        answer = await real(read, *args, **kwargs)
        if read is log.read_log and answer.rows:
            found.append(answer)
        return answer

    scene.live.plane.query = query
    first, second = Sink("first"), Sink("second")
    scene.tell(first, second)
    scene.submit("one")
    scene.live.until(lambda: names(first) == names(second) == ["one"])
    assert len(found) == 1


def test_many_events_are_read_in_pages_and_told_in_order(scene) -> None:
    sink = Sink()
    scene.tell(sink, pace=Pace(rows=3, gather_s=0.0, save_s=0.01))
    wanted = [f"job{number}" for number in range(20)]
    scene.submit(*wanted)
    scene.live.until(lambda: names(sink) == wanted)


def test_of_two_sinks_of_a_plugin_with_one_name_the_second_is_left_out(scene) -> None:
    first, second = Sink("twin"), Sink("twin")
    scene.tell(first, second)
    scene.submit("one")
    scene.live.until(lambda: names(first) == ["one"])
    assert second.calls == 0
    assert "another sink" in scene.faults("plugin-twin")[1][0].message


def test_without_a_sink_nothing_runs_and_nothing_is_read(scene) -> None:
    real, asked = scene.live.plane.query, []

    async def query(read, *args, **kwargs):
        asked.append(read)
        return await real(read, *args, **kwargs)

    scene.live.plane.query = query
    scene.tell()
    scene.submit("one")
    assert not scene.live.plane.hub.is_watched("logged")
    assert [read for read in asked if read.__module__ == log.__name__] == []


def test_cursors_that_can_not_be_written_are_written_later(scene) -> None:
    sink = Sink()
    scene.tell(sink)
    real, failures = scene.live.plane.driver.submit, []

    async def submit(*makes, side: Side | None = None):
        if side is not None and side.sink_cursors and not failures:
            failures.append(side)
            raise StorageUnavailable("the disk is away")
        return await real(*makes, side=side)

    scene.live.plane.driver.submit = submit
    scene.submit("one")
    scene.live.until(lambda: failures and scene.cursor(sink) == scene.newest())
    assert names(sink) == ["one"]


def test_sinks_that_can_not_be_placed_at_the_start_are_told_when_the_store_can_be_used(scene) -> None:
    sink = Sink()
    real, failures = scene.live.plane.query, []

    async def query(read, *args, **kwargs):
        if read is log.read_store_id and not failures:
            failures.append(read)
            raise StorageUnavailable("the disk is away")
        return await real(read, *args, **kwargs)

    scene.live.plane.query = query
    scene.tell(sink)
    scene.submit("missed")
    scene.advance_until(lambda: scene.cursor(sink) is not None)
    scene.submit("one")
    scene.live.until(lambda: names(sink) == ["one"])


# The whole way ------------------------------------------------------------------------------------------------------


def test_a_plane_tells_the_sinks_of_its_plugins_and_goes_on_after_a_restart(make_plane) -> None:
    sink = Sink()
    live = make_plane()
    guard = Guard(clock=SystemClock())
    registry = Registry(
        event_sinks=(Registered("mine", sink, "kept"), Registered("hooked", HookSink(sink.tell), "hook"))
    )
    live.host = lambda: Host(registry, guard, lambda: ())
    live.start()
    live.submit(name="one")
    live.until(lambda: names(sink) == ["one", "one"])
    live.restart()
    live.submit(name="two")
    live.until(lambda: names(sink) == ["one", "one", "two", "two"])


def test_what_happens_while_plugins_are_still_loaded_is_told_to_sinks_that_are_new_and_what_was_before_is_not(
    make_plane, monkeypatch
) -> None:
    sinks, may_end = [], threading.Event()

    def load(*_: object, **__: object) -> Host:
        assert may_end.wait(20)
        registered = tuple(Registered(sink.name, sink, sink.name) for sink in sinks)
        return Host(Registry(event_sinks=registered), Guard(clock=SystemClock()), lambda: ())

    monkeypatch.setattr(server_plugins, "load_plugins", load)
    old, new = Sink("old"), Sink("new")
    sinks.append(old)
    live = make_plane()
    live.host = lambda: None  # it loads its plugins itself
    live.start()
    live.worker("first").report()
    may_end.set()
    live.until(lambda: old.told)
    assert old.told[0] == ("worker.joined", "first")
    live.submit(name="one")
    live.until(lambda: names(old) == ["one"])
    may_end.clear()
    sinks.append(new)
    live.restart()
    live.worker("second").report()
    may_end.set()
    live.until(lambda: new.told)
    assert new.told[0] == ("worker.joined", "second")


def test_a_plane_whose_webhook_is_configured_sends_and_sends_again(make_plane) -> None:
    bodies, answers = [], [500, 204]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(answers[len(bodies) - 1])
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.01))
        thread.start()
        try:
            options = {
                "url": f"http://127.0.0.1:{server.server_port}/",
                "secret": "a-secret-of-more-than-twenty-four-bytes",
                "events": "job.submitted",
            }
            settings = PluginSettings(allowed=frozenset(), options={"webhook": options})
            live = make_plane(plugins=settings).start()
            live.submit(name="one")
            live.until(lambda: len(bodies) == 2)
        finally:
            server.shutdown()
            thread.join()
    assert bodies[0] == bodies[1]
    assert json.loads(bodies[0])["data"]["job"]["name"] == "one"
