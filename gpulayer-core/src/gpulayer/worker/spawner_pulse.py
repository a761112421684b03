"""Does the spawner still answer? And what is done about one that does not."""

import logging
import signal
from dataclasses import dataclass
from typing import Final

from gpulayer.spawner import tree
from gpulayer.spawner.state import StateDir

__all__ = ["Pulse", "end_if_stuck", "end_stuck_spawner"]

_log: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class Pulse:
    """For how long nothing has come, in waits of this process: one that was itself stopped, or a machine that was
    suspended, has waited for one turn and no longer. Pure.

    ask_after_s: when to ask for a sign of life. stuck_after_s: how long the answer may take. late_after_s: the same,
    where somebody waits (``is_hurried``, until something comes) and it is seen to stand still.
    """

    ask_after_s: float = 10.0
    stuck_after_s: float = 30.0
    late_after_s: float = 3.0
    silent_s: float = 0.0
    is_asked: bool = False
    is_hurried: bool = False

    def heard(self) -> None:
        """Something has come, whatever it is."""
        self.silent_s, self.is_asked, self.is_hurried = 0.0, False, False

    def asked(self) -> None:
        """From now on an answer is waited for."""
        self.silent_s, self.is_asked = 0.0, True

    def waited(self, wait_s: float) -> None:
        """Nothing has come for so long."""
        self.silent_s += wait_s

    @property
    def turn_s(self) -> float:
        """How often to look."""
        return min(1.0, self.ask_after_s, self.stuck_after_s)

    @property
    def should_ask(self) -> bool:
        return not self.is_asked and self.silent_s >= self.ask_after_s

    @property
    def is_late(self) -> bool:
        return self.is_asked and self.is_hurried and self.silent_s >= self.late_after_s

    @property
    def is_stuck(self) -> bool:
        return self.is_asked and self.silent_s >= self.stuck_after_s


def end_if_stuck(state: StateDir, pulse: Pulse) -> bool:
    """True where the spawner of this folder has been silent for too long (or for long enough, as it is seen to stand
    still), and was to be ended. Can it not be, the next try comes as late as this one."""
    is_stuck = pulse.is_stuck
    if not is_stuck and pulse.is_late:
        spawner = state.holder("spawner")
        is_stuck = spawner is not None and spawner.state in ("T", "t")
    if is_stuck:
        pulse.asked()
        end_stuck_spawner(state)
    return is_stuck


def end_stuck_spawner(state: StateDir) -> bool:
    """SIGKILL to the spawner of this folder, if there is one; its watchdog then ends and records what it ran.

    False where none was found. Only the process that wrote itself down as the spawner is hit, never a later one of its
    number. One that sits in the kernel (state D) dies when it comes out of there, and nothing can start before.
    """
    spawner = state.holder("spawner")
    if spawner is None:
        return False
    try:
        state.say_why(f"the spawner was stuck (state {spawner.state}) and was ended")
    except OSError as error:  # a full disk: it dies without an obituary
        _log.warning("%s", error)
    reached = tree.send_signal([spawner], signal.SIGKILL)
    if spawner.state == "D":
        _log.warning("the spawner (process %d) sits in the kernel (state D): it can't be ended yet", spawner.pid)
    elif reached:
        _log.warning("the spawner (process %d, state %s) did not answer and was ended", spawner.pid, spawner.state)
    return bool(reached)
