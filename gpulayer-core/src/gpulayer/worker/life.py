"""One life of a worker: lock, identity, enrolment, spawner, agent; in that order up, and in the other one down."""

import asyncio
import fcntl
import logging
import os
import random
import signal
from collections.abc import Coroutine, Iterator
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

from gpulayer.clock import SystemClock
from gpulayer.errors import (
    Conflict,
    GpulayerError,
    Unauthenticated,
    Unreachable,
    UntrustedServer,
    UsageError,
    VersionMismatch,
)
from gpulayer.hiding import hide_process
from gpulayer.plugins.contracts.context import Where
from gpulayer.plugins.contracts.probe import ProbeSite
from gpulayer.plugins.host import Host, load_plugins
from gpulayer.plugins.record import PluginStatus
from gpulayer.plugins.starting import Abandoned, load_beside
from gpulayer.protocol.retry import DEFAULT_BACKOFF, Backoff
from gpulayer.spec.machine import WorkerFacts
from gpulayer.staging.blobs import BlobFolder, storage_error
from gpulayer.wire.facts import facts_to_wire
from gpulayer.wire.workers import SessionReply
from gpulayer.worker.agent import Agent
from gpulayer.worker.disk import Reserve, is_full, is_full_error
from gpulayer.worker.environments import Builds
from gpulayer.worker.facts import KnownFacts, Probing
from gpulayer.worker.frameworks import FrameworkChecks
from gpulayer.worker.http import HttpClient
from gpulayer.worker.identity import IdentityStore
from gpulayer.worker.journal import Journal
from gpulayer.worker.occupancy import Occupancy, is_whole_host
from gpulayer.worker.patience import Patience
from gpulayer.worker.place import place_id
from gpulayer.worker.session import Endpoints, NotKnown, Plane, Superseded, is_passing
from gpulayer.worker.settings import WorkerSettings
from gpulayer.worker.spawner_link import SpawnerLink
from gpulayer.worker.stage import Stager
from gpulayer.worker.story import machine_text

__all__ = ["introduce", "live"]

T = TypeVar("T")

_log: Final = logging.getLogger(__name__)
_SPAWNER_VARIABLES: Final = ("PATH", "LD_LIBRARY_PATH", "LANG")  # what a Python may need to start at all
_JOIN_HINT: Final = "join it again with a new token: gpulayer join URL --token TOKEN"
_JOIN_AGAIN: Final = "a join token works once, and for a short time: `gpulayer token create --role join` makes another"

# The only worker of a control plane on the same machine, which may be starting: somebody waits for their first job.
_LOCAL_BACKOFF: Final = Backoff(base_ms=50, cap_ms=250)
_SAY_S: Final = 1.5
_SAY_EVERY: Final = 200  # of tries, once their waits have grown: every ten minutes or so
_LOCAL_PATIENCE: Final = 30  # tries until it is worth a word that the control plane is not there yet


def live(settings: WorkerSettings) -> int:
    """See ``gpulayer.worker.run``."""
    hide_process()
    reserve = Reserve(settings.work_dir)
    try:
        with _alone(settings.work_dir, reserve):
            asyncio.run(_live(settings, reserve))
    except OSError as error:
        if is_full_error(error):
            raise storage_error(error, settings.work_dir) from error
        raise
    return 0


def introduce(settings: WorkerSettings) -> str:
    """See ``gpulayer.worker.introduce``."""
    reserve = Reserve(settings.work_dir)
    try:
        with _alone(settings.work_dir, reserve):
            return asyncio.run(_introduce(settings, reserve))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None  # SIGTERM is Ctrl-C here
    except OSError as error:
        if is_full_error(error):
            raise storage_error(error, settings.work_dir) from error
        raise


async def _introduce(settings: WorkerSettings, reserve: Reserve) -> str:
    me = asyncio.current_task()
    assert me is not None, "it runs in a task"
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, me.cancel)
    identities = IdentityStore(settings.work_dir, reserve=reserve)
    identities.next_boot()  # this is a start, too: its session is the newest
    host = await _plugins(settings)
    try:
        async with aclosing(_probing(settings, host)) as probing:
            checks = _checks(settings, host)
            facts = await _look(probing, checks)
            known = KnownFacts(facts, probing, checks.found, python=checks.python, python_version=checks.python_version)
            return await _introduced(settings, identities, known.facts)
    finally:
        host.close()


async def _introduced(settings: WorkerSettings, identities: IdentityStore, facts: WorkerFacts) -> str:
    async with HttpClient(pins=settings.pins, proxy=settings.proxy) as http:
        plane = Plane(
            http,
            Endpoints(urls=settings.urls, endpoint_file=settings.endpoint_file),
            identities,
            clock=SystemClock(),
            random=random.random,
            on_session=lambda _: None,
        )
        if identities.is_enrolled:
            try:
                await plane.open_session()
            except NotKnown:
                if not _has_token(settings):
                    raise
            else:
                return identities.identity.name
        token = _join_token(settings)
        await plane.enrol(facts_to_wire(facts), token=token, name=settings.name, default_name=settings.default_name)
    return identities.identity.name


async def _plugins(settings: WorkerSettings) -> Host:
    """What is wrong with one is told, a line each, and everything else works on."""

    def load(abandoned: Abandoned) -> Host:
        return load_plugins(
            Where.WORKER,
            settings.plugins,
            clock=SystemClock(),
            version=settings.version,
            python=settings.python,
            marks=settings.work_dir / "plugin-marks",
            begun=abandoned.then,
        )

    host = await load_beside(load)
    for record in host.records():
        if record.status not in (PluginStatus.OK, PluginStatus.DISABLED):
            _log.warning("plugin %s is %s: %s", record.name, record.status, record.error)
    return host


def _probing(settings: WorkerSettings, host: Host) -> Probing:
    site = ProbeSite(settings.work_dir, MappingProxyType(dict(settings.environment)))
    occupancy = Occupancy(settings.work_dir / "spawner", settings.lock_folders, is_whole_host=is_whole_host())
    return Probing(
        host, site, version=settings.version, labels=settings.labels, clock=SystemClock(), occupancy=occupancy
    )


def _checks(settings: WorkerSettings, host: Host) -> FrameworkChecks:
    return FrameworkChecks(host, settings.work_dir, environment=settings.environment, python=settings.jobs_python)


async def _look(probing: Probing, checks: FrameworkChecks) -> WorkerFacts:
    """At the start: the facts as probed. What frameworks there are is known then, too, and that they are not checked
    yet, where they never were."""
    facts = await probing.start()
    await checks.begin(facts)
    return facts


class _Present:
    """What signals and sessions are told to: the agent of now, if there is one. ``stop`` is set for good."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self._why = ""
        self.session: SessionReply | None = None
        self._agent: Agent | None = None

    def told_to_stop(self, why: str) -> None:
        self.stop.set()
        self._why = self._why or why
        if self._agent is not None:
            self._agent.stop(self._why)

    def session_opened(self, session: SessionReply) -> None:
        self.session = session
        if self._agent is not None:
            self._agent.session_opened(session)

    async def run(self, agent: Agent) -> None:
        self._agent = agent
        if self.session is not None:
            agent.session_opened(self.session)
        if self.stop.is_set():
            agent.stop(self._why)
        try:
            await agent.run()
        finally:
            self._agent = self.session = None


async def _live(settings: WorkerSettings, reserve: Reserve) -> None:
    if is_full(settings.work_dir):
        reserve.release()  # made for an end, and a start needs no less; it comes back when there is room
    identities = IdentityStore(settings.work_dir, reserve=reserve)
    identities.next_boot()
    present = _Present()

    def on_signal(number: signal.Signals) -> None:
        name = identities.identity.name or settings.name or settings.default_name
        present.told_to_stop(f"worker {name} was stopped ({number.name})")

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):  # before any plugin runs: it is not to blame for this end
        loop.add_signal_handler(number, on_signal, number)
    with suppress(_Stopped):
        host = await _or_stop(present.stop, _plugins(settings))
        try:
            async with aclosing(_probing(settings, host)) as probing:
                await _live_with(settings, reserve, identities, host=host, probing=probing, present=present)
        finally:
            host.close()


async def _live_with(
    settings: WorkerSettings,
    reserve: Reserve,
    identities: IdentityStore,
    *,
    host: Host,
    probing: Probing,
    present: _Present,
) -> None:
    clock, checks = SystemClock(), _checks(settings, host)
    probed = await _or_stop(present.stop, _look(probing, checks))
    facts = KnownFacts(probed, probing, checks.found, python=checks.python, python_version=checks.python_version).facts
    patience, builds = Patience(host, clock), Builds()

    def on_session(session: SessionReply) -> None:
        if present.session is None:
            _log.info("joined %s as %s (%s)", plane.where, identities.identity.name, machine_text(facts))
        present.session_opened(session)

    async with HttpClient(pins=settings.pins, proxy=settings.proxy) as http:
        plane = Plane(
            http,
            Endpoints(urls=settings.urls, endpoint_file=settings.endpoint_file),
            identities,
            clock=clock,
            random=random.random,
            on_session=on_session,
            backoff=DEFAULT_BACKOFF if settings.endpoint_file is None else _LOCAL_BACKOFF,
        )
        with _said_soon(settings, plane):
            if not identities.is_enrolled and not await _unless(
                present.stop, _enrol(settings, plane, facts, is_first=True)
            ):
                return
            await _greet(settings, plane, facts)
        boot = identities.identity.boot
        _drop_token(settings)
        environment = {name: settings.environment[name] for name in _SPAWNER_VARIABLES if name in settings.environment}
        cache = BlobFolder(settings.work_dir / "blobs", durable=False)
        await asyncio.to_thread(cache.sweep_temporaries)
        while True:
            async with await SpawnerLink.connect_or_start(
                settings.work_dir / "spawner",
                python=settings.python,
                environment=environment,
                lock_folders=settings.lock_folders,
                faults=settings.faults,
            ) as link:
                agent = Agent(
                    settings,
                    plane=plane,
                    link=link,
                    folders=Journal(settings.work_dir, boot_id=place_id(settings.work_dir)),
                    reserve=reserve,
                    stager=Stager(plane, cache),
                    host=host,
                    patience=patience,
                    builds=builds,
                    probing=probing,
                    checks=checks,
                    facts=probed,
                    clock=clock,
                    boot=boot,
                )
                await present.run(agent)
            if isinstance(agent.removed, Superseded):
                raise agent.removed
            if agent.removed is None or present.stop.is_set():
                return
            if not await _unless(present.stop, _join_again(settings, plane, facts, identities, agent.removed)):
                return
            boot = identities.next_boot()


async def _join_again(
    settings: WorkerSettings, plane: Plane, facts: WorkerFacts, identities: IdentityStore, why: GpulayerError
) -> None:
    """A worker that was removed while it ran: its jobs have ended. Raises NotKnown where it has no token."""
    if not _has_token(settings):
        if settings.endpoint_file is not None:
            identities.forget_enrolment()  # the control plane's next start gives a token to a worker that has none
        raise NotKnown(f"this worker is not known to the control plane any more: {why.message}", hint=_JOIN_HINT)
    try:
        await _enrol(settings, plane, facts)
    except Unauthenticated as error:
        raise NotKnown(f"{why.message}, and its token joins it no more: {error.message}", hint=_JOIN_HINT) from None


async def _enrol(settings: WorkerSettings, plane: Plane, facts: WorkerFacts, *, is_first: bool = False) -> None:
    """Waits for the control plane as long as it takes; raises when it says no.

    is_first: also when none of its addresses leads to a server that can be trusted: somebody has just typed that.
    """
    tries = untrusted = 0
    told: set[type[GpulayerError]] = set()
    while True:
        try:
            await plane.enrol(
                facts_to_wire(facts),
                token=_join_token(settings),
                name=settings.name,
                default_name=settings.default_name,
            )
        except GpulayerError as error:
            if isinstance(error, Unauthenticated):
                if settings.endpoint_file is None:
                    _drop_token(settings)  # else the next start without one would try it again
                raise Unauthenticated(error.message, hint=error.hint or _JOIN_AGAIN) from None
            if not is_passing(error) or isinstance(error, VersionMismatch):
                raise
            untrusted = untrusted + 1 if isinstance(error, UntrustedServer) else 0
            if is_first and untrusted == plane.address_count:
                raise
            tries += 1
            is_time = tries >= (1 if settings.endpoint_file is None else _LOCAL_PATIENCE)
            if (is_time and type(error) not in told) or tries % _SAY_EVERY == 0:
                told.add(type(error))
                _log.warning("waiting for the control plane: %s", error.message)
        else:
            return
        await asyncio.sleep(plane.backoff_s(tries))


@contextmanager
def _said_soon(settings: WorkerSettings, plane: Plane) -> Iterator[None]:
    """A network that swallows everything lets the first try take its time; whoever waits at a terminal is told."""
    loop = asyncio.get_running_loop()
    timer = loop.call_later(_SAY_S, lambda: _log.warning("no answer yet from the control plane at %s", plane.where))
    if settings.endpoint_file is not None:
        timer.cancel()
    try:
        yield
    finally:
        timer.cancel()


async def _greet(settings: WorkerSettings, plane: Plane, facts: WorkerFacts) -> None:
    """Is this worker still known? With a join token it joins again; without one, and with nothing to look after, it
    raises NotKnown, and Superseded where another agent has its place. Silence is no answer: jobs may be running here,
    and the agent waits for it anyway."""
    try:
        try:
            await plane.open_session()
        except Superseded as error:
            if error.free_place is None:
                raise
            _log.warning("%s Nothing is heard of it any more: this one takes its place", error.message)
            plane.follow(error.free_place)
            await plane.open_session()
    except NotKnown as error:
        if _has_token(settings):
            await _enrol(settings, plane, facts)
        elif not Journal(settings.work_dir, boot_id=place_id(settings.work_dir)).load():
            raise NotKnown(
                f"the control plane does not know this worker any more: {error.message}", hint=_JOIN_HINT
            ) from None
        # else: the agent hears the same, and ends what is left here
    except Superseded:
        if not Journal(settings.work_dir, boot_id=place_id(settings.work_dir)).load():
            raise
        # else: as above
    except GpulayerError as error:
        _log.warning("waiting for the control plane: %s", error.message)
        if isinstance(error, UntrustedServer | VersionMismatch):
            _log.warning("%s", error.hint)


class _Stopped(Exception):
    """Told to stop before it had even begun to work."""


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Run ``work`` to its end, or give it up when told to stop; True when it ended."""
    try:
        await _or_stop(stop, work)
    except _Stopped:
        return False
    return True


async def _or_stop(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T:
    """What ``work`` gives; _Stopped when told to stop, and then it is given up."""
    task, stopped = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise _Stopped
    finally:
        task.cancel()
        stopped.cancel()
        await asyncio.gather(task, stopped, return_exceptions=True)


def _has_token(settings: WorkerSettings) -> bool:
    return bool(settings.token) or (settings.token_file is not None and settings.token_file.exists())


def _join_token(settings: WorkerSettings) -> str:
    if settings.token:
        return settings.token
    if settings.token_file is None:
        raise UsageError(
            "this worker has not joined yet and was given no join token", hint="gpulayer join URL --token …"
        )
    try:
        return settings.token_file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        if settings.endpoint_file is not None:
            raise Unreachable(f"the join token is not there yet: {error}") from None
        raise UsageError(f"the join token can't be read: {error}") from None


def _drop_token(settings: WorkerSettings) -> None:
    """The plane's own worker finds its token in its own folder: it is used up. Another file is its owner's."""
    if settings.token_file is not None and settings.token_file.resolve().parent == settings.work_dir.resolve():
        settings.token_file.unlink(missing_ok=True)


@contextmanager
def _alone(work_dir: Path, reserve: Reserve) -> Iterator[None]:
    """Hold ``agent.lock``, with our process id in it for whoever has to end us. Raises Conflict, and DiskFull or
    StorageUnavailable where the folder can't be made or written."""
    try:
        os.makedirs(work_dir, mode=0o700, exist_ok=True)
        descriptor = os.open(work_dir / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise storage_error(error, work_dir) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(
                f"another worker runs in {work_dir}", hint="give this one a folder of its own: --work-dir DIR"
            ) from None
        try:
            reserve.write(lambda: os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0))
            os.truncate(descriptor, len(f"{os.getpid()}\n"))
        except OSError as error:
            raise storage_error(error, work_dir / "agent.lock") from error
        yield
    finally:
        os.close(descriptor)
