"""A whole fleet on a virtual clock, with faults, from one seed.

``run(seed)`` drives the engine that the server runs (``engine.step``), the agent that the worker runs
(``protocol.agent.step``) and the client's retry policy (``protocol.retry``) over a network that loses, doubles, delays
and reorders, on hosts that crash. After every step of the engine its invariants are checked, and the world's own rules
after everything that happens: no device with two live process trees, no exclusive job twice, terminal is final, what
was answered is never lost. When the faults stop, everything must finish.

No decision is made in this package: replacing one of the imported functions by a broken one (``mutants``) must make a
run fail, which the tests prove.
"""

from gpulayer.testing.sim.world import Report, Shape, Violation, run

__all__ = ["Report", "Shape", "Violation", "run"]
