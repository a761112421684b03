"""``gl.Client``: a control plane as an object. Blocks; ``AsyncClient`` has the same methods, awaited."""

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Self, Unpack, cast

from gpulayer.client import calls
from gpulayer.client.connect import Settings, is_local, open_transport
from gpulayer.client.transport import Transport
from gpulayer.sdk.job import Job
from gpulayer.sdk.options import (
    BatchItem,
    JobOptions,
    JobPlan,
    RequestOptions,
    check_submission,
    plan_job,
    plan_request,
)
from gpulayer.sdk.settings import resolve_settings
from gpulayer.variables import SENT_BY_ITSELF

if TYPE_CHECKING:
    import os

    from gpulayer.client.upload import Transfer
    from gpulayer.wire.jobs import ExplainReply, JobRecord, JobSubmission, SourceFields
    from gpulayer.wire.plane import PlaneRecord
    from gpulayer.wire.plugins import PluginRecord
    from gpulayer.wire.workers import WorkerRecord

__all__ = ["Client", "local_job_env", "plan_batch", "ship_plan"]


class Client:
    """A connection to one control plane, made (and, for this machine's own, started) at the first call.

    url (several of one control plane: with commas between), token, fingerprint: else GPULAYER_URL, GPULAYER_TOKEN and
    GPULAYER_FINGERPRINT, else the current context, else the background control plane of this user. target: as
    ``--target``: ``local``, ``remote`` or the name of a context. May be used from several threads. Close it, or use it
    as a context manager. say: hears what takes long while it opens.
    """

    def __init__(
        self,
        *,
        url: str = "",
        token: str = "",
        fingerprint: str = "",
        target: str = "",
        settings: Settings | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._settings = settings or resolve_settings(url=url, token=token, fingerprint=fingerprint, target=target)
        self._say = say
        self._opened: Transport | None = None

    @property
    def transport(self) -> Transport:
        """The shell under this client; opening it may start a control plane and so block."""
        if self._opened is None:
            self._opened = open_transport(self._settings, say=self._say)
        return self._opened

    @property
    def settings(self) -> Settings:
        return self._settings

    def submit(
        self,
        command: "Sequence[str | os.PathLike[str]]",
        *,
        progress: "Callable[[Transfer], None]" = lambda _: None,
        **options: Unpack[JobOptions],
    ) -> Job:
        """Send a job and return when it is durably accepted. The keywords are the CLI's flags (see JobOptions).

        A lost answer is asked for again under the same key, so there is one job. Raises UsageError and its kin before
        anything is sent where that can be known, NoWorkerFits never: a job that fits nowhere ends ``rejected``.
        """
        plan = plan_job(
            command,
            options,
            base_env=local_job_env(self._settings),
            environment=self._settings.environment,
        )
        submission = ship_plan(self.transport, plan, self._settings.environment, {}, progress=progress)
        return Job(self.transport, self.transport.send(calls.submit_job(submission, key=plan.key)))

    def submit_batch(self, jobs: "Iterable[BatchItem | Sequence[str]]") -> list[Job]:
        """Send many jobs in one round trip, all accepted or none. An item is a command, or a dictionary of a command
        and the keywords of ``submit``. Equal sources are sent once."""
        plans = plan_batch(jobs, base_env=local_job_env(self._settings), environment=self._settings.environment)
        shipped: dict[tuple[object, ...], SourceFields] = {}
        submissions = [ship_plan(self.transport, plan, self._settings.environment, shipped) for plan in plans]
        if not submissions:
            return []
        reply = self.transport.send(calls.submit_batch(submissions, key=secrets.token_hex(16)))
        warnings = reply.get("warnings", ())
        return [Job(self.transport, job_id, warnings=warnings) for job_id in reply["ids"]]

    def explain(self, **options: Unpack[RequestOptions]) -> "ExplainReply":
        """Every worker's verdict for a request, and which would get it now."""
        return self.transport.send(calls.explain(plan_request(options)))

    def job(self, ref: str) -> Job:
        """By id, a unique beginning of one, or a unique name. Raises NotFound, Conflict (several match)."""
        return Job(self.transport, self.transport.send(calls.get_job(ref)))

    def jobs(self, *, state: str = "", name: str = "", mine: bool = False, limit: int = 100) -> "list[JobRecord]":
        """The newest ``limit`` jobs, newest first. mine: only those of this token's owner."""
        found: list[JobRecord] = []
        cursor = ""
        while len(found) < limit:
            left = limit - len(found)
            call = calls.list_jobs(state=state, name=name, mine=mine, limit=left, cursor=cursor)
            page = self.transport.send(call)
            found += page["jobs"]
            cursor = page["next"] or ""
            if not cursor or not page["jobs"]:
                break
        return found[:limit]

    def workers(self) -> "list[WorkerRecord]":
        return self.transport.send(calls.list_workers())["workers"]

    def worker(self, ref: str) -> "WorkerRecord":
        """By id, a unique beginning of one, or name. Raises NotFound."""
        return self.transport.send(calls.get_worker(ref))

    def drain_worker(self, ref: str) -> "WorkerRecord":
        """It finishes what it runs and gets nothing new."""
        return self.transport.send(calls.drain_worker(ref))

    def resume_worker(self, ref: str) -> "WorkerRecord":
        """It may take work again; nothing happens where it does not drain."""
        return self.transport.send(calls.resume_worker(ref))

    def remove_worker(self, ref: str, *, force: bool = False) -> "WorkerRecord":
        """Forget a worker. Raises Conflict while it is there and works, unless forced."""
        return self.transport.send(calls.remove_worker(ref, force=force))

    def plugins(self) -> "list[PluginRecord]":
        """Those of the control plane, then those of each worker: whether they work, and what went wrong with them."""
        return self.transport.send(calls.list_plugins())["plugins"]

    def plane(self) -> "PlaneRecord":
        return self.transport.send(calls.get_plane())

    def close(self) -> None:
        """Give connections back. The control plane and the jobs go on."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def local_job_env(settings: Settings) -> Mapping[str, str]:
    """What a job of this machine's own control plane gets, so that ``python`` is the submitter's."""
    if not is_local(settings):
        return {}
    found = {name: settings.environment.get(name, "") for name in SENT_BY_ITSELF}
    # A folder whose name is no text can't be sent; the others still can.
    found["PATH"] = ":".join(folder for folder in found["PATH"].split(":") if _is_text(folder))
    return {name: value for name, value in found.items() if value and _is_text(value)}


def _is_text(value: str) -> bool:
    return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)


def plan_batch(
    jobs: "Iterable[BatchItem | Sequence[str]]",
    *,
    base_env: Mapping[str, str],
    environment: Mapping[str, str] = MappingProxyType({}),
) -> list[JobPlan]:
    """A plan an item. Neighbours mostly differ in their command alone: then the former's plan is taken over."""
    plans: list[JobPlan] = []
    known: dict[str, object] | None = None
    for item in jobs:
        options: dict[str, object] = dict(item) if isinstance(item, Mapping) else {}
        command = cast("Sequence[str]", options.pop("command", ()) if isinstance(item, Mapping) else item)
        if options == known:
            plans.append(plans[-1].with_command(command))
            continue
        plans.append(plan_job(command, cast("JobOptions", options), base_env=base_env, environment=environment))
        known = options
    return plans


def ship_plan(
    transport: Transport,
    plan: JobPlan,
    environment: Mapping[str, str],
    shipped: "dict[tuple[object, ...], SourceFields]",
    *,
    progress: "Callable[[Transfer], None]" = lambda _: None,
    notes: Callable[[str], None] = lambda _: None,
) -> "JobSubmission":
    """The plan's submission with its source sent. ``shipped``: sources sent before, by folder and rules."""
    if plan.source is None:
        return plan.submission
    wanted = (plan.source, plan.include, plan.exclude)
    if wanted not in shipped:
        from gpulayer.client.upload import ship_source  # noqa: PLC0415 - a job without a source needs none of it
        from gpulayer.wire.convert import source_to_wire  # noqa: PLC0415

        check_submission(plan.submission)
        done = ship_source(
            transport,
            plan.source,
            environment=environment,
            include=plan.include,
            exclude=plan.exclude,
            progress=progress,
        )
        for note in done.notes:
            notes(note)
        shipped[wanted] = source_to_wire(done.source)
    return {**plan.submission, "source": shipped[wanted]}
