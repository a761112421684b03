"""What became of this worker's plugins, as the control plane is told: with a session's first report, and on change."""

import asyncio
from collections.abc import Callable
from typing import Final

from gpulayer.plugins.host import Host
from gpulayer.plugins.record import PluginRecord

__all__ = ["PluginRecords"]

_LOOK_EVERY_S: Final = 1.0


class PluginRecords:
    """Of one start of an agent."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._records: tuple[PluginRecord, ...] = ()
        self._told: tuple[PluginRecord, ...] | None = None

    @property
    def untold(self) -> tuple[PluginRecord, ...] | None:
        """For the next report; None where the control plane knows them."""
        return None if self._records == self._told else self._records

    def was_told(self, records: tuple[PluginRecord, ...] | None) -> None:
        """They have arrived: what was ``untold`` then."""
        self._told = records or self._told

    def tell_anew(self) -> None:
        """The control plane may be one that knows none."""
        self._told = None

    async def look(self) -> bool:
        """True where they have changed. They come from the disk, too, which may be a slow one."""
        before, self._records = self._records, await asyncio.to_thread(self._host.records)
        return before != self._records

    async def watch(self, tell: Callable[[], None]) -> None:
        """Until cancelled. tell: called on each change."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            if await self.look():
                tell()
