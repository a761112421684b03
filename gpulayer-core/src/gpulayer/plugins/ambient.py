"""The state that a whole process shares and a plugin must not change: seen, named and put back.

``Ambient`` is all of it, for an import, which happens once; ``Place`` is what a call of a few microseconds can afford
to look at, and ``Visits`` compares it around calls. They belong to the process, so this module reads and writes what
others are given as parameters. Adding is fine (a variable in a module, an entry of ``sys.path``); what was there has to
stay what it was. Signal handlers are not looked at: only the main thread can set them, plugins never run there, and a
control plane sets its own meanwhile.

Nothing here raises, whatever a plugin has left behind: names may be gone, and what is in their place may raise when it
is compared or asked what it is. So things are compared by identity, or by value where both are plain values.
"""

import asyncio
import builtins
import gc
import locale
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from os import chdir, fsdecode, fstat, getcwd
from time import monotonic
from types import ModuleType
from typing import Any, Final

__all__ = ["Ambient", "Place", "Stay", "Visits"]

# Others' modules that get monkey-patched whole; of ours, all that are loaded.
_PATCHED: Final = ("asyncio", "json", "logging", "os", "select", "socket", "ssl", "subprocess", "threading", "time")
_NAMES_SHOWN: Final = 5
_GONE: Final = object()
_PLAIN: Final = (bool, int, float, str, bytes, type(None))
# As they were before any plugin: whoever looks for them later may find something else, or nothing.
_ENVIRON: Final = os.environ
_DATA: Final[Any] = getattr(os.environ, "_data", os.environ)  # the private dictionary: the public way copies slowly
_MODULES: Final = sys.modules
_SYS: Final = vars(sys)
_ROOT: Final = logging.root
# How the names of variables begin that we, Python or the loader of programs read.
_READ_BY_OTHERS: Final = (
    "GPULAYER_",
    "_GPULAYER_",
    "PYTHON",
    "LD_",
    "DYLD_",
    "PYDANTIC_",
    "SSL_",
    "TZ",
    "PATH",
    "HOME",
)


@dataclass(frozen=True, slots=True)
class Place:
    """The variables, as the system has them, and the working directory; ``cwd`` empty where it is gone."""

    environ: Mapping[Any, Any]  # Any: bytes or text, by system
    cwd: str

    @classmethod
    def now(cls) -> "Place":
        return cls(_variables(), _cwd())

    def put_back(self, *, is_import: bool = False) -> tuple[str, ...]:
        """Restores what is different now, and says what that was; names of variables, not their values.

        is_import: a variable that is new may stay (``os.environ.setdefault``): the module's functions will read it.
        """
        said = []
        if os.__dict__.get("environ") is not _ENVIRON or getattr(_ENVIRON, "_data", _DATA) is not _DATA:
            os.__dict__["environ"] = _ENVIRON
            if _DATA is not _ENVIRON:
                _ENVIRON.__dict__["_data"] = _DATA
            said.append("os.environ")
        now = _variables()
        if not _is_equal(self.environ, now):
            both = self.environ.keys() | now.keys()
            changed = [
                name
                for name in both
                if not _is_same(self.environ.get(name), now.get(name))
                and not (is_import and name not in self.environ and _is_harmless(name, now[name]))
            ]
            for name in changed:
                _quietly(_write_variable, name, self.environ.get(name))
            if changed:
                said.append(f"os.environ ({_list(sorted(map(_variable, changed)))})")
        if self.cwd != _cwd():
            said.append("the working directory")
            if self.cwd:
                _quietly(chdir, self.cwd)
        return tuple(said)


@dataclass(frozen=True, slots=True)
class Stay:
    """One call, from its beginning on. number: of the calls that have begun. was_empty: no other call ran then."""

    place: Place
    number: int
    was_empty: bool


class Visits:
    """The calls of one process, which share a place. Of calls that overlap nobody can tell which has changed it, and
    what one puts back may be what another needs; so only one that had the place to itself is looked at. One that nobody
    waits for any more may hang for ever, and does not count."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun = 0
        self._running: set[int] = set()

    def begin(self) -> Stay:
        with self._lock:
            place = Place.now()
            self._begun += 1
            stay = Stay(place, self._begun, not self._running)
            self._running.add(stay.number)
            return stay

    def leave(self, stay: Stay) -> None:
        """Nobody waits for it any more. May be repeated."""
        with self._lock:
            self._running.discard(stay.number)

    def end(self, stay: Stay, *, is_awaited: bool) -> tuple[str, ...]:
        """What it has changed, which was put back. is_awaited: of a call that nobody waits for any more what the place
        was like is too old."""
        with self._lock:
            self._running.discard(stay.number)
            was_alone = stay.was_empty and stay.number == self._begun
            return stay.place.put_back() if was_alone and is_awaited else ()


class Ambient:
    """A snapshot; some milliseconds. is_shared: other threads of the process go on meanwhile, so what gpulayer itself
    sets while it starts is not looked at."""

    def __init__(self, *, is_shared: bool = False) -> None:
        self._is_shared = is_shared
        self._builtins = dict(builtins.__dict__)
        self._place = Place.now()
        self._umask = _umask()
        self._lists = {name: (_SYS[name], list(_SYS[name])) for name in _LISTS}
        self._settings = {
            what: _tried(read) for what, (read, _) in _SETTINGS.items() if not (is_shared and what in _OURS_TO_SET)
        }
        _ROOT.manager.getLogger("gpulayer")  # or what is set of it first is not seen
        self._logging = [_Logged.of(logger) for logger in _loggers()]
        self._handlers = [_Handled.of(handler) for handler in list(_ROOT.handlers)]
        self._known_handlers = (list(_HANDLER_LIST), dict(_HANDLERS))
        self._disabled = {logger: logger.disabled for logger in _loggers(ours=False)}
        self._limits = _limits()
        self._timers = {which: (monotonic(), *signal.getitimer(which)) for which in _TIMERS}
        self._streams = tuple(_stream(number) for number in range(3))
        self._open = {name: _SYS.get(name) for name in _STREAMS if not _is_closed(_SYS.get(name))}
        self._owners = [(owner, _named(owner), vars(owner), dict(_kept(owner, name))) for name, owner in _owners()]

    def put_back(self) -> tuple[str, ...]:
        """Restores what is different now, and says what that was."""
        said: list[str] = []
        for what, back in (
            ("builtins", self._builtins_back),
            ("modules", self._names_back),
            (_LIMITS_SAID, self._limits_back),
            ("timers", self._timers_back),
            ("os.environ", lambda: self._place.put_back(is_import=True)),
            ("the umask", self._umask_back),
            ("sys.path", self._lists_back),
            ("settings of modules", self._settings_back),
            ("logging", self._logging_back),
        ):
            try:
                said += back()
            except BaseException:  # of something that a plugin has left in the way
                said.append(what)
        return tuple(said)

    def lasting(self) -> tuple[str, ...]:
        """After ``put_back``: what could not be put back."""
        said = list(self.put_back())
        if self._limits is not None:
            hard = [name for name, (_, was) in self._limits.items() if (_limits() or {}).get(name, (0, was))[1] != was]
            if hard:
                said = [f"hard {_LIMITS_SAID} ({_list(hard)})", *(one for one in said if _LIMITS_SAID not in one)]
        said += [f"sys.{name}" for name, stream in self._open.items() if _is_closed(stream)]
        for number, was in enumerate(self._streams):
            if _stream(number) != was:
                said.append(f"the file descriptor {number}")
        return tuple(dict.fromkeys(said))

    def _builtins_back(self) -> list[str]:
        # Whatever is called here may be what was patched, so nothing is.
        patched = []
        for name, was in self._builtins.items():
            is_same = name in builtins.__dict__ and builtins.__dict__[name] is was
            if not is_same and name != "_":  # the interactive prompt's
                builtins.__dict__[name] = was
                patched += [name]
        return [f"builtins ({_list(patched)})"] if patched else []

    def _names_back(self) -> list[str]:
        said = []
        if _SYS.get("modules") is not _MODULES:
            _SYS["modules"] = _MODULES
            said.append("sys.modules")
        gone = []
        for owner, called, names, kept in self._owners:
            if isinstance(owner, ModuleType) and _MODULES.get(called) is not owner:
                _MODULES[called] = owner
                gone.append(called)
            patched = sorted(name for name, was in kept.items() if names.get(name) is not was)
            for name in patched:
                _quietly(type.__setattr__ if isinstance(owner, type) else setattr, owner, name, kept[name])
            if patched:
                said.append(f"{called} ({_list(patched)})")
        return [*said, *([f"sys.modules ({_list(sorted(gone))})"] if gone else [])]

    def _limits_back(self) -> list[str]:
        changed = []
        now = _limits() or {}
        for name, (soft, hard) in (self._limits or {}).items():
            soft_now, hard_now = now.get(name, (soft, hard))
            # A control plane raises one of them while it starts.
            is_ours = self._is_shared and _is_at_most(soft, soft_now)
            if (soft_now != soft and not is_ours) or hard_now != hard:
                if not is_ours:
                    _quietly(_write_limit, name, soft if _is_at_most(soft, hard_now) else hard_now, hard_now)
                changed.append(name)
        # What stays so whatever one does is told by ``lasting``.
        return [f"{_LIMITS_SAID} ({_list(changed)})"] if changed else []

    def _timers_back(self) -> list[str]:
        said = []
        for which, (then_s, left_s, interval_s) in self._timers.items():
            now_s, now_interval_s = signal.getitimer(which)
            due_s = max(left_s - (monotonic() - then_s), _TIMER_OFF_S) if left_s else 0.0
            is_clock = which == signal.ITIMER_REAL  # the others count time of the processor
            is_off = is_clock and abs(due_s - now_s) > _TIMER_OFF_S and not interval_s
            if bool(left_s) != bool(now_s) or interval_s != now_interval_s or is_off:
                signal.setitimer(which, due_s if is_clock else left_s, interval_s)
                said.append("a timer of the process (signal.alarm, signal.setitimer)")
        return said

    def _umask_back(self) -> list[str]:
        if self._umask == _umask():
            return []
        os.umask(self._umask)
        return ["the umask"]

    def _lists_back(self) -> list[str]:
        said = []
        for name, (its, was) in self._lists.items():
            now = _SYS.get(name)
            entries = list(now) if type(now) is list else []
            added = [entry for entry in entries if not any(_is_same(entry, one) for one in was)]
            strange = [entry for entry in added if name == "path" and type(entry) is not str]
            gone = [entry for entry in was if not any(_is_same(entry, one) for one in entries)]
            if type(now) is not list:
                its[:] = was
                _SYS[name] = its
                said.append(f"sys.{name}")
            elif gone or strange:
                kept = [entry for entry in added if not any(entry is one for one in strange)]
                now[:] = [*was, *kept]
                said.append(f"sys.{name} ({_list([_shown(entry) for entry in gone or strange])})")
        return said

    def _settings_back(self) -> list[str]:
        said = []
        for what, was in self._settings.items():
            read, write = _SETTINGS[what]
            if not _is_same(was, _tried(read)):
                _quietly(write, was)
                said.append(what)
        return said

    def _logging_back(self) -> list[str]:
        # As it is configured as a whole (logging.config), all that was there is switched off, and handlers forgotten.
        said = []
        if not _is_list_of([one.handler for one in self._handlers], _ROOT.__dict__.get("handlers")):
            _ROOT.handlers = [one.handler for one in self._handlers]
            said.append("the handlers of the root logger")
        if [one for one in self._handlers if one.put_back()]:
            said.append("what the handlers of the root logger let through")
        handlers, by_name = self._known_handlers
        missing = [one for one in handlers if not any(one is other for other in _HANDLER_LIST)]
        _HANDLER_LIST.extend(missing)
        _HANDLERS.update(by_name)
        loggers = [one.logger.name for one in self._logging if one.put_back()]
        for logger, was in self._disabled.items():
            if logger.__dict__.get("disabled") is not was:
                logger.disabled = was
                loggers.append(logger.name)
        if loggers:
            said.append(f"loggers of others ({_list(sorted(loggers))})")
        return said


@dataclass(frozen=True, slots=True)
class _Logged:
    logger: logging.Logger
    level: int
    is_disabled: bool
    propagates: bool
    handlers: list[Any]  # Any: whatever it has
    filters: list[Any]  # Any: see handlers

    @classmethod
    def of(cls, logger: logging.Logger) -> "_Logged":
        return cls(logger, logger.level, logger.disabled, logger.propagate, list(logger.handlers), list(logger.filters))

    def put_back(self) -> bool:
        """Whether there was anything to put back."""
        now = self.logger.__dict__
        if (
            _is_same(now.get("level"), self.level)
            and _is_same(now.get("disabled"), self.is_disabled)
            and _is_same(now.get("propagate"), self.propagates)
            and _is_list_of(self.handlers, now.get("handlers"))
            and _is_list_of(self.filters, now.get("filters"))
        ):
            return False
        self.logger.disabled, self.logger.propagate = self.is_disabled, self.propagates
        self.logger.handlers, self.logger.filters = list(self.handlers), list(self.filters)
        self.logger.setLevel(self.level)  # and what is remembered of it elsewhere is forgotten
        return True


@dataclass(frozen=True, slots=True)
class _Handled:
    handler: logging.Handler
    kept: Mapping[str, Any]  # Any: see _Logged
    filters: list[Any]  # Any: see _Logged

    @classmethod
    def of(cls, handler: logging.Handler) -> "_Handled":
        kept = {name: handler.__dict__.get(name, _GONE) for name in ("level", "formatter", "lock")}
        return cls(handler, kept, list(handler.filters))

    def put_back(self) -> bool:
        """Whether there was anything to put back."""
        now = self.handler.__dict__
        is_same = all(_is_same(now.get(name, _GONE), was) for name, was in self.kept.items())
        if is_same and _is_list_of(self.filters, now.get("filters")):
            return False
        now.update({name: was for name, was in self.kept.items() if was is not _GONE})
        self.handler.filters = list(self.filters)
        return True


def _is_same(one: Any, other: Any) -> bool:  # Any: whatever a plugin left
    if one is other:
        return True
    if type(one) is tuple and type(other) is tuple and len(one) == len(other):
        return all(_is_same(mine, its) for mine, its in zip(one, other, strict=True))
    return type(one) is type(other) and type(one) in _PLAIN and bool(one == other)


def _is_equal(one: Mapping[Any, Any], other: Mapping[Any, Any]) -> bool:  # Any: see _is_same
    try:
        return one == other
    except BaseException:  # of what somebody has put in
        return False


def _is_list_of(was: list[Any], now: object) -> bool:  # Any: see _is_same
    return type(now) is list and len(now) == len(was) and all(a is b for a, b in zip(was, now, strict=True))


def _tried(read: Callable[[], Any]) -> Any:  # Any: see _is_same
    try:
        return read()
    except BaseException:  # it is gone, or reading it is somebody's code now
        return _GONE


def _variables() -> dict[Any, Any]:  # Any: see Place
    return dict(_DATA)


def _is_harmless(name: object, value: object) -> bool:
    """Of a variable that is new: nobody else reads it."""
    if type(name) not in (str, bytes) or type(value) is not type(name):
        return False
    return not _variable(name).upper().startswith(_READ_BY_OTHERS)


def _variable(name: object) -> str:
    return fsdecode(name) if isinstance(name, str | bytes) else f"a {type(name).__name__}"


def _shown(entry: object) -> str:
    return entry if type(entry) is str else f"a {type(entry).__name__}"


def _write_variable(name: Any, value: Any) -> None:  # Any: see Place
    if value is None:
        try:
            if isinstance(name, str | bytes):
                _ENVIRON.pop(fsdecode(name), None)
        finally:
            _DATA.pop(name, None)  # what somebody has put in beside the system
    else:
        _ENVIRON[fsdecode(name)] = fsdecode(value)


def _umask() -> int:
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            return next(int(line.split()[1], 8) for line in status if line.startswith("Umask:"))
    except (OSError, StopIteration):
        # No way to look without changing it for a moment: then files of other threads are rather too private.
        mask = os.umask(0o077)
        os.umask(mask)
        return mask


def _cwd() -> str:
    try:
        return getcwd()
    except OSError:
        return ""


def _stream(number: int) -> tuple[int, int] | None:
    """Which file is open there."""
    try:
        found = fstat(number)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _is_closed(stream: Any) -> bool:  # Any: see _is_same
    return _tried(lambda: stream.closed) is True


def _limits() -> dict[str, tuple[int, int]] | None:
    """By name; None where the system has none."""
    try:
        import resource  # noqa: PLC0415 - there is none on Windows
    except ImportError:
        return None
    # One has two names; and how long one may run in real time is how a spawner marks what it has started.
    names = [name for name in vars(resource) if name.startswith("RLIMIT_") and name not in _LIMITS_LEFT_OUT]
    limits = {name: _tried(partial(resource.getrlimit, getattr(resource, name))) for name in names}
    return {name: limit for name, limit in limits.items() if limit is not _GONE}


def _is_at_most(limit: int, other: int) -> bool:
    """-1 is no limit at all."""
    return other == -1 or (limit != -1 and limit <= other)


def _write_limit(name: str, soft: int, hard: int) -> None:
    import resource  # noqa: PLC0415 - see _limits

    resource.setrlimit(getattr(resource, name), (soft, hard))


def _write_disable(level: int) -> None:
    logging.disable(level)


def _write_level(level: int) -> None:
    _ROOT.setLevel(level)


def _attribute(owner: object, name: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:  # Any: whatever it holds
    def write(value: Any) -> None:  # Any: see above
        if value is _GONE:
            delattr(owner, name)
        else:
            setattr(owner, name, value)

    return lambda: getattr(owner, name), write


_LISTS: Final = ("path", "meta_path", "path_hooks")
_STREAMS: Final = ("stdin", "stdout", "stderr")
_TIMERS: Final = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF) if hasattr(signal, "getitimer") else ()
_LIMITS_SAID: Final = "limits of the process"
_LIMITS_LEFT_OUT: Final = ("RLIMIT_OFILE", "RLIMIT_RTTIME")
_TIMER_OFF_S: Final = 0.5
_HANDLER_LIST: Final[list[Any]] = vars(logging)["_handlerList"]  # there is no public way
_HANDLERS: Final[Any] = vars(logging)["_handlers"]

# By what people are told: how to read it, and how to set it.
_SETTINGS: Final[dict[str, tuple[Callable[[], Any], Callable[[Any], None]]]] = {
    "sys.stdin": _attribute(sys, "stdin"),
    "sys.stdout": _attribute(sys, "stdout"),
    "sys.stderr": _attribute(sys, "stderr"),
    "sys.excepthook": _attribute(sys, "excepthook"),
    "sys.unraisablehook": _attribute(sys, "unraisablehook"),
    "the locale": (
        lambda: locale.setlocale(locale.LC_ALL),
        lambda value: _quietly(locale.setlocale, locale.LC_ALL, value),
    ),
    "the default time-out of sockets": (socket.getdefaulttimeout, socket.setdefaulttimeout),
    "logging.root": _attribute(logging, "root"),
    "logging.lastResort": _attribute(logging, "lastResort"),
    "logging.raiseExceptions": _attribute(logging, "raiseExceptions"),
    "the factory of log records": _attribute(logging, "_logRecordFactory"),
    "the class of loggers": _attribute(logging, "_loggerClass"),
    "the level of the root logger": (lambda: _ROOT.level, _write_level),
    "whether the root logger is disabled": _attribute(_ROOT, "disabled"),
    "logging.disable": (lambda: _ROOT.manager.disable, _write_disable),
    "the recursion limit": (sys.getrecursionlimit, sys.setrecursionlimit),
    "the garbage collector": (gc.isenabled, lambda is_on: gc.enable() if is_on else gc.disable()),
    # Asking for the policy would make one, and is deprecated; the name is the same in all versions that have one.
    "the event loop policy": (
        lambda: getattr(asyncio.events, "_event_loop_policy", None),
        lambda value: setattr(asyncio.events, "_event_loop_policy", value),
    ),
}

# A control plane switches the collector off while it starts; the first event loop makes the policy.
_OURS_TO_SET: Final = ("the garbage collector", "the event loop policy")


def _loggers(*, ours: bool = True) -> list[logging.Logger]:
    """All that there are of gpulayer, or all others."""
    return [
        logger
        for name, logger in list(_ROOT.manager.loggerDict.items())
        if isinstance(logger, logging.Logger) and (name.partition(".")[0] == "gpulayer") is ours
    ]


def _owners() -> Iterator[tuple[str, Any]]:  # Any: modules and classes, whose names are looked at
    """Each with the name of its module."""
    for name, module in list(_MODULES.items()):
        if type(name) is str and (name in _PATCHED or name.partition(".")[0] == "gpulayer"):
            yield from ((name, owner) for owner in _owners_in(name, module))


def _owners_in(name: str, module: Any) -> list[Any]:  # Any: whatever somebody has put there
    try:
        if not isinstance(module, ModuleType) or getattr(module.__spec__, "_initializing", False):
            return []  # or another thread imports it just now, and its names become what they will be
        classes = [] if name in _PATCHED else [value for value in vars(module).values() if _is_class_of(value, name)]
        return [module, *classes]
    except BaseException:  # it is somebody's code
        return []


def _is_class_of(value: Any, module: str) -> bool:  # Any: see _owners_in
    try:
        return isinstance(value, type) and value.__module__ == module
    except BaseException:  # see _owners_in
        return False


def _kept(owner: Any, module: str) -> Iterator[tuple[str, object]]:  # Any: see _owners
    """What code is called by: functions, classes and methods. All else may change as its owner likes."""
    is_ours = module not in _PATCHED
    for name, value in list(vars(owner).items()):
        if not name.startswith("__") and (is_ours or not name.startswith("_")) and _is_code(value):
            yield name, value


def _is_code(value: Any) -> bool:  # Any: see _owners_in
    try:
        return isinstance(value, type | staticmethod | classmethod | property) or callable(value)
    except BaseException:  # see _owners_in
        return False


def _named(owner: Any) -> str:  # Any: see _owners
    return f"{owner.__module__}.{owner.__qualname__}" if isinstance(owner, type) else str(owner.__name__)


def _list(names: list[str]) -> str:
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _quietly(act: Callable[..., object], *values: object) -> None:
    with suppress(BaseException):  # what can't be put back was named all the same
        act(*values)
