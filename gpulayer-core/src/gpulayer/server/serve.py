"""Serve a control plane from a state folder until it is told to end.

Start-up is on the way of everybody's first command: the lock, the socket and the plane's own worker come first, the
heavy imports run while that worker starts. ``endpoint.json`` appears when requests are answered, never before.
"""

import asyncio
import fcntl
import gc
import json
import logging
import os
import resource
import signal
import socket
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpulayer import __version__
from gpulayer.errors import Conflict, UsageError
from gpulayer.faults import here
from gpulayer.server.local_worker import LocalWorker
from gpulayer.server.settings import Layout, ServeSettings
from gpulayer.server.tokens import Role, TokenKind, make_token
from gpulayer.wire.plane import EndpointFile

if TYPE_CHECKING:
    import uvicorn

    from gpulayer.server.plane import Plane

__all__ = ["serve"]

_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_LOOK_S: Final = 0.5
_STOP_POLL_S: Final = 0.02
_HEARTBEAT_MS: Final = 10_000
_HEARTBEATS_A_LEASE: Final = 3
_BACKLOG: Final = 1024
_COLLECT: Final = (50_000, 20, 100)  # a batch of 10,000 jobs makes no garbage cycles; looking for them doubled its time

_log = logging.getLogger(__name__)


def serve(settings: ServeSettings) -> int:
    """Block until the plane has ended; 0 after a clean end. Uses SIGTERM and SIGINT; logs to stderr.

    Raises Conflict where another process serves this state folder, UsageError for a host or port that can't be
    used, StorageUnavailable where the store can't be read.
    """
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if settings.host not in _LOOPBACK:
        raise UsageError(
            f"--host {settings.host}: only this machine's own address is served until there is TLS",
            hint="leave --host away, or use 127.0.0.1",
        )
    layout = Layout(settings.state_dir)
    try:
        layout.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"state folder {layout.root} can't be used: {error.strerror}", hint="choose another with --state DIR"
        ) from None
    with _locked(layout) as lock, _listening(settings) as listener:
        here("plane.after_lock")
        layout.endpoint.unlink(missing_ok=True)  # of a plane that was killed; our worker must not follow it
        worker, join_token = _start_worker(settings, layout)
        try:
            asyncio.run(_serve(_Served(settings, layout, lock, listener, worker, join_token)))
        except BaseException:
            if worker is not None:
                worker.stop()
            raise
        finally:
            _remove_endpoint(layout, lock)
    return 0


@dataclass(frozen=True, slots=True)
class _Served:
    settings: ServeSettings
    layout: Layout
    lock: int
    listener: socket.socket
    worker: LocalWorker | None
    join_token: str | None

    @property
    def url(self) -> str:
        host = f"[{self.settings.host}]" if ":" in self.settings.host else self.settings.host
        return f"http://{host}:{self.listener.getsockname()[1]}"


def _start_worker(settings: ServeSettings, layout: Layout) -> tuple[LocalWorker | None, str | None]:
    if settings.worker_command is None:
        return None, None
    worker = LocalWorker(settings.worker_command, layout.worker, environment=settings.worker_environment)
    join_token = None
    if worker.needs_join_token() and not worker.is_running():
        # It becomes valid when the store knows it, which is before the worker learns where to show it.
        join_token = make_token(TokenKind.JOIN)
        layout.worker.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write_private(layout.worker / "join-token", join_token.encode())
    try:
        worker.start()
    except OSError as error:
        raise UsageError(f"the worker can't be started: {settings.worker_command[0]}: {error.strerror}") from None
    return worker, join_token


async def _serve(served: _Served) -> None:
    gc.disable()  # collecting while importing finds nothing and takes a tenth of the time
    from gpulayer.engine import Policy  # noqa: PLC0415 - heavy: see the module
    from gpulayer.server.app import create_app  # noqa: PLC0415
    from gpulayer.server.plane import Plane  # noqa: PLC0415
    from gpulayer.server.retention import keep_sweeping  # noqa: PLC0415
    from gpulayer.server.settings import PlaneSettings  # noqa: PLC0415

    settings = served.settings
    policy = Policy() if settings.lease_ttl_ms is None else Policy(lease_ttl_ms=settings.lease_ttl_ms)
    plane = Plane(
        PlaneSettings(
            state_dir=settings.state_dir,
            mode=settings.mode,
            url=served.url,
            has_local_worker=served.worker is not None,
            heartbeat_ms=min(_HEARTBEAT_MS, policy.lease_ttl_ms // _HEARTBEATS_A_LEASE),
            keep_logs_ms=settings.keep_logs_ms,
        ),
        policy=policy,
    )
    try:
        await plane.start()
        token = await _own_tokens(plane, served)
        server = _http_server(create_app(plane), settings)
        gc.freeze()
        gc.set_threshold(*_COLLECT)
        gc.enable()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, _on_signal, plane, server)
        document = _endpoint(served, token)
        here("plane.before_endpoint")
        _write_private(served.layout.endpoint, document)
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(server.serve(sockets=[served.listener]))
            looking = group.create_task(_look_after(plane, served, document))
            sweeping = group.create_task(keep_sweeping(plane))
            await _until_first(plane.shutdown_asked.wait(), serving)
            _remove_endpoint(served.layout, served.lock)
            looking.cancel()
            sweeping.cancel()
            if served.worker is not None:
                await _end_worker(plane, served.worker)
            plane.stop_holding()
            server.should_exit = True
    finally:
        gc.enable()
        await plane.close()


async def _own_tokens(plane: "Plane", served: _Served) -> str:
    """Make the token of this machine's user, in place of the last run's, and make the worker's join token valid."""
    from gpulayer.server.store import Side  # noqa: PLC0415 - heavy: see the module

    join_token = served.join_token
    token, row = plane.auth.new_token(TokenKind.CLIENT, name="local", life_s=None, role=Role.ADMIN, is_local=True)
    rows = [row]
    is_stranger = served.worker is not None and join_token is None and not plane.auth.has_local_worker()
    if is_stranger:  # the worker has an identity that this store does not know: the store was lost, or is another
        join_token = make_token(TokenKind.JOIN)
    if join_token is not None:
        life_s = plane.settings.join_token_life_s
        _, joining = plane.auth.new_token(
            TokenKind.JOIN, name="local worker", life_s=life_s, is_local=True, token=join_token
        )
        rows.append(joining)
    stale = tuple(plane.auth.stale_tokens())
    await plane.driver.submit(side=Side(tokens=tuple(rows), forget_tokens=stale))
    plane.auth.forget_tokens(stale)
    for made in rows:
        plane.auth.keep_token(made)
    if is_stranger and join_token is not None:
        _write_private(served.layout.worker / "join-token", join_token.encode())
    return token


async def _look_after(plane: "Plane", served: _Served, endpoint: bytes) -> None:
    """Keep the worker and the endpoint file going; end an embedded plane that nobody has needed for a while, and any
    whose folder was taken away: nobody finds it any more, and what it writes is lost."""
    settings = served.settings
    idle_ms = settings.idle_exit_s * 1000
    while True:
        await asyncio.sleep(min(_LOOK_S, max(settings.idle_exit_s / 4, 0.01)))
        is_orphaned = not _is_ours(served.layout, served.lock)
        if not is_orphaned:
            _mend_endpoint(served.layout, endpoint)
        if served.worker is not None:
            if is_orphaned:
                served.worker.leave_folder()
            else:
                served.worker.look_after()
        if (settings.mode != "embedded" and not is_orphaned) or plane.clients_now:
            continue
        if plane.clock.monotonic_ms() - plane.last_client_ms < idle_ms and not is_orphaned:
            continue
        if not await plane.driver.read(lambda state: bool(state.jobs)):
            if is_orphaned:
                _log.warning("the state folder %s was removed or replaced; ending", served.layout.root)
            plane.ask_shutdown(keep_worker=False)
            return


async def _end_worker(plane: "Plane", worker: LocalWorker) -> None:
    """While the plane still answers, so that the worker can say how its jobs ended."""
    if plane.keep_worker:
        worker.forget()
        return
    while not worker.end_step():  # noqa: ASYNC110 - another process, which nobody here is told of
        await asyncio.sleep(_STOP_POLL_S)


async def _until_first(waiting: Coroutine[object, object, object], serving: "asyncio.Task[None]") -> None:
    """Until a shutdown is asked for, or the server ends by itself (it should not)."""
    asked = asyncio.ensure_future(waiting)
    await asyncio.wait({asked, serving}, return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    with suppress(asyncio.CancelledError):
        await asked


def _http_server(app: object, settings: ServeSettings) -> "uvicorn.Server":
    import uvicorn  # noqa: PLC0415 - heavy: see the module

    from gpulayer.server.gate import Gate, GatedServer, GateLimits  # noqa: PLC0415

    config = uvicorn.Config(
        app,  # type: ignore[arg-type] # an ASGI application
        loop="asyncio",
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=max(1, round(settings.graceful_s)),
    )
    return GatedServer(config, Gate(GateLimits.within(resource.getrlimit(resource.RLIMIT_NOFILE)[0])))


def _on_signal(plane: "Plane", server: "uvicorn.Server") -> None:
    if plane.shutdown_asked.is_set():
        plane.keep_worker = True  # asked twice: end now, whatever the worker does
        plane.stop_holding()
        server.should_exit = server.force_exit = True
    plane.ask_shutdown(keep_worker=plane.keep_worker)


@contextmanager
def _locked(layout: Layout) -> Iterator[int]:
    """One plane a state folder; the lock goes with the process, however it ends. Gives its descriptor."""
    descriptor = os.open(layout.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.read(descriptor, 32).decode("ascii", "replace").strip() or "unknown"
            raise Conflict(
                f"a control plane is already running on {layout.root} (pid {pid})",
                hint="end it with `gpulayer down`, or use another --state folder",
                details={"pid": pid},
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _listening(settings: ServeSettings) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # The protocol is named because asyncio sets TCP_NODELAY only then: without it every answer takes 40 ms.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((settings.host, settings.port))
        except OSError as error:
            raise UsageError(
                f"port {settings.port} on {settings.host} can't be used: {error.strerror}",
                hint="another program has it? choose one with --port N",
            ) from None
        listener.listen(_BACKLOG)
        yield listener


def _is_ours(layout: Layout, lock: int) -> bool:
    """Whether the folder is still the one that was locked."""
    try:
        return os.path.samestat(os.fstat(lock), os.stat(layout.lock))
    except OSError:
        return False


def _endpoint(served: _Served, token: str) -> bytes:
    document: EndpointFile = {
        "schema": 1,
        "url": served.url,
        "token": token,
        "pid": os.getpid(),
        "version": __version__,
        "embedded": served.settings.mode == "embedded",
        "urls": [],
        "fingerprints": [],
        "restart": list(served.settings.restart),
    }
    return json.dumps(document).encode()


def _mend_endpoint(layout: Layout, content: bytes) -> None:
    """Whoever lost or damaged the file could neither use this plane nor end it, nor start another."""
    try:
        if layout.endpoint.read_bytes() == content:
            return
    except OSError:
        pass
    try:
        _write_private(layout.endpoint, content)
    except OSError as error:
        _log.warning("%s can't be written: %s", layout.endpoint, error.strerror)


def _remove_endpoint(layout: Layout, lock: int) -> None:
    if _is_ours(layout, lock):
        layout.endpoint.unlink(missing_ok=True)


def _write_private(path: Path, content: bytes) -> None:
    """Mode 0600, whole or not there."""
    temporary = path.with_name(path.name + ".new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, content)
    finally:
        os.close(descriptor)
    os.replace(temporary, path)
