"""How many files may be open: a control plane has one for each connection, what it starts gets what is usual."""

import resource
import sys

__all__ = ["give_file_limit", "raise_file_limit"]


def raise_file_limit() -> tuple[int, int]:
    """Let this process have as many open files as the system allows: each connection is one. The limits before."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    except (ValueError, OSError):
        pass  # macOS says "unlimited" and means less
    return before


def give_file_limit(pid: int, limits: tuple[int, int]) -> None:
    """What another process of this user may have open; programs that it starts get the same. Linux only."""
    if sys.platform == "linux":
        try:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        except (ProcessLookupError, PermissionError):
            pass
