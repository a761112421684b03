"""What does not stay for ever: logs and secrets of jobs that ended long ago (their records stay), and tokens that
expired more than a day ago. A slow sweep removes them.

It looks at what lies in the folder, some jobs at a time and in threads, so that the loop never waits for it and a
sweep that was cut short is finished by the next. A job's time counts from its end, by the wall clock.
"""

import asyncio
import logging
from itertools import islice
from typing import TYPE_CHECKING, Final

from gpulayer.errors import GpulayerError
from gpulayer.server.store import Side, reads

if TYPE_CHECKING:
    from gpulayer.server.plane import Plane

__all__ = ["keep_sweeping", "sweep", "sweep_tokens"]

_FIRST_S: Final = 60.0
_EVERY_S: Final = 3600.0
_PAUSE_S: Final = 0.2
_AT_A_TIME: Final = 200

_log = logging.getLogger(__name__)


async def keep_sweeping(plane: "Plane", *, first_s: float = _FIRST_S, every_s: float = _EVERY_S) -> None:
    """Sweep now and then until cancelled. What can't be removed is tried again the next time."""
    wait_s = first_s
    while True:
        keep_s = plane.settings.keep_logs_ms / 1000
        await asyncio.sleep(min(wait_s, keep_s) if keep_s else wait_s)
        try:
            await sweep(plane)
        except GpulayerError as error:
            _log.warning("old logs were not removed: %s", error.message)
        try:
            await sweep_tokens(plane)
        except GpulayerError as error:
            _log.warning("expired tokens were not removed: %s", error.message)
        wait_s = every_s


async def sweep(plane: "Plane") -> int:
    """One round over logs and secrets; how many jobs lost their logs. Raises StorageUnavailable, DiskFull."""
    if not plane.settings.keep_logs_ms:
        return 0
    removed = 0
    # A listing of its own, because the folder changes under it; ids are small.
    held = iter(await plane.in_thread(lambda: list(plane.logs.held())))
    while page := list(islice(held, _AT_A_TIME)):
        now_ms = plane.clock.wall_ms()
        for job_id in await plane.query(reads.ended_before, page, now_ms - plane.settings.keep_logs_ms):
            await plane.in_thread(plane.logs.remove, job_id, wall_ms=now_ms)
            removed += 1
        await asyncio.sleep(_PAUSE_S if removed else 0)
    await _sweep_secrets(plane)
    return removed


async def sweep_tokens(plane: "Plane") -> int:
    """Forget the tokens that expired more than a day ago; how many. Raises StorageUnavailable, DiskFull."""
    async with plane.enrolling:  # no change of such a row may be on its way: it would bring the row back
        ended = tuple(plane.auth.ended_tokens())
        if ended:
            await plane.driver.submit(side=Side(forget_tokens=ended))
            plane.auth.forget_tokens(ended)
    return len(ended)


async def _sweep_secrets(plane: "Plane") -> None:
    """A job that printed nothing has no log, but may have secrets: they are looked for by themselves."""
    before_ms = plane.clock.wall_ms() - plane.settings.keep_logs_ms
    while ended := await plane.query(reads.secrets_ended_before, before_ms, limit=_AT_A_TIME):
        await plane.driver.submit(side=Side(forget_secrets=tuple(ended)))
        await asyncio.sleep(_PAUSE_S)
