"""Queries for people: job records by reference and by page, histories, idempotency keys, tokens.

Functions of a connection, so that one answer is read from one snapshot.
"""

import json
from collections.abc import Iterable
from typing import Any, Final

from sqlalchemy import Connection, func, select

from gpulayer.engine.records import AttemptImage
from gpulayer.errors import NotFound
from gpulayer.ids import ID_LENGTH, Digest, JobId, WorkerId
from gpulayer.server.store.codec import attempt_from_text, outcome_from_text
from gpulayer.server.store.rows import (
    AuditEntry,
    AuditRow,
    IdempotencyRow,
    IdentityRow,
    StoredElement,
    StoredEvent,
    StoredJob,
    TokenRow,
)
from gpulayer.server.store.statements import job_image
from gpulayer.server.store.tables import attempts, audit, events, identities, jobs, secrets, tasks, tokens
from gpulayer.spec.job import JobState
from gpulayer.wire.jobs import JobSubmission

__all__ = [
    "RESTORED",
    "SHOWN_ELEMENTS",
    "attempts_of",
    "count_jobs",
    "element_outputs",
    "element_states",
    "elements_of",
    "ended_before",
    "ends_of",
    "find_idempotency",
    "find_job",
    "job_events",
    "last_attempts",
    "last_restore",
    "maker_of",
    "output_trees",
    "page_of_jobs",
    "read_audit",
    "read_identities",
    "read_job",
    "read_jobs",
    "read_secrets",
    "read_submissions",
    "read_tokens",
    "resolve_job",
    "retried_as",
    "secrets_ended_before",
]

RESTORED: Final = "plane.restore"
"""The action in the audit trail."""

_COLUMNS: Final = (
    jobs.c.id,
    jobs.c.seq,
    jobs.c.owner,
    jobs.c.submitter,
    jobs.c.client,
    jobs.c.submitted_wall_ms,
    jobs.c.spec,
    jobs.c.verdicts,
    jobs.c.token_id,
    jobs.c.state,
    jobs.c.is_live,
    jobs.c.reason_code,
    jobs.c.reason_message,
    jobs.c.stop,
    jobs.c.stop_grace_ms,
    jobs.c.started_wall_ms,
    jobs.c.ended_wall_ms,
    jobs.c.outcome,
    jobs.c.outputs,
    jobs.c.stop_by,
    jobs.c.begun,
)
_IMAGE_AT: Final = 9

# What every submit, follower and waiting client asks for. As texts: a Core construct takes four times as long, most of
# it outside the database.
_JOB_BY_ID: Final = f"SELECT {', '.join(column.name for column in _COLUMNS)} FROM jobs WHERE id = ?"  # noqa: S608
_EXACT: Final = "SELECT id FROM jobs WHERE id = ?"
# Of an array the record has the attempts of so many elements: it may have thousands.
SHOWN_ELEMENTS: Final = 64
_ATTEMPTS_OF_ONE: Final = (
    "SELECT epoch, job_id, image FROM attempts WHERE job_id = ? AND task_index BETWEEN ? AND ? ORDER BY epoch"
)
_IDEMPOTENCY: Final = "SELECT owner, key, body_digest, job_ids, wall_ms FROM idempotency WHERE owner = ? AND key = ?"


def resolve_job(connection: Connection, ref: str) -> JobId:
    """The id that ``ref`` means: an id, else a unique name, else a unique prefix of ids. Raises NotFound."""
    found = _exact(connection, ref)
    if found is not None:
        return found
    named = connection.execute(select(jobs.c.id).where(jobs.c.name == ref).limit(2)).scalars().all() if ref else []
    if len(named) == 1:
        return JobId(named[0])
    if len(named) > 1:
        raise NotFound(f"several jobs have the name {ref!r}", hint="say which by its id")
    if 0 < len(ref) < ID_LENGTH and set(ref) <= set("0123456789abcdef"):
        # A range, not LIKE: SQLite's LIKE ignores case and so can't use the index.
        ids = connection.execute(
            select(jobs.c.id).where(jobs.c.id >= ref, jobs.c.id < ref + "g").order_by(jobs.c.id).limit(2)
        )
        prefixed = ids.scalars().all()
        if len(prefixed) == 1:
            return JobId(prefixed[0])
        if prefixed:
            raise NotFound(f"several jobs have ids that begin with {ref}", hint="give more characters of the id")
    raise NotFound(f"no job {ref[:100]!r}", hint="gpulayer job list shows the jobs there are")


def find_job(connection: Connection, ref: str) -> StoredJob:
    """The job that ``ref`` means, with its attempts. Raises NotFound."""
    return read_job(connection, resolve_job(connection, ref))


def read_job(connection: Connection, job_id: JobId) -> StoredJob:
    """With all its attempts. Raises NotFound."""
    row = connection.exec_driver_sql(_JOB_BY_ID, (job_id,)).one_or_none()
    if row is None:
        raise NotFound(f"no job {job_id}")
    return _job(row, attempts_of(connection, [job_id]).get(job_id, ()))


def maker_of(connection: Connection, job_id: JobId) -> tuple[str, str] | None:
    """Its owner, and by what name it was submitted; None for an unknown job."""
    row = connection.execute(select(jobs.c.owner, jobs.c.submitter).where(jobs.c.id == job_id)).one_or_none()
    return None if row is None else (row.owner, row.submitter)


def output_trees(connection: Connection, job_id: JobId, *, owner: str, submitter: str | None) -> list[Digest]:
    """What this job brought home, and what those jobs did that this owner submitted after it under this name."""
    made = jobs.c.id == job_id
    if submitter is not None:
        later = jobs.c.seq > select(jobs.c.seq).where(jobs.c.id == job_id).scalar_subquery()
        made |= later & (jobs.c.owner == owner) & (jobs.c.submitter == submitter)
    found = connection.execute(select(jobs.c.outputs).where(made, jobs.c.outputs.is_not(None)).distinct()).scalars()
    of_elements = select(tasks.c.outputs).join(jobs, jobs.c.id == tasks.c.job_id).where(made)
    more = connection.execute(of_elements.where(tasks.c.outputs.is_not(None)).distinct()).scalars()
    return [Digest(tree) for tree in (*found, *more)]


def page_of_jobs(
    connection: Connection,
    *,
    states: tuple[JobState, ...],
    name: str,
    before_seq: int | None,
    limit: int,
    owner: str | None = None,
) -> tuple[list[StoredJob], int | None]:
    """Up to ``limit`` jobs, newest first, and the ``before_seq`` of the next page. owner: None for everybody's."""
    query = select(*_COLUMNS).order_by(jobs.c.seq.desc()).limit(limit + 1)
    if states:
        query = query.where(jobs.c.state.in_([str(state) for state in states]))
    if name:
        query = query.where(jobs.c.name == name)
    if owner is not None:
        query = query.where(jobs.c.owner == owner)
    if before_seq is not None:
        query = query.where(jobs.c.seq < before_seq)
    rows = connection.execute(query).all()
    page = rows[:limit]
    tries = attempts_of(connection, [JobId(row.id) for row in page])
    found = [_job(row, tries.get(JobId(row.id), ())) for row in page]
    return found, (page[-1].seq if len(rows) > limit else None)


def attempts_of(
    connection: Connection, job_ids: Iterable[JobId], *, index: int | None = None
) -> dict[JobId, tuple[AttemptImage, ...]]:
    """All attempts of these jobs that are shown, oldest first; of an array those of its first elements. index: those of
    that element, of one job."""
    wanted = list(job_ids)
    found: dict[JobId, list[AttemptImage]] = {}
    if len(wanted) == 1:
        first, last = (0, SHOWN_ELEMENTS - 1) if index is None else (index, index)
        rows = connection.exec_driver_sql(_ATTEMPTS_OF_ONE, (wanted[0], first, last)).all()
        images = tuple(image for row in rows if (image := attempt_from_text(*row)).is_shown)
        return {wanted[0]: images} if images else {}
    for start in range(0, len(wanted), 500):  # SQLite's limit of parameters
        page = connection.execute(
            select(attempts.c.epoch, attempts.c.job_id, attempts.c.image)
            .where(attempts.c.job_id.in_(wanted[start : start + 500]), attempts.c.task_index < SHOWN_ELEMENTS)
            .order_by(attempts.c.epoch)
        )
        for epoch, job_id, image in page:
            read = attempt_from_text(epoch, job_id, image)
            if read.is_shown:
                found.setdefault(JobId(job_id), []).append(read)
    return {job_id: tuple(images) for job_id, images in found.items()}


def elements_of(
    connection: Connection, job_id: JobId, *, first: int = 0, last: int, is_failed: bool = False
) -> list[StoredElement]:
    """Of an array those elements with numbers from ``first`` to ``last`` that have been lent, by number. is_failed:
    only those that are done and have not succeeded."""
    query = select(tasks).where(tasks.c.job_id == job_id, tasks.c.task_index.between(first, last))
    if is_failed:
        query = query.where(tasks.c.is_done, tasks.c.state != str(JobState.SUCCEEDED))
    rows = connection.execute(query.order_by(tasks.c.task_index))
    return [
        StoredElement(
            row.task_index,
            row.attempts,
            JobState(row.state) if row.state else None,
            outcome_from_text(row.outcome),
            None if row.outputs is None else Digest(row.outputs),
        )
        for row in rows
    ]


def last_attempts(connection: Connection, job_id: JobId, *, first: int, last: int) -> dict[int, list[AttemptImage]]:
    """The attempts of these elements of an array that are shown, by number of the element, oldest first."""
    found: dict[int, list[AttemptImage]] = {}
    for row in connection.exec_driver_sql(_ATTEMPTS_OF_ONE, (job_id, first, last)).all():
        image = attempt_from_text(*row)
        if image.is_shown:
            found.setdefault(image.task_index, []).append(image)
    return found


def element_states(connection: Connection, job_id: JobId) -> tuple[dict[JobState, int], int | None]:
    """Of an array how many of its elements that are done ended in each state, and the number of the first that did not
    succeed."""
    done = tasks.c.job_id == job_id, tasks.c.is_done
    rows = connection.execute(select(tasks.c.state, func.count()).where(*done).group_by(tasks.c.state))
    states = {JobState(state): count for state, count in rows if state}
    failed = select(func.min(tasks.c.task_index)).where(*done, tasks.c.state != str(JobState.SUCCEEDED))
    return states, connection.execute(failed).scalar_one_or_none()


def element_outputs(connection: Connection, job_id: JobId) -> list[Digest]:
    """What the elements of an array brought home, by their numbers."""
    query = select(tasks.c.outputs).where(tasks.c.job_id == job_id, tasks.c.outputs.is_not(None))
    return [Digest(tree) for tree in connection.execute(query.order_by(tasks.c.task_index)).scalars()]


def count_jobs(connection: Connection) -> dict[str, int]:
    """By state, sorted; states without a job are left out."""
    rows = connection.execute(select(jobs.c.state, func.count()).group_by(jobs.c.state)).all()
    return dict(sorted((row[0], row[1]) for row in rows))


def read_jobs(connection: Connection, job_ids: Iterable[JobId]) -> dict[JobId, StoredJob]:
    """With all their attempts. Unknown jobs are left out."""
    wanted = list(job_ids)
    tries = attempts_of(connection, wanted)
    found: dict[JobId, StoredJob] = {}
    for start in range(0, len(wanted), 500):
        rows = connection.execute(select(*_COLUMNS).where(jobs.c.id.in_(wanted[start : start + 500])))
        found.update((JobId(row.id), _job(row, tries.get(JobId(row.id), ()))) for row in rows)
    return found


def read_submissions(connection: Connection, job_ids: Iterable[JobId]) -> dict[JobId, JobSubmission]:
    """What was sent, as it was sent. Unknown jobs are left out."""
    wanted = list(job_ids)
    found: dict[JobId, JobSubmission] = {}
    for start in range(0, len(wanted), 500):
        rows = connection.execute(select(jobs.c.id, jobs.c.spec).where(jobs.c.id.in_(wanted[start : start + 500])))
        found.update((JobId(job_id), json.loads(spec)) for job_id, spec in rows)
    return found


def ends_of(connection: Connection, job_ids: Iterable[JobId]) -> dict[JobId, JobState]:
    """How those of these ended that have. Unknown jobs are left out."""
    wanted = list(job_ids)
    found: dict[JobId, JobState] = {}
    for start in range(0, len(wanted), 500):
        query = select(jobs.c.id, jobs.c.state).where(jobs.c.id.in_(wanted[start : start + 500]), ~jobs.c.is_live)
        found.update((JobId(job_id), JobState(state)) for job_id, state in connection.execute(query))
    return found


def retried_as(connection: Connection, job_id: JobId) -> JobId:
    """The newest job that repeats it, or repeats one that does; itself where there is none."""
    newest = job_id
    while True:
        query = select(jobs.c.id).where(jobs.c.retry_of == newest).order_by(jobs.c.seq.desc()).limit(1)
        found = connection.execute(query).scalar_one_or_none()
        if found is None:
            return newest
        newest = JobId(found)


def ended_before(connection: Connection, job_ids: Iterable[JobId], wall_ms: int) -> list[JobId]:
    """Those of at most 500 jobs that ended before ``wall_ms``. Unknown jobs are left out."""
    query = select(jobs.c.id).where(jobs.c.id.in_(list(job_ids)), ~jobs.c.is_live, jobs.c.ended_wall_ms < wall_ms)
    return [JobId(job_id) for job_id in connection.execute(query).scalars()]


def job_events(connection: Connection, job_id: JobId, *, after: int, limit: int) -> list[StoredEvent]:
    """At most ``limit`` after event ``after``, in order; empty for an unknown job too."""
    rows = connection.execute(
        select(events.c.seq, events.c.wall_ms, events.c.kind, events.c.body)
        .where(events.c.job_id == job_id, events.c.seq > after)
        .order_by(events.c.seq)
        .limit(limit)
    )
    return [StoredEvent(*row) for row in rows]


def find_idempotency(connection: Connection, owner: str, key: str) -> IdempotencyRow | None:
    """The jobs that this owner's key made; None where it made none. Keys of other owners do not count."""
    row = connection.exec_driver_sql(_IDEMPOTENCY, (owner, key)).one_or_none()
    if row is None:
        return None
    return IdempotencyRow(row.owner, row.key, row.body_digest, tuple(map(JobId, json.loads(row.job_ids))), row.wall_ms)


def read_tokens(connection: Connection) -> list[TokenRow]:
    """All of them, also revoked and expired ones."""
    return [
        TokenRow(
            id=row.id,
            kind=row.kind,
            name=row.name,
            secret_hash=row.secret_hash,
            created_wall_ms=row.created_wall_ms,
            expires_wall_ms=row.expires_wall_ms,
            is_revoked=bool(row.is_revoked),
            is_local=bool(row.is_local),
            role=row.role,
            owner=row.owner,
            max_uses=row.max_uses,
            uses=row.uses,
            labels=_pairs(row.labels),
            max_devices=row.max_devices,
            used_wall_ms=row.used_wall_ms,
            replaces=row.replaces,
            removed_keys=tuple(json.loads(row.removed_keys)),
        )
        for row in connection.execute(select(tokens))
    ]


def read_identities(connection: Connection) -> list[IdentityRow]:
    """Of all workers that have ever enrolled and were not removed since."""
    return [
        IdentityRow(
            WorkerId(row.worker),
            row.public_key,
            row.counter,
            bool(row.is_local),
            row.token_id,
            _pairs(row.labels),
            row.max_devices,
            row.boot,
            row.instance,
            row.started_wall_ms,
        )
        for row in connection.execute(select(identities))
    ]


def read_audit(connection: Connection, *, after: int, limit: int) -> list[AuditRow]:
    """At most ``limit`` entries after number ``after``, in order."""
    rows = connection.execute(select(audit).where(audit.c.seq > after).order_by(audit.c.seq).limit(limit))
    return [
        AuditRow(row.seq, AuditEntry(row.wall_ms, row.actor, row.action, row.subject, row.details), row.hash)
        for row in rows
    ]


def last_restore(connection: Connection) -> AuditEntry | None:
    """What the audit trail says of the last time that this store was restored from a backup; None: never."""
    query = select(audit).where(audit.c.action == RESTORED).order_by(audit.c.seq.desc()).limit(1)
    row = connection.execute(query).one_or_none()
    return None if row is None else AuditEntry(row.wall_ms, row.actor, row.action, row.subject, row.details)


def read_secrets(connection: Connection, job_id: JobId) -> dict[str, bytes]:
    """What is sealed for this job, by name; empty for a job without secrets."""
    rows = connection.execute(select(secrets.c.name, secrets.c.sealed).where(secrets.c.job_id == job_id))
    return {row.name: row.sealed for row in rows}


def secrets_ended_before(connection: Connection, wall_ms: int, *, limit: int) -> list[JobId]:
    """At most ``limit`` jobs that have secrets and ended before ``wall_ms``."""
    query = select(secrets.c.job_id).distinct().join(jobs, jobs.c.id == secrets.c.job_id)
    query = query.where(~jobs.c.is_live, jobs.c.ended_wall_ms < wall_ms).limit(limit)
    return [JobId(job_id) for job_id in connection.execute(query).scalars()]


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(json.loads(text).items()))


def _exact(connection: Connection, ref: str) -> JobId | None:
    found = connection.exec_driver_sql(_EXACT, (ref,)).scalar_one_or_none()
    return None if found is None else JobId(found)


def _job(row: Any, tries: tuple[AttemptImage, ...]) -> StoredJob:  # Any: a row of _COLUMNS
    return StoredJob(
        submission=json.loads(row.spec),
        owner=row.owner,
        submitter=row.submitter,
        client=row.client,
        submitted_wall_ms=row.submitted_wall_ms,
        image=job_image(row.id, row.seq, tuple(row)[_IMAGE_AT:]),
        verdicts=row.verdicts,
        attempts=tries,
        token_id=row.token_id,
    )
