"""The only way into a plugin: a deadline, a slot and a breaker around each call, and a note of what went wrong.

Nothing is retried here. A call that does not return keeps its slot until it does; when all slots of a hook are taken
by such calls, further ones wait, and fail at their own deadline. After some failures in a row a hook is not asked for
a while, which grows with every trial that fails; the first call after that is the trial, and decides.
"""

import asyncio
import logging
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from gpulayer.clock import Clock
from gpulayer.errors import PluginFault
from gpulayer.plugins.ambient import Place
from gpulayer.plugins.hiding import SecretsHider
from gpulayer.plugins.lane import Lane
from gpulayer.plugins.marks import Marks
from gpulayer.plugins.record import Fault

__all__ = ["Guard", "Life"]

_log: Final = logging.getLogger(__name__)
_SLOTS: Final = 8
_FAULTS_KEPT: Final = 5
_BREAKS_AT: Final = 3
_REST_FIRST_MS: Final = 30_000
_REST_LAST_MS: Final = 600_000
_LINE: Final = 400
_STORY: Final = 8000

T = TypeVar("T")


class Life:
    """For a call that may take long as long as it shows signs of life: it ends ``silence_s`` after the last one. It
    counts from when the call begins, not while that waits for a slot."""

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
    """One hook of one plugin. failures: in a row. rests: how often in a row it was not asked for a while, the last time
    until ``rests_until_ms``. trial: the call that decides then."""

    lane: Lane
    failures: int = 0
    rests: int = 0
    rests_until_ms: int = 0
    trial: "_Call[Any] | None" = None  # Any: whatever it returns


@dataclass(slots=True)
class _Notes:
    faults: int = 0
    last: deque[Fault] = field(default_factory=lambda: deque(maxlen=_FAULTS_KEPT))


class Guard:
    """Of one process. Safe in threads. hide: takes secrets out of what is noted, logged and raised. marks: where calls
    that run are marked, see there. level: of what is logged when it is noted."""

    def __init__(
        self,
        *,
        clock: Clock,
        strict: bool = False,
        hide: SecretsHider | None = None,
        marks: Marks | None = None,
        level: int = logging.WARNING,
    ) -> None:
        self._clock = clock
        self._strict = strict
        self._hide = hide or SecretsHider()
        self._marks = marks
        self._level = level
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
        answers, not faults; what they say is cut to a bearable length, and holds no secrets of the plugin. Raises
        those, and PluginFault; with ``strict``, whatever the plugin raised.
        """
        call = _Call(plugin, hook, work, deadline_s=deadline_s, passes=passes, life=life)
        ends = threading.Event()
        self._begin(call, ends.set)
        try:
            while (wait_s := call.wait_s()) > 0 and not ends.wait(wait_s):
                pass
        except BaseException:  # Ctrl-C
            self._abandon(call)
            raise
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
        call = _Call(plugin, hook, work, deadline_s=deadline_s, passes=passes, life=life)
        loop = asyncio.get_running_loop()
        ends = asyncio.Event()

        def tell() -> None:
            try:
                loop.call_soon_threadsafe(ends.set)
            except RuntimeError:
                pass  # the loop has gone

        self._begin(call, tell)
        try:
            while (wait_s := call.wait_s()) > 0 and not ends.is_set():
                try:
                    async with asyncio.timeout(wait_s):
                        await ends.wait()
                except TimeoutError:
                    pass
        except BaseException:  # cancelled, or the loop lets go of it
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
        """A fault that showed elsewhere than in a call, or one that did not spoil it."""
        _log.log(self._level, "plugin %s, %s: %s", plugin, hook, self.line(plugin, message))
        self._keep(plugin, hook, message)

    def line(self, plugin: str, message: str) -> str:
        """One line of a bearable length, without the plugin's secrets and what a terminal would act on."""
        line = " ".join(_printable(self._hide(plugin, message)).split())
        return line if len(line) <= _LINE else line[: _LINE - 1] + "…"

    def close(self) -> None:
        """Let the threads end that are idle, and leave no marks. May be repeated."""
        with self._lock:
            for hook in self._hooks.values():
                hook.lane.close()
        if self._marks is not None:
            self._marks.close()

    def _begin(self, call: "_Call[T]", then: Callable[[], None]) -> None:
        with self._lock:
            state = self._hooks.get((call.plugin, call.hook))
            if state is None:
                state = self._hooks[call.plugin, call.hook] = _Hook(Lane(_SLOTS, f"plugin-{call.plugin}"))
            if state.rests:
                rest_ms = state.rests_until_ms - self._clock.monotonic_ms()
                if rest_ms > 0 or state.trial is not None:
                    again = f"in {-(-rest_ms // 1000)} s" if rest_ms > 0 else "now"
                    raise PluginFault(
                        f"plugin {call.plugin} is not asked ({call.hook}): it failed {state.failures} times in a row",
                        hint=f"it is tried again {again}; gpulayer plugins says what went wrong",
                        details={"plugin": call.plugin, "hook": call.hook},
                    )
                state.trial = call
        try:
            state.lane.run(lambda: self._run(call, then))
        except RuntimeError as error:
            self._abandon(call)
            raise PluginFault(
                f"plugin {call.plugin} can't be asked ({call.hook}): {error}",
                hint="the system's limit of threads is reached (ulimit -u)",
                details={"plugin": call.plugin, "hook": call.hook},
            ) from None

    def _run(self, call: "_Call[T]", then: Callable[[], None]) -> None:
        """In the plugin's thread."""
        if not call.is_awaited():
            return
        try:
            place = self._marks.begin(call.plugin, call.hook) if self._marks is not None else 0
            before = Place.now()
            call.run(self._hide)
            # Of a call that nobody waits for any more this is too old: others may have changed something since.
            changed = before.put_back() if call.is_awaited() else ()
            if self._marks is not None:
                self._marks.end(place, call.plugin, call.hook)
            for what in changed:
                message = f"it changed {what}, which all of the process share; that was put back"
                self.note(call.plugin, call.hook, message)
        finally:
            call.is_ended = True
            if call.is_awaited():
                then()

    def _finish(self, call: "_Call[T]") -> T:
        if not call.is_ended:
            call.is_abandoned = True
            return self._fail(call, call.why_late())
        error = call.error
        if error is not None and not call.is_answer:
            _log.info("plugin %s, %s:\n%s", call.plugin, call.hook, self._hide(call.plugin, call.story))
            return self._fail(call, call.said)
        state = self._hooks[call.plugin, call.hook]
        with self._lock:
            state.failures = state.rests = state.rests_until_ms = 0
            state.trial = None
        if error is not None:
            raise error
        return call.result()

    def _abandon(self, call: "_Call[T]") -> None:
        """Nobody waits any more: that says nothing of the plugin."""
        call.is_abandoned = True
        with self._lock:
            state = self._hooks[call.plugin, call.hook]
            if state.trial is call:
                state.trial = None

    def _keep(self, plugin: str, hook: str, message: str) -> None:
        line = self.line(plugin, message)
        with self._lock:
            notes = self._notes.setdefault(plugin, _Notes())
            notes.faults += 1
            notes.last.append(Fault(self._clock.wall_ms(), hook, line))

    def _fail(self, call: "_Call[T]", message: str) -> T:
        self._keep(call.plugin, call.hook, message)  # whoever asked says it
        with self._lock:
            state = self._hooks[call.plugin, call.hook]
            state.failures += 1
            # Calls that were on their way when it broke say nothing new.
            if state.trial is call or (not state.rests and state.failures >= _BREAKS_AT):
                state.trial = None
                rest_ms = min(_REST_FIRST_MS << min(state.rests, 10), _REST_LAST_MS)
                state.rests += 1
                state.rests_until_ms = self._clock.monotonic_ms() + rest_ms
        if self._strict and call.error is not None:
            raise call.error
        raise PluginFault(
            f"plugin {call.plugin} failed ({call.hook}): {self.line(call.plugin, message)}",
            hint="gpulayer plugins has its record",
            details={"plugin": call.plugin, "hook": call.hook},
        )


class _Call(Generic[T]):
    """error, said, story and is_answer are whole once ``is_ended``."""

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
        self.error: BaseException | None = None
        self.said = self.story = ""
        self.is_begun = self.is_answer = self.is_ended = self.is_abandoned = False
        self._work: Callable[[], T] | None = work
        self._result: T | None = None
        self._passes = passes
        self._life = life
        self._deadline_s = deadline_s
        self._ends_s = time.monotonic() + deadline_s

    def run(self, hide: SecretsHider) -> None:
        """In the plugin's thread, all of it: what an exception says of itself is the plugin's code, too."""
        work, self._work = self._work, None
        assert work is not None, "a call runs once"
        if self._life is not None:
            self._life.sign()
        self.is_begun = True
        try:
            self._result = work()
        except BaseException as error:
            self.error = error
            if issubclass(type(error), self._passes):
                self.is_answer, self.said = _tidied(error, lambda text: hide(self.plugin, text))
            if not self.is_answer:
                self.said, self.story = _told(error, self.said)

    def is_awaited(self) -> bool:
        """Whether somebody still is there for the answer; another thread may change that at any time."""
        return not self.is_abandoned

    def wait_s(self) -> float:
        """How long to wait before asking again; 0: it is late."""
        if self.is_ended:
            return 0.0
        left_s = self._ends_s - time.monotonic()
        if self._life is not None:
            # Whoever waits does not hear of the beginning.
            left_s = min(left_s, self._life.left_s() if self.is_begun else self._life.silence_s)
        return max(0.0, left_s)

    def why_late(self) -> str:
        if not self.is_begun:
            return f"it has no thread left: {_SLOTS} calls have not returned, and none did for {self._deadline_s:g} s"
        if self._life is not None and self._life.left_s() <= 0:
            return f"no sign of life for {self._life.silence_s:g} s"
        return f"no answer within {self._deadline_s:g} s"

    def result(self) -> T:
        return self._result  # type: ignore[return-value] # it has ended without an error, so this is what it returned


def _tidied(error: BaseException, hide: Callable[[str], str]) -> tuple[bool, str]:
    """Whether it can be handed on as an answer, its texts made bearable; else why not."""
    try:
        for name in ("message", "hint"):
            said = getattr(error, name, "")
            if type(said) is not str:
                return False, f"its {type(error).__name__} has a {name} that is {type(said).__name__}, not text"
            if said:
                setattr(error, name, hide(said[:_STORY]))
        if type(getattr(error, "is_users", True)) is not bool:
            return False, f"its {type(error).__name__} has an is_users that is neither True nor False"
        error.args = (hide(str(error)[:_STORY]),)
        error.__cause__ = error.__context__ = None
    except BaseException:
        return False, "it raised an answer that fails to say what it is"
    return True, ""


def _told(error: BaseException, said: str) -> tuple[str, str]:
    """A line and the whole story; what can't even say what it is, is told by that."""
    try:
        kind = type(error).__name__
        story = traceback.format_exc()[-_STORY:]
        if isinstance(error, SystemExit):
            return f"it tried to end the process (exit {error.code!r})"[:_STORY], story
        text = f"{error}"[:_STORY]
        return said or (f"{kind}: {text}" if text else f"{kind}"), story
    except BaseException:
        return said or "an exception that fails to say what it is", ""


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)
