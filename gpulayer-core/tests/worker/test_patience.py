"""When a plugin is asked again for an attempt."""

import asyncio

import pytest

from gpulayer.clock import ManualClock
from gpulayer.errors import PluginFault, PluginResting
from gpulayer.plugins import StageFailed
from gpulayer.plugins.registry import Registered
from gpulayer.worker import patience as module
from gpulayer.worker.patience import Patience

ONE, OTHER = Registered("fs", "s3", "s3", "stager"), Registered("fs", "gs", "gs", "stager")


@pytest.fixture
def world(host_of):
    """``clock, patience, ask``; ``ask(error)`` has a call raise it, or return."""
    clock = ManualClock()
    patience = Patience(host_of(clock=clock), clock)

    def ask(error=None, *, registered=ONE):
        def work(thing):
            if error is not None:
                raise error
            return thing

        return asyncio.run(patience.acall(registered, "Stager.fetch", work, deadline_s=30.0, passes=(StageFailed,)))

    return clock, patience, ask


@pytest.mark.parametrize("error", [OSError("down"), StageFailed("down", is_users=False)], ids=str)
def test_after_failures_in_a_row_it_is_left_alone_for_longer_and_longer(world, error):
    clock, _, ask = world
    for pause_ms in (1_000, 5_000):
        with pytest.raises((PluginFault, StageFailed)) as failed:
            ask(error)
        assert not isinstance(failed.value, PluginResting)
        clock.advance(pause_ms - 1)
        with pytest.raises(PluginResting, match="it has just failed"):
            ask()
        clock.advance(1)
    with pytest.raises((PluginFault, StageFailed)):
        ask(error)
    clock.advance(29_999)
    with pytest.raises(PluginResting):
        ask()


def test_what_works_again_is_forgiven_and_the_users_own_mistakes_are_no_failures(world):
    clock, _, ask = world
    with pytest.raises(PluginFault):
        ask(OSError("down"))
    clock.advance(1_000)
    assert ask() == "s3"
    for _ in range(5):
        with pytest.raises(StageFailed):
            ask(StageFailed("there is no such object"))
    with pytest.raises(PluginFault):
        ask(OSError("down"))
    clock.advance(1_000)
    assert ask() == "s3"


def test_another_thing_of_the_same_plugin_is_asked_all_the_same(world):
    _, _, ask = world
    with pytest.raises(PluginFault):
        ask(OSError("down"))
    assert ask(registered=OTHER) == "gs"


def test_calls_that_fail_side_by_side_are_one_trouble(world):
    clock, patience, ask = world

    async def fail():
        with pytest.raises(PluginFault):
            await patience.acall(ONE, "Stager.fetch", lambda thing: 1 / 0, deadline_s=30.0)

    async def main():
        await asyncio.gather(fail(), fail())

    asyncio.run(main())
    clock.advance(1_000)
    assert ask() == "s3"


def test_who_waits_is_let_go_on_when_it_may_be_asked_and_what_is_never_is_a_fault_in_the_end(world, monkeypatch):
    clock, patience, ask = world
    monkeypatch.setattr(module, "_LOOK_S", 0.001)
    with pytest.raises(PluginFault):
        ask(OSError("down"))
    with pytest.raises(PluginResting) as resting:
        ask()

    async def waits(is_busy):
        waiting = asyncio.create_task(patience.until_free(ONE, resting.value, who="job", is_busy=is_busy))
        await asyncio.wait([waiting], timeout=0.02)
        assert not waiting.done()
        clock.advance(3_600_000)
        await waiting

    asyncio.run(waits(lambda: False))
    with pytest.raises(PluginFault, match="for an hour"):
        asyncio.run(waits(lambda: True))
