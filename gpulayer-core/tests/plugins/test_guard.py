"""Every way in which a call of a plugin goes wrong, and that nothing else does."""

import asyncio
import gc
import threading
import time
import weakref

import pytest

from gpulayer.errors import Blame, PluginFault, PluginResting
from gpulayer.plugins.contracts.environment import BuildFailed
from gpulayer.plugins.guard import Guard, Life
from gpulayer.plugins.hiding import SecretsHider
from gpulayer.plugins.results import instance_of, list_of
from tests.guarded import all_slots_taken, fails, fault, ok, raises, wait_until


class Unspeakable(Exception):
    def __str__(self):
        raise ValueError("no")

    __repr__ = __str__


class Shy(type):
    @property
    def __name__(cls):
        raise ValueError("no")


class Nameless(Exception, metaclass=Shy):
    pass


class ExitsWhenAsked(Exception):
    def __str__(self):
        raise SystemExit(7)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("out\nof  range"), "ValueError: out of range"),
        (KeyError(), "KeyError"),
        (SystemExit(3), "it tried to end the process (exit 3)"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (GeneratorExit(), "GeneratorExit"),
        (MemoryError("big"), "MemoryError: big"),
        (Unspeakable(), "an exception that fails to say what it is"),
        (Nameless("x"), "an exception that fails to say what it is"),
        (ExitsWhenAsked(), "an exception that fails to say what it is"),
        (RuntimeError("\x1b[2Jgone"), "RuntimeError: [2Jgone"),
        (asyncio.CancelledError(), "CancelledError"),
    ],
)
def test_whatever_a_plugin_raises_is_one_line_of_its_record(guard, error, said):
    assert fault(guard, raises(error)) == f"plugin p failed (Probe.look): {said}"
    count, [note] = guard.faults_of("p")
    assert (count, note.hook, note.message) == (1, "Probe.look", said)
    assert ok(guard) == 42


def test_endless_words_and_endless_depth_are_cut(guard):
    assert len(fault(guard, raises(ValueError("x" * 10_000_000)))) < 500

    def deep():
        return deep()

    assert "RecursionError" in fault(guard, deep)


def test_an_endless_list_and_a_wrong_type_are_faults(guard):
    def endless():
        while True:
            yield 1

    assert "more than 64 int" in fault(guard, lambda: list_of(int, endless(), at_most=64))
    assert "it gave a str where int is due" in fault(guard, lambda: instance_of(int, "1"))
    assert "it gave None where a list of int is due" in fault(guard, lambda: list_of(int, None, at_most=64), life=None)


def test_a_call_that_hangs_is_late_and_keeps_its_slot_until_it_returns(guard, clock):
    gates = [threading.Event() for _ in range(8)]
    # Begun together, so that the breaker does not keep any of them out.
    waiting = [threading.Thread(target=lambda g=g: fault(guard, g.wait, deadline_s=0.2)) for g in gates]
    for one in waiting:
        one.start()
    for one in waiting:
        one.join(10)
    clock.advance(30_000)
    assert guard.is_resting("p")
    with pytest.raises(PluginResting, match="is not asked") as caught:
        ok(guard)
    assert "when one of 8 calls returns that hang" in caught.value.hint
    assert ok(guard, "Other.hook") == 42, "each hook has slots of its own"
    gates[3].set()
    wait_until(lambda: not guard.is_resting("p"))
    assert ok(guard) == 42, "the slot came back from the thread that has really ended"
    for gate in gates:
        gate.set()


def test_a_call_that_never_began_says_nothing_of_the_plugin(guard, gate):
    asked = []
    with all_slots_taken(guard):
        for _ in range(9):
            with pytest.raises(PluginResting, match="8 other calls were in its way") as caught:
                guard.call("p", "Probe.look", lambda: asked.append(1), deadline_s=0.01, life=Life(0.01))
        assert caught.value.blame is Blame.PLUGIN
    assert not guard.is_resting("p")
    assert guard.faults_of("p") == (0, ())
    assert ok(guard) == 42
    assert asked == [], "nobody waits for it, so it is not run later on either"


def test_a_call_that_lost_its_time_in_the_queue_says_nothing_of_the_plugin(guard):
    for _ in range(4):
        with all_slots_taken(guard) as taken:
            began, ends = threading.Event(), threading.Event()

            def late(began=began, ends=ends):
                began.set()
                ends.wait(10)

            def waits(late=late):
                with pytest.raises(PluginFault, match="no answer: 8 other calls were in its way") as caught:
                    guard.call("p", "Probe.look", late, deadline_s=0.5)
                assert not isinstance(caught.value, PluginResting), "something has begun"

            asking = threading.Thread(target=waits)
            asking.start()
            time.sleep(0.2)  # of its half second
            taken.set()
            assert began.wait(10)
            asking.join(10)
            ends.set()
    assert not guard.is_resting("p")
    assert guard.faults_of("p") == (0, ())


def test_one_that_rests_and_one_that_failed_are_told_apart(guard, clock):
    for _ in range(3):
        with pytest.raises(PluginFault) as caught:
            guard.call("p", "h", raises(ValueError("x")), deadline_s=10.0)
        assert not isinstance(caught.value, PluginResting)
    with pytest.raises(PluginResting, match="is not asked"):
        ok(guard, "h")


def test_slots_and_rests_are_of_one_thing_of_a_plugin(guard):
    fails(guard, thing="stager s3")
    assert ok(guard, thing="stager gs") == 42
    assert guard.is_resting("p", "stager s3")
    assert not guard.is_resting("p", "stager gs")
    assert guard.is_resting("p")
    with all_slots_taken(guard, thing="stager gs"):
        assert ok(guard, thing="stager file") == 42


def test_late_answers_are_dropped(guard, gate):
    answered = threading.Event()

    def late():
        gate.wait(10)
        answered.set()
        return "old"

    assert "no answer within 0.05 s" in fault(guard, late, deadline_s=0.05)
    gate.set()
    assert answered.wait(10)
    assert ok(guard) == 42


def test_a_call_that_shows_signs_of_life_may_go_on_and_a_silent_one_may_not(guard, gate):
    life = Life(0.3)

    def lively():
        for _ in range(8):
            threading.Event().wait(0.1)
            life.sign()
        return "done"

    assert guard.call("p", "Stager.fetch", lively, deadline_s=30.0, life=life) == "done"
    assert "no sign of life for 0.1 s" in fault(guard, gate.wait, deadline_s=30.0, life=Life(0.1))
    assert "no answer within 0.1 s" in fault(guard, gate.wait, deadline_s=0.1, life=Life(30.0))


def test_silence_counts_for_what_began_only_after_somebody_waited(guard, gate):
    """Whoever waits computes how long before the call has begun; the whole deadline may be hours."""
    assert "no sign of life" in fault(guard, gate.wait, deadline_s=3600.0, life=Life(0.05))


def test_calls_that_wait_when_it_is_closed_are_told_at_once(guard):
    said = []

    def waits():
        with pytest.raises(PluginResting) as caught:
            guard.call("p", "Probe.look", lambda: 1, deadline_s=3600.0, life=Life(3600.0))
        said.append(caught.value.hint)

    async def waits_too():
        with pytest.raises(PluginResting) as caught:
            await guard.acall("p", "Probe.look", lambda: 1, deadline_s=3600.0)
        said.append(caught.value.hint)

    def queued():
        [seat] = guard._seats.values()
        return len(seat.lane._waiting)

    with all_slots_taken(guard):
        threads = [threading.Thread(target=waits), threading.Thread(target=lambda: asyncio.run(waits_too()))]
        for thread in threads:
            thread.start()
        wait_until(lambda: queued() == 2)
        guard.close()
        for thread in threads:
            thread.join(10)
        waits()
    assert said == ["the process is about to end"] * 3


def test_what_was_cancelled_while_it_waited_is_not_kept(guard):
    async def scenario():
        before = len(guard._seats["p", "", "Probe.look"].lane._waiting)
        asking = asyncio.create_task(guard.acall("p", "Probe.look", lambda: 1, deadline_s=3600.0))
        await asyncio.sleep(0)
        assert len(guard._seats["p", "", "Probe.look"].lane._waiting) == before + 1
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert len(guard._seats["p", "", "Probe.look"].lane._waiting) == before

    with all_slots_taken(guard):
        asyncio.run(scenario())


def test_nothing_is_kept_of_a_call_that_is_over(guard):
    class Big:
        pass

    given = Big()
    seen = [weakref.ref(given), weakref.ref(guard.call("p", "Probe.look", lambda given=given: Big(), deadline_s=10.0))]
    del given

    gc.disable()  # a control plane has it come by but seldom
    try:
        wait_until(lambda: [ref() for ref in seen] == [None, None])
    finally:
        gc.enable()


def test_what_passes_is_an_answer_and_no_fault(guard):
    for _ in range(4):
        with pytest.raises(BuildFailed) as caught:
            guard.call(
                "p",
                "EnvironmentBuilder.build",
                raises(BuildFailed("no such thing, hunter22", hint="h", is_users=False)),
                deadline_s=10.0,
                passes=(BuildFailed,),
            )
        assert (caught.value.message, caught.value.hint, caught.value.is_users) == ("no such thing, ***", "h", False)
        assert str(caught.value) == "no such thing, ***"
    assert guard.faults_of("p") == (0, ())


class Pretends(Exception):
    """Says that it is what passes."""

    @property
    def __class__(self):
        return BuildFailed


class Stubborn(BuildFailed):
    @property
    def message(self):
        raise SystemExit(1)

    @message.setter
    def message(self, value):
        pass


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (BuildFailed(7), "its BuildFailed has a message that is int, not text"),
        (BuildFailed("x", is_users="maybe"), "its BuildFailed has an is_users that is neither True nor False"),
        (Stubborn("x"), "it raised an answer that fails to say what it is"),
        (Pretends("x"), "Pretends: x"),
    ],
)
def test_an_answer_that_is_not_what_it_should_be_is_a_fault(guard, error, said):
    assert said in fault(guard, raises(error), passes=(BuildFailed,))


def test_the_words_of_an_answer_are_cut(guard):
    with pytest.raises(BuildFailed) as caught:
        guard.call("p", "h", raises(BuildFailed("x" * 10_000_000)), deadline_s=10.0, passes=(BuildFailed,))
    assert len(str(caught.value)) < 10_000


def test_secrets_are_in_no_fault_no_record_and_no_log(guard, caplog):
    token = "glc_" + "a" * 12 + "_" + "s" * 43
    with caplog.at_level("DEBUG"):
        message = fault(guard, raises(ValueError(f"login with hunter22 and {token} failed")))
    assert message.endswith("ValueError: login with *** and *** failed")
    told = message + caplog.text + repr(guard.faults_of("p"))
    assert "hunter22" not in told
    assert "s" * 43 not in told


@pytest.mark.parametrize("length", [380, 399, 400, 7_985, 7_999])
@pytest.mark.parametrize("kind", [ValueError, BuildFailed])
def test_no_secret_is_cut_in_half_before_it_is_hidden(clock, caplog, length, kind):
    secret = "s1s2s3s4s5s6s7s8s9"
    guard = Guard(clock=clock, hide=SecretsHider({"p": {"token": secret}}))
    with caplog.at_level("DEBUG"), pytest.raises((PluginFault, BuildFailed)) as caught:
        guard.call("p", "h", raises(kind("x" * length + secret)), deadline_s=10.0, passes=(BuildFailed,))
    told = str(caught.value) + caught.value.message + caplog.text + repr(guard.faults_of("p"))
    assert "s1s2" not in told
    assert "s8s9" not in told
    guard.close()


def test_only_the_newest_faults_are_kept_and_all_are_counted(guard, clock):
    for number in range(9):
        clock.advance(600_000)
        fault(guard, raises(ValueError(str(number))))
    count, notes = guard.faults_of("p")
    assert count == 9
    assert [note.message for note in notes] == [f"ValueError: {number}" for number in range(4, 9)]


def test_strict_raises_what_the_plugin_raised(clock):
    guard = Guard(clock=clock, strict=True)
    for error in (ValueError("x"), SystemExit(3)):
        with pytest.raises(type(error)) as caught:
            guard.call("p", "h", raises(error), deadline_s=10.0)
        assert caught.value is error
    guard.close()


def test_when_the_system_gives_no_thread_it_is_nobodys_fault(guard, monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert "can't start new thread" in fault(guard, lambda: 1)
    assert guard.faults_of("p") == (0, ())
    assert ok(guard) == 42


def test_ctrl_c_while_somebody_waits_says_nothing_of_the_plugin(guard, gate, monkeypatch):
    def interrupted(self, timeout=None):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("gpulayer.plugins.guard.threading.Event.wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            guard.call("p", "Probe.look", lambda: 1, deadline_s=10.0)
    assert guard.faults_of("p") == (0, ())


def test_in_an_event_loop_it_is_the_same_and_the_loop_goes_on(guard, gate):
    async def scenario():
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.005)

        ticking = asyncio.create_task(tick())
        assert await guard.acall("p", "h", lambda: 42, deadline_s=10.0) == 42
        with pytest.raises(PluginFault, match="ValueError: x"):
            await guard.acall("p", "h", raises(ValueError("x")), deadline_s=10.0)
        with pytest.raises(PluginFault, match="it tried to end the process"):
            await guard.acall("p", "h", raises(SystemExit(1)), deadline_s=10.0)
        with pytest.raises(PluginFault, match="no answer"):
            await guard.acall("p", "late", gate.wait, deadline_s=0.1)
        with pytest.raises(PluginFault, match="no sign of life"):
            await guard.acall("p", "late", gate.wait, deadline_s=3600.0, life=Life(0.05))
        with pytest.raises(BuildFailed):
            await guard.acall("p", "h", raises(BuildFailed("x")), deadline_s=10.0, passes=(BuildFailed,))
        ticking.cancel()
        return ticks

    assert asyncio.run(scenario()) > 1


def test_a_cancelled_wait_is_no_fault_and_frees_the_trial(guard, clock, gate):
    async def scenario():
        for _ in range(3):
            with pytest.raises(PluginFault):
                await guard.acall("p", "h", raises(ValueError("x")), deadline_s=10.0)
        clock.advance(30_000)
        asking = asyncio.create_task(guard.acall("p", "h", gate.wait, deadline_s=10.0))
        await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert guard.faults_of("p")[0] == 3
        assert await guard.acall("p", "h", lambda: 42, deadline_s=10.0) == 42

    asyncio.run(scenario())


def test_an_answer_for_a_loop_that_has_gone_hurts_nobody(guard, gate):
    ended = threading.Event()

    def late():
        gate.wait(10)
        ended.set()

    async def scenario():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await guard.acall("p", "h", late, deadline_s=10.0)

    asyncio.run(scenario())
    loop = asyncio.new_event_loop()
    asking = guard.acall("p", "other", late, deadline_s=10.0)
    task = loop.create_task(asking)
    loop.run_until_complete(asyncio.sleep(0))
    asking.close() if task.done() else task.cancel()
    loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    loop.close()
    gate.set()
    assert ended.wait(10)
    assert ok(guard) == 42


SOURCE = """
def look():
    try:
        inner()
    except ValueError as error:
        raise KeyError("x") from error


def inner():
    raise ValueError("\\x1b[1mhunter22")
"""


def test_a_fault_is_a_line_of_the_log_and_the_first_time_the_plugins_own_frames_are_below(guard, tmp_path, caplog):
    space = {}
    exec(compile(SOURCE, "/site/gpulayer_p.py", "exec"), space)
    with caplog.at_level("WARNING"):
        fault(guard, space["look"])
        fault(guard, space["look"])
        fault(guard, space["inner"])
    first, second, third, last = [record.getMessage() for record in caplog.records]
    assert first.splitlines()[0] == second == "plugin p, Probe.look: KeyError: 'x'"
    assert 'File "/site/gpulayer_p.py", line 4, in look' in first
    assert 'File "/site/gpulayer_p.py", line 10, in inner' in first
    assert "guard.py" not in first
    assert "ValueError:  [1m***" in first
    assert third.splitlines()[0] == "plugin p, Probe.look: ValueError: [1m***"
    assert last == "plugin p, Probe.look: it failed 3 times in a row, and is suspended: it is asked again in 30 s"


def test_a_call_that_is_late_is_logged_too(guard, gate, caplog):
    fault(guard, lambda: gate.wait(10), deadline_s=0.05)
    [record] = caplog.records
    assert record.getMessage() == "plugin p, Probe.look: no answer within 0.05 s"
