"""Hide this process from the other processes of its user: they can neither read its memory and variables nor trace it.

For processes that hold tokens or run beside jobs. Linux alone; root and CAP_SYS_PTRACE see everything anyway. What it
costs: the process's files in /proc belong to root, it leaves no core dump, and a debugger or profiler has to be root's.
A program that it starts is visible again: an exec undoes it, a fork does not. prctl(2), PR_SET_DUMPABLE; ptrace(2).
"""

import sys
from typing import Final

__all__ = ["hide_process"]

_PR_SET_DUMPABLE: Final = 4


def hide_process() -> bool:
    """Until this process ends or becomes another program. False where the system has no such thing."""
    if sys.platform != "linux":
        return False
    import ctypes  # noqa: PLC0415 - half a megabyte, and only Linux needs it

    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) == 0)
