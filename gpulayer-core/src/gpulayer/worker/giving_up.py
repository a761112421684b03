"""When a worker keeps waiting no longer for a control plane whose disk is full, and removes what it has to send.

Else two that share a disk may stand still for good: what a job wrote fills it, the control plane has no room to take
that, and as long as it is not taken the worker keeps it. So what a node made is given up after 20 s, and its
log after 40 s, where the node has failed for want of room: its outputs are not what they were to be, and its end
says that they are gone. What a program made that ended well waits for as long as it takes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gpulayer.plugins.contracts.launcher import LaunchSite
from gpulayer.worker.folders import emptied

__all__ = ["LOG_PATIENCE_MS", "OUTPUTS_PATIENCE_MS", "GivingUp", "clear_made"]

OUTPUTS_PATIENCE_MS: Final = 20_000
LOG_PATIENCE_MS: Final = 40_000  # there may be room for it once the outputs are gone


@dataclass(slots=True)
class GivingUp:
    """Call it each time that the control plane had no room: whether that was the last one. has_failed: for want of
    room, asked each time."""

    now_ms: Callable[[], int]
    has_failed: Callable[[], bool]
    patience_ms: int
    since_ms: int | None = None
    is_over: bool = False

    def __call__(self) -> bool:
        if not self.has_failed():
            self.since_ms = None
            return False
        now_ms = self.now_ms()
        if self.since_ms is None:
            self.since_ms = now_ms
        self.is_over = now_ms - self.since_ms >= self.patience_ms
        return self.is_over


def clear_made(site: LaunchSite) -> None:
    """All that the program has written. Blocks. Raises OSError."""
    for folder in (site.work_dir, site.output_dir):
        emptied(folder)
