"""The only way into a plugin: a deadline, a slot and a breaker around each call, and a note of what went wrong.

Nothing is retried here. A call that does not return keeps its slot until it does; when all slots are taken, further
calls wait, until their own deadline at most. After some failures in a row nothing is asked for a while, which grows
with every trial that fails; the first call after that is the trial, and decides: by its end, or by its first sign of
life. What never began says nothing of the plugin: it raises PluginResting, and is no failure.

Each fault is a line of the log, with the plugin's own frames of the traceback the first time.

Slots and the breaker belong to one method of one registered thing: what is wrong with one launcher or with one way of
asking it keeps no other from being asked.
"""

import asyncio
import logging
import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from gpulayer.clock import Clock
from gpulayer.errors import PluginFault, PluginResting
from gpulayer.plugins.ambient import Visits
from gpulayer.plugins.hiding import SecretsHider
from gpulayer.plugins.lane import Lane
from gpulayer.plugins.marks import Marks
from gpulayer.plugins.record import PUT_BACK, Fault
from gpulayer.spec.plain import plain_line, plain_text

__all__ = ["Guard", "Life"]

_log: Final = logging.getLogger(__name__)
_SLOTS: Final = 8
_FAULTS_KEPT: Final = 5
_BREAKS_AT: Final = 3
_REST_FIRST_MS: Final = 30_000
_REST_LAST_MS: Final = 600_000
_TRIED_ALONE_MS: Final = 30_000
_QUEUED_AT_MOST: Final = 0.1  # of its time, for a call that is blamed for being late
_QUEUED_S: Final = 0.1  # which a busy system takes to begin a thread
_LINE: Final = 400
_STORY: Final = 8000
_TOLD_ONCE: Final = 1000
_OURS: Final = f"{Path(__file__).parents[1]}{os.sep}"
_OWN: Final = f"{os.sep}builtin{os.sep}"

T = TypeVar("T")
_Key = tuple[str, str, str]  # plugin, thing, hook


class Life:
    """For a call that may take long as long as it shows signs of life: it ends ``silence_s`` after the last one. It
    counts from when the call begins, not while that waits for a slot."""

    def __init__(self, silence_s: float) -> None:
        self.silence_s = silence_s
        self._last_s = time.monotonic()
        self.is_shown = False

    def begin(self) -> None:
        """From now on silence counts."""
        self._last_s = time.monotonic()

    def sign(self) -> None:
        """To be called by the call itself, from any thread."""
        self._last_s = time.monotonic()
        self.is_shown = True

    def left_s(self) -> float:
        """How long it may still be silent."""
        return self._last_s + self.silence_s - time.monotonic()


@dataclass(slots=True)
class _Seat:
    """One method of one thing. failures: in a row. rests: how often in a row it was not asked for a while, the last
    time until ``rests_until_ms``. trial: the call that decides then, which began at ``tried_ms``."""

    lane: Lane
    failures: int = 0
    rests: int = 0
    rests_until_ms: int = 0
    trial: "_Call[Any] | None" = None  # Any: whatever it returns
    tried_ms: int = 0

    def works(self) -> None:
        self.failures = self.rests = self.rests_until_ms = 0
        self.trial = None

    def why_not(self, now_ms: int) -> str:
        """When one that rests is tried again; empty: it may be asked."""
        if self.trial is not None and self.trial.is_lively():
            self.works()
        if not self.rests:
            return ""
        rest_ms = self.rests_until_ms - now_ms
        if rest_ms > 0:
            return f"it is tried again in {-(-rest_ms // 1000)} s"
        # A trial may take its time: an environment is built for half an hour, and does not say how it gets on.
        if self.trial is not None and now_ms - self.tried_ms < _TRIED_ALONE_MS:
            return "it is being tried just now"
        return "" if self.lane.is_free else f"it is tried again when one of {_SLOTS} calls returns that hang"

    def rest(self, now_ms: int) -> None:
        self.trial = None
        self.rests_until_ms = now_ms + min(_REST_FIRST_MS << min(self.rests, 10), _REST_LAST_MS)
        self.rests += 1


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
        self._visits = Visits()
        self._seats: dict[_Key, _Seat] = {}
        self._notes: dict[str, _Notes] = {}
        self._told: set[tuple[str, str, str]] = set()

    def call(
        self,
        plugin: str,
        hook: str,
        work: Callable[[], T],
        *,
        deadline_s: float,
        passes: tuple[type[Exception], ...] = (),
        life: Life | None = None,
        thing: str = "",
    ) -> T:
        """What ``work`` returns, in a thread of its own. Blocks for ``deadline_s`` at most.

        ``work`` has to check what it returns: iterating over it is the plugin's doing, too. passes: exceptions that are
        answers, not faults; what they say is cut to a bearable length, and holds no secrets of the plugin. thing: which
        of those that the plugin has registered. Raises what passes, PluginFault, and PluginResting where nothing has
        begun; with ``strict``, whatever the plugin raised.
        """
        call = _Call(plugin, hook, work, deadline_s=deadline_s, passes=passes, life=life, thing=thing)
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
        thing: str = "",
    ) -> T:
        """Like ``call``, for an event loop. When it is cancelled nobody waits for the thread any more."""
        call = _Call(plugin, hook, work, deadline_s=deadline_s, passes=passes, life=life, thing=thing)
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

    def is_resting(self, plugin: str, thing: str | None = None) -> bool:
        """Whether there is a method that is not asked now: of this thing, or of any."""
        now_ms = self._clock.monotonic_ms()
        with self._lock:
            return any(
                seat.why_not(now_ms) != ""
                for (owner, its, _), seat in self._seats.items()
                if owner == plugin and thing in (None, its)
            )

    def is_suspended(self, plugin: str) -> bool:
        """Whether a method of any of its things has failed several times in a row, and has not worked since."""
        now_ms = self._clock.monotonic_ms()
        with self._lock:
            return any(
                seat.why_not(now_ms) != "" or seat.rests > 0
                for (owner, _, _), seat in self._seats.items()
                if owner == plugin
            )

    def tried_again_ms(self, plugin: str) -> int | None:
        """Unix time at which the first of its methods that rest is tried; None: when one is asked next."""
        now_ms = self._clock.monotonic_ms()
        with self._lock:
            rests = [
                seat.rests_until_ms - now_ms
                for (owner, _, _), seat in self._seats.items()
                if owner == plugin and seat.rests and seat.rests_until_ms > now_ms
            ]
        return self._clock.wall_ms() + min(rests) if rests else None

    def faults_of(self, plugin: str) -> tuple[int, tuple[Fault, ...]]:
        """How many there were, and the newest."""
        with self._lock:
            notes = self._notes.get(plugin, _Notes())
            return notes.faults, tuple(notes.last)

    def note(self, plugin: str, hook: str, message: str) -> None:
        """A fault that showed elsewhere than in a call, or one that did not spoil it."""
        _log.log(self._level, "plugin %s, %s: %s", plugin, hook, self.line(plugin, message))
        self._keep(plugin, hook, message)

    def hidden(self, plugin: str, text: str) -> str:
        """The text without the plugin's secrets."""
        return self._hide(plugin, text)

    def line(self, plugin: str, message: str) -> str:
        """One line of a bearable length, without the plugin's secrets and what a terminal would act on."""
        return plain_line(self._hide(plugin, message), _LINE)

    def close(self) -> None:
        """Let the threads end that are idle, and leave no marks; calls that wait for a slot are told that it never
        comes. May be repeated."""
        with self._lock:
            seats = tuple(self._seats.values())
        for seat in seats:
            seat.lane.close()
        if self._marks is not None:
            self._marks.close()

    def _begin(self, call: "_Call[T]", then: Callable[[], None]) -> None:
        with self._lock:
            seat = self._seats.get(call.key)
            if seat is None:
                seat = self._seats[call.key] = _Seat(Lane(_SLOTS, f"plugin-{call.plugin}"))
            now_ms = self._clock.monotonic_ms()
            if again := seat.why_not(now_ms):
                why = f"it failed {seat.failures} times in a row"
                raise call.not_asked(
                    why,
                    hint=f"{again}; gpulayer plugins says what went wrong",
                    rest_ms=max(0, seat.rests_until_ms - now_ms),
                )
            if seat.rests:
                seat.trial, seat.tried_ms = call, now_ms
        call.job = lambda: self._run(call, then)
        try:
            seat.lane.run(call.job, dropped=lambda: self._drop(call, then))
        except RuntimeError as error:
            self._abandon(call)
            raise call.not_asked(str(error), hint="the system's limit of threads is reached (ulimit -u)") from None

    def _run(self, call: "_Call[T]", then: Callable[[], None]) -> None:
        """In the plugin's thread."""
        if self._marks is not None:
            self._marks.wait_turn(call.plugin, call.hook)
        with self._lock:  # whoever gives up knows for sure whether it has begun
            if call.is_abandoned:
                return
            call.begin()
        mark = self._marks.begin(call.plugin, call.hook) if self._marks is not None else 0
        try:
            stay = self._visits.begin()
            call.leave = lambda: self._visits.leave(stay)
            if not call.is_awaited():  # since a moment ago, and nobody has told
                call.leave()
            call.run(self._hide)
            for what in self._visits.end(stay, is_awaited=call.is_awaited()):
                message = f"it changed {what}, {PUT_BACK}"
                self.note(call.plugin, call.hook, message)
        finally:
            if self._marks is not None:
                self._marks.end(mark, call.plugin, call.hook)
            call.is_ended = True
            if call.is_awaited():
                then()

    def _drop(self, call: "_Call[T]", then: Callable[[], None]) -> None:
        call.is_dropped = True
        then()

    def _finish(self, call: "_Call[T]") -> T:
        if call.is_dropped:
            self._abandon(call)
            raise call.not_asked("no plugin is any more", hint="the process is about to end")
        if not call.is_ended:
            return self._late(call)
        error = call.error
        if error is not None and not call.is_answer:
            return self._fail(call, call.said)
        seat = self._seats[call.key]
        with self._lock:
            seat.works()
        if error is not None:
            raise error
        return call.result()

    def _late(self, call: "_Call[T]") -> T:
        message = call.why_late()
        if message is not None:
            call.is_abandoned = True
            call.leave()
            return self._fail(call, message)
        self._abandon(call)
        waited = f"{_SLOTS} other calls were in its way, and it waited for {call.queued_s():.3g} s"
        if not call.is_begun:
            raise call.not_asked(waited, hint="gpulayer plugins has what is known of it")
        raise call.fault(f"no answer: {waited}")

    def _abandon(self, call: "_Call[T]") -> None:
        """Nobody waits any more: that says nothing of the plugin."""
        with self._lock:
            call.is_abandoned = True
            seat = self._seats[call.key]
            if seat.trial is call:
                seat.trial = None
        call.leave()
        seat.lane.forget(call.job)
        call.job = _nothing

    def _keep(self, plugin: str, hook: str, message: str) -> None:
        line = self.line(plugin, message)
        with self._lock:
            notes = self._notes.setdefault(plugin, _Notes())
            notes.faults += 1
            notes.last.append(Fault(self._clock.wall_ms(), hook, line))

    def _fail(self, call: "_Call[T]", message: str) -> T:
        self._keep(call.plugin, call.hook, message)
        line = self.line(call.plugin, message)
        with self._lock:
            seat = self._seats[call.key]
            seat.failures += 1
            breaks = not seat.rests and seat.failures >= _BREAKS_AT
            # Calls that were on their way when it broke say nothing new.
            if seat.trial is call or breaks:
                seat.rest(self._clock.monotonic_ms())
            failures = seat.failures
            what = (call.plugin, call.hook, line)
            is_new = what not in self._told
            if len(self._told) >= _TOLD_ONCE:
                self._told.clear()
            self._told.add(what)
        story = f"\n{call.story}" if is_new and call.story else ""
        _log.log(self._level, "plugin %s, %s: %s%s", *what, story)
        if breaks:
            _log.log(
                self._level,
                "plugin %s, %s: it failed %d times in a row, and is suspended: it is asked again in %d s",
                call.plugin,
                call.hook,
                failures,
                _REST_FIRST_MS // 1000,
            )
        if self._strict and call.error is not None:
            raise call.error
        raise call.fault(line)


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
        thing: str,
    ) -> None:
        self.plugin = plugin
        self.hook = hook
        self.key: _Key = (plugin, thing, hook)
        self.error: BaseException | None = None
        self.said = self.story = ""
        self.is_begun = self.is_answer = self.is_ended = self.is_abandoned = self.is_dropped = False
        self.job: Callable[[], None] = _nothing
        self.leave: Callable[[], None] = _nothing
        self._work: Callable[[], T] | None = work
        self._result: T | None = None
        self._passes = passes
        self._life = life
        self._deadline_s = deadline_s
        self._asked_s = self._begun_s = time.monotonic()

    def begin(self) -> None:
        """To be followed by ``run``."""
        self.job = _nothing  # it holds this call: what the call gave would stay until the collector comes by
        if self._life is not None:
            self._life.begin()
        self._begun_s = time.monotonic()
        self.is_begun = True

    def run(self, hide: SecretsHider) -> None:
        """In the plugin's thread, all of it: what an exception says of itself is the plugin's code, too."""
        work, self._work = self._work, None
        assert work is not None, "a call runs once"
        try:
            self._result = work()
        except BaseException as error:
            self.error = error

            def hidden(text: str) -> str:
                return hide(self.plugin, text)

            if issubclass(type(error), self._passes):
                self.is_answer, self.said = _tidied(error, hidden)
            if not self.is_answer:
                self.said, self.story = _told(error, self.said, hidden)

    def is_awaited(self) -> bool:
        """Whether somebody still is there for the answer; another thread may change that at any time."""
        return not self.is_abandoned

    def is_lively(self) -> bool:
        """Whether it has shown a sign of life."""
        return self.is_begun and self._life is not None and self._life.is_shown

    def wait_s(self) -> float:
        """How long to wait before asking again; 0: it is late."""
        if self.is_ended or self.is_dropped:
            return 0.0
        left_s = self._asked_s + self._deadline_s - time.monotonic()
        if self._life is not None:
            # Whoever waits does not hear of the beginning.
            left_s = min(left_s, self._life.left_s() if self.is_begun else self._life.silence_s)
        return max(0.0, left_s)

    def queued_s(self) -> float:
        """How long it waited for a slot."""
        return (self._begun_s if self.is_begun else time.monotonic()) - self._asked_s

    def why_late(self) -> str | None:
        """None where it did not have (almost) all of its time: then others are to blame, who were in its way."""
        if self.is_begun and self._life is not None and self._life.left_s() <= 0:
            return f"no sign of life for {self._life.silence_s:g} s"
        if not self.is_begun or self.queued_s() > max(_QUEUED_S, self._deadline_s * _QUEUED_AT_MOST):
            return None
        return f"no answer within {self._deadline_s:g} s"

    def fault(self, why: str) -> PluginFault:
        return PluginFault(
            f"plugin {self.plugin} failed ({self.hook}): {why}",
            hint="gpulayer plugins has its record",
            details={"plugin": self.plugin, "hook": self.hook},
        )

    def not_asked(self, why: str, *, hint: str, rest_ms: int = 0) -> PluginResting:
        return PluginResting(
            f"plugin {self.plugin} is not asked ({self.hook}): {why}",
            hint=hint,
            details={"plugin": self.plugin, "hook": self.hook, "rest_ms": rest_ms},
        )

    def result(self) -> T:
        return self._result  # type: ignore[return-value] # it has ended without an error, so this is what it returned


def _nothing() -> None:
    """The job of a call that no lane has, and what leaves a place where it never was."""


def _tidied(error: BaseException, hide: Callable[[str], str]) -> tuple[bool, str]:
    """Whether it can be handed on as an answer, its texts made bearable; else why not."""
    try:
        for name in ("message", "hint"):
            said = getattr(error, name, "")
            if type(said) is not str:
                return False, f"its {type(error).__name__} has a {name} that is {type(said).__name__}, not text"
            if said:
                setattr(error, name, hide(said)[:_STORY])
        if type(getattr(error, "is_users", True)) is not bool:
            return False, f"its {type(error).__name__} has an is_users that is neither True nor False"
        error.args = (hide(str(error))[:_STORY],)
        error.__cause__ = error.__context__ = None
    except BaseException:
        return False, "it raised an answer that fails to say what it is"
    return True, ""


def _told(error: BaseException, said: str, hide: Callable[[str], str]) -> tuple[str, str]:
    """A line and the whole story; what can't even say what it is, is told by that. Hidden first, then cut."""
    try:
        kind = type(error).__name__
        story = _told_at_length(error, hide)
        if isinstance(error, SystemExit):
            return hide(f"it tried to end the process (exit {error.code!r})")[:_STORY], story
        text = hide(f"{error}")[:_STORY]
        return said or (f"{kind}: {text}" if text else f"{kind}"), story
    except BaseException:
        return said or "an exception that fails to say what it is", ""


def _told_at_length(error: BaseException, hide: Callable[[str], str]) -> str:
    """The traceback without frames of ours, which only lead to the plugin."""
    told = traceback.TracebackException.from_exception(error)
    left: list[traceback.TracebackException | None] = [told]
    while left:
        one = left.pop()
        if one is not None:
            own = [frame for frame in one.stack if not frame.filename.startswith(_OURS) or _OWN in frame.filename]
            one.stack = traceback.StackSummary.from_list(own or list(one.stack))
            left += [one.__cause__, one.__context__]
    return plain_text(hide("".join(told.format()))[-_STORY:], _STORY)  # what it says itself comes last
