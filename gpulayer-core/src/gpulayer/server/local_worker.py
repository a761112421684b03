"""The plane's own worker: a detached process that outlives the plane unless it is told to end.

It is found by the lock that it holds (``worker/agent.lock``, its pid inside), so a plane that takes over a state
folder keeps the worker that is there. stdlib only: it is started before anything heavy is imported, because it takes
its time to start, too.

Its end is the end of everything that it runs, whatever state it is in: what the agent does not do in good order and in
time, because it hangs or is dead already, is done for it (``end_step``).
"""

import fcntl
import json
import logging
import math
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from gpulayer.errors import UsageError
from gpulayer.server.filelimit import give_file_limit
from gpulayer.spawner import tree
from gpulayer.spawner.recovery import recover
from gpulayer.spawner.state import StateDir

__all__ = ["HUNG_S", "LocalWorker"]

_log: Final = logging.getLogger(__name__)
_KEY_BYTES: Final = 32
_AGENT_S: Final = 30.0  # to end its jobs, bring home what they made, and say so
_SPAWNER_S: Final = 20.0  # to kill what runs; its watchdog waits 5 s for a sign of life, then does it
HUNG_S: Final = 60.0  # six heartbeats
_ONE_WAIT_S: Final = 5.0  # a control plane that was itself stopped, or a machine that slept, has waited for one turn
_RESTART_FIRST_S: Final = 1.0
_RESTART_LAST_S: Final = 60.0


class LocalWorker:
    """``start`` it, call ``look_after`` now and then; to end it, call ``end_step`` until it says that it is done.

    agent_s, spawner_s: how long each may take to end before it is killed. hung_s: how long it may ask for nothing while
    it runs, in waits of this process, before it is taken to hang. file_limits: soft and hard, of open files,
    for it and what it runs; None: as of this process.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        *,
        environment: Mapping[str, str],
        file_limits: tuple[int, int] | None = None,
        agent_s: float = _AGENT_S,
        spawner_s: float = _SPAWNER_S,
        hung_s: float = HUNG_S,
    ) -> None:
        self._command = tuple(command)
        self._environment = dict(environment)
        self._file_limits = file_limits
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._is_stopping = False
        self._has_folder = True
        self._wait_s = _RESTART_FIRST_S
        self._restart_at = 0.0
        self._spawner = StateDir(str(folder / "spawner"))
        self._agent_s = agent_s
        self._spawner_s = spawner_s
        self._hung_s = hung_s
        self._heard = 0
        self._is_heard = False  # of, since its start
        self._silent_s = 0.0
        self._looked_at = time.monotonic()
        self._agent_end_at: float | None = None
        self._spawner_end_at: float | None = None

    def needs_join_token(self) -> bool:
        """It has not joined yet. Raises UsageError where it can't say any more who it is: another worker in its place
        would be a stranger to its own jobs, and nobody would know why."""
        path = self._folder / "identity.json"
        try:
            document = json.loads(path.read_bytes())
            is_whole = (
                len(bytes.fromhex(document["private_key"])) == _KEY_BYTES
                and isinstance(document["worker_id"], str)
                and isinstance(document["counter"], int)
                and isinstance(document["boot"], int)
            )
            reason = "it is not whole"
        except FileNotFoundError:
            return True
        except OSError as error:
            is_whole, reason = False, (error.strerror or str(error)).lower()
        except (ValueError, KeyError, TypeError):
            is_whole, reason = False, "it is not whole"
        if not is_whole and not self.is_running():
            raise UsageError(
                f"{path} can't be read: {reason}; it says which worker this machine's is",
                hint="bring it back, or move it away and this machine joins as a new worker; gpulayer up --no-worker "
                "starts without one",
            )
        return False

    def start(self) -> None:
        """Start it, unless one is there already. Raises OSError where the command can't be run."""
        if self.is_running():
            self._is_heard = True  # another control plane started it: it is there already, or hangs
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
        if self._file_limits is not None:
            give_file_limit(self._process.pid, self._file_limits)

    def is_running(self) -> bool:
        """Also true for one that another plane started."""
        return (self._process is not None and self._process.poll() is None) or self._is_locked()

    def look_after(self, heard: int = 0) -> None:
        """Start it again when it has ended by itself; ever less often when that does not help. End it when it hangs:
        what it runs goes on, and the next one finds it.

        heard: how often it has asked for anything so far. Until it has for the first time since its start, it may take
        as long as its plugins and checks take.
        """
        now = time.monotonic()
        waited_s, self._looked_at = min(now - self._looked_at, _ONE_WAIT_S), now
        if self._is_stopping:
            return
        if self.is_running():
            self._end_hung(heard, waited_s)
            return
        self._heard, self._is_heard = heard, False
        if self._restart_at == 0.0:
            self._restart_at = now + self._wait_s
        elif now >= self._restart_at:
            self._restart_at = 0.0
            self._wait_s = min(self._wait_s * 2, _RESTART_LAST_S)
            try:
                self.start()
            except OSError as error:  # no room for its log, no descriptors, no memory: the plane goes on
                _log.warning("the worker can't be started: %s", error.strerror or error)

    def _end_hung(self, heard: int, waited_s: float) -> None:
        if heard != self._heard:
            self._heard, self._is_heard, self._silent_s = heard, True, 0.0
            return
        self._silent_s = self._silent_s + waited_s if self._is_heard else 0.0
        if self._silent_s >= self._hung_s:
            text = (
                "the worker (process %s) hangs: nothing was heard of it for %.0f s; it is started again, its jobs go on"
            )
            _log.warning(text, self._pid(), self._silent_s)
            self._is_heard = False
            self._signal_agent(signal.SIGKILL)

    def stop(self) -> None:
        """Ask it to end in good order. May be repeated."""
        self._is_stopping = True
        self._signal_agent(signal.SIGTERM)
        self._signal_agent(signal.SIGCONT)  # one that was stopped would not hear of it

    def is_gone(self) -> bool:
        """Neither it nor anything that it started is left, or known to be."""
        return not self.is_running() and not (self._has_folder and self._spawner.is_held())

    def end_step(self) -> bool:
        """Do what is next on the way to its end, without waiting for it; True once nothing of it is left.

        Also True, with a warning, when something can't be ended by any means within the time.
        """
        now = time.monotonic()
        if self.is_running():
            if self._agent_end_at is None:
                self._agent_end_at = now + self._agent_s
                self.stop()
            elif now >= self._agent_end_at:
                _log.warning(
                    "the worker (process %s) did not end within %.0f s; killing it", self._pid(), self._agent_s
                )
                self._agent_end_at = math.inf  # from here on the kernel has it
                self._signal_agent(signal.SIGKILL)
            if self._agent_end_at != math.inf:
                return False
        self._is_stopping = True
        if not self._has_folder:
            return True
        if self._spawner.is_held():
            return self._end_spawner(now)
        self._end_leftovers()
        return True

    def _end_spawner(self, now: float) -> bool:
        """Its agent has gone. The watchdog hands the signal on, and sees to it that it is followed."""
        holders = [holder for name in ("watchdog", "spawner") if (holder := self._spawner.holder(name)) is not None]
        if self._spawner_end_at is None:
            self._spawner_end_at = now + self._spawner_s
            tree.send_signal(holders[:1], signal.SIGTERM)
        elif now >= self._spawner_end_at + self._spawner_s:
            _log.warning("the spawner in %s can't be ended: what it runs may go on", self._spawner.path)
            return True
        elif now >= self._spawner_end_at and holders:
            tree.send_signal(holders[-1:], signal.SIGKILL)  # the spawner's, and then its watchdog cleans up
        return False

    def _end_leftovers(self) -> None:
        """Of a spawner that was killed together with its watchdog. Blocks while something does not die (10 s)."""
        lock = None
        try:
            lock = self._spawner.lock()
            if lock is not None:
                recover(self._spawner, spare=frozenset({os.getpid()}), wall_ms=lambda: time.time_ns() // 1_000_000)
        except OSError:
            pass  # there never was a spawner here
        finally:
            if lock is not None:
                os.close(lock)

    def leave_folder(self) -> None:
        """The folder was taken away: who works there now is somebody else's; only the process started here counts."""
        self._has_folder = False

    def forget(self) -> None:
        """Leave it running for the plane that comes next."""
        self._is_stopping = True
        if self._process is not None and self._process.poll() is None:
            self._process.returncode = 0  # it outlives us on purpose: Popen must not warn of that
        self._process = None

    def _signal_agent(self, number: int) -> None:
        pid = self._pid()
        if pid is not None:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

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
