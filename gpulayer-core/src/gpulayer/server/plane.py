"""One control plane: its parts, wired together, without a server around it.

Routes get a ``Plane`` and nothing else. It owns what they share: store, driver, tokens, mailboxes, blobs, logs,
plugins, wake-ups, and the word that it is closing.
"""

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec, TypeVar

from gpulayer.clock import Clock, SystemClock
from gpulayer.engine import Policy, State
from gpulayer.engine.effects import Effect
from gpulayer.engine.records import AttemptImage, JobImage, Record
from gpulayer.errors import GpulayerError, StorageUnavailable
from gpulayer.ids import Digest, Epoch, JobId, RandomBytes, WorkerId, new_id
from gpulayer.plugins.host import Host
from gpulayer.server import records as records_
from gpulayer.server.admission import Admission
from gpulayer.server.announcing import LOGGED, Announcer
from gpulayer.server.auth import Auth, load_pepper
from gpulayer.server.driver import Committer, Driver
from gpulayer.server.hub import Hub
from gpulayer.server.job_checks import JobChecks
from gpulayer.server.kept_time import KeptTime
from gpulayer.server.lastuse import keep_saving, save_uses
from gpulayer.server.logs import LogFolder
from gpulayer.server.mailbox import Mailboxes
from gpulayer.server.plugins import load_for_plane, no_plugins
from gpulayer.server.room import Room
from gpulayer.server.scorers import Scorers
from gpulayer.server.settings import Layout, PlaneSettings
from gpulayer.server.store import Store, log, reads
from gpulayer.server.store.codec import dump
from gpulayer.server.store.disk import StoreDisk
from gpulayer.server.store.health import check_lost
from gpulayer.server.tokens import Grant
from gpulayer.server.trees import TreeDigests
from gpulayer.spec.request import Request
from gpulayer.staging.blobs import BlobFolder
from gpulayer.syncing import Syncs
from gpulayer.wire.convert import verdict_to_wire
from gpulayer.wire.jobs import JobSubmission, OutputRecord
from gpulayer.wire.plugins import PluginFields

if TYPE_CHECKING:
    from sqlalchemy import Connection

__all__ = ["Plane"]

T = TypeVar("T")
P = ParamSpec("P")

_log = logging.getLogger(__name__)

_READERS: Final = 4
_WORKERS_IO: Final = 8
_SPECS_KEPT: Final = 1024
_TREES_KEPT: Final = 4096
_LOADING_ENDS_S: Final = 1.0
_ROOM_S: Final = 2.0
_SLOW_S: Final = 3.0
_NAMED: Final = 8
_STILL_LOADING: Final = "(plugins still load)"  # stands for all scorers until they are known: who waits, waits for them


class Plane:
    """Make it, ``start`` it in a running loop, ``close`` it there. The store's file lock is the caller's.

    host: its plugins; None: those that are installed, as the settings say. ``plugins`` is empty until they are loaded.
    syncs: told of a sync that failed; what it tells is to end the process.
    ``worker_plugins``: by worker, what each has told of its own since this control plane started.
    """

    def __init__(
        self,
        settings: PlaneSettings,
        *,
        clock: Clock | None = None,
        policy: Policy | None = None,
        random_bytes: RandomBytes = secrets.token_bytes,
        wrap_store: Callable[[Store], Committer] = lambda store: store,
        host: Host | None = None,
        syncs: Syncs | None = None,
    ) -> None:
        layout = settings.layout
        layout.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.settings = settings
        self.clock = clock or SystemClock()
        self.policy = policy or Policy()
        self.random_bytes = random_bytes
        self.incarnation = new_id(random_bytes)
        self.started_wall_ms = self.clock.wall_ms()
        self.syncs = syncs or Syncs()
        self.room = Room(layout.root)
        self.store = _open_store(layout, self.syncs, self.room)
        try:
            with self.store.reading() as connection:
                tokens, identities = reads.read_tokens(connection), reads.read_identities(connection)
                self.restored = reads.last_restore(connection)
                newest_ms = log.newest_wall_ms(connection)
            pepper = load_pepper(layout, random_bytes, syncs=self.syncs, is_needed=bool(tokens))
        except BaseException:
            self.store.close()
            raise
        self.auth = Auth(
            pepper=pepper,
            clock=self.clock,
            attempts=_Attempts(self),
            tokens=tokens,
            identities=identities,
            random_bytes=random_bytes,
        )
        self.kept_time = KeptTime(layout.wall_clock, clock=self.clock, newest_ms=newest_ms)
        self.blobs = BlobFolder(layout.blobs, syncs=self.syncs)
        if self.store.was_left_open:
            self.blobs.sync_names()
        self.trees = TreeDigests()
        self.logs = LogFolder(layout.logs, syncs=self.syncs)
        self.hub = Hub()
        self.mailboxes = Mailboxes(self.incarnation)
        first_policy = replace(self.policy, scorers=() if host else (_STILL_LOADING,))
        self.driver = Driver(
            store=wrap_store(self.store), clock=self.clock, observer=_Observer(self), policy=first_policy
        )
        self.admission = Admission(
            settings.admission, backlog=lambda: self.driver.backlog, monotonic_ms=self.clock.monotonic_ms
        )
        self.scorers: Scorers | None = None
        self.plugins = host or no_plugins(self.clock)
        self.job_checks = JobChecks()
        self.worker_plugins: dict[WorkerId, list[PluginFields]] = {}
        self._are_plugins_loaded = host is not None
        self._has_outside = False
        self._trying: tuple[str, ...] = ()
        self._plugins_settled = asyncio.Event()  # loaded, or never to be
        self.local_worker_reported = asyncio.Event()
        self.local_worker_heard = 0  # how often it has asked for anything
        self.shutdown_asked = asyncio.Event()
        self.keep_worker = False
        self.has_failed = False  # a part of it has, so that it ends
        self.enrolling = asyncio.Lock()
        self.removing = asyncio.Lock()  # held by whoever takes files of jobs away
        self.is_backed_up = False  # just now: nothing is taken away
        self.is_closing = False
        self.last_client_ms = self.clock.monotonic_ms()
        self.clients_now = 0
        self.submitting: dict[tuple[str, str], tuple[asyncio.Lock, int]] = {}
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="gpulayer-read")
        self._io = ThreadPoolExecutor(_WORKERS_IO, thread_name_prefix="gpulayer-io")
        self._specs: OrderedDict[JobId, JobSubmission] = OrderedDict()
        self._outputs: OrderedDict[Digest, list[OutputRecord]] = OrderedDict()
        self.merged: OrderedDict[JobId, tuple[Digest | None, int]] = OrderedDict()
        self._accepted: OrderedDict[Digest, None] = OrderedDict()
        self._driving: asyncio.Task[None] | None = None
        self._saving: asyncio.Task[None] | None = None
        self._keeping_room: asyncio.Task[None] | None = None
        self._loading: asyncio.Task[None] | None = None
        self._announcer: Announcer | None = None
        self._began_after: int | None = None
        self._asking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Load the state, and begin to drive and to load the plugins. Raises StorageUnavailable; with strict settings
        also PluginFault."""
        if self._are_plugins_loaded:
            await self._use_scorers()
        await self.driver.load()
        self._began_after = await self.query(log.last_seq)
        self._driving = asyncio.create_task(self.driver.run(), name="driver")
        self._driving.add_done_callback(self._part_ended)
        self._saving = asyncio.create_task(keep_saving(self), name="last uses")
        self._keeping_room = asyncio.create_task(self._keep_room(), name="room")
        if not self._are_plugins_loaded:
            self._loading = asyncio.create_task(self._load_plugins(), name="plugins")
            if self.settings.plugins.strict:
                await self._loading
            else:
                self._loading.add_done_callback(self._part_ended)
        else:
            await self._announce()

    async def _keep_room(self) -> None:
        while True:
            await self.in_thread(self.room.renew)
            await asyncio.sleep(_ROOM_S)

    def stop_holding(self) -> None:
        """Let held requests end: the plane is closing."""
        self.is_closing = True
        self.local_worker_reported.set()  # it will not any more; who waits for it is refused by the driver
        self._plugins_settled.set()
        self.hub.wake_all()

    async def close(self) -> None:
        """Commit what waits and let go of everything. May be repeated."""
        self.stop_holding()
        if self._saving is not None:
            self._saving.cancel()
            with suppress(asyncio.CancelledError):
                await self._saving
            self._saving = None
            await save_uses(self)
        if self._keeping_room is not None:
            self._keeping_room.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeping_room
            self._keeping_room = None
        if self._announcer is not None:
            await self._announcer.close()
        self.driver.close()
        if self._driving is not None:
            driving, self._driving = self._driving, None
            with suppress(Exception):  # ``_part_ended`` has said it
                await driving
        if self._loading is not None:
            loading, self._loading = self._loading, None
            await asyncio.wait({loading}, timeout=_LOADING_ENDS_S)
            loading.cancel()
            with suppress(asyncio.CancelledError, Exception):  # ``start`` or the log has said it
                await loading
        if self._asking is not None:
            asking, self._asking = self._asking, None
            asking.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await asking
        self.plugins.close()
        self._readers.shutdown(wait=True)
        self._io.shutdown(wait=True)
        self.store.close()

    def ask_shutdown(self, *, keep_worker: bool) -> None:
        """Tell whoever serves this plane to end it."""
        self.keep_worker = keep_worker
        self.shutdown_asked.set()

    async def plugins_settled(self) -> bool:
        """Wait until the plugins are loaded; False where that takes longer than one should wait for it."""
        if not self._are_plugins_loaded:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._plugins_settled.wait(), self.settings.plugins_wait_s)
        return self._are_plugins_loaded

    def starting(self) -> str:
        """What submissions wait for since the start, for people; empty where for nothing."""
        if not self._are_plugins_loaded:
            tried = f"it tries {_some(self._trying)}" if self._trying else "it loads its plugins"
            return f"{tried}; each may take {self.settings.plugins.import_s:g} s to be imported"
        if self._has_outside and self.settings.has_local_worker and not self.local_worker_reported.is_set():
            return "its worker starts, and may be trying plugins; gpulayer plugins says which one takes long"
        return ""

    async def loaded_plugins(self) -> Host:
        """``plugins``, once they are loaded: for what must not pass them by. Raises StorageUnavailable."""
        if not await self.plugins_settled():
            raise StorageUnavailable(
                "the control plane is shutting down"
                if self.is_closing
                else "the control plane still loads its plugins",
                hint="try again in a moment; its log, plane.log in the state folder, names those that take long",
                details={} if self.is_closing else {"starting": True},
            )
        return self.plugins

    async def _load_plugins(self) -> None:
        """What fails here is logged, and the control plane goes on with what there is; where it is strict, it ends."""
        try:
            await self._begin("plugins", self._load)
            await self._begin("scorers", self._use_scorers)
            # Before anybody submits.
            await self._begin("event sinks", self._announce)
            self._are_plugins_loaded = True
        finally:
            self._plugins_settled.set()  # nobody waits for what will not come

    async def _begin(self, what: str, begin: Callable[[], Awaitable[None]]) -> None:
        try:
            await begin()
        except Exception as error:
            if self.settings.plugins.strict:
                raise
            story = None if isinstance(error, GpulayerError) else error
            _log.error("%s: %s; the control plane goes on without any", what, error, exc_info=story)

    async def _load(self) -> None:
        telling = asyncio.create_task(self._tell_of_slow_ones(), name="slow plugins")
        try:
            self.plugins = await load_for_plane(self.settings, clock=self.clock, trying=self._are_tried)
        finally:
            telling.cancel()
        records = await self.in_thread(self.plugins.records)  # it looks whether they are still installed
        self._has_outside = any(not record.is_builtin for record in records)

    def _are_tried(self, names: tuple[str, ...]) -> None:
        self._trying = names

    async def _tell_of_slow_ones(self) -> None:
        """Of imports that are still tried nobody else can tell: whoever waits may look here."""
        told: tuple[str, ...] = ()
        while True:
            await asyncio.sleep(_SLOW_S)
            if self._trying not in ((), told):
                told = self._trying
                _log.warning("still trying %s", _some(told))

    async def _announce(self) -> None:
        if not self.is_closing:
            self._announcer = Announcer(self, self.plugins, after=self._began_after)
            await self._announcer.start()

    async def _use_scorers(self) -> None:
        names: tuple[str, ...] = ()
        try:
            scorers = Scorers(self.plugins, clock=self.clock, submit=self.driver.submit)
            if scorers.names:
                self.scorers, names = scorers, scorers.names
                self._asking = asyncio.create_task(scorers.run(), name="scorers")
                self._asking.add_done_callback(self._part_ended)
        finally:
            await self.driver.use_scorers(names)  # whatever happens, nobody waits any longer for those that load

    def _part_ended(self, part: "asyncio.Task[None]") -> None:
        """Without its driver a plane answers nothing right: end, so that a new start can load the state. And a plugin's
        exception gets here only where people want to see it."""
        if not part.cancelled() and part.exception() is not None:
            _log.critical("the %s failed", part.get_name(), exc_info=part.exception())
            self.has_failed = True
            self.ask_shutdown(keep_worker=True)

    async def query(self, read: "Callable[Concatenate[Connection, P], T]", *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a read of ``store.reads`` on a connection and thread of its own."""

        def call() -> T:
            with self.store.reading() as connection:
                return read(connection, *args, **kwargs)

        return await asyncio.get_running_loop().run_in_executor(self._readers, call)

    async def in_thread(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run something that does file IO. Not for what may wait on others."""
        return await asyncio.get_running_loop().run_in_executor(self._io, lambda: call(*args, **kwargs))

    async def submissions(self, job_ids: Sequence[JobId]) -> dict[JobId, JobSubmission]:
        """What was submitted, from memory where it was used lately."""
        found = {job_id: self._specs[job_id] for job_id in job_ids if job_id in self._specs}
        lacking = [job_id for job_id in job_ids if job_id not in found]
        if lacking:
            read = await self.query(reads.read_submissions, lacking)
            self.remember(read)
            found.update(read)
        return found

    def remember(self, submissions: dict[JobId, JobSubmission]) -> None:
        """Keeps the newest submissions, to spare the store a read; the oldest are dropped."""
        self._specs.update(submissions)
        while len(self._specs) > _SPECS_KEPT:
            self._specs.popitem(last=False)

    def accept_tree(self, tree: Digest) -> None:
        """An output tree was checked whole; its attempt's end need not check it again."""
        self._accepted[tree] = None
        if len(self._accepted) > _TREES_KEPT:
            self._accepted.popitem(last=False)

    def is_accepted(self, tree: Digest) -> bool:
        return tree in self._accepted

    def known_outputs(self, tree: Digest) -> list[OutputRecord] | None:
        """None where they are not remembered: the tree must be read."""
        return self._outputs.get(tree)

    def remember_outputs(self, tree: Digest, outputs: list[OutputRecord]) -> None:
        """Lists of more than 1000 are not kept, and only those of the newest trees are."""
        if len(outputs) <= 1000:
            self._outputs[tree] = outputs
            if len(self._outputs) > 64:
                self._outputs.popitem(last=False)


def _open_store(layout: Layout, syncs: Syncs, room: Room) -> Store:
    """Made where there was none. The pepper comes after the store: where it is alone, the store was lost. Raises as
    ``Store``."""
    check_lost(layout.store, made_after=layout.pepper)
    return Store(str(layout.store), disk=StoreDisk(syncs), spend=room.spend)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"plugin{'s' if len(names) > 1 else ''} {', '.join(names[:_NAMED])}{more}"


class _Attempts:
    """What authentication asks of the state."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane

    async def live_job(self, epoch: Epoch) -> tuple[JobId, str] | None:
        def find(state: State) -> tuple[JobId, str] | None:
            attempt = state.attempts.get(epoch)
            return None if attempt is None else (attempt.job_id, state.jobs[attempt.job_id].entry.owner)

        return await self._plane.driver.read(find)

    async def grant_of(self, job_id: JobId) -> Grant:
        submission = (await self._plane.submissions([job_id])).get(job_id)
        granted = "" if submission is None else submission.get("grant", "")
        return Grant(granted) if granted in tuple(Grant) else Grant.NONE

    def is_live(self, epoch: Epoch) -> bool:
        return self._plane.driver.look(lambda state: epoch in state.attempts) or False


class _Observer:
    """What follows a commit: commands into mailboxes, and wake-ups."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane

    def committed(self, state: State, records: Sequence[Record], effects: Sequence[Effect]) -> None:
        plane = self._plane
        changed = plane.mailboxes.deliver(state, records, effects)
        plane.hub.wake(("commands", worker) for worker in changed)
        if plane.scorers is not None:
            plane.scorers.take(state, effects)
        jobs: set[JobId] = set()
        for record in records:
            match record:
                case JobImage():
                    jobs.add(record.id)
                case AttemptImage():
                    jobs.add(record.job_id)
                case _:
                    pass
        plane.hub.wake(("job", job_id) for job_id in jobs)
        if records:
            plane.hub.wake((LOGGED,))

    def annotate(self, state: State, rejected: Mapping[JobId, Request]) -> dict[JobId, str]:
        known: dict[Request, str] = {}
        now = self._plane.clock.wall_ms()
        for request in rejected.values():
            if request not in known:
                known[request] = dump(
                    [verdict_to_wire(one) for one in records_.explain_now(state, request, wall_ms=now)]
                )
        return {job_id: known[request] for job_id, request in rejected.items()}
