"""What the passing of time has brought: a pure function from the state and the time to events.

The driver logs and steps these events like any other, so a replay of the log needs neither heartbeats nor clock.
"""

from gpulayer.clock import Instant
from gpulayer.engine import ahead, asking, holds
from gpulayer.engine.events import (
    AfterMet,
    AheadWaitPassed,
    Event,
    HoldPassed,
    KeepForPassed,
    LeaseExpired,
    OpinionsLapsed,
    WorkerWentSilent,
)
from gpulayer.engine.state import State, Worker
from gpulayer.ids import Epoch
from gpulayer.spec.worker import WorkerState

__all__ = ["due", "next_due_ms"]


def due(state: State, at: Instant) -> tuple[Event, ...]:
    """Events whose time has come, workers in order of their joining. Asking again without stepping repeats them."""
    events: list[Event] = []
    for worker in state.workers.values():
        if at.ms < _silent_at_ms(state, worker):
            continue
        if worker.state not in (WorkerState.SILENT, WorkerState.JOINING):
            events.append(WorkerWentSilent(at, worker.id))
        for epoch in sorted(worker.leases):
            if at.ms < holds.expires_ms(state, worker, state.attempts[epoch]):
                continue
            if at.ms >= _kept_until_ms(state, worker, epoch):
                events.append(KeepForPassed(at, epoch, worker.id))
            elif _is_worth_acting_on(state, epoch):
                events.append(LeaseExpired(at, epoch, worker.id))
    if state.met:
        events.append(AfterMet(at))
    events.extend(HoldPassed(at, *key) for key, until_ms in state.held.items() if at.ms >= until_ms)
    events.extend(
        AheadWaitPassed(at, epoch, worker_id) for worker_id, epoch, until_ms in ahead.waits(state) if at.ms >= until_ms
    )
    if state.policy.scorers or state.undecided:
        keys = dict.fromkeys(asking.lapsed(state, at.ms))
        events.extend(OpinionsLapsed(at, request, nodes) for request, nodes in keys)
    return tuple(events)


def next_due_ms(state: State) -> int | None:
    """Engine time of the next event that ``due`` would give if nothing else happened; None if there is none."""
    moments: list[int] = []
    for worker in state.workers.values():
        silent_at = _silent_at_ms(state, worker)
        if worker.state not in (WorkerState.SILENT, WorkerState.JOINING):
            moments.append(silent_at)
        for epoch in worker.leases:
            if _is_worth_acting_on(state, epoch):
                moments.append(holds.expires_ms(state, worker, state.attempts[epoch]))
            else:
                moments.append(_kept_until_ms(state, worker, epoch))
    moments.extend(state.held.values())
    if state.met:
        moments.append(state.now_ms)
    moments.extend(until_ms for _, _, until_ms in ahead.waits(state))
    if (state.policy.scorers or state.undecided) and (lapse_ms := asking.next_lapse_ms(state)) is not None:
        moments.append(lapse_ms)
    return min(moments, default=None)


def _is_worth_acting_on(state: State, epoch: Epoch) -> bool:
    """An expired lease is acted on once, and again when somebody asks to stop what can't be reached."""
    attempt = state.attempts[epoch]
    return not attempt.is_unreachable or state.jobs[attempt.job_id].stop is not None


def _silent_at_ms(state: State, worker: Worker) -> int:
    return worker.heard_ms + state.policy.expiry_ms(state.policy.lease_ttl_ms)


def _kept_until_ms(state: State, worker: Worker, epoch: Epoch) -> int:
    """A worker ends an exclusive job within the lease (``protocol.agent``), any other after its keep time."""
    attempt = state.attempts[epoch]
    entry = state.jobs[attempt.job_id].entry
    expires_ms = holds.expires_ms(state, worker, attempt)
    if entry.exclusive:
        return expires_ms
    return max(worker.heard_ms + state.policy.expiry_ms(entry.keep_for_ms + entry.grace_ms), expires_ms)
