"""The live state from the last row image of every live entity: what a control plane does when it starts.

Volatile parts start afresh: every worker's lease counts from now, so a restart never makes anyone look silent; but none
gets new work before it has reported, for it may have gone while nobody listened. Opinions are asked for again, and
``--no-wait`` jobs that waited for them are decided soon.
"""

from collections.abc import Collection, Iterable
from operator import attrgetter

from gpulayer.engine import after, elements, holds, queue, schedule, shares
from gpulayer.engine import attempts as attempts_
from gpulayer.engine.records import AttemptImage, CounterImage, FactsImage, JobImage, TaskImage, WorkerImage
from gpulayer.engine.state import Attempt, Job, Node, Policy, State, Task, Worker
from gpulayer.ids import WorkerId
from gpulayer.placement.capacity import Allocation, usable_capacity
from gpulayer.spec.job import Array, Gang, JobEntry, JobState
from gpulayer.spec.request import Request
from gpulayer.spec.worker import WorkerState

__all__ = ["rebuild"]


def rebuild(
    policy: Policy,
    counters: CounterImage | None,
    *,
    jobs: Iterable[tuple[JobEntry, JobImage]] = (),
    waiting: Iterable[tuple[JobEntry, int]] = (),
    tasks: Iterable[TaskImage] = (),
    attempts: Iterable[AttemptImage] = (),
    workers: Iterable[WorkerImage] = (),
    facts: Iterable[FactsImage] = (),
    heard: Collection[WorkerId] = (),
) -> State:
    """Images of final jobs, ended attempts, removed workers and facts that no worker has may be among them; they are
    passed over.

    Elements of arrays that are done may be left out, but for the first of each array that did not succeed.
    waiting: with their ``seq``, more jobs, whose images would say that they are queued and nothing else.
    heard: workers that have reported to this very process, when it only discards a state that ran ahead of the store.
    """
    state = State(policy=policy)
    if counters is not None:
        state.next_epoch, state.next_seq, state.now_ms = counters.next_epoch, counters.next_seq, counters.now_ms
    known_facts = {image.digest: image.facts for image in facts}
    for worker_image in workers:
        if worker_image.state is not WorkerState.GONE:
            state.facts[worker_image.facts_digest] = known_facts[worker_image.facts_digest]
            state.workers[worker_image.id] = _worker(state, worker_image, is_heard=worker_image.id in heard)
    found = [_job(entry, image) for entry, image in jobs if not image.state.is_final]
    found += [Job(entry, seq, JobState.QUEUED, _class_key(entry), {0: Task(0)}) for entry, seq in waiting]
    found.sort(key=attrgetter("seq"))
    state.jobs = {job.entry.id: job for job in found}
    for task_image in sorted(tasks, key=attrgetter("job_id", "index")):
        job = state.jobs.get(task_image.job_id)
        if job is not None and job.is_array and task_image.is_done:
            outcome = task_image.outcome
            if outcome is not None and not outcome.is_success and job.failed is None:
                job.failed = (task_image.index, outcome)
        elif job is not None:
            job.tasks[task_image.index] = Task(
                index=task_image.index,
                is_done=task_image.is_done,
                attempts=task_image.attempts,
                failures=task_image.failures,
                program_failures=task_image.program_failures,
                held_until_ms=task_image.held_until_ms,
                avoid=frozenset(task_image.avoid),
            )
    for job in state.jobs.values():
        if job.is_array:
            _order(job)
    for image in sorted(attempts, key=lambda image: image.epoch):
        if image.outcome is None and image.job_id in state.jobs:
            _add_attempt(state, image)
    elements.fill(state)
    shares.fill(state)
    for worker in state.workers.values():
        attempts_.refresh_free(state, worker)
    after.fill(state)
    holds.fill(state)
    queue.fill(state, state.jobs.values())
    for job in state.jobs.values():
        if (job.entry.id, 0) in state.held or job.unmet:
            continue
        if job.reason_code == schedule.HOPES and job.is_untried:
            queue.class_of(state, job).unsure[job.entry.id] = None
        if not job.entry.wait and job.is_untried:
            state.undecided.setdefault(job.class_key, {})[job.entry.id] = 0
    return state


def _worker(state: State, image: WorkerImage, *, is_heard: bool) -> Worker:
    known = state.facts[image.facts_digest]
    return Worker(
        id=image.id,
        name=image.name,
        state=image.state,
        facts=known,
        facts_digest=image.facts_digest,
        free=usable_capacity(known),
        boot=image.boot,
        is_draining=image.is_draining,
        seen_wall_ms=image.seen_wall_ms,
        heard_ms=state.now_ms,
        is_heard=is_heard,
    )


def _job(entry: JobEntry, image: JobImage) -> Job:
    return Job(
        entry,
        image.seq,
        image.state,
        _class_key(entry),
        {} if isinstance(entry.shape, Array) else {0: Task(0)},
        image.reason_code,
        image.reason_message,
        image.stop,
        image.stop_grace_ms,
        image.stop_by,
        image.started_wall_ms,
        image.ended_wall_ms,
        image.outcome,
        image.outputs,
        begun=image.begun,
    )


def _order(job: Job) -> None:
    """Those that are under way, oldest first, then the head."""
    head = job.tasks.pop(job.begun, None)
    if job.begun < job.count:
        job.tasks[job.begun] = head or Task(job.begun)


def _class_key(entry: JobEntry) -> tuple[Request, int]:
    return entry.request, entry.shape.nodes if isinstance(entry.shape, Gang) else 1


def _add_attempt(state: State, image: AttemptImage) -> None:
    nodes = [
        Node(
            allocation=Allocation(node.worker, node.devices, node.cpus, node.memory_bytes, node.resources),
            worker_name=node.worker_name,
            phase=node.phase,
            outcome=node.outcome,
            outputs=node.outputs,
            is_ahead=node.is_ahead,
            is_revoked=node.is_revoked,
        )
        for node in image.nodes
    ]
    state.attempts[image.epoch] = Attempt(
        epoch=image.epoch,
        job_id=image.job_id,
        task_index=image.task_index,
        number=image.number,
        nodes=nodes,
        phase=image.phase,
        stop=image.stop,
        is_unreachable=image.is_unreachable,
        first_failure=image.first_failure,
        started_wall_ms=image.started_wall_ms,
        ended_wall_ms=image.ended_wall_ms,
        placement=image.placement,
        lease_ttl_ms=image.lease_ttl_ms,
        considered=image.considered,
        lent_ms=state.now_ms,
        began_ms=None if image.started_wall_ms is None else state.now_ms,
    )
    state.jobs[image.job_id].tasks[image.task_index].epoch = image.epoch
    for index, node in enumerate(nodes):
        worker = state.workers.get(node.allocation.worker)
        if worker is not None and node.outcome is None:
            worker.leases[image.epoch] = index
            if node.is_ahead:
                state.ahead.setdefault(worker.id, {})[image.epoch] = None
