"""Planted faults in what is decided when somebody was away: a control plane that was stopped, a worker out of
contact."""

from typing import Any, Final

from gpulayer import engine
from gpulayer.engine import holds, workers
from gpulayer.protocol import leases
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


def _start_anew_believed(_: Any) -> Any:
    """What an agent that started anew says of programs that it has not seen end is believed at once."""
    return lambda turn, worker: None


def _no_hold(_: Any) -> Any:
    """An exclusive job that is lost without its worker's word is lent again at once."""

    def broken(turn: Any, job: Any, task: Any) -> bool:
        task.held_until_ms = 0
        return False

    return broken


AWAY: Final[dict[str, Mutant]] = {
    "deaf_once_away": Mutant(11, engine, "hear_anew", _deaf_once_away),
    "start_anew_believed": Mutant(3, workers, "_doubt", _start_anew_believed),
    "no_hold": Mutant(3, holds, "keep_off", _no_hold),
    "gives_up_soon": Mutant(6, leases, "keep_for", _gives_up_soon),
}
