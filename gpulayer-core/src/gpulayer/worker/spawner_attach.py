"""Getting to the spawner of a folder: connect, start what is not there, greet, list.

One that gives no sign of life meanwhile is ended, and another started (``spawner_pulse``). One that speaks another
version is spoken to in its own, and ended where nothing runs under it.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gpulayer.errors import Unreachable
from gpulayer.spawner import messages as m
from gpulayer.spawner.messages import Row
from gpulayer.spawner.state import StateDir
from gpulayer.worker.spawner_errors import ConnectionLost, error_of, read_message, unexpected
from gpulayer.worker.spawner_pulse import Pulse, end_if_stuck
from gpulayer.worker.spawner_start import SpawnerStart

__all__ = ["AGAIN_S", "MAX_REPLY_BYTES", "Attached", "SpawnerAttach", "SpawnerStream", "close_stream"]

MAX_REPLY_BYTES: Final = 64 << 20
AGAIN_S: Final = (0.01, 0.5)
_STARTS: Final = 2  # one that fails may have met what passes: a start is cheap, the loss of an agent is not


@dataclass(frozen=True, slots=True)
class Attached:
    """The link is connected (again); rows: all jobs the spawner knows. Always the first event.

    instance: names one life of the spawner; another one than before means that all that ran was lost (their rows
    say so, with reason ``spawner_lost``). enforces: which limits it can hold jobs to.
    """

    instance: str
    spawner_pid: int
    watchdog_pid: int | None
    rows: tuple[Row, ...]
    enforces: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SpawnerStream:
    """An open connection to a spawner that has been greeted. early: what it sent before ``attached`` was whole."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    attached: Attached
    early: tuple[m.Message, ...]


class _SpeaksOther(Exception):
    def __init__(self, version: int) -> None:
        self.version = version


class SpawnerAttach:
    """How one link gets to the spawners of ``state``; ``run`` whenever it has none. speaks: protocol versions."""

    def __init__(self, state: StateDir, start: SpawnerStart, pulse: Pulse, *, speaks: Sequence[int]) -> None:
        self._state = state
        self._start = start
        self._pulse = pulse
        self._speaks = speaks
        self._protocol = max(speaks)
        self._may_retire = True

    async def run(self, deadline_s: float) -> SpawnerStream:
        """Raises ``Unreachable`` or ``ProtocolError``. The stream is the caller's to close."""
        reason = "it does not answer"
        wait_s, failures = AGAIN_S[0], 0
        self._pulse.asked()
        try:
            async with asyncio.timeout(deadline_s):
                while True:
                    try:
                        stream = self._state.connect(timeout_s=0)
                    except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError) as error:
                        reason = str(error)
                        try:
                            await self._start.run()
                        except Unreachable:
                            failures += 1
                            if failures == _STARTS:
                                raise
                    except OSError as error:  # its queue is full: it is stopped, or very busy
                        reason = str(error)
                        self._waited(wait_s)
                    else:
                        reader, writer = await asyncio.open_unix_connection(sock=stream, limit=MAX_REPLY_BYTES)
                        try:
                            return await self._greet_patiently(reader, writer)
                        except ConnectionLost:
                            pass
                        except _SpeaksOther as other:
                            self._protocol = other.version
                        except BaseException:
                            await close_stream(writer)
                            raise
                        await close_stream(writer)
                    await asyncio.sleep(wait_s)
                    wait_s = min(2 * wait_s, AGAIN_S[1])
        except TimeoutError:
            raise Unreachable(
                f"the spawner in {self._state.path} can't be reached: {reason}", hint=f"see {self._state.log_path}"
            ) from None

    def _waited(self, wait_s: float) -> None:
        self._pulse.waited(wait_s)
        end_if_stuck(self._state, self._pulse)

    async def _greet_patiently(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> SpawnerStream:
        """As ``_greet``, with an eye on a spawner that does not answer, which is ended."""
        greeting = asyncio.ensure_future(self._greet(reader, writer))
        try:
            while not (await asyncio.wait((greeting,), timeout=self._pulse.turn_s))[0]:
                self._waited(self._pulse.turn_s)
            stream = greeting.result()
        finally:
            greeting.cancel()
            await asyncio.gather(greeting, return_exceptions=True)
        self._pulse.heard()
        return stream

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> SpawnerStream:
        writer.write(m.encode(m.Hello(self._protocol)))
        welcome = await self._next(reader)
        if isinstance(welcome, m.Failed):
            if welcome.code == "protocol" and welcome.speaks in self._speaks and welcome.speaks != self._protocol:
                raise _SpeaksOther(welcome.speaks)
            raise error_of(welcome)
        if not isinstance(welcome, m.Welcome):
            raise unexpected(welcome)
        if welcome.protocol != self._protocol:
            raise error_of(m.Failed(0, "protocol", m.version_mismatch(agent=self._protocol, spawner=welcome.protocol)))
        writer.write(m.encode(m.ListJobs(0)))
        early: list[m.Message] = []
        while not isinstance(table := await self._next(reader), m.Table):
            early.append(table)
        if self._may_retire and self._protocol < max(self._speaks) and all(row.exit is not None for row in table.rows):
            await self._retire(reader, writer)
        attached = Attached(welcome.instance, welcome.pid, welcome.watchdog_pid, table.rows, welcome.enforces)
        return SpawnerStream(reader, writer, attached, tuple(early))

    async def _retire(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """End an old spawner under which nothing runs, and raise ``ConnectionLost``: a new one is started next, and
        tells of the jobs that have ended, whose records are on disk. Returns where it would not go."""
        self._may_retire = False  # once: should the one that is started be as old, it will have to do
        writer.write(m.encode(m.Shutdown(0)))
        try:
            while not isinstance(await self._next(reader), m.Failed):
                pass
        except ConnectionLost:
            self._protocol = max(self._speaks)
            raise

    async def _next(self, reader: asyncio.StreamReader) -> m.Message:
        try:
            line = await reader.readline()
        except ConnectionError:
            raise ConnectionLost from None
        if not line.endswith(b"\n"):
            raise ConnectionLost
        self._pulse.heard()
        self._pulse.asked()
        return read_message(line)


async def close_stream(writer: asyncio.StreamWriter) -> None:
    """Returns when it is closed; one that was broken already is."""
    writer.close()
    try:
        await writer.wait_closed()
    except ConnectionError:
        pass
