"""The spawner's only wait: readable and writable descriptors, and calls that are due later."""

import heapq
import itertools
import selectors
from collections.abc import Callable

__all__ = ["Reactor"]

Callback = Callable[[], object]


class Reactor:
    """Calls back from ``run_once``, on the caller's thread. ``now``: a monotonic clock in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self._selector = selectors.DefaultSelector()
        self._due: list[tuple[float, int, Callback]] = []
        self._order = itertools.count()

    def watch(self, fd: int, on_readable: Callback, on_writable: Callback | None = None) -> None:
        """Call back whenever ``fd`` is ready; replaces what was watched on it before."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if on_writable else 0)
        data = (on_readable, on_writable)
        if fd in self._selector.get_map():
            self._selector.modify(fd, events, data)
        else:
            self._selector.register(fd, events, data)

    def unwatch(self, fd: int) -> None:
        """Stop watching; before the descriptor is closed. May be repeated."""
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    def later(self, delay_s: float, callback: Callback) -> None:
        """Call once, ``delay_s`` from now. There is no cancelling: a callback looks whether it still has a purpose."""
        heapq.heappush(self._due, (self.now() + delay_s, next(self._order), callback))

    def run_once(self) -> None:
        """Wait for the next thing to happen, and do it."""
        timeout = max(0.0, self._due[0][0] - self.now()) if self._due else None
        for key, events in self._selector.select(timeout):
            # An earlier callback of this round may have unwatched it, or its number may be another's by now.
            if self._selector.get_map().get(key.fd) is not key:
                continue
            on_readable, on_writable = key.data
            if events & selectors.EVENT_WRITE and on_writable is not None:
                on_writable()
            if events & selectors.EVENT_READ and self._selector.get_map().get(key.fd) is key:
                on_readable()
        while self._due and self._due[0][0] <= self.now():
            heapq.heappop(self._due)[2]()

    def close(self) -> None:
        self._selector.close()
