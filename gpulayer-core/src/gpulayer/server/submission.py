"""Taking in jobs: check what was sent, that its source is here, that no plugin refuses it, and that it is not a
repetition; then submit.

The same key with the same body gives the same jobs, also for two requests at the same moment: a key is worked on by
one request at a time, and its row is committed with the jobs.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

from gpulayer.engine.events import JobSubmitted
from gpulayer.errors import BadRequest, GpulayerError, IdempotencyMismatch
from gpulayer.ids import ID_LENGTH, JobId, RandomBytes, new_job_id
from gpulayer.server.auth import Caller
from gpulayer.server.driver import Make
from gpulayer.server.following import place_after
from gpulayer.server.job_secrets import Withheld, open_secrets, seal_all, withhold
from gpulayer.server.plane import Plane
from gpulayer.server.store import AuditEntry, IdempotencyRow, JobRow, SecretRow, Side, reads
from gpulayer.server.uploaded import check_uploaded
from gpulayer.spec.job import JobEntry, JobSpec, JobState
from gpulayer.variables import SENT_BY_ITSELF
from gpulayer.wire.convert import SpecReader, spec_to_wire
from gpulayer.wire.jobs import JobSubmission, ProblemRecord

__all__ = ["Again", "Submitted", "await_local_worker", "specs_of", "submit_jobs"]

_SLICE: Final = 100
_KEY_LIMIT: Final = 255


@dataclass(frozen=True, slots=True)
class Again:
    """The job that others repeat: they have its owner, whoever asks for them, and its secrets. audit: what the trail
    tells of each new one."""

    job_id: JobId
    owner: str
    audit: Callable[[JobId], tuple[AuditEntry, ...]]


@dataclass(frozen=True, slots=True)
class Submitted:
    """rows: empty where the same key made these jobs before. warnings: of plugins, for whoever submits."""

    ids: list[JobId]
    rows: Sequence[JobRow] = ()
    warnings: Sequence[ProblemRecord] = ()


async def submit_jobs(
    plane: Plane,
    caller: Caller,
    submissions: Sequence[JobSubmission],
    *,
    client: str,
    key: str = "",
    body: bytes = b"",
    again: Again | None = None,
) -> Submitted:
    """Submit all of these in one transaction.

    again: the job of which these are repetitions; its submission is as it was kept.

    Raises BadRequest or NotSupported that names the field, NotFound for a source that is not all here, JobRefused where
    a plugin does not want it, IdempotencyMismatch for a key that came before with another body.
    """
    if len(key) > _KEY_LIMIT:
        raise BadRequest(f"Idempotency-Key: {len(key)} characters; the limit is {_KEY_LIMIT}")
    withheld = withhold(submissions) if again is None else Withheld(submissions, {})
    if not key:
        return await _submit(plane, caller, submissions, withheld, client=client, again=again)
    digest = plane.auth.body_digest(body) if withheld.taken else hashlib.sha256(body).hexdigest()
    async with _one_at_a_time(plane, caller.key_owner, key):
        known = await plane.query(reads.find_idempotency, caller.key_owner, key)
        if known is not None:
            differing = [] if known.body_digest == digest else ["its bytes"]
            if differing and again is None and not withheld.taken:
                stored = await plane.query(reads.read_submissions, known.job_ids)
                before = [stored[job_id] for job_id in known.job_ids]
                now = await _with_ids(plane, caller, submissions, known.job_ids)
                differing = await plane.in_thread(differing_fields, before, now)
            if differing:
                unlike = ", ".join(differing)
                raise IdempotencyMismatch(
                    f"idempotency key {key[:60]!r} was used before with another body: not the same: {unlike}",
                    hint="use a new key for a new job",
                    details={"job_ids": list(known.job_ids[:20])},
                )
            return Submitted(list(known.job_ids))
        return await _submit(
            plane, caller, submissions, withheld, client=client, again=again, idempotency=(key, digest)
        )


def differing_fields(before: Sequence[JobSubmission], now: Sequence[JobSubmission]) -> list[str]:
    """In what the first job that is not the same differs; empty where all are the same: what was asked for, with its
    defaults, and without the variables that a client sends by itself, which differ from terminal to terminal. Raises
    like ``spec_from_wire``."""
    if len(before) != len(now):
        return ["number of jobs"]
    reader = SpecReader()
    for old, new in zip(before, now, strict=True):
        if old != new:
            was, wanted = (spec_to_wire(_asked_for(reader.read(one))) for one in (old, new))
            if was != wanted:
                return sorted(name for name in {**was, **wanted} if was.get(name) != wanted.get(name))
    return []


async def _with_ids(
    plane: Plane, caller: Caller, submissions: Sequence[JobSubmission], job_ids: Sequence[JobId]
) -> Sequence[JobSubmission]:
    """As they were kept, were they the same; as they are where what they come after is not clear any more."""
    if len(job_ids) != len(submissions) or not any(submission.get("after") for submission in submissions):
        return submissions
    try:
        specs = await specs_of(submissions, batch=len(submissions) > 1)
        return (await place_after(plane, caller, specs, submissions, job_ids)).submissions
    except GpulayerError:
        return submissions


def _asked_for(spec: JobSpec) -> JobSpec:
    return replace(spec, env=tuple((name, value) for name, value in spec.env if name not in SENT_BY_ITSELF))


async def specs_of(submissions: Sequence[JobSubmission], *, batch: bool) -> list[JobSpec]:
    """The domain form, a slice at a time. Raises like ``spec_from_wire``, naming the job of a batch."""
    specs: list[JobSpec] = []
    reader = SpecReader()
    for start in range(0, len(submissions), _SLICE):
        for offset, submission in enumerate(submissions[start : start + _SLICE]):
            try:
                specs.append(reader.read(submission))
            except BadRequest as error:
                if batch:
                    raise BadRequest(f"jobs.{start + offset}.{error.message}", hint=error.hint) from None
                raise
        if start + _SLICE < len(submissions):
            await asyncio.sleep(0)
    return specs


async def _submit(
    plane: Plane,
    caller: Caller,
    submissions: Sequence[JobSubmission],
    withheld: Withheld,
    *,
    client: str,
    again: Again | None,
    idempotency: tuple[()] | tuple[str, str] = (),
) -> Submitted:
    job_ids = _job_ids(plane, len(submissions))
    placed = await place_after(
        plane,
        caller,
        await specs_of(submissions, batch=len(submissions) > 1),
        withheld.submissions,
        job_ids,
        is_again=again is not None,
    )
    specs, submissions = placed.specs, placed.submissions
    for root in dict.fromkeys(spec.source.digest for spec in specs if spec.source is not None):
        totals = await check_uploaded(plane, root, "source")
        plane.trees.keep(root, totals.digests)
    warnings = await plane.job_checks.check(
        await plane.loaded_plugins(),
        len(submissions),
        lambda start, stop: specs_of(placed.submissions[start:stop], batch=len(submissions) > 1),
    )
    await await_local_worker(plane)
    wall_ms = plane.clock.wall_ms()
    owner = caller.owner if again is None else again.owner
    rows: list[JobRow] = []
    retry_of = "" if again is None else again.job_id
    for place, (job_id, spec, submission) in enumerate(zip(job_ids, specs, submissions, strict=True)):
        rows.append(JobRow(job_id, owner, caller.name, client, wall_ms, spec, submission, caller.token_id, retry_of))
        if place % 500 == 499:
            await asyncio.sleep(0)
    ids = [row.id for row in rows]
    keys: Iterable[IdempotencyRow] = ()
    if idempotency:
        key, digest = idempotency
        keys = (IdempotencyRow(caller.key_owner, key, digest, tuple(ids), wall_ms),)
    sealed: tuple[SecretRow, ...] = ()
    taken = withheld.taken if again is None else await _secrets_again(plane, again.job_id, submissions)
    if taken:
        sealed = await seal_all(plane, {ids[place]: values for place, values in taken.items()})
    if len(rows) <= 64:
        plane.remember({row.id: row.submission for row in rows})
    told = () if again is None else tuple(entry for job_id in ids for entry in again.audit(job_id))
    side = Side(jobs=tuple(rows), idempotency=tuple(keys), secrets=sealed, audit=told)
    plane.auth.check_still(caller)  # sources and plugins were asked meanwhile
    entries = [JobEntry.of(rows[place].id, owner, rows[place].spec) for place in placed.order]
    await _step(plane, entries, placed.named, side)
    return Submitted(ids, rows, warnings)


async def _step(plane: Plane, entries: Sequence[JobEntry], named: frozenset[JobId], side: Side) -> None:
    """named: what any of these comes after. How those ended that are live no more is known to the store; how those do
    that end from now on, to the driver."""
    if not named:
        await plane.driver.submit(*(_submitted(entry, lambda _: None) for entry in entries), side=side)
        return
    with plane.driver.noting_ends(named) as noted:
        live = await plane.driver.read(lambda state: named & state.jobs.keys())
        ended = await plane.query(reads.ends_of, named - live)
        await plane.driver.submit(
            *(_submitted(entry, lambda job_id: noted.get(job_id) or ended.get(job_id)) for entry in entries), side=side
        )


async def _secrets_again(
    plane: Plane, job_id: JobId, submissions: Sequence[JobSubmission]
) -> dict[int, dict[str, str]]:
    names = submissions[0].get("secret_names", ())
    values = await open_secrets(plane, job_id, names)
    return dict.fromkeys(range(len(submissions)), values) if values else {}


def _job_ids(plane: Plane, count: int) -> list[JobId]:
    """Fresh ids, from one draw of random bytes: a system call for each would cost more than the job."""
    width = (ID_LENGTH + 1) // 2
    drawn = plane.random_bytes(width * count)
    return [new_job_id(_given(drawn[start : start + width])) for start in range(0, width * count, width)]


def _given(drawn: bytes) -> RandomBytes:
    return lambda _count: drawn


def _submitted(entry: JobEntry, end_of: Callable[[JobId], JobState | None]) -> Make:
    """end_of: as far as that is known when it is stepped."""
    if not entry.after:
        return lambda at: JobSubmitted(at, entry)
    return lambda at: JobSubmitted(
        at, entry, tuple((after.job, end) for after in entry.after if (end := end_of(after.job)) is not None)
    )


async def await_local_worker(plane: Plane) -> None:
    """A fresh plane's own worker reports within a second: a job that only it could run must not be called
    impossible, or fail for lack of capacity, before that."""
    if not plane.settings.has_local_worker or plane.local_worker_reported.is_set():
        return
    try:
        await asyncio.wait_for(plane.local_worker_reported.wait(), plane.settings.local_worker_wait_s)
    except TimeoutError:
        # It does not come; one wait is enough.
        plane.local_worker_reported.set()


@asynccontextmanager
async def _one_at_a_time(plane: Plane, owner: str, key: str) -> AsyncIterator[None]:
    lock, users = plane.submitting.get((owner, key), (asyncio.Lock(), 0))
    plane.submitting[owner, key] = (lock, users + 1)
    try:
        async with lock:
            yield
    finally:
        lock, users = plane.submitting.pop((owner, key))
        if users > 1:
            plane.submitting[owner, key] = (lock, users - 1)
