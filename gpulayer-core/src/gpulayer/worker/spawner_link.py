"""The agent's end of the spawner's socket.

``connect_or_start`` attaches to the spawner of a folder, starting one where none lives. When the connection or the
spawner dies, the link attaches again by itself and says so with ``Attached``, whose rows are the whole truth at that
moment: what ended in between is in them. Requests that may be repeated are, until their deadline; every wait has one.
The link keeps no state of jobs, and closing it ends none. A spawner that gives no sign of life when asked for one is
ended, and another started: what ran under it is lost, and told so (``spawner_pulse``).
"""

import asyncio
import itertools
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from gpulayer.errors import (
    Conflict,
    GpulayerError,
    InternalError,
    ProtocolError,
    TimedOut,
    Unreachable,
)
from gpulayer.spawner import messages as m
from gpulayer.spawner.messages import Exited, ExitRecord, Output, Row, Spawned, SpawnFailed, Stalled
from gpulayer.spawner.state import StateDir
from gpulayer.worker.spawner_attach import AGAIN_S, MAX_REPLY_BYTES, Attached, SpawnerAttach, close_stream
from gpulayer.worker.spawner_errors import ConnectionLost, error_of, read_message, unexpected
from gpulayer.worker.spawner_pulse import Pulse, end_if_stuck
from gpulayer.worker.spawner_start import SpawnerStart

__all__ = [
    "Attached",
    "ExitRecord",
    "Exited",
    "Output",
    "Row",
    "SpawnFailed",
    "Spawned",
    "SpawnerEvent",
    "SpawnerLink",
    "Stalled",
]

_START_DEADLINE_S: Final = 60.0  # longer than one that is stuck is waited for
_REQUEST_DEADLINE_S: Final = 30.0
_SPAWN_DEADLINE_S: Final = 60.0  # longer, too: what was given up by then must not be started by one that goes on


SpawnerEvent = Attached | Exited | Output | Stalled


class _NotWanted(Exception):
    """What was to be asked for is not wanted any more."""


class SpawnerLink:
    """One agent's link to one spawner. Made by ``connect_or_start``; use as an async context, or ``aclose`` it."""

    def __init__(
        self,
        state_dir: Path,
        *,
        python: str,
        environment: Mapping[str, str],
        lock_folders: Sequence[str] = (),
        faults: str = "",
        speaks: Sequence[int],
        pulse: Pulse,
    ) -> None:
        self._state = StateDir(os.fspath(state_dir))
        start = SpawnerStart(
            self._state, python=python, environment=environment, lock_folders=lock_folders, faults=faults
        )
        self._attaching = SpawnerAttach(self._state, start, pulse, speaks=speaks)
        self._pulse = pulse
        self._ids = itertools.count(1)
        self._pending: dict[int, asyncio.Future[m.Message]] = {}
        self._outgoing: list[bytes] = []
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._connected = asyncio.Event()
        self._queue: dict[tuple[str, str], SpawnerEvent] = {}  # coalesced: its size is bounded by the number of jobs
        self._has_event = asyncio.Event()
        self._fault: GpulayerError | None = None
        self._is_closed = False
        self._is_ending = False
        self._tasks: tuple[asyncio.Task[None], ...] = ()

    @classmethod
    async def connect_or_start(
        cls,
        state_dir: Path,
        *,
        python: str = sys.executable,
        environment: Mapping[str, str] | None = None,
        lock_folders: Sequence[str] = (),
        faults: str = "",
        deadline_s: float = _START_DEADLINE_S,
        speaks: Sequence[int] = m.SPOKEN,
        pulse: Pulse | None = None,
    ) -> Self:
        """Attach to the spawner of ``state_dir`` (a folder of its own), started where none lives.

        An agent attached before is superseded. environment: the spawner's own (jobs inherit none of it); needed only
        where ``python`` does not start without. lock_folders: where all workers of this host lock its devices.
        faults: a life for each spawner that this link starts, as of ``gpulayer.faults.arm``. speaks: protocol versions;
        an older spawner is spoken to in its own, and replaced once nothing runs under it. pulse: how patient to be with
        one that does not answer.

        Raises ``Unreachable`` with the reason, or ``ProtocolError`` where the running spawner speaks none of these.
        """
        link = cls(
            state_dir,
            python=python,
            environment=environment or {},
            lock_folders=lock_folders,
            faults=faults,
            speaks=speaks,
            pulse=pulse or Pulse(),
        )
        await link._attach(deadline_s)
        link._tasks = (
            asyncio.create_task(link._run(), name="spawner-link"),
            asyncio.create_task(link._feel_pulse(), name="spawner-pulse"),
        )
        return link

    async def spawn(
        self,
        *,
        key: str,
        argv: Sequence[str],
        cwd: Path,
        env: Mapping[str, str],
        log_path: Path,
        exit_path: Path,
        marker: int | None = None,
        nice: int = 0,
        kill_by_ms: int | None = None,
        devices: Sequence[str] = (),
        err_path: Path | None = None,
        limits: m.SpawnLimits | None = None,
        is_wanted: Callable[[], bool] = lambda: True,
        deadline_s: float = _SPAWN_DEADLINE_S,
    ) -> Spawned | SpawnFailed:
        """Start a job once: repeated with a known ``key`` it returns what is known (see ``messages.Spawn``).

        is_wanted: asked each time before a spawner is. What is not wanted any more is not started by this one, and by
        the next one neither; the answer is what has become of it with the one that was asked.
        """
        try:
            reply = await self._request(
                lambda number: m.Spawn(
                    id=number,
                    key=key,
                    argv=tuple(argv),
                    cwd=os.fspath(cwd),
                    env=dict(env),
                    log_path=os.fspath(log_path),
                    exit_path=os.fspath(exit_path),
                    marker=marker,
                    nice=nice,
                    kill_by_ms=kill_by_ms,
                    devices=tuple(devices),
                    err_path=None if err_path is None else os.fspath(err_path),
                    limits=limits or m.SpawnLimits(),
                ),
                what=f"start {key}",
                deadline_s=deadline_s,
                is_wanted=is_wanted,
            )
        except _NotWanted:
            return await self._known(key, deadline_s=deadline_s)
        if isinstance(reply, Spawned | SpawnFailed):
            return reply
        raise unexpected(reply)

    async def _known(self, key: str, *, deadline_s: float) -> Spawned | SpawnFailed:
        """A spawner reads nothing more of a connection that another took the place of, so its table is the truth."""
        for row in await self.list(deadline_s=deadline_s):
            if row.key == key:
                return Spawned(0, key, row.pid, existing=True, exit=row.exit)
        return SpawnFailed(0, key, 0, "it was called off while its worker's spawner did not answer", None)

    def hurry(self) -> None:
        """Somebody waits for the end of something: a spawner that is seen to stand still (SIGSTOP) is not given half a
        minute. One that is merely slow is: all that runs under it would be lost."""
        if self._connected.is_set() and not self._pulse.is_asked:
            self._ask_for_a_sign()
        self._pulse.is_hurried = True

    async def extend(self, key: str, kill_by_ms: int, *, deadline_s: float = _REQUEST_DEADLINE_S) -> None:
        """Move the time at which the spawner ends the tree by itself. Raises ``NotFound`` for an unknown key."""
        await self._done(lambda number: m.Extend(number, key, kill_by_ms), what=f"extend {key}", deadline_s=deadline_s)

    async def signal(self, key: str, signum: int, *, deadline_s: float = _REQUEST_DEADLINE_S) -> int:
        """Signal each process of the tree once; how many there were. Not repeated: after ``Unreachable`` it may or
        may not have been sent. Raises ``NotFound`` for an unknown key."""
        return await self._done(
            lambda number: m.Signal(number, key, int(signum)),
            what=f"signal {key}",
            deadline_s=deadline_s,
            may_repeat=False,
        )

    async def kill(self, key: str, *, deadline_s: float = _REQUEST_DEADLINE_S) -> None:
        """Begin to kill the whole tree; ``Exited`` follows. Raises ``NotFound`` for an unknown key."""
        await self._done(lambda number: m.Kill(number, key), what=f"kill {key}", deadline_s=deadline_s)

    async def list(self, *, deadline_s: float = _REQUEST_DEADLINE_S) -> tuple[Row, ...]:
        """All jobs that run, or have ended and are not forgotten."""
        reply = await self._request(m.ListJobs, what="list the jobs", deadline_s=deadline_s)
        if isinstance(reply, m.Table):
            return reply.rows
        raise unexpected(reply)

    async def forget(self, key: str, *, deadline_s: float = _REQUEST_DEADLINE_S) -> None:
        """Drop an ended job from the table; its files stay. Raises ``Conflict`` while it runs."""
        await self._done(lambda number: m.Forget(number, key), what=f"forget {key}", deadline_s=deadline_s)

    async def forget_all(self, keys: Sequence[str], *, deadline_s: float = _REQUEST_DEADLINE_S) -> None:
        """``forget`` for many in one exchange. Raises the first error, when all are answered; unknown keys are none."""
        makes = [partial(_forget, key) for key in keys]
        for reply in await self._request_all(makes, what="forget jobs", deadline_s=deadline_s):
            if isinstance(reply, m.Failed) and reply.code != "not_found":
                raise error_of(reply)

    async def shutdown(self, *, force: bool = False, deadline_s: float = _REQUEST_DEADLINE_S) -> None:
        """End spawner and watchdog, and with them ``events``. Raises ``Conflict`` while jobs run, unless ``force``,
        which kills them first (their exit records are written)."""
        self._is_ending = True
        try:
            await self._done(
                lambda number: m.Shutdown(number, force), what="shut down", deadline_s=deadline_s, may_repeat=False
            )
        except GpulayerError:
            self._is_ending = False
            raise

    async def events(self) -> AsyncIterator[SpawnerEvent]:
        """Events as they come, for one reader; the first is ``Attached``. Unread ``Output`` of a key is replaced by
        newer. Ends after ``shutdown`` or ``aclose``; raises ``Conflict`` when another agent took over."""
        while True:
            while self._queue:
                yield self._queue.pop(next(iter(self._queue)))
            if self._fault is not None:
                raise self._fault
            if self._is_closed:
                return
            self._has_event.clear()
            await self._has_event.wait()

    async def aclose(self) -> None:
        """Close the link; jobs and spawner go on. May be repeated."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = ()
        await self._close_stream()
        self._settle()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # Requests ---------------------------------------------------------------------------------------------------------

    async def _done(
        self, make: Callable[[int], m.Message], *, what: str, deadline_s: float, may_repeat: bool = True
    ) -> int:
        reply = await self._request(make, what=what, deadline_s=deadline_s, may_repeat=may_repeat)
        if isinstance(reply, m.Done):
            return reply.count
        raise unexpected(reply)

    async def _request(
        self,
        make: Callable[[int], m.Message],
        *,
        what: str,
        deadline_s: float,
        may_repeat: bool = True,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> m.Message:
        (reply,) = await self._request_all(
            [make], what=what, deadline_s=deadline_s, may_repeat=may_repeat, is_wanted=is_wanted
        )
        if isinstance(reply, m.Failed):
            raise error_of(reply)
        return reply

    async def _request_all(
        self,
        makes: Sequence[Callable[[int], m.Message]],
        *,
        what: str,
        deadline_s: float,
        may_repeat: bool = True,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> Sequence[m.Message]:
        try:
            async with asyncio.timeout(deadline_s):
                while True:
                    await self._connected.wait()
                    if self._fault is not None:
                        raise self._fault
                    if self._is_closed:
                        raise Conflict(f"can't {what}: the link to the spawner is closed")
                    if not is_wanted():
                        raise _NotWanted
                    try:
                        return await self._exchange(makes)
                    except ConnectionLost:
                        if may_repeat:
                            continue
                        raise Unreachable(
                            f"the connection to the spawner broke while asking it to {what}",
                            hint="it may or may not have happened; list the jobs",
                        ) from None
        except TimeoutError:
            if not self._connected.is_set():
                raise Unreachable(f"the spawner in {self._state.path} can't be reached to {what}") from None
            raise TimedOut(f"the spawner did not answer within {deadline_s:g} s when asked to {what}") from None

    async def _exchange(self, makes: Sequence[Callable[[int], m.Message]]) -> Sequence[m.Message]:
        writer = self._writer
        if writer is None or writer.is_closing():
            self._connected.clear()
            raise ConnectionLost
        loop = asyncio.get_running_loop()
        numbers: list[int] = []
        futures: list[asyncio.Future[m.Message]] = []
        try:
            for make in makes:
                number = next(self._ids)
                future = self._pending[number] = loop.create_future()
                numbers.append(number)
                futures.append(future)
                self._send(m.encode(make(number)))
            return [await future for future in futures]
        finally:
            for number in numbers:
                self._pending.pop(number, None)

    def _send(self, line: bytes) -> None:
        """What is asked in one turn of the loop goes out in one write: each wakes the spawner, which costs as much as
        what it is asked for."""
        if not self._outgoing:
            asyncio.get_running_loop().call_soon(self._flush, self._writer)
        self._outgoing.append(line)

    def _flush(self, writer: asyncio.StreamWriter | None) -> None:
        lines, self._outgoing = self._outgoing, []
        if (
            writer is not None and writer is self._writer and not writer.is_closing()
        ):  # else whoever waits for an answer hears of the loss
            writer.write(b"".join(lines))

    # The connection ---------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Read until told to stop; attach again whenever the connection ends."""
        try:
            while True:
                await self._read()
                self._connected.clear()
                await self._close_stream()
                self._lose_pending()
                if self._is_ending or self._is_closed:
                    self._is_closed = True
                    return
                await self._attach_again()
        except GpulayerError as error:
            self._fault = error
        except Exception as error:  # handed to whoever waits: a reader that dies silently would hang them all
            self._fault = InternalError(f"the link to the spawner failed: {error!r}")
            self._fault.__cause__ = error
        finally:
            await self._close_stream()
            self._settle()

    async def _read(self) -> None:
        assert self._reader is not None
        while True:
            try:
                line = await self._reader.readline()
            except ConnectionError:
                return
            except ValueError:
                raise ProtocolError(f"the spawner sent a line of more than {MAX_REPLY_BYTES} bytes") from None
            if not line.endswith(b"\n"):
                return
            self._pulse.heard()
            self._take(read_message(line))

    def _take(self, message: m.Message) -> None:
        match message:
            case m.Exited():
                self._push("exited", message.record.key, message)
            case m.Output():
                self._push(message.stream, message.key, message)
            case m.Stalled():
                self._push("stalled", message.key, message)
            case m.Superseded():
                raise Conflict("another agent has taken over this spawner")
            case m.Done() | m.Table() | m.Spawned() | m.SpawnFailed() | m.Failed():
                future = self._pending.get(message.id)
                if future is not None and not future.done():
                    future.set_result(message)
            case _:
                raise unexpected(message)

    def _push(self, kind: str, key: str, event: SpawnerEvent) -> None:
        self._queue[kind, key] = event
        self._has_event.set()

    async def _feel_pulse(self) -> None:
        """Ask for a sign of life after a while without one; end what gives none."""
        while True:
            await asyncio.sleep(self._pulse.turn_s)
            if not self._connected.is_set() or self._writer is None:
                continue  # whoever attaches has an eye on it
            self._pulse.waited(self._pulse.turn_s)
            if not end_if_stuck(self._state, self._pulse) and self._pulse.should_ask:
                self._ask_for_a_sign()

    def _ask_for_a_sign(self) -> None:
        self._pulse.asked()
        if self._writer is not None:
            self._writer.write(m.encode(m.Ping(next(self._ids))))

    async def _attach_again(self) -> None:
        wait_s = AGAIN_S[0]
        while True:
            try:
                await self._attach(_START_DEADLINE_S)
            except Unreachable:
                # Requests made meanwhile fail by their own deadlines; a full disk or a lock may clear.
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, AGAIN_S[1])
            else:
                return

    async def _attach(self, deadline_s: float) -> None:
        """Raises like ``SpawnerAttach.run``, and Conflict where another agent has taken over by now."""
        stream = await self._attaching.run(deadline_s)
        self._reader, self._writer = stream.reader, stream.writer
        # What was queued before is older than the rows, which say it all.
        self._queue.clear()
        self._push("attached", "", stream.attached)
        try:
            for message in stream.early:
                self._take(message)
        except GpulayerError:
            await self._close_stream()
            raise
        self._connected.set()

    async def _close_stream(self) -> None:
        writer, self._writer, self._reader = self._writer, None, None
        if writer is not None:
            await close_stream(writer)

    def _lose_pending(self) -> None:
        for future in self._pending.values():
            if not future.done():
                future.set_exception(ConnectionLost())

    def _settle(self) -> None:
        """Wake everyone who waits; what they find is ``_fault`` or ``_is_closed``."""
        self._lose_pending()
        self._connected.set()
        self._has_event.set()


def _forget(key: str, number: int) -> m.Message:
    return m.Forget(number, key)
