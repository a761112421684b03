"""When a plugin is asked again for an attempt: not while it rests, and a growing while after it has failed.

What is not asked now says nothing of an attempt, which then waits. What has failed ended one attempt; the next ones
shall not be spent on the same trouble within the same second, here where they are placed again.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from gpulayer.clock import Clock
from gpulayer.errors import PluginFault, PluginResting
from gpulayer.plugins.guard import Life
from gpulayer.plugins.host import Host
from gpulayer.plugins.registry import Registered

__all__ = ["Patience"]

_log: Final = logging.getLogger(__name__)
_PAUSES_MS: Final = (1_000, 5_000, 30_000)  # by failures in a row
_AT_MOST_MS: Final = 3_600_000
_LOOK_S: Final = 0.5

T = TypeVar("T")
R = TypeVar("R")
_Key = tuple[str, str]


@dataclass(slots=True)
class _Pause:
    failures: int = 0
    since_ms: int = 0
    until_ms: int = 0


class Patience:
    """Of one process, whichever agent asks. Not for threads. pauses_ms: after one failure, after two in a row, …"""

    def __init__(self, host: Host, clock: Clock, *, pauses_ms: tuple[int, ...] = _PAUSES_MS) -> None:
        self._host = host
        self._clock = clock
        self._pauses_ms = pauses_ms
        self._pauses: dict[_Key, _Pause] = {}

    async def acall(
        self,
        registered: Registered[T],
        method: str,
        ask: Callable[[T], R],
        *,
        deadline_s: float,
        passes: tuple[type[Exception], ...] = (),
        life: Life | None = None,
    ) -> R:
        """``Host.acall``; PluginResting also soon after a failure. An answer that says ``is_users=False`` is one."""
        began_ms = self._clock.monotonic_ms()
        pause = self._pauses.setdefault(_key(registered), _Pause())
        if began_ms < pause.until_ms:
            raise PluginResting(
                f"plugin {registered.plugin} is not asked ({method}): it has just failed",
                hint=f"it is asked again in {-(-(pause.until_ms - began_ms) // 1000)} s",
                details={"plugin": registered.plugin, "hook": method},
            )
        try:
            result = await self._host.acall(registered, method, ask, deadline_s=deadline_s, passes=passes, life=life)
        except PluginResting:
            raise
        except PluginFault:
            self._failed(pause, began_ms)
            raise
        except passes as error:
            if getattr(error, "is_users", True) is False:
                self._failed(pause, began_ms)
            raise
        pause.failures = pause.until_ms = 0
        return result

    async def until_free(
        self,
        registered: Registered[Any],  # Any: of any kind
        why: PluginResting,
        *,
        who: str,
        is_busy: Callable[[], bool] = lambda: False,
    ) -> None:
        """Returns when it may be asked again, which is said once: ``who`` waits for what, and why. is_busy: what
        else is waited for. Raises PluginFault where that takes too long: then others may be luckier elsewhere."""
        again = why.hint.partition(";")[0]
        _log.info("%s waits: %s%s", who, why.message, f"; {again}" if again else "")
        end_ms = self._clock.monotonic_ms() + _AT_MOST_MS
        # Once at least: what was not asked for want of a thread is not asked again at once.
        await asyncio.sleep(_LOOK_S)
        while self._is_paused(registered) or self._host.is_resting(registered) or is_busy():
            if self._clock.monotonic_ms() >= end_ms:
                raise PluginFault(f"{why.message}, and was not for an hour", hint=why.hint, details=why.details)
            await asyncio.sleep(_LOOK_S)

    def _is_paused(self, registered: Registered[Any]) -> bool:
        pause = self._pauses.get(_key(registered))
        return pause is not None and self._clock.monotonic_ms() < pause.until_ms

    def _failed(self, pause: _Pause, began_ms: int) -> None:
        now_ms = self._clock.monotonic_ms()
        if pause.failures and began_ms <= pause.since_ms:
            return  # it was on its way when another failed: the same trouble
        pause.failures += 1
        pause.since_ms = now_ms
        pause.until_ms = now_ms + self._pauses_ms[min(pause.failures, len(self._pauses_ms)) - 1]


def _key(registered: Registered[Any]) -> _Key:
    return registered.plugin, registered.key
