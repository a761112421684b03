"""Several processes that die at one moment, as they do with their machine.

One after another they would see each other die, and act on it: a spawner whose watchdog is gone ends its trees. So all
are stopped first; a stopped process acts on nothing, and dies of SIGKILL all the same.
"""

import os
import signal
from collections.abc import Iterable

__all__ = ["kill_together", "stop_together"]


def kill_together(pids: Iterable[int]) -> None:
    """With -9. Those that are gone already are left out."""
    for pid in stop_together(pids):
        _signal(pid, signal.SIGKILL)


def stop_together(pids: Iterable[int]) -> list[int]:
    """SIGSTOP to each. Returns those that were there."""
    return [pid for pid in pids if _signal(pid, signal.SIGSTOP)]


def _signal(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
