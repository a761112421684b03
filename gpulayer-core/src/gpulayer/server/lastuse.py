"""When tokens were last used is kept in memory, to the minute, and written now and then: never a commit a request.

A control plane that is killed forgets at most what a minute brought.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from gpulayer.errors import GpulayerError
from gpulayer.server.store import Side

if TYPE_CHECKING:
    from gpulayer.server.plane import Plane

__all__ = ["keep_saving", "save_uses"]

_EVERY_S: Final = 60.0

_log = logging.getLogger(__name__)


async def keep_saving(plane: "Plane", *, every_s: float = _EVERY_S) -> None:
    """Save about once a minute until cancelled."""
    while True:
        await asyncio.sleep(every_s)
        await save_uses(plane)


async def save_uses(plane: "Plane") -> None:
    """Write the uses that are not durable yet. What can't be written now is kept for the next time."""
    async with plane.enrolling:  # whole rows are written: no other change of them may be on its way
        rows = plane.auth.used_tokens()
        if not rows:
            return
        try:
            await plane.driver.submit(side=Side(tokens=tuple(rows)))
        except GpulayerError as error:
            _log.warning("the last uses of tokens were not saved: %s", error.message)
            return
        plane.auth.saved(rows)
