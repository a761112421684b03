"""Processes that tests end: one, or several at one moment, as they die with their machine.

One after another they would see each other die, and act on it: a spawner whose watchdog is gone ends its trees. So all
are stopped first; a stopped process acts on nothing, and dies of SIGKILL all the same.
"""

import os
import signal
import time
from collections.abc import Iterable

from gpulayer.spawner import tree

__all__ = ["end_one", "is_alive", "kill_together", "stop_together"]


def kill_together(pids: Iterable[int]) -> None:
    """With -9. Those that are gone already are left out."""
    for pid in stop_together(pids):
        _signal(pid, signal.SIGKILL)


def stop_together(pids: Iterable[int]) -> list[int]:
    """SIGSTOP to each. Returns those that were there."""
    return [pid for pid in pids if _signal(pid, signal.SIGSTOP)]


def is_alive(pid: int) -> bool:
    """A zombie is dead."""
    seen = tree.process(pid)
    return seen is not None and not seen.is_dead


def end_one(pid: int) -> None:
    """With -9; it is dead when this returns. One that is gone already is left out."""
    if is_alive(pid):
        _signal(pid, signal.SIGKILL)
    ends = time.monotonic() + 10
    while is_alive(pid):
        assert time.monotonic() < ends, f"process {pid} can't be killed"
        time.sleep(0.001)


def _signal(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
