"""What a node needs done that takes its time: staging, starting, sending home, signals; each answers the machine once.

A failure of a node's own work is that node's end, not the worker's; what ends it is told by the answer. Nothing is
decided here, and nothing is remembered but what became of the spools of what has ended.
"""

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from typing import Final, TypeVar

from gpulayer.errors import (
    BadRequest,
    Blame,
    Conflict,
    DiskFull,
    GpulayerError,
    NotFound,
    PluginFault,
    PluginResting,
    StaleAttempt,
    TooLarge,
)
from gpulayer.faults import here
from gpulayer.ids import Digest
from gpulayer.plugins.contracts.environment import Environment
from gpulayer.plugins.contracts.launcher import LaunchSite, Machine
from gpulayer.plugins.host import Host
from gpulayer.protocol.messages import (
    AttemptsVoided,
    DiskFilled,
    ExtendFailed,
    Input,
    LogDrained,
    OutputsCollected,
    OutputsFailed,
    ProcessExited,
    ProcessLost,
    Spawned,
    SpawnFailed,
    SpawnPutOff,
    Staged,
    StagingFailed,
    TreeSignalled,
)
from gpulayer.spawner.messages import ExitRecord
from gpulayer.spec.assignment import Assignment, NodeKey
from gpulayer.spec.capabilities import DEFAULT_ENVIRONMENT
from gpulayer.spec.logs import not_whole
from gpulayer.spec.machine import Device
from gpulayer.spec.outcome import EndedBy
from gpulayer.worker.credentials import Vault
from gpulayer.worker.disk import is_full_error
from gpulayer.worker.environments import Environments
from gpulayer.worker.facts import KnownFacts
from gpulayer.worker.giving_up import GivingUp, clear_made
from gpulayer.worker.inputs import Inputs
from gpulayer.worker.journal import Journal as Folders
from gpulayer.worker.keeping import Keeper
from gpulayer.worker.launching import launch, launcher_of, plan_launch
from gpulayer.worker.logs import AttemptLogs, Written
from gpulayer.worker.masking import Masks, masked_input
from gpulayer.worker.outputs import deliver_outputs
from gpulayer.worker.patience import Patience
from gpulayer.worker.session import Plane
from gpulayer.worker.spawner_link import SpawnerLink
from gpulayer.worker.stage import Stager
from gpulayer.worker.starting import SpawnerStarter, end_of
from gpulayer.worker.story import attempt_text
from gpulayer.worker.unready import Unready, unready_by_fault
from gpulayer.worker.usage import until_over

__all__ = ["NodeWork"]

_log: Final = logging.getLogger(__name__)
_LEAVING_S: Final = 1.0
_NO_SECRETS: Final = "its secrets are not to be had"
_Answer = TypeVar("_Answer", bound=Input)


class NodeWork:
    """Of one start of a worker. ``feed`` takes the answers, in the event loop."""

    def __init__(
        self,
        *,
        feed: Callable[[Input], None],
        plane: Plane,
        link: SpawnerLink,
        folders: Folders,
        keeper: Keeper,
        stager: Stager,
        host: Host,
        patience: Patience,
        known: KnownFacts,
        environments: Environments,
        inputs: Inputs,
        make_way: Callable[[Collection[Device]], Awaitable[None]],
        tell_machine: Callable[[], None],
    ) -> None:
        """make_way: has devices left by what would be in the way of a job there. tell_machine: a look has found
        something new."""
        self._feed = feed
        self._plane = plane
        self._link = link
        self._folders = folders
        self._keeper = keeper
        self._stager = stager
        self._host = host
        self._patience = patience
        self._known = known
        self._environments = environments
        self._inputs = inputs
        self._make_way = make_way
        self._tell_machine = tell_machine
        self._vault = Vault(plane)
        self._spools: dict[NodeKey, ExitRecord] = {}
        self._put_off: dict[NodeKey, PluginResting] = {}  # because of its launcher
        self._starters: dict[NodeKey, SpawnerStarter] = {}

    def site(self, assignment: Assignment) -> LaunchSite:
        """Its folders and files."""
        return self._folders.site(assignment.key, is_split=assignment.split_streams)

    def end_of(self, assignment: Assignment, record: ExitRecord) -> ProcessExited | ProcessLost | SpawnFailed:
        """What the machine is told of the end that the spawner recorded."""
        self._spools[assignment.key] = record
        end = end_of(assignment.key, record, limits=assignment.limits, enforces=self._known.facts.enforces)
        return self._masked(assignment.key, self._keeper.explained(end))

    def written(self, key: NodeKey) -> Written:
        """What its spools hold, as far as that is known: nothing is before its program has ended."""
        record = self._spools.get(key)
        return Written() if record is None else Written((record.log_bytes, record.err_bytes), record.unwritten_bytes)

    async def stage(self, assignment: Assignment) -> None:
        """Answered by Staged or StagingFailed."""
        key = assignment.key

        async def stage() -> Input:
            if assignment.source is not None:
                await bring(assignment.source)
            if assignment.has_credentials:
                try:
                    await self._vault.of(assignment)
                except StaleAttempt:
                    raise
                except GpulayerError as error:  # nobody on this machine is at fault, nor whoever submitted it
                    return StagingFailed(key, f"{_NO_SECRETS}: {_told(error)}")
            if assignment.inputs or assignment.environment not in ("", DEFAULT_ENVIRONMENT):
                await prepare()
            return Staged(key)

        async def prepare() -> None:
            refused = self._keeper.why_not(key)
            if refused is not None:
                raise refused
            try:
                async with asyncio.TaskGroup() as group:
                    if assignment.inputs:
                        group.create_task(self._inputs.fetch(assignment))
                    group.create_task(self._environment_when_free(assignment))
            except ExceptionGroup as failed:  # the first is the reason; the other was ended because of it
                raise failed.exceptions[0] from None

        async def bring(source: Digest) -> None:
            refused = self._keeper.why_not(key)
            if refused is not None:
                raise refused
            await asyncio.to_thread(self._folders.renew_work_folder, key)
            baseline = await self._stager.stage(source, self._folders.site(key).work_dir)
            await asyncio.to_thread(self._folders.keep_baseline, key, baseline)

        await self._guarded(key, stage, lambda error: self._failed_staging(key, error))

    async def hold(self, assignment: Assignment) -> None:
        """Wait until what put its start off may be asked again; answered by Staged or StagingFailed."""
        key = assignment.key

        async def hold() -> Input:
            await self._environment_when_free(assignment)
            why = self._put_off.pop(key, None)
            if why is not None:
                try:
                    await self._patience.until_free(
                        launcher_of(self._host, assignment), why, who=attempt_text(assignment)
                    )
                except PluginFault as fault:
                    raise unready_by_fault(EndedBy.ENVIRONMENT, fault) from None
            return Staged(key)

        await self._guarded(key, hold, lambda error: self._failed_staging(key, error))

    async def spawn(self, assignment: Assignment, kill_by_ms: int) -> None:
        """Answered by Spawned or SpawnFailed, and by the end of a program that has ended already; by SpawnPutOff where
        a plugin is not to be asked now. Its launcher's act may go on after the answer."""
        key = assignment.key

        async def spawn() -> Input | None:
            refused = self._keeper.why_not(key)
            if refused is not None:
                return SpawnFailed(key, None, self._keeper.full_text(refused.errno), EndedBy.DISK_FULL)
            if assignment.devices:
                await self._make_way([one for one in self._known.facts.devices if one.uuid in assignment.devices])
            if assignment.devices and (why := await self._still_unusable(assignment.devices)):
                return SpawnFailed(key, None, why, EndedBy.DRIFT)
            variables: Mapping[str, str] = {}
            if assignment.has_credentials:
                try:
                    variables = (await self._vault.of(assignment)).variables  # known, unless the agent is a new one
                except StaleAttempt:
                    self._feed(AttemptsVoided((key.epoch,)))
                    return SpawnFailed(key, None, "it is not lent to this worker any more")
                except GpulayerError as error:
                    return SpawnFailed(key, None, f"{_NO_SECRETS}: {_told(error)}", EndedBy.STAGING)
            starter = self._starters[key] = SpawnerStarter(self._link, assignment, kill_by_ms, variables)
            try:
                environment = await self._environment(assignment)
            except PluginResting:
                return SpawnPutOff(key)
            machine = Machine(self._known.facts, environment.variables)
            site = self.site(assignment)
            if assignment.inputs:
                site = replace(site, inputs=await self._inputs.of(assignment))
            try:
                planned = await plan_launch(self._host, self._patience, assignment, site, machine)
                here("agent.before_spawn")
                failed = await launch(
                    self._host,
                    self._patience,
                    assignment,
                    planned,
                    starter,
                    site=site,
                    machine=machine,
                    begun=lambda: begun(starter),
                )
            except PluginResting as resting:
                self._put_off[key] = resting
                return SpawnPutOff(key)
            if failed is not None and starter.is_in_use:
                if not await self.why_unusable(assignment.devices):
                    await asyncio.sleep(_LEAVING_S)  # whoever has it can't be seen: it must not be tried all the time
                return replace(failed, ended_by=EndedBy.DRIFT)
            if failed is not None and starter.is_disk_full:
                return SpawnFailed(key, None, f"{self._keeper.full_text()}\n{failed.evidence}", EndedBy.DISK_FULL)
            return failed

        broken: list[Exception] = []

        def begun(starter: SpawnerStarter) -> None:
            here("agent.after_spawn")
            try:
                self._feed(Spawned(key))
                if starter.ended is not None:
                    self._feed(self.end_of(assignment, starter.ended))
            except Exception as error:  # the worker's own, and neither this node's nor its launcher's
                broken.append(error)

        def failed(error: Exception) -> Input:
            if isinstance(error, Unready):
                return SpawnFailed(key, None, error.evidence, error.ended_by, error.blame)
            if isinstance(error, DiskFull):
                return SpawnFailed(key, None, f"{self._keeper.full_text()}\n{_told(error)}", EndedBy.DISK_FULL)
            return SpawnFailed(key, None, _told(error))

        await self._guarded(key, spawn, failed)
        if broken:
            raise broken[0]

    async def why_unusable(self, devices: Collection[str]) -> str:
        """Look how they are now and who is on them, and tell the control plane where that is new. Why nothing can start
        on the first that is busy or unhealthy; empty where they are all free."""
        if await self._known.look_at(devices):
            self._tell_machine()
        return self._known.why_unusable(devices)

    def call_off(self, key: NodeKey) -> bool:
        """Of a start that goes on: True where the spawner has not been asked; then it is not asked any more, whatever
        the launcher does."""
        starter = self._starters.get(key)
        if starter is None or starter.call_off():
            return True
        self._link.hurry()
        return False

    def masks_for(self, assignment: Assignment) -> Callable[[], Awaitable[Masks]] | None:
        """What the log of this node must not show; None where it holds no secret. To be asked before any of it is
        sent. Raises like ``Vault.of``."""
        if not assignment.has_credentials:
            return None

        async def ask() -> Masks:
            return (await self._vault.of(assignment)).masks

        return ask

    def forget(self, key: NodeKey) -> None:
        """All that is remembered of it."""
        self._spools.pop(key, None)
        self._put_off.pop(key, None)
        self._starters.pop(key, None)
        self._vault.forget(key)
        self._environments.forget(key)
        self._inputs.forget(key)

    async def upload_logs(self, key: NodeKey, logs: AttemptLogs, gives_up: GivingUp) -> None:
        """Answered by LogDrained, once they are whole."""

        async def upload() -> Input:
            warnings = list(await logs.run())
            if gives_up.is_over:
                await asyncio.to_thread(logs.remove_spools)
            lost = sum(self.written(key).unwritten)
            if lost:
                warnings.append(f"{lost} bytes of its log found no room on the worker's disk")
            if key in self._spools and (cut := self._spools[key].cut_bytes):
                warnings.append(f"{cut} bytes were cut off its log while it ran: those not sent by then are missing")
            return LogDrained(key, "\n".join(warnings))

        await self._guarded(key, upload, lambda error: LogDrained(key, warning=not_whole(_told(error))))

    async def collect(self, assignment: Assignment, gives_up: GivingUp) -> None:
        """Answered by OutputsCollected or OutputsFailed."""
        key = assignment.key

        async def collect() -> Input:
            baseline = await asyncio.to_thread(self._folders.baseline, key)
            site = self._folders.site(key)
            try:
                delivered = await deliver_outputs(
                    self._plane, key, site, baseline, assignment.outputs, gives_up=gives_up
                )
            except DiskFull:
                await asyncio.to_thread(clear_made, site)  # at once: its end can't be told before there is room
                raise
            return OutputsCollected(key, delivered.tree, await self._vault.told(assignment, delivered.warnings))

        await self._guarded(key, collect, lambda error: OutputsFailed(key, _told(error)))

    async def watch_usage(self, assignment: Assignment) -> None:
        """Answered by DiskFilled where it outgrows its own limit; until then it goes on."""
        site, limit_bytes = self.site(assignment), assignment.limits.disk_bytes
        evidence = await until_over((site.work_dir, site.output_dir), limit_bytes=limit_bytes)
        self._feed(DiskFilled(assignment.key, evidence, blame=Blame.USER))

    async def signal_tree(self, key: NodeKey) -> None:
        """Answered by TreeSignalled."""
        try:
            await self._link.signal(str(key), signal.SIGTERM)
        except GpulayerError as error:
            _log.warning("SIGTERM for %s: %s", key, error.message)  # SIGKILL follows after the grace time
        self._feed(TreeSignalled(key))

    async def extend(self, key: NodeKey, kill_by_ms: int) -> None:
        """Answered by ExtendFailed, or not at all."""
        starter = self._starters.get(key)
        if starter is not None and starter.extend(kill_by_ms):
            return  # its launcher takes its time, and the spawner does not know it yet
        try:
            await self._link.extend(str(key), kill_by_ms)
        except GpulayerError as error:
            _log.warning("extending %s: %s", key, error.message)
            self._feed(ExtendFailed(key))

    async def kill_tree(self, key: NodeKey) -> None:
        """Its end follows; answered by ProcessLost where there is nothing to end."""
        self._link.hurry()
        try:
            await self._link.kill(str(key))
        except NotFound:
            self._feed(ProcessLost(key, "the spawner does not know the program any more"))
        except GpulayerError as error:
            _log.warning("SIGKILL for %s: %s", key, error.message)  # the machine asks again

    async def _still_unusable(self, devices: Collection[str]) -> str:
        """Whoever is leaving just now is given a moment."""
        if why := await self.why_unusable(devices):
            await asyncio.sleep(_LEAVING_S)
            why = await self.why_unusable(devices)
        return why

    async def _environment(self, assignment: Assignment) -> Environment:
        return await self._environments.of(assignment, self.site(assignment).work_dir, self._known.facts)

    async def _environment_when_free(self, assignment: Assignment) -> None:
        while True:
            try:
                await self._environment(assignment)
            except PluginResting as resting:
                await self._environments.until_free(assignment, resting)
            else:
                return

    def _failed_staging(self, key: NodeKey, error: Exception) -> StagingFailed:
        if isinstance(error, Unready):
            return StagingFailed(key, error.evidence, error.ended_by, error.blame)
        if isinstance(error, DiskFull) or is_full_error(error):
            evidence = f"{self._keeper.full_text()}\n{_told(error)}"
            return StagingFailed(key, evidence, ended_by=EndedBy.DISK_FULL)
        is_bad_tree = isinstance(error, BadRequest | TooLarge | Conflict)
        return StagingFailed(key, _told(error), blame=Blame.USER if is_bad_tree else Blame.INFRASTRUCTURE)

    async def _guarded(
        self, key: NodeKey, work: Callable[[], Awaitable[Input | None]], failed: Callable[[Exception], Input]
    ) -> None:
        """A node's own work: whatever goes wrong is the end of that node, not of the worker. None: it was answered."""
        result: Input | None
        try:
            result = await work()
        except StaleAttempt:
            result = AttemptsVoided((key.epoch,))
        except (GpulayerError, Unready) as error:
            result = failed(error)
        except OSError as error:  # the disk's; what it says is in the record, too
            _log.warning("work for %s failed: %s", key, error)
            result = failed(error)
        except Exception as error:
            _log.exception("work for %s failed", key)
            result = failed(error)
        if result is not None:
            self._feed(self._masked(key, result))

    def _masked(self, key: NodeKey, answer: _Answer) -> _Answer:
        masks = self._vault.masks(key)
        return answer if masks is None else masked_input(answer, masks)


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, GpulayerError | OSError) else f"{type(error).__name__}: {error}"
