"""All output of one job: one pipe, or two where stderr has a spool of its own; pumped, told about, drained.

While the job runs the reactor pumps. A spool that can't be written stalls its stream: the bytes stay in the pipe, the
job waits, and it is tried again; ``Stalled`` is told each time, for an agent may have come since. Some room must be
there first: the little that is set free for the last words of a job on a full disk must not feed the same flood. Once
the tree is dead, ``drain`` moves what is left, with any room there is, and joins on the end of a log that outgrew its
limit.
"""

import errno
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gpulayer.faults import here
from gpulayer.spawner.messages import Output, Stalled
from gpulayer.spawner.output import OutputPipe, Pumped
from gpulayer.spawner.reactor import Reactor

__all__ = ["Drained", "JobOutput"]

_OUTPUT_EVERY_S: Final = 0.02
_WRITE_AGAIN_S: Final = (0.05, 1.0)  # first and longest wait for a disk that is full
_DRAIN_PATIENCE_S: Final = 8.0
_ROOM_BYTES: Final = 4 << 20  # or an eighth of a small disk


@dataclass(frozen=True, slots=True)
class Drained:
    """Sizes of the spools, and what is not in them. ``is_ended``: no writer is left, not even outside the tree.

    unwritten_bytes: for each stream, what had found no room when patience ended, with no word of it in the spool.
    cut_bytes: see ``Spool``.
    """

    log_bytes: int
    err_bytes: int
    left_out_bytes: int
    unwritten_bytes: tuple[int, ...]
    cut_bytes: int
    is_ended: bool


@dataclass(slots=True)
class _Stream:
    name: str
    pipe: OutputPipe
    told_at: float = float("-inf")
    is_telling: bool = False
    is_stalled: bool = False
    is_drained: bool = False
    is_ended: bool = False
    wait_s: float = _WRITE_AGAIN_S[0]
    due_bytes: int = 0  # while draining: ``moved_bytes`` once all is moved that the tree wrote


class JobOutput:
    """Made before the start, watched after it, drained after the end. ``emit`` gets ``Output`` and ``Stalled``."""

    def __init__(
        self,
        key: str,
        log_path: str,
        err_path: str | None,
        *,
        limit_bytes: int,
        reactor: Reactor,
        emit: Callable[[Output | Stalled], None],
    ) -> None:
        """Opens the spools; raises ``OSError``."""
        self._key = key
        self._reactor = reactor
        self._emit = emit
        self._then: Callable[[Drained], None] | None = None
        self._give_up_at = 0.0
        self._streams = [_Stream("stdout", OutputPipe(log_path, limit_bytes=limit_bytes))]
        if err_path is not None:
            try:
                self._streams.append(_Stream("stderr", OutputPipe(err_path, limit_bytes=limit_bytes)))
            except OSError:
                self.close()
                raise

    @property
    def log_bytes(self) -> int:
        """Size of the first spool."""
        return self._streams[0].pipe.spool.size

    @property
    def err_bytes(self) -> int:
        """Size of the second one; 0 where there is none."""
        return sum(stream.pipe.spool.size for stream in self._streams[1:])

    @property
    def pipes(self) -> tuple[OutputPipe, ...]:
        return tuple(stream.pipe for stream in self._streams)

    @property
    def is_spliced(self) -> bool:
        """No byte is in this process's memory at any time, as far as is known yet."""
        return all(pipe.is_spliced for pipe in self.pipes)

    def job_ends(self) -> tuple[int, ...]:
        """Descriptors for the job: of both its streams, or one for each; the caller closes them."""
        return tuple(stream.pipe.job_end() for stream in self._streams)

    def watch(self) -> None:
        """From now on bytes are moved as they come."""
        for stream in self._streams:
            self._watch(stream)

    def drain(self, then: Callable[[Drained], None]) -> None:
        """Move what the dead tree wrote; ``then`` is called once, at once or when a full disk has had its time."""
        self._then = then
        self._give_up_at = self._reactor.now() + _DRAIN_PATIENCE_S
        for stream in self._streams:
            self._reactor.unwatch(stream.pipe.read_fd)
            # No more than that: a process outside the tree may hold the pipe too, and print for ever.
            stream.due_bytes = stream.pipe.moved_bytes + stream.pipe.waiting_bytes()
            stream.wait_s, stream.is_stalled = _WRITE_AGAIN_S[0], False
        for stream in self._streams:
            self._drain(stream)

    def close(self) -> None:
        """Closes descriptors; may be repeated."""
        for stream in self._streams:
            if stream.pipe.read_fd >= 0:
                self._reactor.unwatch(stream.pipe.read_fd)
            stream.pipe.close()

    # While it runs ----------------------------------------------------------------------------------------------------

    def _watch(self, stream: _Stream) -> None:
        self._reactor.watch(stream.pipe.read_fd, lambda: self._pump(stream))

    def _pump(self, stream: _Stream) -> None:
        try:
            result = self._move(stream)
        except OSError as error:
            # Unwatched, or a full disk would make the reactor spin on a pipe that stays readable.
            self._reactor.unwatch(stream.pipe.read_fd)
            self._stalled(stream, error)
            self._pump_later(stream, error)
            return
        if stream.is_stalled:
            stream.is_stalled = False
            stream.wait_s = _WRITE_AGAIN_S[0]
            if result is not Pumped.END:
                self._watch(stream)
        if result is Pumped.END:
            # The program closed its output and goes on; the pipe is kept until its end.
            self._reactor.unwatch(stream.pipe.read_fd)

    def _pump_later(self, stream: _Stream, why: OSError) -> None:
        self._later(stream, lambda: self._pump_again(stream, why))

    def _pump_again(self, stream: _Stream, why: OSError) -> None:
        if self._then is not None or stream.pipe.read_fd < 0:
            return
        if why.errno == errno.ENOSPC and not _has_room(stream.pipe):
            self._stalled(stream, why)
            self._pump_later(stream, why)
        else:
            self._pump(stream)

    # When the tree is dead --------------------------------------------------------------------------------------------

    def _drain(self, stream: _Stream) -> None:
        try:
            result = self._move(stream)
            while result is Pumped.MORE and stream.pipe.moved_bytes < stream.due_bytes:
                result = self._move(stream)
            if result is Pumped.MORE and not stream.pipe.waiting_bytes():
                result = self._move(stream)
            stream.is_ended = result is Pumped.END
            stream.pipe.spool.join()
        except OSError as error:
            self._stalled(stream, error)
            if self._reactor.now() < self._give_up_at:
                self._later(stream, lambda: self._drain(stream))
                return
        stream.is_drained = True
        if all(other.is_drained for other in self._streams):
            self._finish()

    def _finish(self) -> None:
        then, self._then = self._then, None
        assert then is not None
        unwritten = tuple(
            max(0, stream.due_bytes - stream.pipe.moved_bytes) + stream.pipe.spool.beside_bytes
            for stream in self._streams
        )
        then(
            Drained(
                log_bytes=self.log_bytes,
                err_bytes=self.err_bytes,
                left_out_bytes=sum(stream.pipe.spool.left_out_bytes for stream in self._streams) + sum(unwritten),
                unwritten_bytes=unwritten,
                cut_bytes=sum(stream.pipe.spool.cut_bytes for stream in self._streams),
                is_ended=all(stream.is_ended for stream in self._streams),
            )
        )

    # Both -------------------------------------------------------------------------------------------------------------

    def _move(self, stream: _Stream) -> Pumped:
        before = stream.pipe.spool.size
        try:
            return stream.pipe.pump()
        finally:
            if stream.pipe.spool.size != before:
                here("spawner.in_output")
                self._tell(stream)

    def _stalled(self, stream: _Stream, error: OSError) -> None:
        stream.is_stalled = True
        text = f"the log can't be written: {error.strerror}"
        self._emit(Stalled(self._key, error.errno or 0, text, is_draining=self._then is not None))

    def _later(self, stream: _Stream, callback: Callable[[], None]) -> None:
        wait_s, stream.wait_s = stream.wait_s, min(stream.wait_s * 2, _WRITE_AGAIN_S[1])
        self._reactor.later(wait_s, callback)

    def _tell(self, stream: _Stream) -> None:
        if stream.is_telling or stream.pipe.read_fd < 0:
            return
        now = self._reactor.now()
        wait_s = stream.told_at + _OUTPUT_EVERY_S - now
        if wait_s <= 0:
            stream.told_at = now
            self._emit(Output(self._key, stream.pipe.spool.size, stream.name))
            return
        stream.is_telling = True
        self._reactor.later(wait_s, lambda: self._tell_late(stream))

    def _tell_late(self, stream: _Stream) -> None:
        stream.is_telling = False
        self._tell(stream)


def _has_room(pipe: OutputPipe) -> bool:
    free, size = pipe.spool.free_room()
    return free >= min(_ROOM_BYTES, size // 8)
