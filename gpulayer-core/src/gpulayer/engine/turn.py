"""One step in the making: which entities it touched, which effects it wants.

Row images are built once, at the end, of every touched entity: whatever the step did to it on the way, the store
gets its final form.
"""

from dataclasses import dataclass, field

from gpulayer.clock import Instant
from gpulayer.engine.effects import Effect
from gpulayer.engine.records import (
    AttemptImage,
    CounterImage,
    FactsForgotten,
    FactsImage,
    JobImage,
    NodeImage,
    Record,
    TaskImage,
    WorkerImage,
)
from gpulayer.engine.state import Attempt, Job, RequestClass, State, Task, Worker
from gpulayer.ids import Digest, Epoch, JobId, WorkerId
from gpulayer.spec.request import Request

__all__ = ["Turn", "attempt_image", "job_image", "task_image", "worker_image"]


@dataclass(slots=True)
class Turn:
    """Collects what one ``step`` changes. Entities are touched by reference, before they leave the state.

    gained: workers that have room they did not have before. has_new_head: a task came to the head of its queue.
    opened: classes whose tasks may go where scorers kept them from before. has_checked: checks have ended.
    rejected: the jobs that are, and what they asked for. ended: jobs that have ended and left the state, and whose
    followers do not know it yet. has_freed: tasks that a reservation kept off may be looked at again.
    """

    state: State
    at: Instant
    effects: list[Effect] = field(default_factory=list)
    jobs: dict[JobId, Job] = field(default_factory=dict)
    tasks: dict[tuple[JobId, int], Task] = field(default_factory=dict)
    attempts: dict[Epoch, Attempt] = field(default_factory=dict)
    workers: dict[WorkerId, Worker] = field(default_factory=dict)
    facts: dict[Digest, FactsImage] = field(default_factory=dict)
    forgotten_facts: dict[Digest, FactsForgotten] = field(default_factory=dict)
    gained: dict[WorkerId, Worker] = field(default_factory=dict)
    has_new_head: bool = False
    opened: list[RequestClass] = field(default_factory=list)
    has_checked: bool = False
    rejected: dict[JobId, Request] = field(default_factory=dict)
    ended: list[Job] = field(default_factory=list)
    has_freed: bool = False

    def records(self) -> tuple[Record, ...]:
        """Empty when nothing changed: then there is nothing to commit."""
        records: list[Record] = [*self.facts.values()]
        records.extend(worker_image(worker) for worker in self.workers.values())
        records.extend(job_image(job) for job in self.jobs.values())
        records.extend(task_image(job_id, task) for (job_id, _), task in self.tasks.items())
        records.extend(attempt_image(attempt) for attempt in self.attempts.values())
        records.extend(self.forgotten_facts.values())
        if records:
            records.append(CounterImage(self.state.next_epoch, self.state.next_seq, self.state.now_ms))
        return tuple(records)


def job_image(job: Job) -> JobImage:
    """The immutable entry is not in it: the store has that from the submission."""
    return JobImage(
        id=job.entry.id,
        seq=job.seq,
        state=job.state,
        reason_code=job.reason_code,
        reason_message=job.reason_message,
        stop=job.stop,
        stop_grace_ms=job.stop_grace_ms,
        started_wall_ms=job.started_wall_ms,
        ended_wall_ms=job.ended_wall_ms,
        outcome=job.outcome,
        outputs=job.outputs,
        stop_by=job.stop_by,
        begun=job.begun,
    )


def task_image(job_id: JobId, task: Task) -> TaskImage:
    """``avoid`` is sorted, so that equal tasks give equal images."""
    return TaskImage(
        job_id=job_id,
        index=task.index,
        is_done=task.is_done,
        attempts=task.attempts,
        failures=task.failures,
        avoid=tuple(sorted(task.avoid)),
        program_failures=task.program_failures,
        held_until_ms=task.held_until_ms,
        outcome=task.outcome,
        outputs=task.outputs,
    )


def attempt_image(attempt: Attempt) -> AttemptImage:
    """All nodes with it: the row of an attempt is replaced as a whole."""
    return AttemptImage(
        epoch=attempt.epoch,
        job_id=attempt.job_id,
        task_index=attempt.task_index,
        number=attempt.number,
        phase=attempt.phase,
        nodes=tuple(
            NodeImage(
                worker=node.allocation.worker,
                worker_name=node.worker_name,
                devices=node.allocation.devices,
                cpus=node.allocation.cpus,
                memory_bytes=node.allocation.memory_bytes,
                phase=node.phase,
                outcome=node.outcome,
                outputs=node.outputs,
                is_ahead=node.is_ahead,
                is_revoked=node.is_revoked,
                resources=node.allocation.resources,
            )
            for node in attempt.nodes
        ),
        stop=attempt.stop,
        is_unreachable=attempt.is_unreachable,
        first_failure=attempt.first_failure,
        started_wall_ms=attempt.started_wall_ms,
        ended_wall_ms=attempt.ended_wall_ms,
        outcome=attempt.outcome,
        placement=attempt.placement,
        lease_ttl_ms=attempt.lease_ttl_ms,
        considered=attempt.considered,
    )


def worker_image(worker: Worker) -> WorkerImage:
    """Facts by digest alone; see ``FactsImage``. What it has free follows from its leases."""
    return WorkerImage(
        id=worker.id,
        name=worker.name,
        state=worker.state,
        is_draining=worker.is_draining,
        facts_digest=worker.facts_digest,
        boot=worker.boot,
        seen_wall_ms=worker.seen_wall_ms,
    )
