"""What a worker says of its work, a line each, for the person at its terminal and for its log. Says nothing twice.

The words only: what they are printed with (plainly, or with a time in front) is for whoever started the worker.
"""

import logging
import shlex
from typing import Final

from gpulayer.errors import GpulayerError, UntrustedServer, VersionMismatch
from gpulayer.protocol.messages import Phase, Progress
from gpulayer.spec.assignment import Assignment, NodeKey
from gpulayer.spec.machine import DeviceState, WorkerFacts
from gpulayer.spec.outcome import EndedBy, Outcome, signal_text
from gpulayer.spec.plain import plain_line
from gpulayer.spec.units import format_bytes, format_duration

__all__ = ["Story", "attempt_text", "end_text", "machine_text"]

_log: Final = logging.getLogger(__name__)
_COMMAND_LIMIT: Final = 80
_SAY_AGAIN_MS: Final = 600_000


class Story:
    """Of one start of a worker: its jobs and its connection."""

    def __init__(self) -> None:
        self._started: dict[NodeKey, str] = {}  # how they are called
        self._ended: set[NodeKey] = set()
        self._troubles: set[type[GpulayerError]] = set()
        self._say_again_ms = 0

    def found(self, assignment: Assignment, phase: Phase) -> None:
        """A job of an earlier start is here."""
        if phase in (Phase.STAGING, Phase.SPAWNING):
            return  # it is yet to be told that it starts
        self._started[assignment.key] = attempt_text(assignment)
        if phase is not Phase.RUNNING:
            self._ended.add(assignment.key)
        _log.info("%s found again: %s", attempt_text(assignment), "running" if phase is Phase.RUNNING else "ended")

    def progressed(self, assignment: Assignment, progress: Progress, *, now_ms: int) -> None:
        """Tells the start and the end of a job once each, however often it is called."""
        key = assignment.key
        if progress.phase is Phase.RUNNING and key not in self._started:
            self._started[key] = attempt_text(assignment)
            _log.info("%s started: %s", attempt_text(assignment), _command(assignment))
        if progress.outcome is not None and key not in self._ended:
            self._ended.add(key)
            _log.info(
                "%s ended: %s", attempt_text(assignment), end_text(progress.outcome, progress.started_ms, now_ms=now_ms)
            )

    def forgotten(self, key: NodeKey) -> None:
        """Gone from here; one that ran and had not ended was given away."""
        name = self._started.pop(key, "")
        if name and key not in self._ended:
            _log.info("%s is not this worker's any more: it was ended", name)
        self._ended.discard(key)

    def lost(self, why: GpulayerError, *, jobs: int, now_ms: int) -> None:
        """Told once until ``back`` for each kind of trouble, and again every ten minutes. jobs: how many go on."""
        if now_ms >= self._say_again_ms:
            self._troubles.clear()
        if type(why) not in self._troubles:
            self._troubles.add(type(why))
            self._say_again_ms = now_ms + _SAY_AGAIN_MS
            jobs_text = f"; {_jobs(jobs, 'go')} on" if jobs else ""
            _log.warning("connection lost: %s%s; trying again", why.message, jobs_text)
            if isinstance(why, UntrustedServer | VersionMismatch):  # nothing that passes by itself
                _log.warning("%s", why.hint)

    def back(self) -> None:
        """Says nothing where nothing was lost."""
        if self._troubles:
            self._troubles.clear()
            _log.info("the connection is back")

    def stopping(self, *, jobs: int) -> None:
        """jobs: how many are ended by it."""
        _log.info("stopping%s", f"; {_jobs(jobs, 'end')}" if jobs else "")


def machine_text(facts: WorkerFacts) -> str:
    """``2 cpus, 25.3 GB, no device``; what is broken or not found is told apart. Pure."""
    kinds: dict[str, int] = {}
    for device in facts.devices:
        state = " (unhealthy)" if device.state is DeviceState.UNHEALTHY else ""
        name = f"{device.model or device.kind}{state}"
        kinds[name] = kinds.get(name, 0) + 1
    devices = ", ".join(f"{count} × {kind}" for kind, count in kinds.items()) or "no device"
    cpus = f"{facts.cpus} cpu{'' if facts.cpus == 1 else 's'}"
    return f"{cpus}, {format_bytes(facts.memory_bytes)}, {devices}"


def end_text(outcome: Outcome, started_ms: int | None, *, now_ms: int) -> str:
    """``exit code 0 after 2.4 s``. Pure."""
    match outcome.ended_by:
        case EndedBy.PROGRAM if outcome.exit_code is not None:
            text = f"exit code {outcome.exit_code}"
        case EndedBy.SIGNAL if outcome.signal is not None:
            text = f"signal {signal_text(outcome.signal)}"
        case other:
            text = other.value.replace("_", " ")
    return text if started_ms is None else f"{text} after {format_duration(max(0, now_ms - started_ms))}"


def _jobs(count: int, verb: str) -> str:
    if count > 1:
        return f"{count} jobs {verb}"
    return f"1 job {verb}{'es' if verb.endswith('o') else 's'}"


def attempt_text(assignment: Assignment) -> str:
    """``job 7f3a000000000001 attempt 1``. Pure."""
    rank = f" node {assignment.key.node}" if assignment.key.node else ""
    return f"job {assignment.job_id} attempt {assignment.attempt}{rank}"


def _command(assignment: Assignment) -> str:
    return plain_line(shlex.join(assignment.command), _COMMAND_LIMIT)
