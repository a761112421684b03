"""Starting the spawner of a folder: the command is run, and what went wrong is said in one line."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from gpulayer.errors import Unreachable
from gpulayer.faults import rest_of
from gpulayer.spawner import ALREADY_RUNNING, spawner_command
from gpulayer.spawner.state import StateDir
from gpulayer.worker.disk import is_full

__all__ = ["SpawnerStart"]

_LOG_TAIL_BYTES: Final = 1000


class SpawnerStart:
    """How the spawners of ``state`` are started; ``run`` as often as one is needed.

    environment: the spawner's own, complete. faults: a life for each start, as of ``gpulayer.faults.arm``.
    """

    def __init__(
        self,
        state: StateDir,
        *,
        python: str,
        environment: Mapping[str, str],
        lock_folders: Sequence[str] = (),
        faults: str = "",
    ) -> None:
        self._state = state
        self._python = python
        self._environment = dict(environment)
        self._lock_folders = tuple(lock_folders)
        self._faults = faults

    async def run(self) -> None:
        """Returns when the spawner answers or another one holds the folder; raises Unreachable, with the reason."""
        try:
            self._state.prepare()
            log = os.open(self._state.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Unreachable(f"the spawner's folder {self._state.path} can't be used: {error}") from None
        try:
            command = spawner_command(
                self._state.path, python=self._python, lock_folders=self._lock_folders, faults=self._faults
            )
            self._faults = rest_of(self._faults)
            # stdin is none: the spawner must not hold, or be ended by, the terminal of whoever started the agent.
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment
            )
        except OSError as error:
            raise Unreachable(f"the spawner can't be started by {self._python}: {error}") from None
        finally:
            os.close(log)
        try:
            code = await process.wait()
        except BaseException:
            # Only the starting command: what it forked has a session of its own and is found by the next attempt.
            if process.returncode is None:
                process.kill()
                await process.wait()
            raise
        if code not in (0, ALREADY_RUNNING):
            raise Unreachable(f"the spawner did not start (exit code {code}): {self._log_tail()}")

    def _log_tail(self) -> str:
        try:
            with open(self._state.log_path, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_TAIL_BYTES))
                lines = file.read().decode(errors="replace").strip().splitlines()
        except OSError as error:
            return str(error)
        if lines:
            return lines[-1]
        return "its disk is full" if is_full(Path(self._state.path)) else "its log is empty"
