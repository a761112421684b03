"""Planted faults: each takes one rule out of the product's own code. A harness that does not notice proves nothing.

``planted(name)`` is a context; within it the simulated world runs the broken code. One that does not fit the code any
more raises ``StaleMutant`` there: what it would break is not what it says. Whoever adds a kind of trouble, or a
promise, adds the faults that only it can find: a table of its own beside these, named here.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from gpulayer.testing.sim.mutant import Mutant, StaleMutant
from gpulayer.testing.sim.mutants_agent import AGENT
from gpulayer.testing.sim.mutants_away import AWAY
from gpulayer.testing.sim.mutants_engine import ENGINE
from gpulayer.testing.sim.mutants_placing import PLACING

__all__ = ["MUTANTS", "Mutant", "StaleMutant", "planted"]

MUTANTS: Final[dict[str, Mutant]] = {**ENGINE, **AGENT, **AWAY, **PLACING}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Run with the fault of this name in place."""
    mutant = MUTANTS[name]
    sound, broken = mutant.made()
    setattr(mutant.owner, mutant.attribute, broken)
    try:
        yield
    finally:
        setattr(mutant.owner, mutant.attribute, sound)
