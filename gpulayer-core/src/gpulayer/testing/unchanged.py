"""What all code of a process shares, and no plugin may change."""

import logging
import os
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

__all__ = ["shared_state", "unchanged_process"]


@contextmanager
def unchanged_process() -> Iterator[None]:
    """Fails where what is done inside changes what ``shared_state`` sees, or leaves a thread running."""
    before, threads = shared_state(), set(threading.enumerate())
    yield
    after = shared_state()
    changed = [_told(name, before[name], after[name]) for name in before if before[name] != after[name]]
    assert not changed, "it changed what the whole process shares:\n" + "\n".join(changed)
    left = {thread.name for thread in threading.enumerate() if thread not in threads and not _is_core(thread)}
    assert not left, f"it left threads running: {', '.join(sorted(left))}"


def shared_state() -> Mapping[str, object]:
    """By what it is called."""
    return {name: look() for name, look in _LOOKS.items()}


def _told(name: str, before: object, after: object) -> str:
    if isinstance(before, Mapping) and isinstance(after, Mapping):  # values of variables are nobody's business
        different = sorted(key for key in {*before, *after} if before.get(key) != after.get(key))
        return f"{name}: {', '.join(map(str, different))}"
    return f"{name}: {before!r} became {after!r}"


def _is_core(thread: threading.Thread) -> bool:
    return thread.name.startswith(("plugin-", "pytest_timeout"))


def _handlers() -> object:
    return {number.name: str(signal.getsignal(number)) for number in signal.Signals}


_LOOKS: Final[Mapping[str, Callable[[], object]]] = {
    "current folder": os.getcwd,
    "environment": lambda: dict(os.environ),
    "sys.path": lambda: list(sys.path),
    "sys.argv": lambda: list(sys.argv),
    "sys.stdout": lambda: id(sys.stdout),
    "sys.stderr": lambda: id(sys.stderr),
    "sys.excepthook": lambda: id(sys.excepthook),
    "sys.meta_path": lambda: [id(finder) for finder in sys.meta_path],
    "recursion limit": sys.getrecursionlimit,
    "switch interval": sys.getswitchinterval,
    "signal handlers": _handlers,
    "socket timeout": socket.getdefaulttimeout,
    "log level": lambda: logging.getLogger().level,
    "log handlers": lambda: [id(handler) for handler in logging.getLogger().handlers],
    "logging disabled": lambda: logging.root.manager.disable,
    "warning filters": lambda: list(warnings.filters),
}
