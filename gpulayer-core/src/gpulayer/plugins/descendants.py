"""What a process has started, and whatever that has: so that all of it can be ended. Where the kernel does not hand
orphans on (it does on Linux), those are not found."""

import os
import signal
import sys
from collections.abc import Sequence
from typing import Final

__all__ = ["adopt_orphans", "end_with", "kill_all_below", "listed"]

_NAMES_SHOWN: Final = 5
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36


def adopt_orphans() -> None:
    """Orphans among the descendants become children of this process, whatever session they are in."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_with(parent: int) -> None:
    """This process, a fork, is killed when its parent has ended."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def kill_all_below(pid: int | None = None) -> list[str]:
    """Of this process, or of that one. The names of those that still ran. Blocks for some seconds at most."""
    import psutil  # noqa: PLC0415 - only those need it that have something to end

    names: list[str] = []
    for _ in range(3):
        try:
            below = psutil.Process(pid).children(recursive=True)
        except psutil.Error:
            break
        for process in below:
            try:
                if process.status() != psutil.STATUS_ZOMBIE:
                    names.append(process.name())
                process.kill()
            except psutil.Error:
                pass
        if not below or not psutil.wait_procs(below, timeout=1)[1]:
            break
    return names


def listed(names: Sequence[str]) -> str:
    """For people."""
    return ", ".join(names[:_NAMES_SHOWN]) + (" and more" if len(names) > _NAMES_SHOWN else "")


def _prctl(option: int, value: int) -> None:
    """prctl(2); nothing where there is none."""
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415 - half a megabyte, and only Linux needs it

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
