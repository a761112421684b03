"""Planted faults: each takes one rule out of the product's own code. A harness that does not notice proves nothing.

``planted(name)`` is a context; within it the simulated world runs the broken code. One that does not fit the code any
more raises ``StaleMutant`` there: what it would break is not what it says. Whoever adds a kind of trouble, or a
promise, adds the faults that only it can find: a table of its own beside these, named here.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from gpulayer.testing.sim.mutant import Mutant, StaleMutant
from gpulayer.testing.sim.mutants_after import AFTER
from gpulayer.testing.sim.mutants_agent import AGENT, UNSEEN_AGENT
from gpulayer.testing.sim.mutants_away import AWAY
from gpulayer.testing.sim.mutants_engine import ENGINE, UNSEEN_ENGINE
from gpulayer.testing.sim.mutants_placing import PLACING
from gpulayer.testing.sim.mutants_share import SHARE

__all__ = ["MUTANTS", "UNSEEN", "Mutant", "StaleMutant", "planted"]

MUTANTS: Final[dict[str, Mutant]] = {**ENGINE, **AGENT, **AWAY, **PLACING, **AFTER, **SHARE}
# Nobody has noticed these in 120 worlds and more, or hardly ever: there the simulated world is blind, or another rule
# of the product stands in (``Mutant.unseen``, as far as reading tells). The soak does not count them; one that gets
# noticed moves up.
UNSEEN: Final[dict[str, Mutant]] = {**UNSEEN_ENGINE, **UNSEEN_AGENT}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Run with the fault of this name in place."""
    mutant = MUTANTS.get(name) or UNSEEN[name]
    sound, broken = mutant.made()
    setattr(mutant.owner, mutant.attribute, broken)
    try:
        yield
    finally:
        setattr(mutant.owner, mutant.attribute, sound)
