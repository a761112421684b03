"""The plane's own worker: a detached process that outlives the plane unless it is told to end.

It is found by the lock that it holds (``worker/agent.lock``, its pid inside), so a plane that takes over a state
folder keeps the worker that is there. stdlib only: it is started before anything heavy is imported, because it takes
its time to start, too.
"""

import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

__all__ = ["LocalWorker"]

_RESTART_FIRST_S: Final = 1.0
_RESTART_LAST_S: Final = 60.0


class LocalWorker:
    """``start`` it, call ``look_after`` now and then, ``stop`` it and ask ``is_running`` until it is not."""

    def __init__(self, command: Sequence[str], folder: Path, *, environment: Mapping[str, str]) -> None:
        self._command = tuple(command)
        self._environment = dict(environment)
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._is_stopping = False
        self._has_folder = True
        self._wait_s = _RESTART_FIRST_S
        self._restart_at = 0.0

    def needs_join_token(self) -> bool:
        """It has not joined yet, or can't say who it is any more (then what is left of that is put aside)."""
        path = self._folder / "identity.json"
        try:
            is_whole = bool(json.loads(path.read_bytes())["private_key"])
        except FileNotFoundError:
            return True
        except (OSError, ValueError, KeyError, TypeError):
            is_whole = False
        if not is_whole and not self.is_running():
            path.replace(path.with_name("identity.damaged.json"))
            return True
        return False

    def start(self) -> None:
        """Start it, unless one is there already. Raises OSError where the command can't be run."""
        if self.is_running():
            return
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        log = os.open(self._folder / "worker.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env=self._environment,
                start_new_session=True,
            )
        finally:
            os.close(log)

    def is_running(self) -> bool:
        """Also true for one that another plane started."""
        return (self._process is not None and self._process.poll() is None) or self._is_locked()

    def look_after(self) -> None:
        """Start it again when it has ended by itself; ever less often when that does not help."""
        if self._is_stopping or self.is_running():
            return
        now = time.monotonic()
        if self._restart_at == 0.0:
            self._restart_at = now + self._wait_s
        elif now >= self._restart_at:
            self._restart_at = 0.0
            self._wait_s = min(self._wait_s * 2, _RESTART_LAST_S)
            self.start()

    def stop(self, *, force: bool = False) -> None:
        """Ask it to end in good order (SIGTERM), or end it at once. May be repeated."""
        self._is_stopping = True
        pid = self._pid()
        if pid is not None:
            try:
                os.kill(pid, signal.SIGKILL if force else signal.SIGTERM)
            except ProcessLookupError:
                pass

    def leave_folder(self) -> None:
        """The folder was taken away: who works there now is somebody else's; only the process started here counts."""
        self._has_folder = False

    def forget(self) -> None:
        """Leave it running for the plane that comes next."""
        self._is_stopping = True
        if self._process is not None and self._process.poll() is None:
            self._process.returncode = 0  # it outlives us on purpose: Popen must not warn of that
        self._process = None

    def _pid(self) -> int | None:
        if self._process is not None and self._process.poll() is None:
            return self._process.pid
        if not self._is_locked():
            return None
        try:
            text = (self._folder / "agent.lock").read_text(encoding="ascii").split()
            return int(text[0])
        except (OSError, ValueError, IndexError):
            return None

    def _is_locked(self) -> bool:
        if not self._has_folder:
            return False
        try:
            descriptor = os.open(self._folder / "agent.lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False
