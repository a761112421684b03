"""Planted faults in what waits for other jobs."""

from typing import Any, Final

from gpulayer.engine import after
from gpulayer.testing.sim.mutant import Mutant

__all__ = ["AFTER"]


def _begins_early(_: Any) -> Any:
    """A job does not wait for what it comes after."""
    return lambda state, job, waits: None


def _failure_unminded(_: Any) -> Any:
    """A job that needs another's success runs whatever that one's end."""
    return lambda after, state: True


def _followers_untold(_: Any) -> Any:
    """Who waits for a job is not told of its end."""
    return lambda state, gone: ([], [])


def _followers_forgotten(_: Any) -> Any:
    """After a restart nobody knows who waits for whom."""
    return lambda state: None


AFTER: Final[dict[str, Mutant]] = {
    "begins_early": Mutant(14, after, "_link", _begins_early),
    "failure_unminded": Mutant(14, after, "_is_met", _failure_unminded),
    "followers_untold": Mutant(14, after, "ended", _followers_untold),
    "followers_forgotten": Mutant(14, after, "fill", _followers_forgotten),
}
