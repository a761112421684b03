"""A job's inputs on their way in: each brought by the stager of its URI, into a folder of its own, before the start.

They lie beside the work folder, so that no input is ever an output, and go with the attempt. Where they lie is kept on
disk once all are there: an agent that is started again either finds that, or brings them again into emptied folders.
"""

import asyncio
import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final
from urllib.parse import urlsplit

from gpulayer.errors import Blame, DiskFull, PluginFault, PluginResting
from gpulayer.plugins.contracts.stager import (
    STAGER_DEADLINE_S,
    STAGER_SILENCE_S,
    StageFailed,
    Stager,
    StageSite,
)
from gpulayer.plugins.guard import Life
from gpulayer.plugins.host import Host
from gpulayer.plugins.registry import Registered
from gpulayer.plugins.results import instance_of
from gpulayer.spec.assignment import Assignment, NodeKey
from gpulayer.spec.outcome import EndedBy
from gpulayer.whole import write_whole
from gpulayer.worker.disk import is_full_error, room_text
from gpulayer.worker.folders import emptied
from gpulayer.worker.journal import Journal
from gpulayer.worker.patience import Patience
from gpulayer.worker.story import attempt_text
from gpulayer.worker.unready import Unready, plain_text, unready_by_fault

__all__ = ["Inputs"]

_SIDE_BY_SIDE: Final = 4  # of one scheme, over all attempts: fewer than the guard has threads for one stager

Places = tuple[tuple[str, Path], ...]


class Inputs:
    """Of one start of a worker."""

    def __init__(
        self,
        host: Host,
        patience: Patience,
        folders: Journal,
        *,
        environment: Mapping[str, str],
        silence_s: float = STAGER_SILENCE_S,
    ) -> None:
        self._host = host
        self._patience = patience
        self._folders = folders
        self._environment = MappingProxyType(dict(environment))
        self._silence_s = silence_s
        self._places: dict[NodeKey, Places] = {}
        self._slots: dict[str, asyncio.Semaphore] = {}

    async def fetch(self, assignment: Assignment) -> None:
        """One whose stager is not to be asked now waits for it. Raises Unready, DiskFull and OSError."""
        folder = await asyncio.to_thread(self._folders.renew_inputs, assignment.key)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._fetch(assignment, name, uri, folder / name))
                    for name, uri in assignment.inputs
                ]
        except ExceptionGroup as failed:  # the first is the reason; the others were ended because of it
            raise failed.exceptions[0] from None
        places = tuple((name, task.result()) for (name, _), task in zip(assignment.inputs, tasks, strict=True))
        content = json.dumps({name: str(path) for name, path in places}).encode()
        file = self._folders.inputs_file(assignment.key)
        await asyncio.to_thread(write_whole, file, content, point="agent.inputs")
        self._places[assignment.key] = places

    async def of(self, assignment: Assignment) -> Places:
        """Where they lie, by name. Raises Unready where nobody knows."""
        if not assignment.inputs:
            return ()
        known = self._places.get(assignment.key)
        if known is None:
            try:
                content = await asyncio.to_thread(self._folders.inputs_file(assignment.key).read_bytes)
                found = json.loads(content)
                known = tuple((name, Path(found[name])) for name, _ in assignment.inputs)
            except (OSError, ValueError, KeyError, TypeError) as error:
                text = f"where its inputs lie can't be read: {error}"
                raise Unready(EndedBy.STAGING, text, Blame.INFRASTRUCTURE) from None
            self._places[assignment.key] = known
        return known

    def forget(self, key: NodeKey) -> None:
        """Its folder goes with the attempt."""
        self._places.pop(key, None)

    async def _fetch(self, assignment: Assignment, name: str, uri: str, folder: Path) -> Path:
        scheme = urlsplit(uri).scheme.lower()
        stager = self._host.registry.stagers.get(scheme)
        if stager is None:
            text = f"input {name}: this worker has no stager for {scheme}:"
            raise Unready(EndedBy.STAGING, text, Blame.INFRASTRUCTURE)
        try:
            while True:
                try:
                    async with self._slots.setdefault(scheme, asyncio.Semaphore(_SIDE_BY_SIDE)):
                        return await self._ask(stager, uri, folder)
                except PluginResting as resting:
                    who = f"{attempt_text(assignment)}, input {name}"
                    await self._patience.until_free(stager, resting, who=who)
        except StageFailed as failed:
            blame = Blame.INFRASTRUCTURE if failed.is_users is False else Blame.USER
            text = plain_text(f"input {name} can't be fetched", failed.message, failed.hint)
            raise Unready(EndedBy.STAGING, text, blame) from None
        except PluginFault as fault:
            raise unready_by_fault(EndedBy.STAGING, fault, f"input {name} could not be fetched") from None

    async def _ask(self, stager: Registered[Stager], uri: str, folder: Path) -> Path:
        life = Life(self._silence_s)
        is_wanted = True

        def progress(_done: int, _total: int | None) -> None:
            life.sign()

        site = StageSite(folder, self._environment, progress=progress, is_cancelled=lambda: not is_wanted)

        def ask(thing: Stager) -> Path:
            try:
                return _checked_place(thing.fetch(uri, site))
            except OSError as error:
                if not is_full_error(error):
                    raise
                free_text = room_text(folder) if error.errno == errno.ENOSPC else ""
                if free_text:  # then it is not known whose disk that was: only what was said of it
                    raise StageFailed(
                        f"its stager found no room ({error}), while the worker's own disk has {free_text} free",
                        hint="another disk is full, or it is larger than what is free here",
                        is_users=False,
                    ) from error
                raise DiskFull(str(error)) from error

        await asyncio.to_thread(emptied, folder)  # what goes wrong with our own disk is not the stager's
        try:
            return await self._patience.acall(
                stager,
                "Stager.fetch",
                ask,
                deadline_s=STAGER_DEADLINE_S,
                passes=(StageFailed, DiskFull),
                life=life,
            )
        finally:
            is_wanted = False


def _checked_place(value: object) -> Path:
    path = Path(os.fspath(instance_of(Path, value)))
    if not path.is_absolute():
        raise ValueError(f"it gave {str(path)[:200]!r}, which is no absolute path")
    if not path.exists():
        raise ValueError(f"it gave {str(path)[:200]!r}, where nothing lies")
    return path
