"""The only way into a plugin: a deadline, a type, a slot and a breaker around each call, and a note of what went wrong.

Nothing is retried here. A call that does not return keeps its slot until it does; when all slots of a hook are taken
by such calls, further ones wait, and fail at their own deadline. After some failures in a row a hook is not asked for
a while, which grows; the first call after that decides.
"""

import asyncio
import logging
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from gpulayer.clock import Clock
from gpulayer.errors import PluginFault
from gpulayer.plugins.lane import Lane
from gpulayer.plugins.record import Fault

__all__ = ["Guard", "Life"]

_log: Final = logging.getLogger(__name__)
_SLOTS: Final = 4
_FAULTS_KEPT: Final = 5
_BREAKS_AT: Final = 3
_REST_FIRST_MS: Final = 30_000
_REST_LAST_MS: Final = 600_000
_LINE: Final = 400

T = TypeVar("T")


class Life:
    """For a call that may take long as long as it shows signs of life: it ends ``silence_s`` after the last one."""

    def __init__(self, silence_s: float) -> None:
        self.silence_s = silence_s
        self._last_s = time.monotonic()

    def sign(self) -> None:
        """To be called by the call itself, from any thread."""
        self._last_s = time.monotonic()

    def left_s(self) -> float:
        """How long it may still be silent."""
        return self._last_s + self.silence_s - time.monotonic()


@dataclass(slots=True)
class _Hook:
    """One hook of one plugin. failures: in a row. rests_until_ms: not asked before; 0: asked."""

    lane: Lane
    failures: int = 0
    rests_until_ms: int = 0
    is_on_trial: bool = False


@dataclass(slots=True)
class _Notes:
    faults: int = 0
    last: deque[Fault] = field(default_factory=lambda: deque(maxlen=_FAULTS_KEPT))


class Guard:
    """Of one process. Safe in threads. ``hide``: takes secrets out of a text, by plugin."""

    def __init__(
        self, *, clock: Clock, strict: bool = False, hide: Callable[[str, str], str] = lambda _plugin, text: text
    ) -> None:
        self._clock = clock
        self._strict = strict
        self._hide = hide
        self._lock = threading.Lock()
        self._hooks: dict[tuple[str, str], _Hook] = {}
        self._notes: dict[str, _Notes] = {}

    def call(
        self,
        plugin: str,
        hook: str,
        work: Callable[[], T],
        *,
        deadline_s: float,
        passes: tuple[type[Exception], ...] = (),
        life: Life | None = None,
    ) -> T:
        """What ``work`` returns, in a thread of its own. Blocks for ``deadline_s`` at most.

        ``work`` has to check what it returns: iterating over it is the plugin's doing, too. passes: exceptions that are
        answers, not faults. Raises those, and PluginFault.
        """
        call = self._begin(_Call(plugin, hook, work, deadline_s=deadline_s, passes=passes, life=life))
        ends = threading.Event()
        call.when_ended(ends.set)
        while not ends.wait(max(0.0, call.left_s())):
            if call.left_s() <= 0:
                break
        return self._finish(call)

    async def acall(
        self,
        plugin: str,
        hook: str,
        work: Callable[[], T],
        *,
        deadline_s: float,
        passes: tuple[type[Exception], ...] = (),
        life: Life | None = None,
    ) -> T:
        """Like ``call``, for an event loop. When it is cancelled nobody waits for the thread any more."""
        call = self._begin(_Call(plugin, hook, work, deadline_s=deadline_s, passes=passes, life=life))
        loop = asyncio.get_running_loop()
        ends = asyncio.Event()

        def tell() -> None:
            try:
                loop.call_soon_threadsafe(ends.set)
            except RuntimeError:
                pass  # the loop has gone

        call.when_ended(tell)
        try:
            while not call.is_ended and call.left_s() > 0:
                try:
                    async with asyncio.timeout(call.left_s()):
                        await ends.wait()
                except TimeoutError:
                    continue
        except asyncio.CancelledError:
            self._abandon(call)
            raise
        return self._finish(call)

    def is_resting(self, plugin: str) -> bool:
        """Whether any of its hooks is not asked now."""
        now_ms = self._clock.monotonic_ms()
        with self._lock:
            return any(name == plugin and now_ms < hook.rests_until_ms for (name, _), hook in self._hooks.items())

    def faults_of(self, plugin: str) -> tuple[int, tuple[Fault, ...]]:
        """How many there were, and the newest."""
        with self._lock:
            notes = self._notes.get(plugin, _Notes())
            return notes.faults, tuple(notes.last)

    def note(self, plugin: str, hook: str, message: str) -> None:
        """A fault that showed elsewhere than in a call."""
        line = self._line(plugin, message)
        with self._lock:
            notes = self._notes.setdefault(plugin, _Notes())
            notes.faults += 1
            notes.last.append(Fault(self._clock.wall_ms(), hook, line))

    def close(self) -> None:
        """Let the threads end that are idle."""
        with self._lock:
            for hook in self._hooks.values():
                hook.lane.close()

    def _begin(self, call: "_Call[T]") -> "_Call[T]":
        self._admit(call.plugin, call.hook).lane.run(call.run)
        return call

    def _admit(self, plugin: str, hook: str) -> _Hook:
        with self._lock:
            state = self._hooks.get((plugin, hook))
            if state is None:
                state = self._hooks[plugin, hook] = _Hook(Lane(_SLOTS, f"plugin-{plugin}"))
            if state.failures >= _BREAKS_AT:
                rest_ms = state.rests_until_ms - self._clock.monotonic_ms()
                if rest_ms > 0 or state.is_on_trial:
                    raise PluginFault(
                        f"plugin {plugin} is not asked ({hook}): it failed {state.failures} times in a row",
                        hint=f"it is tried again in {max(1, rest_ms // 1000)} s; gpulayer plugins says what went wrong",
                        details={"plugin": plugin, "hook": hook},
                    )
                state.is_on_trial = True
            return state

    def _finish(self, call: "_Call[T]") -> T:
        state = self._hooks[call.plugin, call.hook]
        if not call.is_ended:
            call.abandon()
            return self._fail(state, call, _late(call))
        error = call.error
        if error is None or isinstance(error, call.passes):
            with self._lock:
                state.failures, state.rests_until_ms, state.is_on_trial = 0, 0, False
            if error is not None:
                raise error
            return call.result()
        _log.warning("plugin %s, %s:\n%s", call.plugin, call.hook, self._hide(call.plugin, call.story))
        return self._fail(state, call, call.said)

    def _abandon(self, call: "_Call[T]") -> None:
        """Nobody waits any more: that says nothing of the plugin."""
        call.abandon()
        with self._lock:
            self._hooks[call.plugin, call.hook].is_on_trial = False

    def _fail(self, state: _Hook, call: "_Call[T]", message: str) -> T:
        self.note(call.plugin, call.hook, message)
        with self._lock:
            state.failures += 1
            state.is_on_trial = False
            if state.failures >= _BREAKS_AT:
                rest_ms = min(_REST_FIRST_MS * 2 ** (state.failures - _BREAKS_AT), _REST_LAST_MS)
                state.rests_until_ms = self._clock.monotonic_ms() + rest_ms
        if self._strict and call.error is not None:
            raise call.error
        raise PluginFault(
            f"plugin {call.plugin} failed ({call.hook}): {self._line(call.plugin, message)}",
            hint="gpulayer plugins has its record",
            details={"plugin": call.plugin, "hook": call.hook},
        )

    def _line(self, plugin: str, message: str) -> str:
        line = " ".join(self._hide(plugin, message).split())
        return line if len(line) <= _LINE else line[: _LINE - 1] + "…"


class _Call(Generic[T]):
    def __init__(
        self,
        plugin: str,
        hook: str,
        work: Callable[[], T],
        *,
        deadline_s: float,
        passes: tuple[type[Exception], ...],
        life: Life | None,
    ) -> None:
        self.plugin = plugin
        self.hook = hook
        self.deadline_s = deadline_s
        self.passes = passes
        self.life = life
        self.error: BaseException | None = None
        self.said = self.story = ""
        self.is_begun = self.is_ended = False
        self._work: Callable[[], T] | None = work
        self._result: T | None = None
        self._ends_s = time.monotonic() + deadline_s
        self._lock = threading.Lock()
        self._then: Callable[[], None] | None = None
        self._is_abandoned = False

    def run(self) -> None:
        """In the plugin's thread. What an exception says of itself is the plugin's code, too."""
        work = self._work
        if self._is_abandoned or work is None:
            return
        self.is_begun = True
        if self.life is not None:
            self.life.sign()
        try:
            self._result = work()
        except BaseException as error:
            self.error = error
            self.said, self.story = _told(error)
        self._work = None
        with self._lock:
            self.is_ended = True
            then = self._then
        if then is not None and not self._is_abandoned:
            then()

    def when_ended(self, then: Callable[[], None]) -> None:
        with self._lock:
            self._then = then
            is_ended = self.is_ended
        if is_ended:
            then()

    def left_s(self) -> float:
        left_s = self._ends_s - time.monotonic()
        return left_s if self.life is None or not self.is_begun else min(left_s, self.life.left_s())

    def result(self) -> T:
        return self._result  # type: ignore[return-value] # it has ended without an error, so this is what it returned

    def abandon(self) -> None:
        self._is_abandoned = True


def _late(call: "_Call[T]") -> str:
    if not call.is_begun:
        return f"no call of it has returned for {call.deadline_s:g} s, and it has no more threads"
    if call.life is not None and call.life.left_s() <= 0:
        return f"no sign of life for {call.life.silence_s:g} s"
    return f"no answer within {call.deadline_s:g} s"


def _told(error: BaseException) -> tuple[str, str]:
    """A line and the whole story; what can't even say what it is, is told by its type."""
    kind = type(error).__name__
    try:
        if isinstance(error, SystemExit):
            return f"it tried to end the process (exit {error.code!r})", traceback.format_exc()
        return f"{kind}: {error}", traceback.format_exc()
    except BaseException:
        return f"{kind}, which fails to say what it is", kind
