"""The spawner process: one thread, one loop; the agent's requests in, jobs' ends and output out.

It ends when told to, when terminated (then it kills what runs and writes how it ended), when nothing runs and its
watchdog has died or its folder was removed, or when nothing has run and no agent has called for ``idle_exit_s``. All
that it knows of ended jobs is on disk, so the next spawner of the folder goes on from there.
"""

import os
import resource
import secrets
import signal
import socket
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, assert_never

from gpulayer.spawner import messages as m
from gpulayer.spawner.cgroups import Groups
from gpulayer.spawner.connection import Connection, ConnectionLost
from gpulayer.spawner.hierarchies import claim_all, find
from gpulayer.spawner.holds import Holds
from gpulayer.spawner.jobs import Event, Jobs
from gpulayer.spawner.launch import marker_is_possible
from gpulayer.spawner.locks import DeviceLocks
from gpulayer.spawner.reactor import Reactor
from gpulayer.spawner.recovery import recover
from gpulayer.spawner.saying import say_fault
from gpulayer.spawner.state import StateDir, is_key

__all__ = ["Host", "Spawner", "take_descriptors"]

_IDLE_LOOK_S: Final = 5.0
_ACCEPT_AGAIN_S: Final = 0.1
_MARKER_LIMIT: Final = 1 << 59


@dataclass(frozen=True, slots=True)
class Host:
    """What may be used of the host: control groups (of ``spawner.ALL_GROUPS``); the folders of its device locks.

    lock_keeper: a socket that holds on to locks when this process dies; see ``locks``.
    """

    groups: Collection[str] = ()
    lock_folders: Sequence[str] = ()
    lock_keeper: socket.socket | None = None


class Spawner:
    """Owns the socket and the jobs of ``state``; the caller holds its lock. ``run`` returns the exit code.

    watchdog_fd: the read end of a pipe whose write end only the watchdog holds. watchdog_socket: see ``lifeline``.
    """

    def __init__(
        self,
        state: StateDir,
        *,
        watchdog_pid: int,
        watchdog_fd: int,
        watchdog_socket: socket.socket | None = None,
        now: Callable[[], float],
        wall_ms: Callable[[], int],
        continuous_ms: Callable[[], int],
        idle_exit_s: float = 600.0,
        host: Host = Host(),
    ) -> None:
        self._state = state
        self._watchdog_pid: int | None = watchdog_pid
        self._watchdog_fd = watchdog_fd
        self._idle_exit_s = idle_exit_s
        self._home = _name_of(state)
        self._is_leaving = False
        self._instance = secrets.token_hex(8)
        self._reactor = Reactor(now)
        self._busy_at = now()
        self._connections: set[Connection] = set()
        self._unsent: set[Connection] = set()
        self._writing: set[Connection] = set()  # watched until they can be written
        self._agent: Connection | None = None
        self._late_output: dict[tuple[str, str], m.Output] = {}
        self._is_stopping = False
        self._stop_reply: tuple[Connection, int] | None = None
        spare = frozenset({os.getpid(), watchdog_pid})
        recovered = recover(state, spare=spare, wall_ms=wall_ms)  # before new groups are made, and remembered instead
        self._holds = _take_holds(state, host, self._reactor)
        self._jobs = Jobs(
            state,
            reactor=self._reactor,
            emit=self._emit,
            wall_ms=wall_ms,
            continuous_ms=continuous_ms,
            spare=spare,
            can_mark=marker_is_possible(),
            watchdog=watchdog_socket,
            descriptors=take_descriptors(),
            holds=self._holds,
        )
        for entry, record in recovered:
            self._jobs.remember(entry, record)

    def run(self, on_ready: Callable[[], None]) -> int:
        """Serve until the end; ``on_ready`` is called once the socket takes connections."""
        wake_r, wake_w = os.pipe()
        for fd in (wake_r, wake_w):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda _number, _frame: None)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        listener = self._state.listen()
        self._reactor.watch(wake_r, lambda: self._on_signal(wake_r))
        self._reactor.watch(self._watchdog_fd, self._on_watchdog)
        self._listen(listener)
        self._reactor.later(min(_IDLE_LOOK_S, self._idle_exit_s), self._look_idle)
        on_ready()
        while not self._is_done():
            self._reactor.run_once()
            while self._unsent:
                self._flush(self._unsent.pop())
        if self._is_at_home():
            self._state.remove_socket()
        if self._stop_reply is not None:
            connection, request = self._stop_reply
            self._send(connection, m.Done(request))
        for connection in list(self._connections):
            self._drop(connection)
        listener.close()
        self._jobs.close()
        self._holds.close()
        return 0

    def _is_done(self) -> bool:
        return (self._is_stopping or self._is_leaving or self._watchdog_pid is None) and not self._jobs.unfinished

    def _is_at_home(self) -> bool:
        """Somebody may have removed the folder: then nothing can be recorded, and no other agent finds this process."""
        return _name_of(self._state) == self._home

    def _look_idle(self) -> None:
        now = self._reactor.now()
        if self._jobs.unfinished or self._connections:
            self._busy_at = now
        elif now - self._busy_at >= self._idle_exit_s:
            self._is_stopping = True
        self._is_leaving = not self._is_at_home()
        self._reactor.later(min(_IDLE_LOOK_S, self._idle_exit_s), self._look_idle)

    # What comes in ----------------------------------------------------------------------------------------------------

    def _on_signal(self, wake_fd: int) -> None:
        numbers = os.read(wake_fd, 4096)
        if signal.SIGTERM in numbers:
            self._stop()
        if signal.SIGCHLD in numbers:
            self._jobs.on_child_change()

    def _on_watchdog(self) -> None:
        self._reactor.unwatch(self._watchdog_fd)
        self._watchdog_pid = None

    def _stop(self) -> None:
        self._is_stopping = True
        self._jobs.stop_all()

    def _listen(self, listener: socket.socket) -> None:
        self._reactor.watch(listener.fileno(), lambda: self._accept(listener))

    def _accept(self, listener: socket.socket) -> None:
        try:
            stream, _ = listener.accept()
        except BlockingIOError:
            return
        except OSError:
            # Out of descriptors, mostly. The caller stays in the queue, so an unwatched pause, not a spin.
            self._reactor.unwatch(listener.fileno())
            self._reactor.later(_ACCEPT_AGAIN_S, lambda: self._listen(listener))
            return
        connection = Connection(stream)
        self._connections.add(connection)
        self._watch(connection)

    def _receive(self, connection: Connection) -> None:
        try:
            lines = connection.receive()
        except ConnectionLost:
            self._drop(connection)
            return
        except m.BadMessage as error:
            self._send(connection, m.Failed(0, "bad_request", str(error)))
            self._drop(connection)
            return
        for line in lines:
            if connection not in self._connections or connection.is_closing:
                return
            self._take(connection, line)

    def _take(self, connection: Connection, line: bytes) -> None:
        request = 0
        try:
            message = m.decode(line)
            request = getattr(message, "id", 0)
            reply = self._answer(connection, message)
        except m.BadMessage as error:
            reply = m.Failed(request, "bad_request", str(error))
        except Exception as error:  # a fault in one request must not end the jobs of all others
            say_fault()
            reply = m.Failed(request, "internal", f"{type(error).__name__}: {error}")
        if reply is not None:
            self._send(connection, reply)
        if connection.is_closing:
            self._drop(connection)

    def _answer(self, connection: Connection, message: m.Message) -> m.Message | None:
        if isinstance(message, m.Hello):
            return self._greet(connection, message)
        if not connection.role:
            connection.is_closing = True
            return m.Failed(0, "protocol", "the first message must be hello")
        if isinstance(message, m.Ping):
            return m.Done(message.id)
        if isinstance(message, m.ListJobs):
            return m.Table(message.id, self._jobs.rows())
        if connection.role != "agent":
            return m.Failed(getattr(message, "id", 0), "forbidden", "an observer may only list")
        match message:
            case m.Spawn():
                return self._spawn(message)
            case m.Signal():
                if not 0 < message.signum < signal.NSIG:
                    return m.Failed(message.id, "bad_request", f"{message.signum} is no signal")
                count = self._jobs.signal(message.key, message.signum)
                return _unknown(message.id, message.key) if count is None else m.Done(message.id, count)
            case m.Extend():
                is_known = self._jobs.extend(message.key, message.kill_by_ms)
                return m.Done(message.id) if is_known else _unknown(message.id, message.key)
            case m.Kill():
                return m.Done(message.id) if self._jobs.kill(message.key) else _unknown(message.id, message.key)
            case m.Forget():
                if not self._jobs.forget(message.key):
                    return m.Failed(message.id, "busy", f"job {message.key} has not ended")
                return m.Done(message.id)
            case m.Shutdown():
                return self._shut_down(connection, message)
            case (
                m.Welcome()
                | m.Spawned()
                | m.SpawnFailed()
                | m.Done()
                | m.Table()
                | m.Failed()
                | m.Exited()
                | m.Output()
                | m.Stalled()
                | m.Superseded()
            ):
                return m.Failed(getattr(message, "id", 0), "bad_request", "that is the spawner's to say")
            case _:
                assert_never(message)

    def _greet(self, connection: Connection, hello: m.Hello) -> m.Message:
        if hello.protocol != m.PROTOCOL_VERSION:
            connection.is_closing = True
            text = m.version_mismatch(agent=hello.protocol, spawner=m.PROTOCOL_VERSION)
            return m.Failed(0, "protocol", text, speaks=m.PROTOCOL_VERSION)
        if hello.role not in ("agent", "observer"):
            connection.is_closing = True
            return m.Failed(0, "bad_request", f"unknown role {hello.role!r}")
        connection.role = hello.role
        if hello.role == "agent":
            former, self._agent = self._agent, connection
            self._late_output.clear()
            if former is not None and former is not connection:
                self._send(former, m.Superseded())
                self._drop(former)
        enforces = self._holds.enforces
        return m.Welcome(m.PROTOCOL_VERSION, os.getpid(), self._watchdog_pid, self._instance, enforces)

    def _spawn(self, order: m.Spawn) -> m.Message:
        if not is_key(order.key):
            return m.Failed(order.id, "bad_request", f"{order.key!r} is no key")
        if order.marker is not None and not 0 <= order.marker < _MARKER_LIMIT:
            return m.Failed(order.id, "bad_request", f"marker {order.marker} is out of range")
        if order.marker is not None and self._jobs.carries(order.marker) not in (None, order.key):
            return m.Failed(order.id, "bad_request", f"marker {order.marker} is another job's")
        for path in (order.cwd, order.log_path, order.exit_path, order.err_path or order.log_path):
            if not os.path.isabs(path):
                return m.Failed(order.id, "bad_request", f"{path!r} is not absolute")
        if self._is_stopping or self._is_leaving:
            return m.Failed(order.id, "busy", "the spawner is ending")
        return self._jobs.spawn(order)

    def _shut_down(self, connection: Connection, order: m.Shutdown) -> m.Message | None:
        count = self._jobs.unfinished
        if count and not order.force:
            return m.Failed(order.id, "busy", f"{count} job{'s' if count > 1 else ''} still running")
        self._stop_reply = (connection, order.id)
        self._stop()
        return None

    # What goes out ----------------------------------------------------------------------------------------------------

    def _emit(self, event: Event) -> None:
        if self._agent is None:
            return  # the next agent lists what there is
        if isinstance(event, m.Output) and self._agent.is_busy:
            self._late_output[event.key, event.stream] = event  # only the newest counts
            return
        if isinstance(event, m.Exited):
            for stream in ("stdout", "stderr"):
                self._late_output.pop((event.record.key, stream), None)
        self._send(self._agent, event)

    def _send(self, connection: Connection, message: m.Message) -> None:
        """All that one turn of the reactor has to say goes out at its end, in one piece."""
        if connection in self._connections:
            connection.queue(message)
            self._unsent.add(connection)

    def _flush(self, connection: Connection) -> None:
        if connection not in self._connections:
            return
        try:
            connection.flush()
        except ConnectionLost:
            self._unsent.discard(connection)
            self._drop(connection)
            return
        if connection.wants_to_write or connection in self._writing:
            self._watch(connection)
        while self._late_output and connection is self._agent and not connection.is_busy:
            self._send(connection, self._late_output.pop(next(iter(self._late_output))))

    def _watch(self, connection: Connection) -> None:
        on_writable = None
        self._writing.discard(connection)
        if connection.wants_to_write:
            on_writable = lambda: self._flush(connection)  # noqa: E731 - two lines of a method for it say no more
            self._writing.add(connection)
        self._reactor.watch(connection.stream.fileno(), lambda: self._receive(connection), on_writable)

    def _drop(self, connection: Connection) -> None:
        if connection in self._connections:
            if connection in self._unsent:
                self._unsent.discard(connection)
                try:
                    connection.flush()
                except ConnectionLost:  # then nobody is there to hear it
                    pass
            self._connections.discard(connection)
            self._writing.discard(connection)
            self._reactor.unwatch(connection.stream.fileno())
            connection.close()
        if connection is self._agent:
            self._agent = None
            self._late_output.clear()


def _name_of(state: StateDir) -> str:
    try:
        return state.name_on_host()
    except OSError:
        return ""


def _unknown(request: int, key: str) -> m.Failed:
    return m.Failed(request, "not_found", f"no job {key}")


def _take_holds(state: StateDir, host: Host, reactor: Reactor) -> Holds:
    claims = claim_all(find(), state.name_on_host(), allowed=host.groups) if host.groups else []
    groups = Groups(claims)
    state.write_groups(groups.bases)
    return Holds(groups, DeviceLocks(host.lock_folders, keeper=host.lock_keeper), reactor)


def take_descriptors() -> tuple[int, int]:
    """Raise this process's own limit of open files; returns the former one, which is the jobs'.

    The spawner has two or three open a job, its watchdog one or two.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):  # macOS refuses "unlimited": what there is must do
        pass
    return soft, hard
