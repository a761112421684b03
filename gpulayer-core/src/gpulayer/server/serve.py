"""Serve a control plane from a state folder until it is told to end.

Start-up is on the way of everybody's first command: the lock, the socket and the plane's own worker come first, the
heavy imports run while that worker starts. What only other machines need (a certificate, this machine's addresses) is
looked for only where they are served.
"""

import asyncio
import errno
import gc
import json
import logging
import os
import signal
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from gpulayer import __version__
from gpulayer.clock import SystemClock
from gpulayer.errors import Conflict, DiskFull, StorageUnavailable, UsageError
from gpulayer.faults import here
from gpulayer.server.filelimit import raise_file_limit
from gpulayer.server.folder import (
    OF_PEOPLE,
    EndpointKeeper,
    is_ours,
    keep_port,
    kept_port,
    locked,
    make_private,
    sweep_copies,
    unusable,
)
from gpulayer.server.listening import Listeners, http_server, open_listeners
from gpulayer.server.local_worker import LocalWorker
from gpulayer.server.memory import collect_seldom, keep_collecting, share_heaps
from gpulayer.server.mounts import NETWORKED, file_system_of
from gpulayer.server.reach import Reach, reach_of
from gpulayer.server.settings import Layout, ServeSettings
from gpulayer.server.tokens import Role, TokenKind, make_token
from gpulayer.staging.blobs import storage_error
from gpulayer.syncing import SYNC_FAILED_EXIT, Syncs
from gpulayer.whole import write_whole
from gpulayer.wire.plane import EndpointFile

if TYPE_CHECKING:
    import uvicorn

    from gpulayer.server.plane import Plane

__all__ = ["serve"]

_OF_DISKS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)
_FAILED_EXIT: Final = 70  # EX_SOFTWARE, as of every command that met a fault of its own
_LOOK_S: Final = 0.5
_STOP_POLL_S: Final = 0.02
_ROOM_S: Final = 2.0

_log = logging.getLogger(__name__)


def serve(settings: ServeSettings) -> int:
    """Block until the plane has ended; 0 after a clean end, 70 after a fault of its own, so that whoever started it
    starts it again. Uses SIGTERM and SIGINT; logs to stderr.

    Raises Conflict where another process serves this state folder, or nothing is left of the one whose place it is to
    take; UsageError for a folder, host, port or certificate that can't be used, StorageUnavailable where the store
    can't be read, and DiskFull where what a start needs finds no room.
    """
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    layout = Layout(settings.state_dir)
    make_private(layout)
    with (
        _own_disk(layout),
        locked(layout) as lock,
        open_listeners(settings.host, settings.port, tls=settings.tls, own_port=kept_port(layout)) as listeners,
    ):
        _check_wanted(settings, layout)
        _look_at_disk(layout)
        sweep_copies(layout)
        keep_port(layout, listeners.own_port)
        here("plane.after_lock")
        endpoint = EndpointKeeper(layout, lock)
        worker: LocalWorker | None = None
        try:
            endpoint.set_aside()
            syncs = Syncs(failed=_end_now, reach=lambda: here("plane.in_sync"))
            reach = reach_of(settings, listeners, now_ms=SystemClock().wall_ms(), syncs=syncs)
            limits = raise_file_limit()
            worker, join_token = _start_worker(settings, layout, limits, syncs)
            served = _Served(settings, layout, lock, listeners, reach, endpoint, worker, syncs, join_token)
            share_heaps()
            has_failed = asyncio.run(_serve(served))
        except BaseException:
            if worker is not None:
                worker.stop()
                worker.forget()  # it ends by itself, and has no plane to tell of that
            raise
        finally:
            endpoint.put_back()
    return _FAILED_EXIT if has_failed else 0


@contextmanager
def _own_disk(layout: Layout) -> Iterator[None]:
    """What the disk does to a start is told as such, and so is what somebody did to the folder. Other errors of files
    are faults of ours."""
    try:
        yield
    except OSError as error:
        if error.errno in _OF_DISKS:
            raise storage_error(error, layout.root) from error
        path = Path(error.filename) if isinstance(error.filename, str) else layout.root
        if not path.is_relative_to(layout.root) or error.errno not in OF_PEOPLE:
            raise
        raise unusable(path, error) from error


def _check_wanted(settings: ServeSettings, layout: Layout) -> None:
    """With the lock: whoever says down takes it before they take away what is left of one that died, so that a start
    which was on its way finds nothing, and one that has the lock is seen."""
    if settings.in_place and not any(map(os.path.lexists, (layout.endpoint, layout.former))):
        raise Conflict(
            f"nothing is left in {layout.root} of a control plane that died: somebody has said down, or another one has"
            " served since",
            hint="gpulayer up starts one",
            details={"has_ended": True},
        )


@dataclass(slots=True)
class _Served:
    settings: ServeSettings
    layout: Layout
    lock: int
    listeners: Listeners
    reach: Reach
    endpoint: EndpointKeeper
    worker: LocalWorker | None
    syncs: Syncs
    join_token: str | None = field(repr=False)
    token: str = field(default="", repr=False)
    server: "uvicorn.Server | None" = None


def _look_at_disk(layout: Layout) -> None:
    kind = file_system_of(layout.root)
    if kind in NETWORKED:
        _log.warning(
            "state folder %s is on a file system that other machines share (%s). One control plane on one machine may "
            "use it, and what it answers is as durable as that server makes it. Choose a local disk with --state DIR",
            *(layout.root, kind),
        )


def _start_worker(
    settings: ServeSettings, layout: Layout, file_limits: tuple[int, int], syncs: Syncs
) -> tuple[LocalWorker | None, str | None]:
    if settings.worker_command is None:
        return None, None
    worker = LocalWorker(
        settings.worker_command, layout.worker, environment=settings.worker_environment, file_limits=file_limits
    )
    join_token = None
    if worker.needs_join_token() and not worker.is_running():
        # It becomes valid when the store knows it, which is before the worker learns where to show it.
        join_token = make_token(TokenKind.JOIN)
        layout.worker.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write_token(layout, join_token, syncs)
    try:
        worker.start()
    except OSError as error:
        raise UsageError(f"the worker can't be started: {settings.worker_command[0]}: {error.strerror}") from None
    return worker, join_token


def _write_token(layout: Layout, token: str, syncs: Syncs) -> None:
    write_whole(layout.worker / "join-token", token.encode(), point="plane.token", is_synced=True, syncs=syncs)


async def _serve(served: _Served) -> bool:
    """Whether it ended for a fault of its own."""
    gc.disable()  # collecting while importing finds nothing and takes a tenth of the time
    from gpulayer.engine import Policy  # noqa: PLC0415 - heavy: see the module
    from gpulayer.protocol.leases import heartbeat_ms  # noqa: PLC0415
    from gpulayer.server.app import create_app  # noqa: PLC0415
    from gpulayer.server.guard import SECURITY_HEADERS  # noqa: PLC0415
    from gpulayer.server.plane import Plane  # noqa: PLC0415
    from gpulayer.server.retention import keep_sweeping  # noqa: PLC0415
    from gpulayer.server.settings import PlaneSettings  # noqa: PLC0415

    settings, reach = served.settings, served.reach
    policy = Policy() if settings.lease_ttl_ms is None else Policy(lease_ttl_ms=settings.lease_ttl_ms)
    plane = Plane(
        PlaneSettings(
            state_dir=settings.state_dir,
            mode=settings.mode,
            url=served.listeners.url,
            urls=reach.urls,
            public_urls=reach.urls if settings.public_urls else (),
            fingerprints=reach.fingerprints,
            allowed_hosts=reach.hosts,
            has_local_worker=served.worker is not None,
            heartbeat_ms=heartbeat_ms(policy.lease_ttl_ms),
            keep_logs_ms=settings.keep_logs_ms,
            keep_events_ms=settings.keep_events_ms,
            plugins=settings.plugins,
        ),
        policy=policy,
        syncs=served.syncs,
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):  # first of all: a plugin may be running from here on
        loop.add_signal_handler(number, _on_signal, plane, served)
    try:
        await plane.start()
        served.token = await _first_commit(plane, served)
        server = served.server = http_server(
            create_app(plane),
            served.listeners,
            tls=reach.tls,
            headers=SECURITY_HEADERS,
            graceful_s=settings.graceful_s,
        )
        collect_seldom()
        if not plane.shutdown_asked.is_set():  # else whoever waited for this start has given it up
            served.endpoint.write(_document(served))
            with suppress(OSError):
                served.layout.restored.unlink(missing_ok=True)
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(server.serve())
            looking = group.create_task(_look_after(plane, served))
            sweeping = group.create_task(keep_sweeping(plane))
            collecting = group.create_task(keep_collecting())
            await _until_first(plane.shutdown_asked.wait(), serving)
            if plane.shutdown_asked.is_set() and not plane.has_failed:  # else the next command is to start it again
                served.endpoint.remove()
            looking.cancel()
            sweeping.cancel()
            collecting.cancel()
            await _end_worker(plane, served.worker or LocalWorker((), served.layout.worker, environment={}))
            plane.stop_holding()
            server.should_exit = True
    finally:
        gc.enable()
        await plane.close()
    return plane.has_failed


def _end_now(path: str, error: OSError) -> None:
    """A sync has failed: end without a clean-up, which would write. What was answered is on the disk; of what was not
    nobody knows. The next start begins from the disk, as after a kill."""
    if error.errno == errno.ESTALE:  # of the store, whose files were taken away
        _log.critical(
            "%s: %s. This control plane ends at once, with exit code %d", path, error.strerror, SYNC_FAILED_EXIT
        )
        _leave()
    _log.critical(
        "%s could not be synced: %s. What was written of it may be gone, so this control plane ends at once, with exit "
        "code %d; nothing that was answered is lost. Look after the disk (the system's log names it), then start again",
        *(path, error.strerror or error, SYNC_FAILED_EXIT),
    )
    _leave()


def _leave() -> NoReturn:
    for handler in logging.getLogger().handlers:
        handler.flush()
    os._exit(SYNC_FAILED_EXIT)


async def _first_commit(plane: "Plane", served: _Served) -> str:
    """As ``_own_tokens``. On a full disk a failed start may have made the room that it lacked: once more, if so."""
    try:
        return await _own_tokens(plane, served)
    except (DiskFull, StorageUnavailable):
        ends = asyncio.get_running_loop().time() + _ROOM_S
        while plane.driver.is_read_only:
            if asyncio.get_running_loop().time() > ends:
                raise
            await asyncio.sleep(_STOP_POLL_S)
        return await _own_tokens(plane, served)


async def _own_tokens(plane: "Plane", served: _Served) -> str:
    """Make the token of this machine's user, in place of the last run's, and make the worker's join token valid."""
    from gpulayer.server.audit import SYSTEM, entry  # noqa: PLC0415 - heavy: see the module
    from gpulayer.server.store import Side  # noqa: PLC0415

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
    stale = tuple(plane.auth.stale_tokens(plane.kept_time.now_ms()))
    told = entry(
        *(plane.clock.wall_ms(), SYSTEM, "plane.start", plane.incarnation),
        version=__version__,
        mode=served.settings.mode,
        token=row.id,
    )
    await plane.driver.submit(side=Side(tokens=tuple(rows), forget_tokens=stale, audit=(told,)))
    plane.auth.forget_tokens(stale)
    for made in rows:
        plane.auth.keep_token(made)
    if is_stranger and join_token is not None:
        _write_token(served.layout, join_token, served.syncs)
    return token


async def _look_after(plane: "Plane", served: _Served) -> None:
    """Keep the worker, the certificate and the endpoint file going; end an embedded plane that nobody has needed for a
    while, and any whose folder or store was taken away: nobody finds it any more, and what it writes is lost."""
    settings = served.settings
    idle_ms = settings.idle_exit_s * 1000
    while True:
        await asyncio.sleep(min(_LOOK_S, max(settings.idle_exit_s / 4, 0.01)))
        is_orphaned = not is_ours(served.layout, served.lock)
        if not is_orphaned:
            await _renew(plane, served)
            served.endpoint.mend()
            if plane.store.misses():
                await plane.in_thread(plane.store.check_place)
        if served.worker is not None:
            if is_orphaned:
                served.worker.leave_folder()
            else:
                served.worker.look_after(plane.local_worker_heard)
        if (settings.mode != "embedded" and not is_orphaned) or plane.clients_now:
            continue
        if plane.clock.monotonic_ms() - plane.last_client_ms < idle_ms and not is_orphaned:
            continue
        if not await plane.driver.read(lambda state: bool(state.jobs)):
            if is_orphaned:
                _log.warning("the state folder %s was removed or replaced; ending", served.layout.root)
            plane.ask_shutdown(keep_worker=False)
            return


async def _renew(plane: "Plane", served: _Served) -> None:
    """Show the new certificate where the files were replaced, and tell everybody who asks of it."""
    shown = served.reach.shown
    if shown is not None and await plane.in_thread(shown.look, now_ms=plane.clock.wall_ms()):
        reach = served.reach
        plane.settings = replace(plane.settings, fingerprints=reach.fingerprints, allowed_hosts=reach.hosts)
        served.endpoint.change(_document(served))  # a full disk must not end a plane that serves: ``mend`` writes it


async def _end_worker(plane: "Plane", worker: LocalWorker) -> None:
    """While the plane still answers, so that the worker can say how its jobs ended. Also one that an earlier plane of
    this state started, where this one has none of its own."""
    if plane.keep_worker or worker.is_gone():
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


def _on_signal(plane: "Plane", served: _Served) -> None:
    if plane.shutdown_asked.is_set():
        plane.keep_worker = True  # asked twice: end now, whatever the worker does
        plane.stop_holding()
        if served.server is not None:
            served.server.should_exit = served.server.force_exit = True
    plane.ask_shutdown(keep_worker=plane.keep_worker)


def _document(served: _Served) -> bytes:
    document: EndpointFile = {
        "schema": 1,
        "url": served.listeners.url,
        "token": served.token,
        "pid": os.getpid(),
        "version": __version__,
        "embedded": served.settings.mode == "embedded",
        "urls": list(served.reach.urls),
        "fingerprints": list(served.reach.fingerprints),
        "restart": list(served.settings.restart(served.listeners.port)),
    }
    return json.dumps(document).encode()
