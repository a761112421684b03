"""What a batch is in SQL, and what a start reads: texts that are made of the metadata's names, and rows in the order of
their columns. Pure; ``Store`` carries them out.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from sqlalchemy import Table

from gpulayer import __version__
from gpulayer.engine.ends import final_state
from gpulayer.engine.events import NodePhase
from gpulayer.engine.records import (
    AttemptImage,
    CounterImage,
    FactsForgotten,
    FactsImage,
    JobImage,
    TaskImage,
    WorkerImage,
)
from gpulayer.ids import Digest, JobId, WorkerId
from gpulayer.server.store import tables
from gpulayer.server.store.codec import (
    ScheduleWriter,
    attempt_to_text,
    dump,
    facts_to_text,
    outcome_from_text,
    outcome_to_text,
    submission_to_text,
)
from gpulayer.server.store.rows import (
    AuditEntry,
    AuditRow,
    Batch,
    IdempotencyRow,
    IdentityRow,
    JobRow,
    SecretRow,
    StartRow,
    TokenRow,
)
from gpulayer.spec.job import JobState
from gpulayer.spec.outcome import EndedBy

__all__ = [
    "COUNT",
    "INSERT_AUDIT",
    "INSERT_NUMBERED_EVENT",
    "JOB_IMAGE",
    "KEYS_AT_A_TIME",
    "SELECT_BEGUN",
    "SELECT_WAITING",
    "Split",
    "audit_columns",
    "job_image",
    "split",
]

Row = tuple[Any, ...]  # Any: whatever the columns hold

_STATES: Final = {str(state): state for state in JobState}  # a quarter of the time of JobState(text)
KEYS_AT_A_TIME: Final = 1_000  # forgotten with one commit, which others wait for
JOB_IMAGE: Final = (
    "state",
    "is_live",
    "reason_code",
    "reason_message",
    "stop",
    "stop_grace_ms",
    "started_wall_ms",
    "ended_wall_ms",
    "outcome",
    "outputs",
    "stop_by",
    "begun",
)
_JOB_SPEC: Final = (
    "id",
    "seq",
    "name",
    "owner",
    "submitter",
    "client",
    "spec",
    "schedule",
    "submitted_wall_ms",
    "verdicts",
    "token_id",
    "retry_of",
)


def job_image(job_id: str, seq: int, row: Sequence[Any]) -> JobImage:  # Any: columns differ in type
    """The image from the columns of ``JOB_IMAGE``, in that order."""
    state, _, reason_code, reason_message, stop, stop_grace_ms, started, ended, outcome, outputs, stop_by, begun = row
    return JobImage(
        JobId(job_id),
        seq,
        _STATES[state],
        reason_code,
        reason_message,
        None if stop is None else EndedBy(stop),
        stop_grace_ms,
        started,
        ended,
        outcome_from_text(outcome),
        None if outputs is None else Digest(outputs),
        stop_by,
        begun,
    )


def _image_columns(image: JobImage) -> Row:
    return (
        str(image.state),
        not image.state.is_final,
        image.reason_code,
        image.reason_message,
        None if image.stop is None else str(image.stop),
        image.stop_grace_ms,
        image.started_wall_ms,
        image.ended_wall_ms,
        outcome_to_text(image.outcome),
        image.outputs,
        image.stop_by,
        image.begun,
    )


def _is_untouched(task: TaskImage) -> bool:
    """As ``rebuild`` makes a job's first task by itself, so that a row for it would tell nothing. A task gets back to
    that when its first attempt is given back; then it has a row."""
    return task.index == 0 and not (task.is_done or task.attempts or task.failures or task.avoid or task.held_until_ms)


class Split:
    """A batch by table: the last image of each key wins."""

    def __init__(self) -> None:
        self.new_jobs: dict[JobId, JobRow] = {}
        self.jobs: dict[JobId, JobImage] = {}
        self.tasks: dict[tuple[JobId, int], TaskImage] = {}
        self.attempts: dict[int, AttemptImage] = {}
        self.workers: dict[WorkerId, WorkerImage] = {}
        self.facts: dict[Digest, FactsImage] = {}
        self.forgotten_facts: list[Row] = []
        self.forgotten_events = 0
        self.forgotten_keys_ms = 0
        self.counters: CounterImage | None = None
        self.events: list[Row] = []
        self.idempotency: list[IdempotencyRow] = []
        self.tokens: dict[str, TokenRow] = {}
        self.identities: dict[WorkerId, IdentityRow] = {}
        self.raised: list[tuple[WorkerId, int]] = []
        self.starts: list[StartRow] = []
        self.forgotten: list[WorkerId] = []
        self.forgotten_tokens: list[str] = []
        self.secrets: list[SecretRow] = []
        self.forgotten_secrets: list[JobId] = []
        self.audit: list[AuditEntry] = []
        self.sink_cursors: list[tuple[str, int]] = []
        self.outputs: list[tuple[JobId, Digest]] = []
        self.verdicts: dict[JobId, str] = {}
        self.schedules = ScheduleWriter()

    def statements(self) -> Iterator[tuple[str, list[Row]]]:
        """In an order in which no row comes before one that it refers to."""
        yield _INSERT_JOB, [self._new_job(job_id) for job_id in self.new_jobs]
        changed = [image for job_id, image in self.jobs.items() if job_id not in self.new_jobs]
        yield _UPDATE_JOB, [(*_image_columns(image), image.id) for image in changed]
        yield (
            _UPDATE_VERDICTS,
            [(verdicts, job_id) for job_id, verdicts in self.verdicts.items() if job_id not in self.new_jobs],
        )
        yield (
            _UPSERT_TASK,
            [
                (
                    *(task.job_id, task.index, task.is_done, task.attempts),
                    *(task.failures, dump(task.avoid), task.program_failures, task.held_until_ms),
                    "" if task.outcome is None else str(final_state(task.outcome)),
                    outcome_to_text(task.outcome),
                    task.outputs,
                )
                for task in self.tasks.values()
                if task.job_id not in self.new_jobs or not _is_untouched(task)
            ],
        )
        yield (
            _UPSERT_ATTEMPT,
            [
                (
                    *(attempt.epoch, attempt.job_id, attempt.phase is not NodePhase.ENDED),
                    *(attempt_to_text(attempt), attempt.task_index),
                )
                for attempt in self.attempts.values()
            ],
        )
        yield _UPSERT_FACTS, [(image.digest, facts_to_text(image.facts)) for image in self.facts.values()]
        yield (
            _UPSERT_WORKER,
            [
                (
                    worker.id,
                    worker.name,
                    str(worker.state),
                    worker.is_draining,
                    worker.facts_digest,
                    worker.boot,
                    worker.seen_wall_ms,
                )
                for worker in self.workers.values()
            ],
        )
        if self.counters is not None:
            yield _UPDATE_COUNTERS, [(self.counters.next_epoch, self.counters.next_seq, self.counters.now_ms, 1)]
        yield _INSERT_EVENT, self.events
        yield _FORGET_EVENTS, [(self.forgotten_events,)] if self.forgotten_events else []
        yield _FORGET_FACTS, self.forgotten_facts  # only now: a worker, or an event, may have got them again
        yield (
            _UPSERT_IDEMPOTENCY,
            [(row.owner, row.key, row.body_digest, dump(row.job_ids), row.wall_ms) for row in self.idempotency],
        )
        yield _FORGET_KEYS, [(self.forgotten_keys_ms,)] if self.forgotten_keys_ms else []
        yield (
            _UPSERT_TOKEN,
            [
                (
                    row.id,
                    row.kind,
                    row.name,
                    row.secret_hash,
                    row.created_wall_ms,
                    row.expires_wall_ms,
                    row.is_revoked,
                    row.is_local,
                    row.role,
                    row.owner,
                    row.max_uses,
                    row.uses,
                    dump(dict(row.labels)),
                    row.max_devices,
                    row.used_wall_ms,
                    row.replaces,
                    dump(row.removed_keys),
                )
                for row in self.tokens.values()
            ],
        )
        yield (
            _UPSERT_IDENTITY,
            [
                (
                    *(row.worker, row.public_key, row.counter, row.is_local),
                    *(row.token_id, dump(dict(row.labels)), row.max_devices),
                    *(row.boot, row.instance, row.started_wall_ms),
                )
                for row in self.identities.values()
            ],
        )
        yield _RAISE_COUNTER, [(counter, worker, counter) for worker, counter in self.raised]
        yield (
            _RAISE_START,
            [(row.boot, row.instance, row.wall_ms, row.worker, row.boot, row.boot) for row in self.starts],
        )
        yield _FORGET_IDENTITY, [(worker,) for worker in self.forgotten]
        yield _FORGET_TOKEN, [(id_,) for id_ in self.forgotten_tokens]
        yield _UPSERT_SECRET, [(row.job_id, row.name, row.sealed) for row in self.secrets]
        yield _FORGET_SECRETS, [(job_id,) for job_id in self.forgotten_secrets]
        yield _UPSERT_SINK_CURSOR, self.sink_cursors
        yield _PUT_OUTPUTS, [(tree, job_id) for job_id, tree in self.outputs]

    def _new_job(self, job_id: JobId) -> Row:
        row, image = self.new_jobs[job_id], self.jobs[job_id]
        return (
            row.id,
            image.seq,
            row.spec.name,
            row.owner,
            row.submitter,
            row.client,
            submission_to_text(row.submission),
            self.schedules.text(row.spec),
            row.submitted_wall_ms,
            self.verdicts.get(job_id),
            row.token_id,
            row.retry_of,
            *_image_columns(image),
        )


def split(batch: Batch) -> Split:
    """What the batch writes, by table; of several images of one row the last."""
    found = Split()
    found.verdicts = batch.verdicts
    for record in batch.records:
        match record:
            case JobImage():
                found.jobs[record.id] = record
            case TaskImage():
                found.tasks[record.job_id, record.index] = record
            case AttemptImage():
                found.attempts[record.epoch] = record
            case WorkerImage():
                found.workers[record.id] = record
            case FactsImage():
                found.facts[record.digest] = record
            case FactsForgotten():
                pass  # events name them: they go when the last of these does (``retention``)
            case CounterImage():
                found.counters = record
    for side in batch.sides:
        found.new_jobs.update((row.id, row) for row in side.jobs)
        found.idempotency.extend(side.idempotency)
        found.tokens.update((row.id, row) for row in side.tokens)
        found.identities.update((row.worker, row) for row in side.identities)
        found.raised.extend(side.counters)
        found.starts.extend(side.starts)
        found.forgotten.extend(side.forget_identities)
        found.forgotten_tokens.extend(side.forget_tokens)
        found.secrets.extend(side.secrets)
        found.forgotten_secrets.extend(side.forget_secrets)
        found.audit.extend(side.audit)
        found.sink_cursors.extend(side.sink_cursors)
        found.outputs.extend(side.outputs)
        found.forgotten_events = max(found.forgotten_events, side.forget_events)
        found.forgotten_keys_ms = max(found.forgotten_keys_ms, side.forget_idempotency_ms)
        found.forgotten_facts.extend((digest, digest, side.facts_after, f"%{digest}%") for digest in side.forget_facts)
    found.events = [
        (row.at_ms, row.wall_ms, __version__, row.job_id, row.worker, row.kind, row.body) for row in batch.events
    ]
    return found


def audit_columns(row: AuditRow) -> Row:
    """In the order of the table."""
    entry = row.entry
    return row.seq, entry.wall_ms, entry.actor, entry.action, entry.subject, entry.details, row.hash


def _insert(table: Table, names: tuple[str, ...]) -> str:
    columns, marks = ", ".join(names), ", ".join("?" for _ in names)
    return f"INSERT INTO {table.name} ({columns}) VALUES ({marks})"  # noqa: S608 - names of the metadata


def _upsert(table: Table) -> str:
    """Insert, or replace the row of the same key."""
    names = tuple(column.name for column in table.columns)
    keys = tuple(column.name for column in table.primary_key.columns)
    changes = ", ".join(f"{name} = excluded.{name}" for name in names if name not in keys)
    return f"{_insert(table, names)} ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {changes}"


def _update(table: Table, names: tuple[str, ...], where: str) -> str:
    changes = ", ".join(f"{name} = ?" for name in names)
    return f"UPDATE {table.name} SET {changes} WHERE {where} = ?"  # noqa: S608 - names of the metadata


# The hot statements are texts made of the metadata's names: executemany of a text takes half of what a Core
# construct does. Their parameters come in the order of the columns.
_EVENT: Final = ("at_ms", "wall_ms", "engine", "job_id", "worker", "kind", "body")
_INSERT_JOB: Final = _insert(tables.jobs, (*_JOB_SPEC, *JOB_IMAGE))
_UPDATE_JOB: Final = _update(tables.jobs, JOB_IMAGE, "id")
_UPDATE_VERDICTS: Final = _update(tables.jobs, ("verdicts",), "id")
_UPSERT_TASK: Final = _upsert(tables.tasks)
_UPSERT_ATTEMPT: Final = _upsert(tables.attempts)
_UPSERT_FACTS: Final = _upsert(tables.facts)
_UPSERT_WORKER: Final = _upsert(tables.workers)
_UPDATE_COUNTERS: Final = _update(tables.counters, ("next_epoch", "next_seq", "now_ms"), "id")
_INSERT_EVENT: Final = _insert(tables.events, _EVENT)
INSERT_NUMBERED_EVENT: Final = _insert(tables.events, ("seq", *_EVENT))
_UPSERT_IDEMPOTENCY: Final = _upsert(tables.idempotency)
_UPSERT_TOKEN: Final = _upsert(tables.tokens)
_UPSERT_IDENTITY: Final = _upsert(tables.identities)
_RAISE_COUNTER: Final = "UPDATE identities SET counter = ? WHERE worker = ? AND counter < ?"
_RAISE_START: Final = (
    "UPDATE identities SET boot = ?, instance = ?, started_wall_ms = ? "
    "WHERE worker = ? AND (boot < ? OR (boot = ? AND instance = ''))"
)
_UPSERT_SECRET: Final = _upsert(tables.secrets)
_UPSERT_SINK_CURSOR: Final = _upsert(tables.sink_cursors)
INSERT_AUDIT: Final = _insert(tables.audit, tuple(column.name for column in tables.audit.columns))
COUNT: Final = "UPDATE counters SET probed = probed + 1"
_FORGET_FACTS: Final = (
    "DELETE FROM facts WHERE digest = ? AND NOT EXISTS (SELECT 1 FROM workers WHERE facts_digest = ?)"
    " AND NOT EXISTS (SELECT 1 FROM events WHERE seq > ? AND body LIKE ?)"
)
_FORGET_EVENTS: Final = "DELETE FROM events WHERE seq <= ? AND seq < (SELECT max(seq) FROM events)"
_FORGET_KEYS: Final = (
    "DELETE FROM idempotency WHERE rowid IN"  # noqa: S608 - a number of ours
    f" (SELECT rowid FROM idempotency WHERE wall_ms < ? ORDER BY wall_ms LIMIT {KEYS_AT_A_TIME})"
)
_PUT_OUTPUTS: Final = "UPDATE jobs SET outputs = ? WHERE id = ? AND NOT is_live AND outputs IS NULL"
_FORGET_SECRETS: Final = "DELETE FROM secrets WHERE job_id = ?"
_ONLY_WAITS: Final = (
    "state = 'queued' AND reason_code = '' AND reason_message = '' AND stop IS NULL AND stop_grace_ms = 0"
    " AND started_wall_ms IS NULL AND ended_wall_ms IS NULL AND outcome IS NULL AND outputs IS NULL AND stop_by = ''"
    " AND begun = 0"
)
SELECT_WAITING: Final = f"SELECT id, owner, schedule, seq FROM jobs WHERE is_live AND {_ONLY_WAITS} ORDER BY seq"  # noqa: S608
SELECT_BEGUN: Final = (
    f"SELECT id, owner, schedule, seq, {', '.join(JOB_IMAGE)} FROM jobs"  # noqa: S608
    f" WHERE is_live AND ({_ONLY_WAITS}) IS NOT TRUE ORDER BY seq"
)
_FORGET_IDENTITY: Final = "DELETE FROM identities WHERE worker = ?"
_FORGET_TOKEN: Final = "DELETE FROM tokens WHERE id = ?"  # noqa: S105 - a statement
