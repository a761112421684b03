"""How long work may go on, and what may still be begun, as contact with the control plane allows. Pure questions.

Everything is counted from the *send* time of the last report that was answered: the control plane heard of it later,
and waits a tenth longer, so the worker is always the first to give up.
"""

from typing import Final

from gpulayer.protocol.held import Held
from gpulayer.protocol.messages import Phase, Stop
from gpulayer.protocol.state import AgentState
from gpulayer.spec.assignment import Assignment
from gpulayer.spec.outcome import EndedBy
from gpulayer.spec.units import format_duration

__all__ = ["is_current", "keep_for", "kill_by_ms", "stop_due"]

EXCLUSIVE_MARGIN_MS: Final = 1_000  # for SIGKILL to do its work before another worker may begin


def is_current(state: AgentState, asked_ms: int, *, now_ms: int) -> bool:
    """May the answer to a request for commands that was sent at ``asked_ms`` still be acted on?

    If not, its cursor must not be acknowledged, so that what still holds is told again.
    """
    return asked_ms >= state.contact_since_ms and now_ms <= state.contact_ms + state.lease_ttl_ms


def stop_due(state: AgentState, held: Held) -> tuple[int, Stop] | None:
    """When and how this node is to be stopped if nothing else happens."""
    if held.phase in (Phase.DRAINING, Phase.ENDED):
        return None
    assignment = held.assignment
    keep_for_ms, grace_ms = keep_for(state, assignment)
    epoch, lost_ms = held.key.epoch, state.contact_ms + keep_for_ms
    if held.phase is Phase.RUNNING and assignment.timeout_ms is not None and held.started_ms is not None:
        timeout_at_ms = held.started_ms + assignment.timeout_ms
        if timeout_at_ms <= lost_ms:
            limit = format_duration(assignment.timeout_ms)
            return timeout_at_ms, Stop(
                epoch, EndedBy.TIMEOUT, grace_ms, f"it ran for longer than its --timeout of {limit}"
            )
    limit = format_duration(keep_for_ms)
    return lost_ms, Stop(epoch, EndedBy.WORKER_LOST, grace_ms, f"its worker was out of contact for {limit}")


def keep_for(state: AgentState, assignment: Assignment) -> tuple[int, int]:
    """How long it goes on out of contact, and its grace time then, in ms."""
    if not assignment.exclusive:
        return assignment.keep_for_ms, assignment.grace_ms
    # It must be dead before the lease has passed, counted from the send time, for then another may begin.
    grace_ms = min(assignment.grace_ms, state.lease_ttl_ms // 3)
    return min(assignment.keep_for_ms, state.lease_ttl_ms - grace_ms - EXCLUSIVE_MARGIN_MS), grace_ms


def kill_by_ms(state: AgentState, held: Held) -> int | None:
    """When the spawner is to end an exclusive attempt by itself: its keep time and grace time after the last contact.

    On the agent's monotonic clock. None for an attempt that may outlive its lease.
    """
    if not held.assignment.exclusive:
        return None
    return state.contact_ms + sum(keep_for(state, held.assignment))
