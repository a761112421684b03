"""Tasks of exclusive jobs that wait although they could run: an earlier attempt of theirs may still.

An attempt that ends without the word of somebody who saw its program end (its worker was removed, the state is that of
a backup, its agent started anew and says that it is lost) leaves a hold: nobody gets the task before that worker must
have ended it by itself, one lease (and a tenth) after its last contact; where the agent started anew, after the last
contact of its former start. What is on a disk proves nothing here: a folder that was copied to another machine reads
like that of a machine which was restarted.

The hold is stored with the task, in engine time, which does not go on while the control plane is down: that makes it
longer, never shorter. Of a task with a live attempt it is what its end would leave.
"""

from typing import Final

from gpulayer.engine import queue
from gpulayer.engine.events import HoldPassed
from gpulayer.engine.state import Attempt, Job, State, Task, Worker
from gpulayer.engine.turn import Turn

__all__ = ["HELD", "expires_ms", "fill", "hold", "hold_all", "keep_off", "passed", "release"]

HELD: Final = "exclusive_held"  # the reason for which such a job waits; the time is told from the state


def expires_ms(state: State, worker: Worker, attempt: Attempt) -> int:
    """Engine time at which the lease of an attempt is over there, if nothing is heard of the worker.

    After a restart with another lease it may go by that of before: by whichever is longer, until it has reported.
    """
    lease_ttl_ms = max(attempt.lease_ttl_ms, state.policy.lease_ttl_ms)
    return worker.heard_ms + state.policy.expiry_ms(lease_ttl_ms)


def hold(turn: Turn, attempt: Attempt, until_ms: int) -> None:
    """Before it ends. Nothing where its job is not exclusive, or where it must be dead by now."""
    job = turn.state.jobs[attempt.job_id]
    if job.entry.exclusive and until_ms > turn.at.ms:
        task = job.tasks[attempt.task_index]
        task.held_until_ms = max(task.held_until_ms, until_ms)
        turn.tasks[job.entry.id, task.index] = task


def release(turn: Turn, attempt: Attempt) -> None:
    """Its program is known to have ended. Of a gang, that says nothing of the others."""
    job = turn.state.jobs[attempt.job_id]
    task = job.tasks[attempt.task_index]
    if task.held_until_ms and len(attempt.nodes) == 1:
        task.held_until_ms = 0
        turn.tasks[job.entry.id, task.index] = task


def hold_all(turn: Turn) -> None:
    """Every live task of every exclusive job, for one lease from now on."""
    state = turn.state
    known = [attempt.lease_ttl_ms for attempt in state.attempts.values()]
    until_ms = turn.at.ms + state.policy.expiry_ms(max([state.policy.lease_ttl_ms, *known]))
    for job in state.jobs.values():
        if not job.entry.exclusive:
            continue
        if not job.reason_message:
            job.reason_message = "it may have been lent since the backup was made"
        for task in job.tasks.values():
            if task.is_done:
                continue
            task.held_until_ms = max(task.held_until_ms, until_ms)
            if task.epoch is None and keep_off(turn, job, task):
                queue.withdraw(state, job, task)


def keep_off(turn: Turn, job: Job, task: Task) -> bool:
    """Note a task that waits again as held, if it is; then it is in no queue."""
    if task.held_until_ms <= turn.at.ms:
        task.held_until_ms = 0
        return False
    turn.state.held[job.entry.id, task.index] = task.held_until_ms
    turn.state.undecided.get(job.class_key, {}).pop(job.entry.id, None)
    job.reason_code = HELD
    job.reason_message += "; it may still run there, and this job is exclusive"
    turn.jobs[job.entry.id], turn.tasks[job.entry.id, task.index] = job, task
    return True


def passed(turn: Turn, event: HoldPassed) -> None:
    """It waits like any other from now on, in its old place."""
    key = (event.job_id, event.task_index)
    job = turn.state.jobs.get(event.job_id)
    if job is None or turn.state.held.pop(key, None) is None:
        return
    task = job.tasks[event.task_index]
    task.held_until_ms = 0
    job.reason_code = job.reason_message = ""
    turn.jobs[job.entry.id], turn.tasks[key] = job, task
    if not queue.stands(turn.state, job, task):
        return  # it waits for other jobs, or for other elements of its own
    turn.has_new_head |= queue.push(turn.state, job, task)
    queue.class_of(turn.state, job).is_blocked = False
    if not job.entry.wait and job.is_untried:
        until_ms = turn.state.now_ms + turn.state.policy.opinion_wait_ms
        turn.state.undecided.setdefault(job.class_key, {})[job.entry.id] = until_ms


def fill(state: State) -> None:
    """From the tasks, for a start."""
    for job in state.jobs.values():
        for task in job.tasks.values():
            if task.held_until_ms and task.epoch is None and not task.is_done:
                state.held[job.entry.id, task.index] = task.held_until_ms
