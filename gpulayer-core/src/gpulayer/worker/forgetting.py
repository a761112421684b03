"""Removing what nobody wants any more: from the spawner first, then from the disk.

In this order, so that whoever is killed in between finds the folder, and asks the spawner again. What fails here is
left to the next start of the agent, which finds it.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from gpulayer.errors import GpulayerError
from gpulayer.faults import here
from gpulayer.spec.assignment import NodeKey
from gpulayer.worker.journal import Journal
from gpulayer.worker.spawner_link import SpawnerLink

__all__ = ["Forgetting"]

_log: Final = logging.getLogger(__name__)


class Forgetting:
    """Of one start of an agent. start: begins work of a name."""

    def __init__(
        self, link: SpawnerLink, folders: Journal, *, start: Callable[[Coroutine[Any, Any, None], str], object]
    ) -> None:
        self._link = link
        self._folders = folders
        self._start = start
        self._unwanted: list[NodeKey] = []

    def forget(self, key: NodeKey) -> None:
        """A node that has ended, with all that is kept of it."""
        self._unwanted.append(key)
        if len(self._unwanted) == 1:
            self._start(self._delete(), "forgetting")

    def clear(self, key: str, *, is_running: bool) -> None:
        """What the spawner knows and no folder tells of. While it runs it is killed, and its end clears it."""
        self._start(self._clear(key, is_running=is_running), f"clearing {key}")

    async def _delete(self) -> None:
        """All that was forgotten in one turn: one report's answer is the end of many tiny jobs."""
        await asyncio.sleep(0)
        keys, self._unwanted = self._unwanted, []
        here("agent.before_forget")
        try:
            await self._link.forget_all([str(key) for key in keys])
        except GpulayerError as error:
            _log.warning("forgetting %s: %s", ", ".join(map(str, keys)), error.message)
            return  # the folders stay: the next start finds both again
        here("agent.before_delete")
        left = [key for key in keys if not self._folders.put_by(key)]
        if left:
            await asyncio.to_thread(self._folders.forget_all, left)

    async def _clear(self, key: str, *, is_running: bool) -> None:
        try:
            if is_running:
                await self._link.kill(key)
            else:
                await self._link.forget(key)
        except GpulayerError as error:
            _log.warning("left-over %s in the spawner: %s", key, error.message)
