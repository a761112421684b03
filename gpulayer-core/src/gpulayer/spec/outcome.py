"""How an attempt ended, and who is to change something."""

from dataclasses import dataclass
from enum import StrEnum
from signal import Signals

from gpulayer.errors import Blame

__all__ = ["EndedBy", "Outcome", "blame_for", "signal_text"]


class EndedBy(StrEnum):
    """What ended it, by the first cause: a program that exits because it was told to has not ended by itself.

    ``program``: it exited. ``signal``: from somebody other than GPUlayer. ``worker_stopped``: the agent was ended in
    good order. ``worker_lost``: machine, spawner or contact went away. ``staging``: its source or an input did not
    come. ``environment``: its environment could not be made, or its launcher did not start it.
    """

    PROGRAM = "program"
    SIGNAL = "signal"
    OUT_OF_MEMORY = "out_of_memory"
    TIMEOUT = "timeout"
    CANCEL = "cancel"
    WORKER_STOPPED = "worker_stopped"
    WORKER_LOST = "worker_lost"
    PREEMPTED = "preempted"
    STAGING = "staging"
    ENVIRONMENT = "environment"
    DISK_FULL = "disk_full"
    DRIFT = "drift"
    CLIENT_LOST = "client_lost"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of one node of an attempt.

    exit_code: the program's own, None where it never ran or a signal ended it. signal: its number.
    evidence: what was seen, for people. blame: decides whether the task runs again. ran_ms: from the start of its
    program to that one's end; None where nobody knows.
    """

    ended_by: EndedBy
    exit_code: int | None = None
    signal: int | None = None
    evidence: str = ""
    blame: Blame = Blame.INFRASTRUCTURE
    ran_ms: int | None = None

    @property
    def is_success(self) -> bool:
        return self.ended_by is EndedBy.PROGRAM and self.exit_code == 0


def blame_for(ended_by: EndedBy) -> Blame:
    """The usual blame of an end; whoever has better evidence says so in the Outcome itself."""
    match ended_by:
        case EndedBy.PROGRAM | EndedBy.SIGNAL | EndedBy.OUT_OF_MEMORY | EndedBy.TIMEOUT | EndedBy.CANCEL:
            return Blame.USER
        case EndedBy.CLIENT_LOST | EndedBy.ENVIRONMENT:
            return Blame.USER
        case EndedBy.PREEMPTED:
            return Blame.CAPACITY
        case _:
            return Blame.INFRASTRUCTURE


def signal_text(number: int) -> str:
    """``9 (SIGKILL)``, as this system names them; the number alone where it has no name."""
    try:
        return f"{number} ({Signals(number).name})"
    except ValueError:
        return str(number)
