"""The scheduler as a pure function: ``step(state, event)`` gives records to store and effects to release.

It reads no clock, draws no random number, calls no plugin and does no IO, and it iterates in a fixed order: the
same events always give the same state. The server's driver and the simulator run this same code.
"""

from gpulayer.engine.attention import BEAT_MS, Attention, hear_anew
from gpulayer.engine.due import due, next_due_ms
from gpulayer.engine.invariants import check, check_touched
from gpulayer.engine.outstanding import outstanding
from gpulayer.engine.rebuild import rebuild
from gpulayer.engine.state import Policy, State
from gpulayer.engine.step import Step, step

__all__ = [
    "BEAT_MS",
    "Attention",
    "Policy",
    "State",
    "Step",
    "check",
    "check_touched",
    "due",
    "hear_anew",
    "next_due_ms",
    "outstanding",
    "rebuild",
    "step",
]
