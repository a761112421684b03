"""One node of an attempt as the agent's machine has it, and what is told of its end. Pure."""

from dataclasses import dataclass
from typing import Final, assert_never

from gpulayer.errors import Blame
from gpulayer.ids import Digest
from gpulayer.protocol.messages import Phase, ProcessExited, ProcessLost, Progress, ReportedState, SpawnFailed
from gpulayer.spec.assignment import Assignment, NodeKey
from gpulayer.spec.outcome import EndedBy, Outcome, blame_for

__all__ = ["Held", "add_evidence", "outcome_of_end", "outcome_of_failed_spawn"]

LINGER_MS: Final = 100  # states that only inform wait so long for company, so that a tiny job costs two reports

_ORDER: Final = {state: number for number, state in enumerate(ReportedState)}


@dataclass(slots=True)
class Held:
    """One node that this worker has. ``acked``: the last state that the control plane confirmed.

    stop_grace_ms: of the stop that was asked for. is_staged: its files are here; others may still have to be dead.
    has_waited: it was ready, and there was no room for it.
    """

    assignment: Assignment
    phase: Phase
    changed_ms: int
    started_ms: int | None = None
    stop: EndedBy | None = None
    stop_grace_ms: int = 0
    kill_at_ms: int | None = None
    is_signalled: bool = False
    is_void: bool = False
    is_staged: bool = False
    has_waited: bool = False
    outcome: Outcome | None = None
    outputs: Digest | None = None
    is_log_drained: bool = False
    is_collected: bool = False
    acked: ReportedState | None = None

    @property
    def key(self) -> NodeKey:
        return self.assignment.key

    @property
    def is_stub(self) -> bool:
        """Stands for an attempt of which only the stop was heard."""
        return not self.assignment.command

    @property
    def progress(self) -> Progress:
        """What must outlive the agent, as of now."""
        return Progress(
            phase=self.phase,
            started_ms=self.started_ms,
            stop=self.stop,
            kill_at_ms=self.kill_at_ms,
            is_signalled=self.is_signalled,
            outcome=self.outcome,
            outputs=self.outputs,
        )

    @property
    def reported_state(self) -> ReportedState:
        """Coarser than the phase: the control plane does not know of spawning and draining."""
        match self.phase:
            case Phase.STAGING | Phase.SPAWNING:
                return ReportedState.STAGING
            case Phase.RUNNING:
                return ReportedState.RUNNING if self.stop is None else ReportedState.ENDING
            case Phase.DRAINING:
                return ReportedState.ENDING
            case Phase.ENDED:
                return ReportedState.ENDED
            case _:
                assert_never(self.phase)

    @property
    def is_news(self) -> bool:
        """Whether the control plane has acknowledged less than this. Never for a void attempt, nor for one that waits
        for room: there is nothing to tell of it."""
        if self.is_void or (self.has_waited and self.phase is Phase.STAGING):
            return False
        return self.acked is None or _ORDER[self.reported_state] > _ORDER[self.acked]

    @property
    def news_due_ms(self) -> int:
        """When to tell it: at once that it runs or has ended, else a little later, to go along with more."""
        is_urgent = self.reported_state in (ReportedState.RUNNING, ReportedState.ENDED)
        return self.changed_ms if is_urgent else self.changed_ms + LINGER_MS


def outcome_of_end(held: Held, event: ProcessExited | ProcessLost) -> Outcome:
    """A stop that was asked for wins over how the program then ended; its code or signal is kept beside it."""
    if isinstance(event, ProcessLost):
        ended_by = held.stop or EndedBy.WORKER_LOST
        return Outcome(ended_by, evidence=event.evidence, blame=blame_for(ended_by))
    if held.stop is not None:
        ended_by = held.stop
    elif event.is_out_of_memory:
        ended_by = EndedBy.OUT_OF_MEMORY
    else:
        ended_by = EndedBy.PROGRAM if event.signal is None else EndedBy.SIGNAL
    return Outcome(
        ended_by,
        exit_code=event.exit_code if event.signal is None else None,
        signal=event.signal,
        evidence=event.evidence,
        blame=blame_for(ended_by),
    )


def outcome_of_failed_spawn(held: Held, event: SpawnFailed) -> Outcome:
    """Without an exit code the machine is at fault and the task may be retried; with 126 or 127 the command is."""
    if held.stop is not None:
        return Outcome(held.stop, evidence=event.evidence, blame=blame_for(held.stop))
    if event.exit_code is None:
        return Outcome(EndedBy.WORKER_LOST, evidence=event.evidence, blame=Blame.INFRASTRUCTURE)
    return Outcome(EndedBy.PROGRAM, exit_code=event.exit_code, evidence=event.evidence, blame=Blame.USER)


def add_evidence(held: Held, *lines: str) -> None:
    """Lines for people below what is there; empty ones are left out. Only once there is an outcome."""
    assert held.outcome is not None
    text = "\n".join(line for line in (held.outcome.evidence, *lines) if line)
    outcome = held.outcome
    held.outcome = Outcome(outcome.ended_by, outcome.exit_code, outcome.signal, text, outcome.blame)
