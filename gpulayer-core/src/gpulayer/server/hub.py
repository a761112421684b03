"""Wake-ups: who waits for a job, a worker's commands or more of a log is told that something changed.

A wake-up carries nothing; the waiter looks again. Watching begins before looking, so none is missed.
"""

import asyncio
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager

__all__ = ["Hub", "Watch"]


class Watch:
    """One waiter. ``clear`` before looking, ``wait`` after."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def clear(self) -> None:
        """Before looking at what is waited for, so that no wake is missed."""
        self._event.clear()

    async def wait(self) -> None:
        """Until woken; at once if it was since ``clear``."""
        await self._event.wait()

    def wake(self) -> None:
        self._event.set()


class Hub:
    """Watches by key. Used from the event loop's thread alone."""

    def __init__(self) -> None:
        self._watches: dict[Hashable, set[Watch]] = {}

    @contextmanager
    def watching(self, *keys: Hashable) -> Iterator[Watch]:
        """A watch that any of the keys wakes, for as long as the context is open."""
        watch = Watch()
        for key in keys:
            self._watches.setdefault(key, set()).add(watch)
        try:
            yield watch
        finally:
            for key in keys:
                self._drop(key, watch)

    @contextmanager
    def waking(self, watch: Watch, key: Hashable) -> Iterator[None]:
        """This key wakes the watch, too, for as long as the context is open."""
        self._watches.setdefault(key, set()).add(watch)
        try:
            yield
        finally:
            self._drop(key, watch)

    def is_watched(self, key: Hashable) -> bool:
        """Whether anybody watches it now."""
        return key in self._watches

    def wake(self, keys: Iterable[Hashable]) -> None:
        """Keys that nobody watches cost nothing."""
        for key in keys:
            for watch in self._watches.get(key, ()):
                watch.wake()

    def wake_all(self) -> None:
        """For the end: every watch looks again."""
        self.wake(list(self._watches))

    def _drop(self, key: Hashable, watch: Watch) -> None:
        watches = self._watches[key]
        watches.discard(watch)
        if not watches:
            del self._watches[key]
