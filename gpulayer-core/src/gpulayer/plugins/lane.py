"""Daemon threads for calls that may never return: a bounded number at a time, handed on while they are idle.

``concurrent.futures`` won't do: its threads are waited for when the interpreter ends, so one hung call would keep the
process from ever ending. A slot is given back by the thread itself, when the call has really ended, and not when
somebody stops waiting for it.
"""

import logging
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Final

__all__ = ["Lane"]

_log: Final = logging.getLogger(__name__)
_IDLE_S: Final = 30.0

Work = Callable[[], None]


class Lane:
    """``run`` never blocks; work that finds no slot waits for one, in order. ``work`` must not raise, and nothing of it
    is kept once it is done: it may hold much."""

    def __init__(self, slots: int, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._free = slots
        self._waiting: dict[Work, Callable[[], None]] = {}  # in order, with what tells that it never comes
        self._idle = 0
        self._handed: SimpleQueue[Work | None] = SimpleQueue()
        self._is_closed = False

    def run(self, work: Work, *, dropped: Callable[[], None] = lambda: None) -> None:
        """Have it done, now or when a slot is free. dropped: called when it waits and the lane is closed. Raises
        RuntimeError where the system gives no more threads."""
        with self._lock:
            if not self._free and not self._is_closed:
                self._waiting[work] = dropped
                return
            has_slot = self._free > 0
            if has_slot:
                self._free -= 1
                if self._idle:
                    self._idle -= 1
                    self._handed.put(work)
                    return
        if has_slot:
            self._start(work)
        else:
            dropped()

    def forget(self, work: Work) -> None:
        """It need not be done any more; nothing happens where it has begun."""
        with self._lock:
            self._waiting.pop(work, None)

    @property
    def is_free(self) -> bool:
        """Whether work would not have to wait."""
        with self._lock:
            return self._free > 0

    def close(self) -> None:
        """Let idle threads end, and others when their work has; what waits is dropped."""
        with self._lock:
            self._is_closed = True
            waiting, self._waiting = self._waiting, {}
            for _ in range(self._idle):
                self._handed.put(None)
            self._idle = 0
        for dropped in waiting.values():
            dropped()

    def _start(self, work: Work) -> None:
        try:
            # A thread keeps its arguments until it ends, so the work is in something that it is taken out of.
            threading.Thread(target=self._serve, args=([work],), name=self._name, daemon=True).start()
        except RuntimeError:
            with self._lock:
                self._free += 1
            raise

    def _serve(self, first: list[Work]) -> None:
        work: Work | None = first.pop()
        while work is not None:
            try:
                work()
            except BaseException:
                _log.exception("%s: work that must not raise did", self._name)
            work = None
            work = self._next()

    def _next(self) -> Work | None:
        with self._lock:
            if self._waiting:
                work = next(iter(self._waiting))
                del self._waiting[work]
                return work
            self._free += 1
            if self._is_closed:
                return None
            self._idle += 1
        try:
            return self._handed.get(timeout=_IDLE_S)
        except Empty:
            with self._lock:
                if self._idle:
                    self._idle -= 1
                    return None
        return self._handed.get()  # it was handed over at this very moment
