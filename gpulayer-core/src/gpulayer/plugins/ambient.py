"""The state that a whole process shares and a plugin must not change: seen, named and put back.

``Ambient`` is all of it, for an import, which happens once; ``Place`` is what a call of a few microseconds can afford
to look at, and ``Visits`` compares it around calls. They belong to the process, so this module reads and writes what
others are given as parameters. Adding is fine (a variable in a module, an entry of ``sys.path``); what was there has to
stay what it was. Signal handlers are not looked at: only the main thread can set them, plugins never run there, and a
control plane sets its own meanwhile.
"""

import asyncio
import builtins
import gc
import locale
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["Ambient", "Place", "Stay", "Visits"]

# Others' modules that get monkey-patched whole; of ours, all that are loaded.
_PATCHED: Final = ("asyncio", "json", "logging", "os", "select", "socket", "ssl", "subprocess", "threading", "time")
_NAMES_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class Place:
    """The variables, as the system has them, and the working directory; ``cwd`` empty where it is gone."""

    environ: Mapping[Any, Any]  # Any: bytes or text, by system
    cwd: str

    @classmethod
    def now(cls) -> "Place":
        return cls(dict(_environ()), _cwd())

    def put_back(self) -> tuple[str, ...]:
        """Restores what is different now, and says what that was; names of variables, not their values."""
        said = []
        now = dict(_environ())
        if self.environ != now:
            both = self.environ.keys() | now.keys()
            changed = [name for name in both if self.environ.get(name) != now.get(name)]
            for name in changed:
                _quietly(_write_variable, name, self.environ.get(name))
            said.append(f"os.environ ({_list(sorted(map(_variable, changed)))})")
        if self.cwd != _cwd():
            said.append("the working directory")
            if self.cwd:
                _quietly(os.chdir, self.cwd)
        return tuple(said)


@dataclass(frozen=True, slots=True)
class Stay:
    """One call, from its beginning on. number: of the calls that have begun. was_empty: no other call ran then."""

    place: Place
    number: int
    was_empty: bool


class Visits:
    """The calls of one process, which share a place. Of calls that overlap nobody can tell which has changed it, and
    what one puts back may be what another needs; so only one that had the place to itself is looked at."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun = 0
        self._running = 0

    def begin(self) -> Stay:
        with self._lock:
            place = Place.now()
            self._begun += 1
            self._running += 1
            return Stay(place, self._begun, self._running == 1)

    def end(self, stay: Stay, *, is_awaited: bool) -> tuple[str, ...]:
        """What it has changed, which was put back. is_awaited: of a call that nobody waits for any more what the place
        was like is too old."""
        with self._lock:
            self._running -= 1
            was_alone = stay.was_empty and stay.number == self._begun
            return stay.place.put_back() if was_alone and is_awaited else ()


class Ambient:
    """A snapshot; some milliseconds. is_shared: other threads of the process go on meanwhile, so what gpulayer itself
    sets while it starts is not looked at."""

    def __init__(self, *, is_shared: bool = False) -> None:
        self._builtins = dict(builtins.__dict__)
        self._place = Place.now()
        self._umask = _umask()
        self._path = list(sys.path)
        self._settings = {
            what: read() for what, (read, _) in _SETTINGS.items() if not (is_shared and what in _OURS_TO_SET)
        }
        root = logging.getLogger()
        self._handlers = list(root.handlers)
        self._names = {owner: dict(_kept(owner)) for owner in _owners()}

    def put_back(self) -> tuple[str, ...]:
        """Restores what is different now, and says what that was."""
        said = self._builtins_back()
        said += self._names_back()
        said += self._place.put_back()
        if self._umask != _umask():
            os.umask(self._umask)
            said.append("the umask")
        gone = [entry for entry in self._path if entry not in sys.path]
        if gone:
            sys.path[:] = self._path + [entry for entry in sys.path if entry not in self._path]
            said.append(f"sys.path ({_list(gone)} removed)")
        for what, was in self._settings.items():
            read, write = _SETTINGS[what]
            if was != read():
                _quietly(write, was)
                said.append(what)
        root = logging.getLogger()
        if root.handlers != self._handlers:
            root.handlers[:] = self._handlers
            said.append("the handlers of the root logger")
        return tuple(said)

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
        for owner, names in self._names.items():
            patched = sorted(name for name, was in names.items() if vars(owner).get(name) is not was)
            for name in patched:
                _quietly(setattr, owner, name, names[name])
            if patched:
                said.append(f"{_named(owner)} ({_list(patched)})")
        return said


def _environ() -> Mapping[Any, Any]:  # Any: see Place
    # The private dictionary where there is one: a copy by the public way takes longer than many a call.
    return getattr(os.environ, "_data", os.environ)


def _variable(name: object) -> str:
    return os.fsdecode(name) if isinstance(name, str | bytes) else f"a {type(name).__name__}"


def _write_variable(name: Any, value: Any) -> None:  # Any: see Place
    if value is None:
        if isinstance(name, str | bytes):
            os.environ.pop(os.fsdecode(name), None)
        environ: Any = _environ()
        environ.pop(name, None)  # what somebody has put in beside the system
    else:
        os.environ[os.fsdecode(name)] = os.fsdecode(value)


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
        return os.getcwd()
    except OSError:
        return ""


def _write_disable(level: int) -> None:
    logging.disable(level)


def _write_level(level: int) -> None:
    logging.getLogger().setLevel(level)


def _attribute(owner: object, name: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:  # Any: whatever it holds
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


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
    "the level of the root logger": (lambda: logging.getLogger().level, _write_level),
    "logging.disable": (lambda: logging.root.manager.disable, _write_disable),
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


def _owners() -> Iterator[Any]:  # Any: modules and classes, whose names are looked at
    for name, module in list(sys.modules.items()):
        if not hasattr(module, "__dict__"):
            continue  # None, or whatever somebody has put there
        if getattr(getattr(module, "__spec__", None), "_initializing", False):
            continue  # another thread imports it just now, and its names become what they will be
        if name in _PATCHED:
            yield module
        elif name.partition(".")[0] == "gpulayer":
            yield module
            for value in list(vars(module).values()):
                if isinstance(value, type) and value.__module__ == name:
                    yield value


def _kept(owner: Any) -> Iterator[tuple[str, object]]:  # Any: see _owners
    """What code is called by: functions, classes and methods. All else may change as its owner likes."""
    for name, value in list(vars(owner).items()):
        is_ours = getattr(owner, "__module__", owner.__name__).partition(".")[0] == "gpulayer"
        if name.startswith("__") or (name.startswith("_") and not is_ours):
            continue
        if isinstance(value, type | staticmethod | classmethod | property) or callable(value):
            yield name, value


def _named(owner: Any) -> str:  # Any: see _owners
    return f"{owner.__module__}.{owner.__qualname__}" if isinstance(owner, type) else str(owner.__name__)


def _list(names: list[str]) -> str:
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _quietly(act: Callable[..., object], *values: object) -> None:
    try:
        act(*values)
    except (OSError, ValueError, TypeError, AttributeError, KeyError, RecursionError, locale.Error):
        pass  # what can't be put back was named all the same
