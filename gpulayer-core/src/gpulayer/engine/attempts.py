"""What becomes of an attempt: nodes end, the attempt ends, the task runs again or is done, the job is final.

An attempt ends when its last node has ended; the first failure decides how. A retry is a new attempt.
"""

from dataclasses import replace

from gpulayer.engine import ahead, elements, holds, queue, schedule, shares
from gpulayer.engine.effects import Notify, Stop
from gpulayer.engine.ends import below, end_text, final_state, stop_text
from gpulayer.engine.events import NodePhase, NodeReport
from gpulayer.engine.state import Attempt, Job, Node, State, Task, Worker
from gpulayer.engine.turn import Turn
from gpulayer.errors import Blame
from gpulayer.ids import Digest, WorkerId
from gpulayer.placement.capacity import usable_capacity
from gpulayer.spec.job import JobState, RetryOn
from gpulayer.spec.outcome import EndedBy, Outcome

__all__ = ["cancelled_outcome", "end_node", "end_task", "node_reported", "refresh", "refresh_free", "stop"]

_ORDER = {phase: place for place, phase in enumerate(NodePhase)}


def node_reported(turn: Turn, attempt: Attempt, index: int, report: NodeReport) -> None:
    """Take a worker's word on its node. Phases move forward only: a late or doubled report changes nothing."""
    node = attempt.nodes[index]
    if _ORDER[report.phase] <= _ORDER[node.phase]:
        return
    if report.phase is NodePhase.ENDED:
        outcome = report.outcome or Outcome(EndedBy.WORKER_LOST, evidence="the worker reported no outcome")
        if attempt.started_wall_ms is None and report.started_ago_ms is not None:
            _begin_at(turn, attempt, turn.at.wall_ms - report.started_ago_ms)
        end_node(turn, attempt, index, outcome, report.outputs)
        return
    node.phase = report.phase
    worker = turn.state.workers.get(node.allocation.worker)
    if node.is_ahead and worker is not None and report.phase is not NodePhase.STAGING:
        ahead.count(turn.state, worker, attempt)
    refresh(turn, attempt)


def end_node(turn: Turn, attempt: Attempt, index: int, outcome: Outcome, outputs: Digest | None = None) -> None:
    """A node is over: its lease ends. The first failing node stops the others; the last one ends the attempt."""
    node = attempt.nodes[index]
    if node.phase is NodePhase.ENDED:
        return
    node.phase, node.outcome, node.outputs = NodePhase.ENDED, outcome, outputs
    shares.give_back(turn.state, turn.state.jobs[attempt.job_id].entry.owner, node)
    worker = turn.state.workers.get(node.allocation.worker)
    if worker is not None and worker.leases.pop(attempt.epoch, None) is not None:
        ahead.forget(turn.state, worker.id, attempt.epoch)
        refresh_free(turn.state, worker)
        schedule.capacity_gained(turn.state, worker)
        turn.gained[worker.id] = worker
    if not outcome.is_success and attempt.first_failure is None:
        attempt.first_failure = index
        _stop_others(turn, attempt, EndedBy.WORKER_STOPPED)
    if all(other.phase is NodePhase.ENDED for other in attempt.nodes):
        _end_attempt(turn, attempt)
    else:
        refresh(turn, attempt)


def stop(turn: Turn, attempt: Attempt, ended_by: EndedBy, grace_ms: int) -> None:
    """Ask every node of the attempt to end."""
    attempt.stop = ended_by
    for node in attempt.nodes:
        if node.phase is not NodePhase.ENDED:
            turn.effects.append(Stop(node.allocation.worker, attempt.epoch, ended_by, grace_ms))
    refresh(turn, attempt)
    job = turn.state.jobs[attempt.job_id]
    job.reason_code, job.reason_message = str(ended_by), stop_text(job)


def end_task(
    turn: Turn,
    job: Job,
    task: Task,
    outcome: Outcome,
    outputs: Digest | None = None,
    *,
    ended_wall_ms: int | None = None,
) -> None:
    """The task is done; with its last task the job is final and leaves the state. ended_wall_ms: None for now."""
    task.is_done, task.epoch = True, None
    turn.tasks[job.entry.id, task.index] = task
    if job.is_array:
        turn.has_new_head |= elements.done(turn.state, job, task, outcome, outputs)
        turn.jobs[job.entry.id] = job
        if job.tasks:
            _show(turn, job, elements.summed_up(job))
            return
        outcome, outputs = _outcome_of_array(job), None
    job.state = final_state(outcome)
    job.outcome, job.outputs = outcome, outputs
    job.ended_wall_ms = turn.at.wall_ms if ended_wall_ms is None else ended_wall_ms
    job.reason_code = "" if outcome.is_success else str(outcome.ended_by)
    job.reason_message = "" if outcome.is_success else end_text(outcome)
    if job.failed is not None and job.stop is None:
        job.reason_message = f"element {job.failed[0]}: {job.reason_message}"
    turn.jobs[job.entry.id] = job
    turn.effects.append(Notify(job.entry.id, job.state))
    queue.forget(turn.state, job)
    turn.ended.append(job)


def cancelled_outcome(job: Job, evidence: str) -> Outcome:
    """The end of work that was cancelled and has no exit code of its own: blamed on the user, so not retried."""
    return Outcome(EndedBy.CANCEL, evidence=below(stop_text(job), evidence), blame=Blame.USER)


def refresh_free(state: State, worker: Worker) -> None:
    """Recompute what is free on a worker from its facts and leases: the one definition, so nothing can drift."""
    free = usable_capacity(worker.facts)
    for epoch, index in worker.leases.items():
        node = state.attempts[epoch].nodes[index]
        if not node.is_ahead:
            free = free.less(node.allocation)
    worker.free = free


def _end_attempt(turn: Turn, attempt: Attempt) -> None:
    state = turn.state
    failed = attempt.first_failure
    deciding = attempt.nodes[failed if failed is not None else 0]
    job = state.jobs[attempt.job_id]
    outcome = _outcome(deciding)
    if outcome.ended_by is EndedBy.CANCEL:
        outcome = replace(outcome, evidence=below(stop_text(job), outcome.evidence))
    attempt.phase, attempt.outcome, attempt.ended_wall_ms = NodePhase.ENDED, outcome, turn.at.wall_ms
    if attempt.started_wall_ms is not None and outcome.ran_ms is not None:
        # When it ended there, not when that was told: its worker may have been out of contact.
        attempt.ended_wall_ms = min(turn.at.wall_ms, attempt.started_wall_ms + outcome.ran_ms)
    attempt.is_unreachable = False
    turn.attempts[attempt.epoch] = attempt
    del state.attempts[attempt.epoch]
    task = job.tasks[attempt.task_index]
    task.epoch = None
    turn.tasks[job.entry.id, task.index] = task
    turn.jobs[job.entry.id] = job
    if _is_given_back(attempt, outcome):
        task.attempts -= 1  # nothing has happened but a detour
        if job.stop is None:
            job.state = elements.shown(job, task, JobState.QUEUED)
            _wait_again(turn, job, task)
            return
    if _runs_again(job, task, attempt, outcome) and _has_place_again(
        state, job, task, outcome, deciding.allocation.worker
    ):
        _spend_retry(task, attempt, outcome, deciding.allocation.worker)
        job.state = elements.shown(job, task, JobState.QUEUED)
        if job.state is JobState.QUEUED:
            job.reason_code = "retry"
            job.reason_message = f"attempt {attempt.number} ended: {end_text(outcome)}"
        _wait_again(turn, job, task)
        turn.effects.append(Notify(job.entry.id, job.state))
        return
    if job.stop is EndedBy.CANCEL and not outcome.is_success and outcome.blame is not Blame.USER:
        outcome = cancelled_outcome(job, end_text(outcome))
    end_task(turn, job, task, outcome, attempt.nodes[0].outputs, ended_wall_ms=attempt.ended_wall_ms)


def _wait_again(turn: Turn, job: Job, task: Task) -> None:
    if holds.keep_off(turn, job, task):
        return
    turn.has_new_head |= queue.push(turn.state, job, task)
    queue.class_of(turn.state, job).is_blocked = False


def _is_given_back(attempt: Attempt, outcome: Outcome) -> bool:
    """Its worker had not started it when it was wanted back."""
    return outcome.ended_by is EndedBy.PREEMPTED and attempt.nodes[0].is_revoked and attempt.started_wall_ms is None


def _begin_at(turn: Turn, attempt: Attempt, wall_ms: int) -> None:
    job = turn.state.jobs[attempt.job_id]
    attempt.started_wall_ms, attempt.began_ms = wall_ms, turn.state.now_ms
    job.started_wall_ms = job.started_wall_ms or wall_ms


def _is_detour(attempt: Attempt, outcome: Outcome) -> bool:
    """Its worker saw before the start that it is not what placement believed: nothing has run."""
    return outcome.ended_by is EndedBy.DRIFT and attempt.started_wall_ms is None and outcome.ran_ms is None


def _runs_again(job: Job, task: Task, attempt: Attempt, outcome: Outcome) -> bool:
    """Failures that are not the program's own run again; the program's too where the job says so. Each kind has all
    the retries for itself: what the infrastructure does never uses up the program's."""
    if outcome.is_success or job.stop is not None:
        return False
    match outcome.ended_by:
        case EndedBy.DRIFT if _is_detour(attempt, outcome):
            return True
        case EndedBy.WORKER_STOPPED:
            return job.entry.retries > 0
        case EndedBy.CANCEL | EndedBy.TIMEOUT | EndedBy.CLIENT_LOST:
            return False
        case _ if outcome.blame is Blame.USER:
            return job.entry.retry_on is RetryOn.ANY and task.program_failures < job.entry.retries
        case _:
            return task.failures < job.entry.retries


def _spend_retry(task: Task, attempt: Attempt, outcome: Outcome, worker: WorkerId) -> None:
    if _is_detour(attempt, outcome):  # somebody was there first: nothing has failed, and another worker may do
        task.avoid |= {worker}
        return
    if outcome.ended_by is EndedBy.WORKER_STOPPED:
        return  # somebody stopped the worker; nothing has failed
    if outcome.blame is Blame.USER:
        task.program_failures += 1
    else:
        task.failures += 1
        task.avoid |= {worker}


def _has_place_again(state: State, job: Job, task: Task, outcome: Outcome, worker: WorkerId) -> bool:
    """After a full disk only on another worker, and only once: what fills one disk fills the next as well."""
    if outcome.ended_by is not EndedBy.DISK_FULL or outcome.blame is Blame.USER:
        return True
    is_first = not task.full
    task.full |= {worker}
    request, nodes = job.class_key
    return is_first and schedule.has_other_place(state, request, nodes, task.full)


def refresh(turn: Turn, attempt: Attempt) -> None:
    """Derive the attempt's phase and the job's state from its nodes."""
    live = [node.phase for node in attempt.nodes if node.phase is not NodePhase.ENDED]
    phase = min(live, key=_ORDER.__getitem__)
    if attempt.stop is not None or attempt.first_failure is not None:
        phase = NodePhase.ENDING
    attempt.phase = phase
    job = turn.state.jobs[attempt.job_id]
    if phase is NodePhase.RUNNING and attempt.started_wall_ms is None:
        _begin_at(turn, attempt, turn.at.wall_ms)
    task = job.tasks[attempt.task_index]
    _show(turn, job, elements.shown(job, task, elements.node_state(attempt)))
    turn.jobs[job.entry.id] = job
    turn.attempts[attempt.epoch] = attempt


def _show(turn: Turn, job: Job, now: JobState) -> None:
    before, job.state = job.state, now
    if job.state is not before:
        job.reason_code = job.reason_message = ""
        turn.effects.append(Notify(job.entry.id, job.state))


def _outcome_of_array(job: Job) -> Outcome:
    """That of the first of its elements, by number, that did not succeed."""
    if job.failed is None:
        return Outcome(EndedBy.PROGRAM, 0, blame=Blame.USER)
    if job.stop is EndedBy.CANCEL:
        return cancelled_outcome(job, "not all of its elements have succeeded")
    return job.failed[1]


def _stop_others(turn: Turn, attempt: Attempt, ended_by: EndedBy) -> None:
    job = turn.state.jobs[attempt.job_id]
    for node in attempt.nodes:
        if node.phase is not NodePhase.ENDED:
            turn.effects.append(Stop(node.allocation.worker, attempt.epoch, ended_by, job.entry.grace_ms))


def _outcome(node: Node) -> Outcome:
    if node.outcome is None:
        raise AssertionError("an ended node has an outcome")
    return node.outcome
