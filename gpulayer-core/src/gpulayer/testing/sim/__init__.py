"""A whole fleet on a virtual clock, with faults, from one seed.

``run(seed)`` plays the scenario of that seed (``scenario``: machines, jobs and faults as data), ``play`` any other. It
drives the engine that the server runs (``engine.step``), the agent that the worker runs (``protocol.agent.step``) and
the client's retry policy (``protocol.retry``) over a network that loses, doubles, delays, reorders and is cut, on
machines whose clocks differ, which crash, stop, sleep, fill up and go away. After every step of the engine its
invariants are checked, and the world's own rules after everything that happens: no device with two live process trees,
no exclusive job twice, terminal is final, what was answered is never lost, what is stale is never accepted. When the
faults stop, everything must finish.

No decision is made in this package: replacing one of the imported functions by a broken one (``mutants``) must make a
run fail, which the tests prove.
"""

from gpulayer.testing.sim.scenario import Fault, HostPlan, JobPlan, Noise, Scenario, Shape, Trouble
from gpulayer.testing.sim.world import Course, Report, Stuck, Violation, play, run

__all__ = [
    "Course",
    "Fault",
    "HostPlan",
    "JobPlan",
    "Noise",
    "Report",
    "Scenario",
    "Shape",
    "Stuck",
    "Trouble",
    "Violation",
    "play",
    "run",
]
