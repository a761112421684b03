"""``step``: one event in, the state changed in place, records and effects out.

Each event has one handler; handlers call down into ``attempts`` (what becomes of an attempt), ``queue`` (who waits),
``asking`` (what scorers are asked) and ``schedule`` (who gets what). An event about something that is gone changes
nothing: messages may be late or doubled.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, assert_never

from gpulayer.engine import after, ahead, asking, attempts, elements, holds, opinions, queue, schedule, workers
from gpulayer.engine.effects import Effect, Notify
from gpulayer.engine.events import (
    AfterMet,
    AheadWaitPassed,
    CancelRequested,
    DrainRequested,
    Event,
    HoldPassed,
    JobSubmitted,
    KeepForPassed,
    LeaseExpired,
    OpinionsGiven,
    OpinionsLapsed,
    PlaneRestored,
    ScorersRegistered,
    WorkerJoined,
    WorkerRemoved,
    WorkerReported,
    WorkerResumed,
    WorkerWentSilent,
)
from gpulayer.engine.records import Record
from gpulayer.engine.state import Job, State, Task
from gpulayer.engine.turn import Turn
from gpulayer.errors import Blame
from gpulayer.ids import JobId
from gpulayer.spec.job import Array, Gang, JobState, Single
from gpulayer.spec.outcome import EndedBy, Outcome
from gpulayer.spec.request import Request

__all__ = ["Step", "step"]


_AT_ONCE: Final = 32


@dataclass(frozen=True, slots=True)
class Step:
    """``records`` to store in one transaction, ``effects`` to release after it. rejected: jobs that were refused, and
    what they asked for: whoever stores them may say why."""

    records: tuple[Record, ...]
    effects: tuple[Effect, ...]
    rejected: Mapping[JobId, Request] = field(default_factory=dict)


def step(state: State, event: Event) -> Step:
    """Apply one event. Deterministic; changes ``state`` in place.

    A raised exception means a fault of ours: the state may be half changed and must be discarded.
    """
    state.now_ms = max(state.now_ms, event.at.ms)
    turn = Turn(state, event.at)
    match event:
        case JobSubmitted():
            _submit(turn, event)
        case CancelRequested():
            _cancel(turn, event)
        case WorkerReported():
            workers.reported(turn, event)
        case WorkerJoined():
            workers.joined(turn, event)
        case WorkerWentSilent():
            workers.went_silent(turn, event)
        case LeaseExpired():
            workers.lease_expired(turn, event)
        case KeepForPassed():
            workers.keep_for_passed(turn, event)
        case HoldPassed():
            holds.passed(turn, event)
        case AfterMet():
            for job_id in list(islice(state.met, _AT_ONCE)):
                _begin_to_wait(turn, state.jobs[job_id])
        case AheadWaitPassed():
            attempt = state.attempts.get(event.epoch)
            if attempt is not None:
                ahead.revoke(turn, attempt)
        case OpinionsGiven():
            opinions.given(turn, event)
        case ScorersRegistered():
            opinions.registered(turn, event)
        case OpinionsLapsed():
            known = state.classes.get((event.request, event.nodes))
            if known is not None and state.policy.scorers:
                asking.look_at(turn, known)
        case PlaneRestored():
            workers.restored(turn, event)
        case DrainRequested():
            workers.set_draining(turn, event.worker, draining=True)
        case WorkerResumed():
            workers.set_draining(turn, event.worker, draining=False)
        case WorkerRemoved():
            workers.removed(turn, event)
        case _:
            assert_never(event)
    if turn.has_checked:
        _refuse_what_was_unsure(turn)
    for attempt in ahead.promote(turn):
        attempts.refresh(turn, attempt)
    asking.look(turn)
    while True:
        _settle(turn)
        schedule.run(turn)
        if state.undecided:
            _decide(turn)
        if not turn.ended:
            break
    ahead.lend(turn)
    ahead.hand_over(turn)
    opinions.forget_what_is_over(state)
    return Step(turn.records(), tuple(turn.effects), turn.rejected)


def _submit(turn: Turn, event: JobSubmitted) -> None:
    """Queue the job, or reject it when no known worker could ever run it.

    With no worker known at all a job waits: the first one may be on its way. What comes after other jobs is judged by
    the workers once more when these have ended.
    """
    state, entry = turn.state, event.job
    match entry.shape:
        case Single():
            nodes = 1
        case Array():
            nodes = 1
        case Gang(nodes=wanted):
            nodes = wanted
        case unsupported:
            raise ValueError(f"shape {unsupported!r} is not scheduled by this engine; the edge must refuse it")
    job = Job(
        entry=entry,
        seq=state.next_seq,
        state=JobState.QUEUED,
        class_key=(entry.request, nodes),
        tasks={0: Task(index=0)},
    )
    state.next_seq += 1
    turn.jobs[entry.id] = job
    if schedule.fits_nowhere(state, entry.request, nodes):
        _reject(turn, job, "no_worker_fits", f"no worker fits: {entry.request.summary()}")
        return
    state.jobs[entry.id] = job
    if entry.after:
        why_never = after.follow(state, job, dict(event.ends))
        if why_never:
            _end_unrun(turn, job, why_never)
            return
    if not job.unmet:
        _enter(turn, job)


def _enter(turn: Turn, job: Job) -> None:
    """It waits for nothing but its turn from now on; where it is not to wait, it is decided."""
    state, entry = turn.state, job.entry
    turn.has_new_head |= queue.push(state, job, job.tasks[0])
    if entry.wait:
        known = queue.class_of(state, job)
        if known.unsure or schedule.is_unsure(state, known):
            schedule.doubt(turn, known, job)
        return
    if state.policy.scorers:
        until_ms = state.now_ms + state.policy.opinion_wait_ms
        state.undecided.setdefault(job.class_key, {})[entry.id] = until_ms
        return
    schedule.run(turn)
    if job.tasks[0].epoch is None:
        _turn_away(turn, job)


def _settle(turn: Turn) -> None:
    """Jobs have ended: whoever waited for them goes on, or ends as well. May end more of them, for whom others wait. Of
    very many that may go on none is looked at here: a heartbeat waits for this step."""
    state = turn.state
    for gone in turn.ended:  # more of them may come while it goes on
        met, vain = after.ended(state, gone)
        for job, failed in vain:
            _end_unrun(turn, job, after.why_never(failed, gone.state, gone.reason_message))
        state.met.update((job.entry.id, None) for job in met)
        if len(state.met) <= _AT_ONCE:
            for job in met:
                _begin_to_wait(turn, job)
    turn.ended.clear()


def _begin_to_wait(turn: Turn, job: Job) -> None:
    """Nothing that it comes after is live any more."""
    state = turn.state
    state.met.pop(job.entry.id, None)
    turn.jobs[job.entry.id] = job
    if (job.entry.id, 0) in state.held:
        return
    if schedule.fits_nowhere(state, *job.class_key):
        _reject(turn, job, "no_worker_fits", f"no worker fits: {job.entry.request.summary()}")
    else:
        _enter(turn, job)


def _end_unrun(turn: Turn, job: Job, why: str) -> None:
    """It was to run after a success that did not come."""
    elements.cut(job)
    attempts.end_task(turn, job, job.tasks[0], Outcome(EndedBy.CANCEL, evidence=why, blame=Blame.USER))
    job.reason_code, job.reason_message = after.UNMET, why


def _refuse_what_was_unsure(turn: Turn) -> None:
    """Checks have ended: whoever was accepted in the hope of them is told what they found, as if it came now."""
    state = turn.state
    for known in [known for known in state.classes.values() if known.unsure]:
        if not schedule.fits_nowhere(state, known.request, known.nodes):
            if not schedule.is_unsure(state, known):
                schedule.trust(turn, known)
            continue
        for job_id in known.unsure:
            job = state.jobs.get(job_id)
            if job is not None and job.is_untried:
                turn.jobs[job_id] = job
                queue.forget(state, job)
                _reject(turn, job, "no_worker_fits", f"no worker fits: {known.request.summary()}")
        known.unsure.clear()


def _decide(turn: Turn) -> None:
    """Turn away the ``--no-wait`` jobs that have not been placed although nothing more is to come that they could be
    placed by, or although they have waited for that for long enough."""
    state = turn.state
    for key, jobs in list(state.undecided.items()):
        known = state.classes.get(key)
        if known is None:
            del state.undecided[key]  # nobody waits: all of them were placed, or cancelled
            continue
        for job_id in [job_id for job_id, until_ms in jobs.items() if until_ms == 0]:
            jobs[job_id] = state.now_ms + state.policy.opinion_wait_ms
        is_settled = asking.is_settled(state, known)
        for job_id, until_ms in list(jobs.items()):
            if state.now_ms < until_ms and not is_settled:
                break
            del jobs[job_id]
            job = state.jobs.get(job_id)
            if job is not None and job.is_untried:
                turn.jobs[job_id] = job
                _turn_away(turn, job)
        if not jobs:
            del state.undecided[key]


def _turn_away(turn: Turn, job: Job) -> None:
    queue.forget(turn.state, job)
    refused = " or refused by a scorer" if turn.state.policy.scorers else ""
    request = job.entry.request
    _reject(turn, job, "no_capacity", f"every worker that fits is busy{refused}: {request.summary()}")


def _reject(turn: Turn, job: Job, code: str, message: str) -> None:
    job.reason_code, job.reason_message = code, message
    job.state = JobState.REJECTED
    job.ended_wall_ms = turn.at.wall_ms
    turn.state.jobs.pop(job.entry.id, None)
    turn.rejected[job.entry.id] = job.entry.request
    turn.effects.append(Notify(job.entry.id, job.state))
    turn.ended.append(job)


def _cancel(turn: Turn, event: CancelRequested) -> None:
    """A waiting job ends at once; a live one when its processes have ended. Asking twice changes nothing but the
    grace time, which may only get shorter."""
    job = turn.state.jobs.get(event.job_id)
    if job is None:
        return
    grace_ms = job.entry.grace_ms if event.grace_ms is None else event.grace_ms
    if job.stop is not None and grace_ms >= job.stop_grace_ms:
        return
    if job.stop is None:
        job.stop_by = event.by
    job.stop, job.stop_grace_ms = EndedBy.CANCEL, grace_ms
    turn.jobs[job.entry.id] = job
    elements.cut(job)
    for task in list(job.tasks.values()):
        if task.is_done:
            continue
        if task.epoch is None:
            attempts.end_task(turn, job, task, attempts.cancelled_outcome(job, "it had not started"))
        else:
            attempts.stop(turn, turn.state.attempts[task.epoch], EndedBy.CANCEL, grace_ms)
