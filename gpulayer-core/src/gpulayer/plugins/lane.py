"""Daemon threads for calls that may never return: a bounded number at a time, handed on while they are idle.

``concurrent.futures`` won't do: its threads are waited for when the interpreter ends, so one hung call would keep the
process from ever ending. A slot is given back by the thread itself, when the call has really ended, and not when
somebody stops waiting for it.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Final

__all__ = ["Lane"]

_log: Final = logging.getLogger(__name__)
_IDLE_S: Final = 30.0

Work = Callable[[], None]


class Lane:
    """``run`` never blocks; work that finds no slot waits for one, in order. ``work`` must not raise."""

    def __init__(self, slots: int, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._free = slots
        self._waiting: deque[Work] = deque()
        self._idle = 0
        self._handed: SimpleQueue[Work | None] = SimpleQueue()
        self._is_closed = False

    def run(self, work: Work) -> None:
        """Have it done, now or when a slot is free. Raises RuntimeError where the system gives no more threads."""
        with self._lock:
            if not self._free:
                self._waiting.append(work)
                return
            self._free -= 1
            if self._idle:
                self._idle -= 1
                self._handed.put(work)
                return
        try:
            threading.Thread(target=self._serve, args=(work,), name=self._name, daemon=True).start()
        except RuntimeError:
            with self._lock:
                self._free += 1
            raise

    @property
    def is_free(self) -> bool:
        """Whether work would not have to wait."""
        with self._lock:
            return self._free > 0

    def close(self) -> None:
        """Let idle threads end, and others when their work has."""
        with self._lock:
            self._is_closed = True
            self._waiting.clear()
            for _ in range(self._idle):
                self._handed.put(None)
            self._idle = 0

    def _serve(self, work: Work | None) -> None:
        while work is not None:
            try:
                work()
            except BaseException:
                _log.exception("%s: work that must not raise did", self._name)
            work = self._next()

    def _next(self) -> Work | None:
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
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
