"""What of a simulated host can be stopped by itself."""

from enum import StrEnum
from typing import Final

__all__ = ["EVERYTHING", "Part"]


class Part(StrEnum):
    """``programs``: all that it started."""

    AGENT = "agent"
    SPAWNER = "spawner"
    WATCHDOG = "watchdog"
    PROGRAMS = "programs"


EVERYTHING: Final = tuple(Part)
