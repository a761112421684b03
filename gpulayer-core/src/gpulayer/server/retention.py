"""What does not stay for ever: logs and secrets of jobs that ended long ago (their records stay), tokens that expired
more than a day ago, idempotency keys after a week, and the log of events, with the facts of workers that only it names.
A slow sweep removes them.

It looks at what lies in the folder, some jobs at a time and in threads, so that the loop never waits for it and a
sweep that was cut short is finished by the next: while a backup is made it takes nothing away. A job's time counts from
its end, by the wall clock as far as that is believed (``kept_time``). What is deleted
from the store is deleted a little at a time, between other commits: no heartbeat waits for it. The file does not become
smaller by it; its free pages are used again.
"""

import asyncio
import logging
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final

from gpulayer.errors import GpulayerError
from gpulayer.ids import Digest
from gpulayer.server.store import IDEMPOTENCY_KEPT_MS, Side, log, reads

if TYPE_CHECKING:
    from gpulayer.server.plane import Plane

__all__ = ["NamedFacts", "keep_sweeping", "sweep", "sweep_events", "sweep_keys", "sweep_tokens"]

_FIRST_S: Final = 60.0
_EVERY_S: Final = 3600.0
_LEAST_S: Final = 1.0
_PAUSE_S: Final = 0.2
_AT_A_TIME: Final = 200
_EVENTS_AT_A_TIME: Final = 1_000
_EVENTS_PAUSE_S: Final = 0.05
_READ_AT_A_TIME: Final = 5_000

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class NamedFacts:
    """What the log names, as far as it was read: digests of facts, and the last row that names each. upto: the last row
    that was read. Of one control plane; it only spares the next sweep a reading."""

    last: dict[Digest, int] = field(default_factory=dict)
    upto: int = 0

    def forget(self, upto: int) -> None:
        """These rows are gone."""
        self.last = {digest: seq for digest, seq in self.last.items() if seq > upto}


async def keep_sweeping(plane: "Plane", *, first_s: float = _FIRST_S, every_s: float = _EVERY_S) -> None:
    """Sweep now and then until cancelled. What can't be removed is tried again the next time."""
    wait_s, named = first_s, NamedFacts()
    while True:
        plane.kept_time.now_ms()
        await plane.in_thread(plane.kept_time.save)
        kept = (plane.settings.keep_logs_ms, plane.settings.keep_events_ms)
        await asyncio.sleep(min(wait_s, *(max(ms / 1000, _LEAST_S) for ms in kept if ms)))
        try:
            await sweep(plane)
        except GpulayerError as error:
            _log.warning("old logs were not removed: %s", error.message)
        try:
            await sweep_tokens(plane)
        except GpulayerError as error:
            _log.warning("expired tokens were not removed: %s", error.message)
        try:
            await sweep_keys(plane)
            await sweep_events(plane, named=named)
        except GpulayerError as error:
            _log.warning("old events were not removed: %s", error.message)
        wait_s = every_s


async def sweep(plane: "Plane") -> int:
    """One round over logs and secrets; how many jobs lost their logs. Raises StorageUnavailable, DiskFull."""
    if not plane.settings.keep_logs_ms:
        return 0
    removed = 0
    # A listing of its own, because the folder changes under it; ids are small.
    held = iter(await plane.in_thread(lambda: list(plane.logs.held())))
    while page := list(islice(held, _AT_A_TIME)):
        now_ms = plane.kept_time.now_ms()
        for job_id in await plane.query(reads.ended_before, page, now_ms - plane.settings.keep_logs_ms):
            async with plane.removing:
                if plane.is_backed_up:
                    return removed
                await plane.in_thread(plane.logs.remove, job_id, wall_ms=now_ms)
            removed += 1
        await asyncio.sleep(_PAUSE_S if removed else 0)
    await _sweep_secrets(plane)
    return removed


async def sweep_tokens(plane: "Plane") -> int:
    """Forget the tokens that expired more than a day ago; how many. Raises StorageUnavailable, DiskFull."""
    async with plane.enrolling:  # no change of such a row may be on its way: it would bring the row back
        ended = tuple(plane.auth.ended_tokens(plane.kept_time.now_ms()))
        if ended:
            await plane.driver.submit(side=Side(forget_tokens=ended))
            plane.auth.forget_tokens(ended)
    return len(ended)


async def sweep_keys(plane: "Plane") -> None:
    """Forget the idempotency keys that have had their time. Raises StorageUnavailable, DiskFull."""
    before_ms = plane.kept_time.now_ms() - IDEMPOTENCY_KEPT_MS
    while await plane.query(log.has_keys_before, wall_ms=before_ms):
        await plane.driver.submit(side=Side(forget_idempotency_ms=before_ms))
        await asyncio.sleep(_EVENTS_PAUSE_S)


async def sweep_events(plane: "Plane", *, named: NamedFacts | None = None) -> int:
    """Forget the events that are old enough, and what only they name; how many rows were looked at last. An event that
    a sink has not been told is kept for as long again, and no longer: a sink may be gone for good. Raises
    StorageUnavailable, DiskFull."""
    keep_ms = plane.settings.keep_events_ms
    if not keep_ms:
        return 0
    upto = 0
    while True:
        now_ms = plane.kept_time.now_ms()
        cursors = (await plane.query(log.read_sink_cursors)).values()
        old = await plane.query(log.oldest_until, before_wall_ms=now_ms - keep_ms, limit=_EVENTS_AT_A_TIME)
        if old and cursors and min(cursors) < old:
            very_old = await plane.query(log.oldest_until, before_wall_ms=now_ms - 2 * keep_ms, limit=_EVENTS_AT_A_TIME)
            old = max(very_old, min(cursors))
        if old <= upto:
            break
        upto = old
        await plane.driver.submit(side=Side(forget_events=upto))
        await asyncio.sleep(_EVENTS_PAUSE_S)
    if upto:
        await _sweep_facts(plane, named or NamedFacts(), forgotten=upto)
    return upto


async def _sweep_facts(plane: "Plane", named: NamedFacts, *, forgotten: int) -> None:
    named.forget(forgotten)
    while True:
        found, seen = await plane.query(log.named_facts, after=max(named.upto, forgotten), limit=_READ_AT_A_TIME)
        named.last.update(found)
        if seen <= max(named.upto, forgotten):
            break
        named.upto = seen
        await asyncio.sleep(_EVENTS_PAUSE_S)
    unnamed = await plane.query(log.unnamed_facts, named.last)
    for start in range(0, len(unnamed), _AT_A_TIME):
        some = tuple(unnamed[start : start + _AT_A_TIME])
        await plane.driver.submit(side=Side(forget_facts=some, facts_after=seen))
        await asyncio.sleep(_EVENTS_PAUSE_S)


async def _sweep_secrets(plane: "Plane") -> None:
    """A job that printed nothing has no log, but may have secrets: they are looked for by themselves."""
    before_ms = plane.kept_time.now_ms() - plane.settings.keep_logs_ms
    while ended := await plane.query(reads.secrets_ended_before, before_ms, limit=_AT_A_TIME):
        await plane.driver.submit(side=Side(forget_secrets=tuple(ended)))
        await asyncio.sleep(_PAUSE_S)
