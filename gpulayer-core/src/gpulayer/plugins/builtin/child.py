"""A program that a probe asks, in a child that it can end: a driver that hangs takes nobody with it.

What hangs in a driver may not even die (D state). Such a child is left alone and remembered: until it has gone the same
program is not started a second time, so that a machine whose driver hangs for a week has one stuck process.

A child dies with the process that asked (see ``dying``): the thread that asks waits for it.
"""

import os
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from gpulayer.dying import dying_with_us, started_error

__all__ = ["CHILD_DEADLINE_S", "Child", "Said", "Unanswered", "Unstarted", "blocked_program", "found_program"]

CHILD_DEADLINE_S: Final = 6.0  # of the ten that a probe has
_DYING_S: Final = 1.0
_MAX_BYTES: Final = 4 * 2**20  # a rack of devices in detail is a twentieth of it
_LOOK_S: Final = 0.1  # how often one is looked at whose pipes stay open


class Unanswered(Exception):
    """It was asked, and no answer came; the text says why, for people."""


class Unstarted(Unanswered):
    """It can't be run at all: no word of whether it would answer."""


@dataclass(frozen=True, slots=True)
class Said:
    """What it printed, and its exit code; negative: the signal that ended it."""

    code: int
    out: str
    err: str


class Child:
    """One program, asked time after time by one thread at a time."""

    def __init__(self, *, kill: Callable[[int, int], None] = os.killpg, dying_s: float = _DYING_S) -> None:
        """dying_s: how long a program that was killed may take to go before it counts as stuck."""
        self._kill = kill
        self._dying_s = dying_s
        self._stuck: subprocess.Popen[bytes] | None = None
        self._name = ""

    def ask(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        deadline_s: float = CHILD_DEADLINE_S,
        called: str = "",
    ) -> Said:
        """Run it to its end. called: what people know it by; empty: by the name of the program. Raises Unanswered: too
        late, too much, still stuck since an earlier time; Unstarted."""
        if self._stuck is not None and self._stuck.poll() is None:
            raise Unanswered(f"{self._name} hangs since an earlier time and can't be ended (process {self._stuck.pid})")
        self._stuck = None
        name = called or os.path.basename(command[0])
        failing, failed = os.pipe()
        try:
            process = _started(command, environment, failed)
        except OSError as error:
            os.close(failing)
            raise Unstarted(f"{command[0]} can't be run: {error.strerror}") from error
        finally:
            os.close(failed)
        ends_s = time.monotonic() + deadline_s
        try:
            out, err = _heard(process, ends_s)
            process.wait(max(0.0, ends_s - time.monotonic()))
            if unstarted := started_error(failing):
                raise Unstarted(f"{command[0]} can't be run: {unstarted.strerror}")
        except (TimeoutError, subprocess.TimeoutExpired):
            self._end(process, name)
            raise Unanswered(f"{name} did not answer within {deadline_s:.2g} s") from None
        except OverflowError:
            self._end(process, name)
            raise Unanswered(f"{name} does not stop talking: more than {_MAX_BYTES:,} bytes") from None
        except BaseException:
            self._end(process, name)
            raise
        finally:
            os.close(failing)
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        return Said(process.returncode, out.decode(errors="replace"), err.decode(errors="replace"))

    def _end(self, process: subprocess.Popen[bytes], name: str) -> None:
        with suppress(ProcessLookupError, PermissionError):
            self._kill(process.pid, signal.SIGKILL)
        try:
            process.wait(self._dying_s)
        except subprocess.TimeoutExpired:
            self._stuck, self._name = process, name


def _started(command: Sequence[str], environment: Mapping[str, str], failed: int) -> subprocess.Popen[bytes]:
    """failed: as of ``dying_with_us``. Raises OSError."""
    more = dying_with_us(environment, failed=failed)
    return subprocess.Popen(
        [*more, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(environment),
        cwd="/",
        start_new_session=True,
        bufsize=0,
        pass_fds=[failed] if more else (),
    )


def _heard(process: subprocess.Popen[bytes], ends_s: float) -> tuple[bytes, bytes]:
    """All that it prints until it ends; what it leaves behind may keep its pipes open, and is not waited for. Raises
    TimeoutError, and OverflowError for what nobody wants to keep."""
    heard = bytearray(), bytearray()
    with selectors.DefaultSelector() as selector:
        for pipe, words in zip((process.stdout, process.stderr), heard, strict=True):
            if pipe is not None:
                selector.register(pipe, selectors.EVENT_READ, words)
        while selector.get_map():
            has_ended = process.poll() is not None
            left_s = ends_s - time.monotonic()
            ready = selector.select(0.0 if has_ended else max(0.0, min(_LOOK_S, left_s)))
            if not ready and has_ended:
                break
            if left_s <= 0:
                raise TimeoutError
            for key, _ in ready:
                part = os.read(key.fd, 65_536)
                key.data.extend(part)
                if not part:
                    selector.unregister(key.fileobj)
                elif len(key.data) > _MAX_BYTES:
                    raise OverflowError
    return bytes(heard[0]), bytes(heard[1])


def found_program(name: str, *, environment: Mapping[str, str], also: Sequence[str] = ()) -> str:
    """Its path, looked for on the ``PATH`` of the environment and then in the folders ``also``; empty: nowhere. What is
    no absolute path there would depend on where one stands, and is left out."""
    path = os.pathsep.join(_folders(environment, also))
    return (shutil.which(name, path=path) or "") if path else ""


def blocked_program(name: str, *, environment: Mapping[str, str], also: Sequence[str] = ()) -> str:
    """Of what has this name where ``found_program`` looks and found none: why it can't be run; empty: nothing has."""
    for folder in _folders(environment, also):
        path = os.path.join(folder, name)
        if os.path.lexists(path):
            return f"{path} can't be run: {_why_blocked(path)}"
    return ""


def _why_blocked(path: str) -> str:
    if os.path.isdir(path):
        return "it is a folder"
    return "it is not executable" if os.path.exists(path) else "it leads nowhere"


def _folders(environment: Mapping[str, str], also: Sequence[str]) -> list[str]:
    folders = [*environment.get("PATH", os.defpath).split(os.pathsep), *also]
    return [folder for folder in folders if os.path.isabs(folder)]
