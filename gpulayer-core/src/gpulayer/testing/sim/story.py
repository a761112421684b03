"""What happens in a world, in sentences that a person can follow.

Whoever makes something happen hands over the thing itself (an event that was committed and what came of it, an action
of an agent, a fault); what is told of it, and whether it is worth telling, is decided here alone. Names are short:
``w1`` is a machine, ``job 3`` the third job, and ``attempt 2 of job 3`` says more than an epoch does. Nothing is made
into words unless somebody wants to read it.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from gpulayer.engine.effects import AskScorer, Assign, Effect, Revoke, Stop, Void
from gpulayer.engine.events import (
    AheadWaitPassed,
    CancelRequested,
    Event,
    HoldPassed,
    JobSubmitted,
    KeepForPassed,
    LeaseExpired,
    NodePhase,
    NodeReport,
    OpinionsGiven,
    WorkerJoined,
    WorkerRemoved,
    WorkerReported,
    WorkerWentSilent,
)
from gpulayer.engine.records import AttemptImage, JobImage, Record
from gpulayer.ids import JobId
from gpulayer.protocol import messages as m
from gpulayer.spec.assignment import Assignment, NodeKey
from gpulayer.spec.job import JobEntry, RetryOn
from gpulayer.spec.outcome import Outcome
from gpulayer.testing.sim.scenario import Fault, Trouble

__all__ = ["Line", "Story", "counted", "fault_text", "job_name", "lasting", "with_job_names"]

_MINUTE_MS: Final = 60_000
_LONG_MS: Final = 10_000  # so long without an answer is worth telling: what follows from it may be next
_JOB_ID: Final = re.compile(r"(?:\bjob )?'?\b([0-9a-f]{16})\b'?")


@dataclass(frozen=True, slots=True)
class Line:
    """``is_detail``: nobody misses it who only wants to know what happened."""

    at_ms: int
    text: str
    is_detail: bool = False

    def __str__(self) -> str:
        return f"{self.at_ms / 1000:9.3f} s  {self.text}"


@dataclass(slots=True)
class Story:
    """Lines in the order in which things happened."""

    lines: list[Line] = field(default_factory=list)
    _attempts: dict[int, tuple[JobId, int]] = field(default_factory=dict)
    _states: dict[JobId, str] = field(default_factory=dict)
    _lent: dict[tuple[JobId, int], int] = field(default_factory=dict)
    _ended: set[int] = field(default_factory=set)
    _told: set[int] = field(default_factory=set)  # whose end their workers have reported
    _reports: set[tuple[str, int, int]] = field(default_factory=set)
    _starts: set[tuple[str, int | None, tuple[int, ...]]] = field(default_factory=set)  # that were reported
    _expired: set[int] = field(default_factory=set)  # whose lease has passed
    _silent: set[str] = field(default_factory=set)  # workers, to the control plane
    _answered_ms: dict[str, int] = field(default_factory=dict)  # by worker
    _deaf: set[str] = field(default_factory=set)  # workers of which it was told that they have no answer

    def say(self, at_ms: int, text: str, *, is_detail: bool = False) -> None:
        """A sentence of the caller's own."""
        self.lines.append(Line(at_ms, text.replace("\n", "; "), is_detail))

    def told(self, *, in_full: bool = False) -> list[str]:
        """What is worth telling; in full: everything."""
        return [str(line) for line in self.lines if in_full or not line.is_detail]

    # The control plane --------------------------------------------------------------------------------------------

    def committed(self, at_ms: int, event: Event, records: Iterable[Record], effects: Iterable[Effect]) -> None:
        """One event, and what came of it."""
        for record in records:
            if isinstance(record, AttemptImage):
                self._attempts.setdefault(record.epoch, (record.job_id, record.number))
        self._event(at_ms, event)
        for record in records:
            if isinstance(record, AttemptImage):
                self._attempt(at_ms, record)
        for effect in effects:
            self._effect(at_ms, effect)
        for record in records:
            if isinstance(record, JobImage):
                self._job(at_ms, record)

    def _event(self, at_ms: int, event: Event) -> None:
        match event:
            case JobSubmitted(job=entry):
                self.say(at_ms, f"{job_name(entry.id)} is submitted{_wishes(entry)}")
            case CancelRequested(job_id=job_id):
                self.say(at_ms, f"somebody cancels {job_name(job_id)}")
            case WorkerJoined(worker=worker, facts=facts):
                gpus = f", {counted(len(facts.devices), 'GPU')}" if facts.devices else ""
                self.say(at_ms, f"{worker} joins, with {counted(facts.cpus, 'core')}{gpus}")
            case WorkerReported(worker=worker):
                if worker in self._silent:
                    self._silent.discard(worker)
                    self.say(at_ms, f"{worker} is heard again")
                self._report(at_ms, event)
            case WorkerWentSilent(worker=worker):
                self._silent.add(worker)
                self.say(at_ms, f"{worker} has been silent for so long that nothing more is lent to it")
            case LeaseExpired(worker=worker, epoch=epoch):
                self._silent.add(worker)
                self._expired.add(epoch)
                self.say(at_ms, f"{worker} has been silent for longer than its lease of {self._named(epoch)}")
            case KeepForPassed(worker=worker, epoch=epoch):
                self.say(at_ms, f"{worker} has been away for longer than it keeps {self._named(epoch)}")
            case HoldPassed(job_id=job_id):
                self.say(at_ms, f"whatever may still have run of {job_name(job_id)} has ended by now")
            case AheadWaitPassed(worker=worker, epoch=epoch):
                self.say(at_ms, f"{self._named(epoch)} has waited for too long for room on {worker}", is_detail=True)
            case OpinionsGiven(scorer=scorer):
                self.say(at_ms, f"scorer {scorer} has answered", is_detail=True)
            case WorkerRemoved(worker=worker):
                self.say(at_ms, f"{worker} is removed")
            case _:
                self.say(at_ms, f"the control plane: {type(event).__name__}", is_detail=True)

    def _report(self, at_ms: int, report: WorkerReported) -> None:
        news = [self._item(item) for item in report.items]
        if report.recovered is not None:
            had = ", ".join(self._named(epoch) for epoch in report.recovered) or "nothing"
            news.insert(0, f"it has started (start {report.boot}) and knows of {had}")
        if report.stopping:
            news.append("it is going to stop")
        name = (report.worker, report.boot, report.seq)
        is_news = any(item.phase is NodePhase.ENDED for item in report.items) and name not in self._reports
        self._reports.add(name)
        if report.recovered is not None:  # which it repeats until it is answered
            start = (report.worker, report.boot, tuple(report.recovered))
            is_news = is_news or start not in self._starts
            self._starts.add(start)
        text = f"{report.worker} reports: {'; '.join(news)}" if news else f"{report.worker} reports nothing new"
        self.say(at_ms, text, is_detail=not is_news)

    def _item(self, item: NodeReport) -> str:
        if item.phase is NodePhase.ENDED:
            self._told.add(item.epoch)
            how = f": {_outcome(item.outcome)}" if item.outcome is not None else ""
            return f"{self._named(item.epoch)} has ended{how}"
        return f"{self._named(item.epoch)} is {item.phase}"

    def _attempt(self, at_ms: int, image: AttemptImage) -> None:
        if image.outcome is not None and image.epoch not in self._ended:
            self._ended.add(image.epoch)
            if image.is_shown:
                text = f"{self._named(image.epoch)} counts as ended: {_outcome(image.outcome)}"
                is_known = image.epoch in self._told or image.epoch in self._expired  # that is the same news
                self.say(at_ms, text, is_detail=is_known)

    def _effect(self, at_ms: int, effect: Effect) -> None:
        match effect:
            case Assign(worker=worker, epoch=epoch, job_id=job_id):
                task = (job_id, 0)
                again = " again" if task in self._lent else ""
                self._lent[task] = epoch
                self.say(at_ms, f"the control plane lends {job_name(job_id)}{again} to {worker}: {self._number(epoch)}")
            case Stop(worker=worker, epoch=epoch, ended_by=ended_by):
                self.say(at_ms, f"the control plane tells {worker} to end {self._named(epoch)} ({ended_by})")
            case Revoke(worker=worker, epoch=epoch):
                self.say(at_ms, f"the control plane wants {self._named(epoch)} back from {worker}", is_detail=True)
            case Void(worker=worker, epochs=epochs) if epochs:
                names = ", ".join(self._named(epoch) for epoch in epochs)
                is_detail = self._told.issuperset(epochs)
                self.say(at_ms, f"the control plane answers {worker}: not yours any more: {names}", is_detail=is_detail)
            case AskScorer(scorer=scorer):
                self.say(at_ms, f"the control plane asks scorer {scorer}", is_detail=True)
            case _:
                pass

    def _job(self, at_ms: int, image: JobImage) -> None:
        if self._states.get(image.id) == image.state:
            return
        self._states[image.id] = image.state
        said = image.reason_message.removeprefix(f"{image.state}\n").removeprefix(image.state)
        why = f": {said}" if said else ""
        if image.state.is_final:
            self.say(at_ms, f"{job_name(image.id)} ends as {image.state}{why}")
        else:
            self.say(at_ms, f"{job_name(image.id)} is {image.state}{why}", is_detail=image.state != "unreachable")

    # Workers ------------------------------------------------------------------------------------------------------

    def heard(self, at_ms: int, worker: str, event: m.Input) -> None:
        """An input of its agent."""
        if isinstance(event, m.ReportAnswered):
            self._answered(at_ms, worker)
        match event:
            case m.CommandsReceived(commands=commands):
                for command in commands:
                    self._command(at_ms, worker, command)
            case m.ProcessExited(key=key, exit_code=code, signal=signal):
                how = f"exits with {code}" if signal is None else f"is ended by signal {signal}"
                self.say(at_ms, f"{worker} sees that the program of {self._named(key)} {how}")
            case m.ProcessLost(key=key, evidence=evidence):
                self.say(at_ms, f"{worker} sees that the program of {self._named(key)} is lost: {evidence}")
            case m.StagingFailed(key=key, evidence=evidence):
                self.say(at_ms, f"{worker} can't stage {self._named(key)}: {evidence}")
            case m.SpawnFailed(key=key, evidence=evidence):
                self.say(at_ms, f"{worker} can't start {self._named(key)}: {evidence}")
            case m.DiskFilled(key=key):
                self.say(at_ms, f"{worker} has no room on its disk for {self._named(key)}")
            case m.AttemptsVoided(epochs=epochs) | m.ReportAnswered(void=epochs) if epochs:
                names = ", ".join(self._named(epoch) for epoch in epochs)
                is_detail = self._told.issuperset(epochs)
                self.say(at_ms, f"{worker} hears that these are not its own any more: {names}", is_detail=is_detail)
            case m.ReportFailed():
                self._unanswered(at_ms, worker)
            case m.StopAllRequested():
                self.say(at_ms, f"{worker} is told to stop")
            case m.Ticked() | m.ReportAnswered() | m.AttemptsVoided() | m.Spawned() | m.TreeSignalled():
                pass
            case _:
                self.say(at_ms, f"{worker}: {_words(event)}{self._key_of(event)}", is_detail=True)

    def _answered(self, at_ms: int, worker: str) -> None:
        self._answered_ms[worker] = at_ms
        if worker in self._deaf:
            self._deaf.discard(worker)
            self.say(at_ms, f"{worker} has an answer again")

    def _unanswered(self, at_ms: int, worker: str) -> None:
        """One lost answer is nothing; of several in a row something may come."""
        since_ms = self._answered_ms.get(worker, at_ms)
        is_news = at_ms - since_ms >= _LONG_MS and worker not in self._deaf
        if is_news:
            self._deaf.add(worker)
            self.say(at_ms, f"{worker} has had no answer to its reports for {lasting(at_ms - since_ms)}")
        else:
            self.say(at_ms, f"{worker} has no answer to its report", is_detail=True)

    def _command(self, at_ms: int, worker: str, command: Assignment | m.Stop | m.Revoke) -> None:
        match command:
            case Assignment():
                self._attempts.setdefault(command.key.epoch, (command.job_id, command.attempt))
                self.say(at_ms, f"{worker} is given {self._named(command.key)}", is_detail=True)
            case m.Stop():
                self.say(at_ms, f"{worker} is told to end {self._named(command.epoch)}", is_detail=True)
            case m.Revoke():
                self.say(at_ms, f"{worker} is asked for {self._named(command.epoch)} back", is_detail=True)

    def acted(self, at_ms: int, worker: str, action: m.Action) -> None:
        """An action of its agent."""
        match action:
            case m.Spawn(assignment=assignment):
                what = f" on {', '.join(assignment.devices)}" if assignment.devices else ""
                self.say(at_ms, f"{worker} starts {self._named(assignment.key)}{what}")
            case m.SignalTree(key=key):
                self.say(at_ms, f"{worker} sends SIGTERM to {self._named(key)}")
            case m.KillTree(key=key):
                self.say(at_ms, f"{worker} kills {self._named(key)}")
            case m.Finish():
                self.say(at_ms, f"the agent of {worker} has nothing left to do")
            case _:
                self.say(at_ms, f"{worker}: {_words(action)}{self._key_of(action)}", is_detail=True)

    # Faults -------------------------------------------------------------------------------------------------------

    def struck(self, at_ms: int, fault: Fault, host: str = "") -> None:
        """Something goes wrong, as planned; with that host."""
        self.say(at_ms, fault_text(fault, host))

    # Names --------------------------------------------------------------------------------------------------------

    def _named(self, which: int | NodeKey) -> str:
        epoch = which.epoch if isinstance(which, NodeKey) else which
        known = self._attempts.get(epoch)
        if known is None or not known[0]:
            return f"the attempt of epoch {epoch}"
        return f"attempt {known[1]} of {job_name(known[0])}"

    def _number(self, epoch: int) -> str:
        known = self._attempts.get(epoch)
        return f"epoch {epoch}" if known is None else f"attempt {known[1]}, epoch {epoch}"

    def _key_of(self, thing: object) -> str:
        key = getattr(thing, "key", None) or getattr(getattr(thing, "assignment", None), "key", None)
        return f" {self._named(key)}" if isinstance(key, NodeKey) else ""


def job_name(job_id: JobId) -> str:
    """``job 3``: ids of simulated jobs are their numbers, in hexadecimal."""
    try:
        return f"job {int(job_id, 16)}"
    except ValueError:
        return f"job {job_id or '?'}"


def with_job_names(text: str) -> str:
    """``job 000000000000001f never finished`` is ``job 31 never finished``, as in the story."""
    return _JOB_ID.sub(lambda found: job_name(JobId(found[1])), text)


def lasting(ms: int) -> str:
    """``41 s``, ``2.5 min``, ``1 h``: as people say it."""
    if ms < 1_000:
        return f"{ms} ms"
    if ms < 2 * _MINUTE_MS:
        return f"{round(ms / 1_000, 1):g} s"
    if ms < 120 * _MINUTE_MS:
        return f"{round(ms / _MINUTE_MS, 1):g} min"
    return f"{round(ms / (60 * _MINUTE_MS), 1):g} h"


def fault_text(fault: Fault, host: str = "") -> str:
    """What goes wrong, in one sentence. host: the name of the one that it happens to, where that is not its first."""
    host = host or f"w{fault.host}"
    lasts = lasting(fault.lasts_ms)
    text = _FAULTS[fault.kind].format(host=host, lasts=lasts, times=fault.amount)
    if fault.kind in (Trouble.WALL_JUMPS, Trouble.PLANE_WALL_JUMPS):
        text += f" by {lasting(abs(fault.amount))}, {'forwards' if fault.amount > 0 else 'backwards'}"
    if fault.kind is Trouble.PROBE_LIES:
        text += _LIES[fault.amount % len(_LIES)]
    return text


_LIES: Final = (
    ": it sees fewer devices",
    ": it sees other cores",
    ": it sees something else each time",
    ": it is slow",
)
_FAULTS: Final[dict[Trouble, str]] = {
    Trouble.PLANE_DIES: "the control plane dies, and is back after {lasts}",
    Trouble.PLANE_DIES_BEFORE_STEP: "the control plane will die before its next step, and be back after {lasts}",
    Trouble.PLANE_DIES_STEPPED: "the control plane will die before it stores its next step, and be back after {lasts}",
    Trouble.PLANE_DIES_IN_COMMIT: "the control plane will die in its next commit, and be back after {lasts}",
    Trouble.PLANE_DIES_COMMITTED: "the control plane will die after its next commit, unanswered; back after {lasts}",
    Trouble.PLANE_DIES_ANSWERED: "the control plane will die after its next answer, and be back after {lasts}",
    Trouble.PLANE_LOSES_POWER: "the machine of the control plane loses power for {lasts}",
    Trouble.PLANE_STOPS: "the control plane stands still for {lasts}",
    Trouble.PLANE_DISK_FULL: "the disk of the control plane is full for {lasts}",
    Trouble.PLANE_FSYNC_FAILS: "the disk of the control plane fails to sync",
    Trouble.PLANE_WALL_JUMPS: "the wall clock of the control plane jumps",
    Trouble.PLANE_RESTORED: "the control plane ends, and is restored from a backup after {lasts}",
    Trouble.PLANE_SCORERS_CHANGE: "the control plane has other scorers for {lasts}",
    Trouble.AGENT_DIES: "the agent of {host} dies, and is back after {lasts}",
    Trouble.AGENT_STOPS: "the agent of {host} stands still for {lasts}",
    Trouble.AGENT_LEAVES: "the agent of {host} is asked to end, and started again {lasts} after that",
    Trouble.SPAWNER_DIES: "the spawner of {host} dies",
    Trouble.SPAWNER_STOPS: "the spawner of {host} stands still for {lasts}",
    Trouble.AGENT_AND_SPAWNER_STOP: "agent and spawner of {host} stand still for {lasts}",
    Trouble.WATCHDOG_AND_SPAWNER_DIE: "watchdog and spawner of {host} die at once",
    Trouble.ALL_STOP: "everything on {host} stands still for {lasts}, programs too",
    Trouble.SLEEPS: "{host} sleeps for {lasts}",
    Trouble.LOSES_POWER: "{host} loses power for {lasts}",
    Trouble.LOSES_DISK: "{host} loses power for {lasts}, and what its disk held of jobs for ever",
    Trouble.DISK_FULL: "the disk of {host} is full for {lasts}",
    Trouble.WALL_JUMPS: "the wall clock of {host} jumps",
    Trouble.PROBE_LIES: "the probe of {host} goes wrong for {lasts}",
    Trouble.SPOT_LOST: "{host} is taken away for ever; another machine comes",
    Trouble.COPIED: "a copy of the folder of {host} works on another machine; {host} itself is back {lasts} later",
    Trouble.CUT: "the network of {host} is cut (both ways) for {lasts}",
    Trouble.CUT_OUT: "the network of {host} is cut for {lasts}: what it sends is lost",
    Trouble.CUT_IN: "the network of {host} is cut for {lasts}: what is sent to it is lost",
    Trouble.HALF_OPEN: "the connections of {host} are dead, and it does not know",
    Trouble.DRAINED: "{host} is drained for {lasts}",
    Trouble.REMOVED: "{host} is removed, and joins again once it has heard of that",
    Trouble.STRANGER: "somebody who can't be seen has the devices of {host} for {lasts}",
    Trouble.PROVIDER_ERRS: "a provider makes a machine and answers with an error, {times} times",
    Trouble.PROVIDER_HANGS: "a provider makes a machine and does not answer, {times} times",
}


def _wishes(entry: JobEntry) -> str:
    wishes = [] if entry.request.devices == 0 else [counted(entry.request.devices, "GPU")]
    wishes += ["exclusive"] if entry.exclusive else []
    kind = " of any kind" if entry.retry_on is RetryOn.ANY else ""
    wishes.append(counted(entry.retries, "retry", "retries") + kind)
    return f" ({', '.join(wishes)})"


def _outcome(outcome: Outcome) -> str:
    if outcome.exit_code is not None and outcome.ended_by == "program":
        return f"exit code {outcome.exit_code}"
    return f"{outcome.ended_by}{f' ({outcome.evidence})' if outcome.evidence else ''}"


def counted(number: int, one: str, many: str = "") -> str:
    """``no jobs``, ``1 job``, ``2 jobs``."""
    return f"{number or 'no'} {one if number == 1 else many or one + 's'}"


def _words(thing: object) -> str:
    """``CollectOutputs`` → ``collect outputs``"""
    name = type(thing).__name__
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name).strip()
