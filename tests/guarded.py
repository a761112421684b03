"""Calls of a plugin that a guard is to watch over: good ones, bad ones, and those that take long."""

import threading
import time
from contextlib import contextmanager

import pytest

from gpulayer.errors import Blame, PluginFault, PluginResting

__all__ = ["all_slots_taken", "fails", "fault", "ok", "raises", "resting", "wait_until"]


def raises(error):
    def work():
        raise error

    return work


def fault(guard, work, **more):
    with pytest.raises(PluginFault) as caught:
        guard.call("p", "Probe.look", work, **{"deadline_s": 10.0, **more})
    assert caught.value.blame is Blame.PLUGIN
    rests = {"rest_ms"} if isinstance(caught.value, PluginResting) else set()
    assert caught.value.details.keys() == {"plugin", "hook", *rests}
    assert (caught.value.details["plugin"], caught.value.details["hook"]) == ("p", "Probe.look")
    return caught.value.message


def ok(guard, hook="Probe.look", thing=""):
    return guard.call("p", hook, lambda: 42, deadline_s=10.0, thing=thing)


def fails(guard, **more):
    """Three times, so that it rests."""
    for _ in range(3):
        fault(guard, raises(ValueError("x")), **more)


def resting(guard, **more):
    with pytest.raises(PluginResting) as caught:
        ok(guard, **more)
    return caught.value


def wait_until(is_so):
    deadline = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@contextmanager
def all_slots_taken(guard, *, count=8, **more):
    """By calls that nobody blames: they may take as long as they do."""
    gate, began = threading.Event(), threading.Semaphore(0)

    def work():
        began.release()
        gate.wait(10)

    calls = [
        threading.Thread(target=lambda: guard.call("p", "Probe.look", work, deadline_s=60.0, **more))
        for _ in range(count)
    ]
    for one in calls:
        one.start()
    for _ in range(min(count, 8)):
        assert began.acquire(timeout=10)
    try:
        yield gate
    finally:
        gate.set()
        for one in calls:
            one.join(10)
