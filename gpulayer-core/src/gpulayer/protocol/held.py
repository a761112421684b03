"""One node of an attempt as the agent's machine has it, and what is told of its end. Pure."""

from dataclasses import dataclass, replace
from typing import Final, assert_never

from gpulayer.errors import Blame
from gpulayer.ids import Digest
from gpulayer.protocol.messages import Phase, ProcessExited, ProcessLost, Progress, ReportedState, SpawnFailed
from gpulayer.spec.assignment import Assignment, NodeKey
from gpulayer.spec.outcome import EndedBy, Outcome, blame_for
from gpulayer.spec.units import format_duration

__all__ = ["Held", "add_evidence", "outcome_of_end", "outcome_of_failed_spawn", "outcome_of_stop"]

_SIGKILL: Final = 9
LINGER_MS: Final = 100  # states that only inform wait so long for company, so that a tiny job costs two reports

_ORDER: Final = {state: number for number, state in enumerate(ReportedState)}


@dataclass(slots=True)
class Held:
    """One node that this worker has. ``acked``: the last state that the control plane confirmed.

    stop_grace_ms: of the stop that was asked for. stop_evidence, stop_blame: see ``Progress``. is_staged: its files are
    here; others may still have to be dead. has_waited: it was ready, and there was no room for it. told_kill_by_ms:
    when the spawner ends it by itself; None: what it was told is not known, as after a restart.
    """

    assignment: Assignment
    phase: Phase
    changed_ms: int
    started_ms: int | None = None
    stop: EndedBy | None = None
    stop_evidence: str = ""
    stop_blame: Blame | None = None
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
    told_kill_by_ms: int | None = None

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
            stop_evidence=self.stop_evidence,
            stop_blame=self.stop_blame,
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


def outcome_of_stop(held: Held, evidence: str, *, exit_code: int | None = None, signal: int | None = None) -> Outcome:
    """The end of a node that was stopped, whatever ended it then. Only where a stop was asked for."""
    assert held.stop is not None
    text = _lines(held.stop_evidence, evidence)
    return Outcome(held.stop, exit_code, signal, text, held.stop_blame or blame_for(held.stop))


def outcome_of_end(held: Held, event: ProcessExited | ProcessLost) -> Outcome:
    """A stop that was asked for wins over how the program then ended; its code or signal is kept beside it."""
    if isinstance(event, ProcessLost):
        evidence = _expiry(held.assignment) if event.is_expired else event.evidence
        if held.stop is not None:
            return outcome_of_stop(held, evidence)
        return Outcome(event.ended_by, evidence=evidence, blame=blame_for(event.ended_by))
    exit_code = event.exit_code if event.signal is None else None
    if held.stop is not None:
        evidence = _lines(_killed(held, event), event.evidence)
        return replace(outcome_of_stop(held, evidence, exit_code=exit_code, signal=event.signal), ran_ms=event.ran_ms)
    if event.is_out_of_memory:
        ended_by = EndedBy.OUT_OF_MEMORY
    elif event.is_disk_full:
        ended_by = EndedBy.DISK_FULL
    else:
        ended_by = EndedBy.PROGRAM if event.signal is None else EndedBy.SIGNAL
    return Outcome(ended_by, exit_code, event.signal, event.evidence, blame_for(ended_by), event.ran_ms)


def outcome_of_failed_spawn(held: Held, event: SpawnFailed) -> Outcome:
    """Without an exit code it is told who is at fault, mostly the machine; with 126 or 127 the command is."""
    if held.stop is not None:
        return outcome_of_stop(held, event.evidence)
    if event.exit_code is None:
        return Outcome(event.ended_by, evidence=event.evidence, blame=event.blame)
    return Outcome(EndedBy.PROGRAM, exit_code=event.exit_code, evidence=event.evidence, blame=Blame.USER)


def _expiry(assignment: Assignment) -> str:
    long = "its lease lasts" if assignment.exclusive else f"it is kept for ({format_duration(assignment.keep_for_ms)})"
    return f"no contact with the control plane for as long as {long}: ended by its spawner"


def add_evidence(held: Held, *lines: str) -> None:
    """Lines for people below what is there; empty ones are left out. Only once there is an outcome."""
    assert held.outcome is not None
    text = _lines(held.outcome.evidence, *lines)
    held.outcome = replace(held.outcome, evidence=text)


def _killed(held: Held, event: ProcessExited) -> str:
    if held.stop is None or event.signal != _SIGKILL:
        return ""
    if not held.stop_grace_ms:
        return "it was killed, without a grace time"
    return f"it did not end within its grace time of {format_duration(held.stop_grace_ms)} and was killed"


def _lines(*texts: str) -> str:
    """One below the other; empty ones are left out."""
    return "\n".join(text for text in texts if text)
