"""How long work may go on, and what may still be begun, as contact with the control plane allows. Pure questions.

Everything is counted from the *send* time of the last report that was answered: the control plane heard of it later,
and waits a tenth longer, so the worker is always the first to give up.
"""

from typing import Final

from gpulayer.protocol.held import Held
from gpulayer.protocol.messages import Phase, Stop
from gpulayer.protocol.state import AgentState
from gpulayer.spec.assignment import Assignment
from gpulayer.spec.job import DEFAULT_LEASE_TTL_MS
from gpulayer.spec.outcome import EndedBy
from gpulayer.spec.units import format_duration

__all__ = ["extension", "heartbeat_ms", "is_current", "keep_for", "kill_by_ms", "may_begin", "stop_due", "stop_due_ms"]

EXCLUSIVE_MARGIN_MS: Final = 1_000  # for SIGKILL to do its work before another worker may begin
_GRACE_PART: Final = 3  # of the lease: so much of its grace time an exclusive job has out of contact
_HEARTBEAT_MS: Final = 10_000
_LATER: Final = 16


def heartbeat_ms(lease_ttl_ms: int) -> int:
    """How often a worker reports at least: 10 s for the usual lease of 30 s, and in the same proportion to what an
    exclusive job is kept for without contact, which gets short much sooner than the lease: else it would end between
    two reports of a worker that was never out of contact."""
    kept_ms = _exclusive_kept_ms(lease_ttl_ms, lease_ttl_ms // _GRACE_PART)
    usual_ms = _exclusive_kept_ms(DEFAULT_LEASE_TTL_MS, DEFAULT_LEASE_TTL_MS // _GRACE_PART)
    return min(_HEARTBEAT_MS, _HEARTBEAT_MS * kept_ms // usual_ms)


def is_current(state: AgentState, asked_ms: int, *, now_ms: int) -> bool:
    """May the answer to a request for commands that was sent at ``asked_ms`` still be acted on?

    If not, its cursor must not be acknowledged, so that what still holds is told again.
    """
    return asked_ms >= state.contact_since_ms and now_ms <= state.contact_ms + state.lease_ttl_ms


def may_begin(state: AgentState, assignment: Assignment, now_ms: int) -> bool:
    """An exclusive job that would have to be ended at once, for want of contact, waits for that first."""
    return not assignment.exclusive or now_ms < state.contact_ms + keep_for(state, assignment)[0]


def stop_due_ms(state: AgentState, held: Held) -> int | None:
    """When this node is to be stopped if nothing else happens. Asked at every turn, so it makes no ``Stop``."""
    if held.phase in (Phase.DRAINING, Phase.ENDED):
        return None
    lost_ms = state.contact_ms + _kept_ms(state, held)
    timeout_at_ms = _timeout_at_ms(held)
    return lost_ms if timeout_at_ms is None else min(timeout_at_ms, lost_ms)


def stop_due(state: AgentState, held: Held) -> tuple[int, Stop] | None:
    """When and how this node is to be stopped if nothing else happens."""
    due_ms = stop_due_ms(state, held)
    if due_ms is None:
        return None
    assignment = held.assignment
    keep_for_ms, grace_ms = _kept_ms(state, held), keep_for(state, assignment)[1]
    if due_ms == _timeout_at_ms(held) and assignment.timeout_ms is not None:
        evidence = f"it ran for longer than its --timeout of {format_duration(assignment.timeout_ms)}"
        return due_ms, Stop(held.key.epoch, EndedBy.TIMEOUT, grace_ms, evidence=evidence)
    evidence = f"its worker was out of contact for {format_duration(keep_for_ms)}"
    return due_ms, Stop(held.key.epoch, EndedBy.WORKER_LOST, grace_ms, evidence=evidence)


def keep_for(state: AgentState, assignment: Assignment) -> tuple[int, int]:
    """How long it goes on out of contact, and its grace time then, in ms."""
    if not assignment.exclusive:
        return assignment.keep_for_ms, assignment.grace_ms
    # It must be dead before the lease has passed, counted from the send time, for then another may begin.
    grace_ms = min(assignment.grace_ms, state.lease_ttl_ms // _GRACE_PART)
    return min(assignment.keep_for_ms, _exclusive_kept_ms(state.lease_ttl_ms, grace_ms)), grace_ms


def kill_by_ms(state: AgentState, held: Held) -> int:
    """When the spawner is to end the attempt by itself, whatever has become of the agent. On the agent's clock.

    An exclusive one as soon as its keep time and grace time have passed since the last contact: then another may
    begin. Any other a sixteenth of its keep time later: the agent, if it lives, goes first, in good order, and the
    control plane still waits longer (a tenth).
    """
    keep_for_ms, grace_ms = keep_for(state, held.assignment)
    late_ms = 0 if held.assignment.exclusive else keep_for_ms // _LATER
    return state.contact_ms + keep_for_ms + grace_ms + late_ms


def extension(state: AgentState, held: Held) -> int | None:
    """The time to tell the spawner in place of the one it knows; None where that one will do.

    So contact costs a word to the spawner every two minutes for a job that is kept for an hour. What it knows is never
    earlier than the agent's own end of the job. An exclusive job's is told whenever it moves.
    """
    kill_at_ms = kill_by_ms(state, held)
    if held.told_kill_by_ms is None:
        return kill_at_ms
    slack_ms = 0 if held.assignment.exclusive else keep_for(state, held.assignment)[0] // (2 * _LATER)
    return kill_at_ms if kill_at_ms > held.told_kill_by_ms + slack_ms else None


def _exclusive_kept_ms(lease_ttl_ms: int, grace_ms: int) -> int:
    return lease_ttl_ms - grace_ms - EXCLUSIVE_MARGIN_MS


def _kept_ms(state: AgentState, held: Held) -> int:
    """Nothing of what has not begun can overlap: an exclusive job too waits while it is lent to nobody else."""
    keep_for_ms = keep_for(state, held.assignment)[0]
    if held.phase is Phase.STAGING and held.assignment.exclusive:
        return max(keep_for_ms, min(held.assignment.keep_for_ms, state.lease_ttl_ms))
    return keep_for_ms


def _timeout_at_ms(held: Held) -> int | None:
    timeout_ms = held.assignment.timeout_ms
    if held.phase is not Phase.RUNNING or timeout_ms is None or held.started_ms is None:
        return None
    return held.started_ms + timeout_ms
