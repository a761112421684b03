"""Time as a parameter.

Two clocks are told apart everywhere: ``monotonic_ms`` runs through suspend and decides leases, deadlines and
retries; ``wall_ms`` is for people to read and decides nothing.
"""

import time
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

__all__ = ["Clock", "Instant", "ManualClock", "SystemClock", "iso_utc", "suspended_ms"]


# CLOCK_BOOTTIME counts suspended time on Linux; CLOCK_MONOTONIC_RAW is the continuous clock of macOS.
_CONTINUOUS: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC_RAW", None))


class Instant(NamedTuple):
    """A point in engine time (``ms``, decides) and what a wall clock said then (``wall_ms``, is shown)."""

    ms: int
    wall_ms: int


class Clock(Protocol):
    """Both times of this machine: the one that decides, and the one that people read."""

    def monotonic_ms(self) -> int:
        """Milliseconds that never go back and that count the time a machine is suspended."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC; may jump."""
        ...


class SystemClock:
    """The machine's own clocks: CLOCK_BOOTTIME on Linux, the continuous clock on macOS."""

    def monotonic_ms(self) -> int:
        if _CONTINUOUS is None:
            return time.monotonic_ns() // 1_000_000
        return time.clock_gettime_ns(_CONTINUOUS) // 1_000_000

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


def suspended_ms() -> int:
    """How long this machine has been suspended since it started; 0 where the system does not tell. It grows by what a
    suspend took, and by a millisecond or so of noise."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    if boottime is None:
        return 0
    return (time.clock_gettime_ns(boottime) - time.clock_gettime_ns(time.CLOCK_MONOTONIC)) // 1_000_000


@dataclass(slots=True)
class ManualClock:
    """A clock that moves only when told to; for tests and the simulator."""

    now_ms: int = 0
    wall_offset_ms: int = 1_700_000_000_000

    def monotonic_ms(self) -> int:
        return self.now_ms

    def wall_ms(self) -> int:
        return self.now_ms + self.wall_offset_ms

    def advance(self, ms: int) -> None:
        """Raises ValueError for a step back."""
        if ms < 0:
            raise ValueError("a monotonic clock can't go back")
        self.now_ms += ms


def iso_utc(wall_ms: int | None) -> str | None:
    """``2026-11-30T05:27:00.123Z``, or None for None; the form of every time in records."""
    if wall_ms is None:
        return None
    seconds, ms = divmod(wall_ms, 1000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{ms:03d}Z"
