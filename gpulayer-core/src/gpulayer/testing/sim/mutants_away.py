"""Planted faults in what is decided when somebody was away: a control plane that was stopped, a machine without power,
a worker out of contact."""

from typing import Any, Final

from gpulayer import engine
from gpulayer.protocol import agent, leases, messages
from gpulayer.testing.sim.mutant import Mutant

__all__ = ["AWAY"]


def _deaf_once_away(_: Any) -> Any:
    """A control plane that was away takes everybody for silent."""
    return lambda state, now_ms: None


def _gives_up_soon(keep_for: Any) -> Any:
    """A worker that has lost contact ends its work after half of the time."""

    def broken(state: Any, assignment: Any) -> Any:
        keep_for_ms, grace_ms = keep_for(state, assignment)
        return keep_for_ms // 2, grace_ms

    return broken


def _trusts_lost_notes(_: Any) -> Any:
    """After a restart of its machine the agent starts what its notes do not say has begun."""

    def broken(held: Any, now_ms: int, actions: Any) -> None:
        held.phase, held.stop = messages.Phase.STAGING, None
        agent._stage(held, actions)  # noqa: SLF001 - what a careless recovery would do

    return broken


def _begins_without_contact(_: Any) -> Any:
    """An exclusive job begins although it would have to be ended at once."""
    return lambda state, assignment, now_ms: True


AWAY: Final[dict[str, Mutant]] = {
    "deaf_once_away": Mutant(11, engine, "hear_anew", _deaf_once_away),
    "gives_up_soon": Mutant(6, leases, "keep_for", _gives_up_soon),
    "trusts_lost_notes": Mutant(4, agent, "_end_unsure", _trusts_lost_notes),
    "begins_without_contact": Mutant(3, agent, "may_begin", _begins_without_contact),
}
