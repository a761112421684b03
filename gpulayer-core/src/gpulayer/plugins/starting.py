"""Loading plugins beside an event loop that may stop waiting for them: what one does at its import may never return.

An executor won't do: its threads are waited for when the loop ends. Whoever is told to end cancels the wait, and the
process ends in peace: no mark of a call stays, so no plugin is blamed for that.
"""

import asyncio
import threading
from collections.abc import Callable

from gpulayer.plugins.host import Host

__all__ = ["Abandoned", "load_beside"]


class Abandoned:
    """``then``: what to do when nobody waits any more, at once where that is so already. Safe in threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._acts: list[Callable[[], None]] = []
        self._is_so = False

    def then(self, act: Callable[[], None]) -> None:
        with self._lock:
            is_so = self._is_so
            if not is_so:
                self._acts.append(act)
        if is_so:
            act()

    def now(self) -> None:
        with self._lock:
            self._is_so = True
            acts, self._acts = self._acts, []
        for act in acts:
            act()


async def load_beside(load: Callable[[Abandoned], Host]) -> Host:
    """What ``load`` returns, in a daemon thread; or what it raises, also what would end the process. When this is
    cancelled, all that it has made by then, or makes later, is closed."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Host] = loop.create_future()
    abandoned = Abandoned()

    def settle(host: Host | None, error: BaseException | None) -> None:
        if answer.done():
            return
        if host is not None:
            answer.set_result(host)
        elif error is not None:
            answer.set_exception(error)

    def work() -> None:
        host, error = None, None
        try:
            host = load(abandoned)
            abandoned.then(host.close)
        except BaseException as raised:
            # What ends an iteration can't be the answer of a wait.
            error = RuntimeError(repr(raised)) if isinstance(raised, StopIteration) else raised
        try:
            loop.call_soon_threadsafe(settle, host, error)
        except RuntimeError:  # the loop has gone, and with it whoever waited
            abandoned.now()

    threading.Thread(target=work, name="gpulayer-plugins", daemon=True).start()
    try:
        return await answer
    except BaseException:
        abandoned.now()
        raise
