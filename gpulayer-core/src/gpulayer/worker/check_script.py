"""A script in another Python: run in a session of its own, watched, and killed with all that stayed in its session.

What hangs in a driver may not even die: it is left alone then, and named by its process.

It dies with the worker (see ``dying``), which the worker's own Python asks for: the other one may hang long before it
reads a script, in its ``sitecustomize``.
"""

import asyncio
import errno
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Final

from gpulayer.dying import dying_with_us, started_error
from gpulayer.plugins.contracts.framework import CHECK_DEADLINE_S

__all__ = ["Ran", "is_there", "run_script"]

_OUTPUT_LIMIT: Final = 16 << 20
_KEPT_BYTES: Final = 64 << 10
_LOOK_S: Final = 0.1  # how often its output is measured
_DYING_S: Final = 5.0
_SAID_LIMIT: Final = 1_000
_PASSING: Final = frozenset(
    {
        errno.EAGAIN,
        errno.EDQUOT,
        errno.EINTR,
        errno.EIO,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.ENOSPC,
        errno.EROFS,
        errno.ESTALE,
        errno.ETXTBSY,
    }
)  # of this machine as it is now, not of a Python
_KILLED: Final = frozenset(
    code
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    for code in (-number, 128 + number)
)  # by somebody; with 128 as a shell tells of the Python that it has run
# Run by the other Python, which may be a wrapper that had to fork.
_PRELUDE: Final = """
import sys
try:
    import ctypes
    ctypes.CDLL(None).prctl(1, 9)
except Exception:
    pass  # not Linux
with open(sys.argv[1], encoding="utf-8") as file:
    source = file.read()
exec(compile(source, sys.argv[1], "exec"), {"__name__": "__main__"})
"""


@dataclass(frozen=True, slots=True)
class Ran:
    """failure: what kept it from ending well; empty where nothing did. is_late: that was the deadline. is_passing: it
    was no doing of its own, and may be otherwise soon: somebody killed it, as a kernel does that is short of memory, or
    there was no room to start it. stuck: its process, where it can't even be killed."""

    out: bytes
    err: bytes
    failure: str = ""
    is_late: bool = False
    is_passing: bool = False
    stuck: int = 0


async def run_script(
    source: str, folder: Path, *, python: str, variables: Mapping[str, str], deadline_s: float = CHECK_DEADLINE_S
) -> Ran:
    """Run it in an empty folder below ``folder``, which goes with it. Its outputs are files: it can read there what its
    own libraries wrote. Never raises but when it is cancelled."""
    failure, is_late, stuck = "", False, 0
    failing, failed = os.pipe()
    start = dying_with_us(variables, failed=failed)
    try:
        # Files, not pipes: whoever keeps a pipe open would be waited for, also when all of the session is dead.
        await asyncio.to_thread(_prepare, folder, source)
        with open(folder / "out", "w+b") as out, open(folder / "err", "w+b") as err:  # noqa: ASYNC230
            process = await asyncio.create_subprocess_exec(
                *start,
                python,
                "-c",
                _PRELUDE,
                str(folder / "run" / "check.py"),
                cwd=folder / "run",
                env=dict(variables),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                pass_fds=(failed,) if start else (),
            )
            os.close(failed)
            failed = -1
            ran = asyncio.ensure_future(process.wait())
            try:
                failure, is_late = await _watch(ran, (out, err), deadline_s)
            finally:
                _kill_session(process.pid)
                await asyncio.wait((ran,), timeout=_DYING_S)
            code = 0
            if ran.done():
                code = ran.result()
            else:
                ran.cancel()
                stuck = process.pid
                failure += f", and can't be ended: process {stuck} hangs"
            if code and (error := started_error(failing)):
                raise error
            ended = Ran(_tail(out), _tail(err), failure, is_late=is_late, stuck=stuck)
    except OSError as error:
        failure = f"its check can't be run by {python}: {error.strerror}"
        return Ran(b"", b"", failure, is_passing=error.errno in _PASSING)
    finally:
        for end in (failing, failed):
            if end >= 0:
                os.close(end)
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    if not failure and code:
        ending = f"exit code {code}" if code > 0 else f"signal {-code}"
        said = _said_at_the_end(ended.err) or "it said nothing"
        is_killed = code in _KILLED
        return replace(ended, failure=f"its check failed ({ending}): {said}", is_passing=is_killed)
    return ended


async def _watch(ran: "asyncio.Future[int]", files: Sequence[IO[bytes]], deadline_s: float) -> tuple[str, bool]:
    """Until it has ended, or has to be: then, why, and whether its time was over."""
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + deadline_s
    while not ran.done():
        await asyncio.wait((ran,), timeout=max(0.0, min(_LOOK_S, ends_s - loop.time())))
        if any(os.fstat(file.fileno()).st_size > _OUTPUT_LIMIT for file in files):
            return f"its check printed more than {_OUTPUT_LIMIT >> 20} MiB", False
        if not ran.done() and loop.time() >= ends_s:
            return f"its check did not end within {deadline_s:g} s", True
    return "", False


def _tail(file: IO[bytes]) -> bytes:
    size = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), _KEPT_BYTES, max(0, size - _KEPT_BYTES))


def _prepare(folder: Path, source: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "run").mkdir(mode=0o700, parents=True)
    (folder / "run" / "check.py").write_text(source, encoding="utf-8")


def _kill_session(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # it has gone, and nobody stayed behind


def is_there(pid: int) -> bool:
    """Whether there is a process of that number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _said_at_the_end(err: bytes) -> str:
    lines = [line.strip() for line in err.decode(errors="replace").replace("\0", "").splitlines() if line.strip()]
    return lines[-1][:_SAID_LIMIT] if lines else ""
