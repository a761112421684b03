"""What happens to a machine's network without anybody's word: it slept, or it has other addresses now.

Looked at every few seconds, since no timer of a process runs while the machine sleeps. It only asks the system; what
follows from it is the agent's.
"""

from collections.abc import Callable, Sequence
from typing import Final

from gpulayer.clock import suspended_ms
from gpulayer.net.interfaces import interface_addresses, is_for_others

__all__ = ["LOOK_EVERY_S", "NetworkWatch"]

LOOK_EVERY_S: Final = 5.0
_SLEPT_MS: Final = 1_000


class NetworkWatch:
    """Both parameters are the system's own words, for tests to replace."""

    def __init__(
        self,
        *,
        suspended_ms: Callable[[], int] = suspended_ms,
        addresses: Callable[[], Sequence[str]] = interface_addresses,
    ) -> None:
        self._suspended_ms = suspended_ms
        self._look = addresses
        self._suspended = suspended_ms()
        self.addresses: Sequence[str] = addresses()

    def look(self, *, own: str) -> str:
        """Why no open connection is of use any more; empty where nothing is wrong with them.

        own: this machine's end of the connections that there are.
        """
        suspended, before = self._suspended_ms(), self.addresses
        slept_ms, self._suspended = suspended - self._suspended, suspended
        self.addresses = self._look()
        if slept_ms >= _SLEPT_MS:
            return f"this machine slept for {slept_ms / 1000:.0f} s"
        own = is_for_others(own)
        if own in before and own not in self.addresses:
            return f"this machine does not have the address {own} any more"
        return ""
