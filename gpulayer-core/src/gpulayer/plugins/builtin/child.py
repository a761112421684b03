"""A program that a probe asks, in a child that it can end: a driver that hangs takes nobody with it.

What hangs in a driver may not even die (D state). Such a child is left alone and remembered: until it has gone the same
program is not started a second time, so that a machine whose driver hangs for a week has one stuck process.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

__all__ = ["Child", "Said", "Unanswered", "found_program"]

CHILD_DEADLINE_S: Final = 6.0  # of the ten that a probe has
_DYING_S: Final = 1.0


class Unanswered(Exception):
    """It was asked, and no answer came; the text says why, for people."""


@dataclass(frozen=True, slots=True)
class Said:
    """What it printed, and its exit code; negative: the signal that ended it."""

    code: int
    out: str
    err: str


class Child:
    """One program, asked time after time by one thread at a time."""

    def __init__(self) -> None:
        self._stuck: subprocess.Popen[bytes] | None = None

    def ask(
        self, command: Sequence[str], *, environment: Mapping[str, str], deadline_s: float = CHILD_DEADLINE_S
    ) -> Said:
        """Run it to its end. Raises Unanswered: too late, still stuck since an earlier time, or not to be run."""
        name = os.path.basename(command[0])
        if self._stuck is not None and self._stuck.poll() is None:
            raise Unanswered(f"{name} does not answer: process {self._stuck.pid} hangs and can't be ended")
        self._stuck = None
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(environment),
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            raise Unanswered(f"{command[0]} can't be run: {error.strerror}") from error
        try:
            out, err = process.communicate(timeout=deadline_s)
        except subprocess.TimeoutExpired:
            self._end(process)
            raise Unanswered(f"{name} did not answer within {deadline_s:g} s") from None
        finally:
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        return Said(process.returncode, out.decode(errors="replace"), err.decode(errors="replace"))

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        try:
            process.wait(_DYING_S)
        except subprocess.TimeoutExpired:
            self._stuck = process


def found_program(name: str, *, environment: Mapping[str, str], also: Sequence[str] = ()) -> str:
    """Its path, looked for on the ``PATH`` of the environment and then in the folders ``also``; empty: nowhere."""
    path = os.pathsep.join([environment.get("PATH", os.defpath), *also])
    return shutil.which(name, path=path) or ""
