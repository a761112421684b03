"""When a thing of a plugin is not asked for a while, and the trial that ends that."""

import threading
from contextlib import contextmanager

import pytest

from gpulayer.errors import PluginResting
from gpulayer.plugins.guard import Life
from tests.guarded import fails, fault, ok, raises, resting


def test_three_failures_in_a_row_and_it_is_not_asked_for_longer_and_longer(guard, clock):
    for _ in range(2):
        fault(guard, raises(ValueError("x")))
    assert ok(guard) == 42, "a success begins the count anew"
    for _ in range(3):
        assert "ValueError" in fault(guard, raises(ValueError("x")))
    for rest_ms in (30_000, 60_000, 120_000, 240_000, 480_000, 600_000, 600_000):
        assert guard.is_resting("p")
        assert "is not asked" in fault(guard, lambda: 42)
        clock.advance(rest_ms - 1)
        assert "is not asked" in fault(guard, lambda: 42)
        clock.advance(1)
        assert not guard.is_resting("p")
        assert "ValueError" in fault(guard, raises(ValueError("x")))
    clock.advance(600_000)
    assert ok(guard) == 42
    assert ok(guard) == 42
    assert not guard.is_resting("p")
    for _ in range(3):
        fault(guard, raises(ValueError("x")))
    clock.advance(30_000)
    assert ok(guard) == 42, "it rests for half a minute again, not for ten"


def test_who_is_not_asked_is_told_for_how_long(guard, clock):
    for _ in range(3):
        fault(guard, raises(ValueError("x")))
    clock.advance(10_000)
    with pytest.raises(PluginResting) as caught:
        ok(guard)
    assert caught.value.details["rest_ms"] == 20_000


def test_other_hooks_and_other_plugins_are_asked_meanwhile(guard):
    for _ in range(3):
        fault(guard, raises(ValueError("x")))
    assert ok(guard, "Launcher.plan") == 42
    assert guard.call("q", "Probe.look", lambda: 1, deadline_s=10.0) == 1
    assert not guard.is_resting("q")


def test_many_failures_at_once_count_as_one_break(guard, clock):
    barrier = threading.Barrier(6)

    def fail():
        barrier.wait(10)
        raise ValueError("x")

    threads = [threading.Thread(target=lambda: fault(guard, fail)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    clock.advance(30_000)
    assert ok(guard) == 42


def test_after_the_rest_one_call_alone_is_the_trial(guard, clock, gate):
    for _ in range(3):
        fault(guard, raises(ValueError("x")))
    clock.advance(30_000)
    began, go = threading.Event(), threading.Event()

    def trial():
        began.set()
        go.wait(10)
        return 1

    results = []
    asking = threading.Thread(target=lambda: results.append(guard.call("p", "Probe.look", trial, deadline_s=10.0)))
    asking.start()
    assert began.wait(10)
    assert "is not asked" in fault(guard, lambda: 2)
    go.set()
    asking.join(10)
    assert results == [1]
    assert ok(guard) == 42


@contextmanager
def trial_runs(guard, clock, *, life=None):
    """After a rest: a call that goes on until the block ends, and ends well."""
    fails(guard)
    clock.advance(30_000)
    began, go = threading.Event(), threading.Event()

    def trial():
        began.set()
        go.wait(10)
        return 42

    results = []
    asking = threading.Thread(
        target=lambda: results.append(guard.call("p", "Probe.look", trial, deadline_s=60.0, life=life))
    )
    asking.start()
    assert began.wait(10)
    try:
        yield
    finally:
        go.set()
        asking.join(10)
    assert results == [42]


def test_a_trial_that_shows_a_sign_of_life_has_passed_and_one_that_only_began_has_not(guard, clock):
    """A fetch goes on for hours, and all others need not wait for it."""
    life = Life(60.0)
    with trial_runs(guard, clock, life=life):
        assert guard.is_suspended("p")
        assert "it is being tried just now" in resting(guard).hint
        life.sign()
        assert not guard.is_resting("p")
        assert not guard.is_suspended("p")
        assert ok(guard) == 42


def test_beside_a_trial_that_takes_long_and_says_nothing_another_is_made(guard, clock):
    with trial_runs(guard, clock):
        clock.advance(29_999)
        resting(guard)
        clock.advance(1)
        assert guard.is_suspended("p")
        fault(guard, raises(ValueError("x")))
        assert "in 60 s" in resting(guard).hint
        clock.advance(60_000)
        assert ok(guard) == 42
        assert not guard.is_suspended("p")
        assert ok(guard) == 42


def test_it_is_suspended_until_it_has_worked_again_and_not_only_until_it_may_be_asked(guard, clock):
    fails(guard)
    clock.advance(30_000)
    assert not guard.is_resting("p")
    assert guard.is_suspended("p")
    assert ok(guard) == 42
    assert not guard.is_suspended("p")


def test_a_trial_that_never_began_leaves_its_place_to_the_next(guard, clock, monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    fails(guard)
    guard.close()  # no idle thread is left
    clock.advance(30_000)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        resting(guard)
    assert ok(guard) == 42


def test_becoming_suspended_is_logged_once(guard, clock, caplog):
    fails(guard)
    for _ in range(3):
        clock.advance(600_000)
        fault(guard, raises(ValueError("x")))
    assert caplog.text.count("is suspended") == 1
