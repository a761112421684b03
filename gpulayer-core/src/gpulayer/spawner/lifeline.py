"""What the spawner tells its watchdog: that it lives, by when the first of its jobs must be over, and what it reads.

One socket of packets, of three kinds: a *beat* a second while a job has a time by which it must be over; a *loan*, with
a duplicate of the read end of a job's pipe, once a job has lived for a moment; and the *end* of a loan. So the watchdog
can tell a spawner that is stuck from one that has nothing to do, and can save what is in the pipes when it has died.
The spawner never waits here: what the socket does not take now is offered again with the next packet.
"""

import socket
from collections.abc import Callable
from dataclasses import dataclass
from os import close, fsdecode, fsencode
from typing import Final

from gpulayer.spawner.reactor import Reactor

__all__ = ["Lifeline", "Loan", "Patience", "Watch", "packet_pair"]

_BEAT_S: Final = 1.0
_BEAT: Final = b"b"
_LOAN: Final = b"l"
_END: Final = b"e"
_PACKET_BYTES: Final = 16_384  # a key and a path


def packet_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends, non-blocking. Packets keep their bounds; where there are none of that kind, datagrams do."""
    try:
        pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError:  # macOS
        pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    for end in pair:
        end.setblocking(False)
    return pair


class Lifeline:
    """The spawner's end. ``earliest``: the first time by which a job must be over, in ms; 0: none has one."""

    def __init__(self, end: socket.socket | None, *, reactor: Reactor, earliest: Callable[[], int]) -> None:
        self._end = end  # None: nobody watches
        self._reactor = reactor
        self._earliest = earliest
        self._told = 0
        self._is_beating = False
        self._is_stopping = False
        self._lent: set[str] = set()
        self._to_lend: dict[tuple[str, str], tuple[int, int]] = {}
        self._to_end: dict[str, None] = {}

    def due(self, kill_by_ms: int) -> None:
        """A job must be over by then. Told at once where it is the first, else with the next beat."""
        if self._told == 0 or kill_by_ms < self._told:
            self._beat()
        self._beat_on()

    def stopping(self) -> None:
        """Beat until the end of this process, so that the watchdog knows it to be at work on that."""
        self._is_stopping = True
        self._beat_on()

    def lend(self, key: str, read_fd: int, path: str, limit_bytes: int) -> None:
        """Let the watchdog save into the spool ``path`` what is left in the pipe. The descriptor stays open until
        ``end``. limit_bytes: see ``Spool``."""
        self._to_lend[key, path] = (read_fd, limit_bytes)
        self._flush()

    def end(self, key: str) -> None:
        """The job's output has been saved. Before its descriptors are closed; unknown keys are no error."""
        for waiting in [waiting for waiting in self._to_lend if waiting[0] == key]:
            del self._to_lend[waiting]
        if key in self._lent:
            self._lent.discard(key)
            self._to_end[key] = None
        self._flush()

    def _beat_on(self) -> None:
        if not self._is_beating and self._end is not None:
            self._is_beating = True
            self._reactor.later(_BEAT_S, self._tick)

    def _tick(self) -> None:
        self._is_beating = False
        self._beat()
        self._flush()
        if self._told or self._is_stopping or self._to_lend or self._to_end:
            self._beat_on()

    def _beat(self) -> None:
        earliest = self._earliest()
        if self._send(_BEAT + b"%d" % earliest):
            self._told = earliest

    def _flush(self) -> None:
        while self._to_end:
            key = next(iter(self._to_end))
            if not self._send(_END + key.encode()):
                break
            del self._to_end[key]
        while self._to_lend and not self._to_end:
            (key, path), (read_fd, limit_bytes) = next(iter(self._to_lend.items()))
            if not self._send(_LOAN + b"%s\0%d\0%s" % (key.encode(), limit_bytes, fsencode(path)), read_fd):
                break
            del self._to_lend[key, path]
            self._lent.add(key)
        if self._to_lend or self._to_end:
            self._beat_on()

    def _send(self, packet: bytes, read_fd: int | None = None) -> bool:
        """False where it has to be sent again: the queue is full, or too many descriptors are on their way."""
        if self._end is None:
            return True
        try:
            if read_fd is None:
                self._end.send(packet)
            else:
                socket.send_fds(self._end, [packet], [read_fd])
        except (BrokenPipeError, ConnectionError):
            self._end.close()
            self._end = None  # the watchdog has died: nobody is to be told any more
        except OSError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class Loan:
    """A duplicate of the read end of a job's pipe, and the spool that its bytes belong into."""

    read_fd: int
    path: str
    limit_bytes: int


class Watch:
    """The watchdog's end. ``kill_by_ms``: as of the last beat, 0: none. ``loans``: by key of the job."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self.kill_by_ms = 0
        self.loans: dict[str, list[Loan]] = {}
        self.is_open = True

    def fileno(self) -> int:
        return self._end.fileno()

    def receive(self) -> bool:
        """Take in all that has come; True where something had. ``is_open`` turns False at the end of the stream."""
        has_heard = False
        while self.is_open:
            try:
                packet, descriptors, _, _ = socket.recv_fds(self._end, _PACKET_BYTES, 1)
            except BlockingIOError:
                break
            except OSError:
                packet, descriptors = b"", []
            if not packet:
                self.is_open = False
                break
            has_heard = True
            self._take(packet, descriptors)
        return has_heard

    def _take(self, packet: bytes, descriptors: list[int]) -> None:
        kind, rest = packet[:1], packet[1:]
        if kind == _BEAT:
            self.kill_by_ms = int(rest)
        elif kind == _LOAN and descriptors:  # none: this process has as many open as it may
            key, limit, path = rest.split(b"\0", 2)
            self.loans.setdefault(key.decode(), []).append(Loan(descriptors[0], fsdecode(path), int(limit)))
        elif kind == _END:
            for loan in self.loans.pop(rest.decode(), ()):
                close(loan.read_fd)


@dataclass(slots=True)
class Patience:
    """For how long a spawner may be silent. Pure: whoever waits says how long it has waited.

    Silence is counted in what the watchdog itself has waited through: a machine that was suspended, or a watchdog that
    was itself stopped, waits for one turn and no longer, however much time has passed meanwhile. Silence alone is no
    reason to end anything: there must be a job that should be over and is not, or somebody who asked for the end.
    """

    kill_by_ms: int = 0
    is_ending: bool = False
    silent_s: float = 0.0

    def heard(self, kill_by_ms: int) -> None:
        """A packet has come."""
        self.kill_by_ms = kill_by_ms
        self.silent_s = 0.0

    def waited(self, wait_s: float) -> None:
        """Nothing came while this process waited for so long."""
        self.silent_s += wait_s

    def wait_s(self, now_ms: int) -> float | None:
        """How long to wait at most for the next packet; None: as long as it takes."""
        if self.is_ending:
            return 0.5
        if self.kill_by_ms == 0:
            return None
        # Looked at once a second although a beat wakes us as often: this wait stands still in suspend, the time not.
        return 1.0 if now_ms < self.kill_by_ms else 0.25

    def is_over(self, now_ms: int) -> bool:
        """Whether the spawner must be ended. A living one ends a job at its time and says so within the second."""
        if self.is_ending:
            return self.silent_s >= 5.0
        return self.kill_by_ms != 0 and now_ms >= self.kill_by_ms + 1_000 and self.silent_s >= 2.0
