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
    DrainRequested,
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
    WorkerResumed,
    WorkerWentSilent,
)
from gpulayer.engine.records import AttemptImage, JobImage, Record
from gpulayer.ids import JobId
from gpulayer.protocol import messages as m
from gpulayer.spec.assignment import Assignment, NodeKey
from gpulayer.spec.job import Array, JobEntry, JobState, RetryOn
from gpulayer.spec.outcome import Outcome
from gpulayer.testing.sim.scenario import Fault
from gpulayer.testing.sim.troubles import ARMED, fault_text
from gpulayer.testing.sim.words import attempt_name, counted, job_name, lasting, listed, with_job_names

__all__ = ["Line", "Story"]

_LONG_MS: Final = 10_000  # so long without an answer is worth telling: what follows from it may be next
_EPOCH: Final = re.compile(r"\battempt (\d+)\b(?! of job)")
_FEW: Final = 20  # where more messages than that get lost, no single one is worth telling


@dataclass(frozen=True, slots=True)
class Line:
    """``is_detail``: nobody misses it who only wants to know what happened. is_noise: nobody does where there are many
    of the kind."""

    at_ms: int
    text: str
    is_detail: bool = False
    is_noise: bool = False

    def __str__(self) -> str:
        return f"{self.at_ms / 1000:9.3f} s  {self.text}"


@dataclass(slots=True)
class Story:
    """Lines in the order in which things happened."""

    lines: list[Line] = field(default_factory=list)
    _attempts: dict[int, tuple[JobId, int]] = field(default_factory=dict)
    _arrays: set[JobId] = field(default_factory=set)
    _elements: dict[int, int] = field(default_factory=dict)  # of attempts of arrays
    _states: dict[JobId, JobState] = field(default_factory=dict)
    _lent: dict[tuple[JobId, int], int] = field(default_factory=dict)
    _ended: set[int] = field(default_factory=set)
    _told: set[int] = field(default_factory=set)  # whose end their workers have reported
    _reports: set[tuple[str, int, int]] = field(default_factory=set)
    _starts: set[tuple[str, int | None, tuple[int, ...]]] = field(default_factory=set)  # that were reported
    _expired: set[int] = field(default_factory=set)  # whose lease has passed
    _silent: set[str] = field(default_factory=set)  # workers, to the control plane
    _answered_ms: dict[str, int] = field(default_factory=dict)  # by worker
    _deaf: set[str] = field(default_factory=set)  # workers of which it was told that they have no answer
    _wrong: set[tuple[str, str]] = field(default_factory=set)  # what is, of whom: its end is to be told
    _joined: set[str] = field(default_factory=set)
    _drained: set[str] = field(default_factory=set)
    _cancelled: set[JobId] = field(default_factory=set)
    _why: dict[int, str] = field(default_factory=dict)  # an attempt is to end
    _signalled: set[int] = field(default_factory=set)
    _called_off: set[int] = field(default_factory=set)
    _put_off: set[int] = field(default_factory=set)
    _void: set[tuple[str, str, int]] = field(default_factory=set)  # it was told that it is, and to whom

    def say(self, at_ms: int, text: str, *, is_detail: bool = False) -> None:
        """A sentence of the caller's own."""
        self.lines.append(Line(at_ms, text.replace("\n", "; "), is_detail))

    def told(self, *, in_full: bool = False) -> list[str]:
        """What is worth telling; in full: everything."""
        are_few = sum(line.is_noise for line in self.lines) <= _FEW
        return [str(line) for line in self.lines if in_full or not (line.is_detail or (line.is_noise and not are_few))]

    # The control plane --------------------------------------------------------------------------------------------

    def committed(self, at_ms: int, event: Event, records: Iterable[Record], effects: Iterable[Effect]) -> None:
        """One event, and what came of it."""
        for record in records:
            if isinstance(record, AttemptImage):
                self._attempts.setdefault(record.epoch, (record.job_id, record.number))
                if record.job_id in self._arrays:
                    self._elements[record.epoch] = record.task_index
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
                if isinstance(entry.shape, Array):
                    self._arrays.add(entry.id)
                self.say(at_ms, f"{job_name(entry.id)} is submitted{_wishes(entry)}")
            case CancelRequested(job_id=job_id):
                is_over = job_id in self._states and self._states[job_id].is_final
                vain = ", which has ended: nothing comes of it" if is_over else ""
                self.say(at_ms, f"somebody cancels {job_name(job_id)}{vain}", is_detail=job_id in self._cancelled)
                self._cancelled.add(job_id)
            case WorkerJoined(worker=worker, facts=facts):
                has = [counted(facts.cpus, "core")]
                has += [counted(len(facts.devices), "GPU")] if facts.devices else []
                is_known = worker in self._joined  # it had no answer, and has asked again
                self._joined.add(worker)
                self.say(at_ms, f"{worker} joins, with {listed(has)}", is_detail=is_known)
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
                for known in (self._joined, self._drained, self._silent):
                    known.discard(worker)
                self.say(at_ms, f"{worker} is removed")
            case DrainRequested(worker=worker):
                self._drained.add(worker)
                self.say(at_ms, f"{worker} is drained: nothing more is lent to it", is_detail=True)
            case WorkerResumed(worker=worker):
                is_news = worker in self._drained
                self._drained.discard(worker)
                self.say(at_ms, f"{worker} is drained no longer", is_detail=not is_news)
            case _:
                self.say(at_ms, f"the control plane: {type(event).__name__}", is_detail=True)

    def _report(self, at_ms: int, report: WorkerReported) -> None:
        news = [self._item(item) for item in report.items]
        if report.recovered is not None:
            had = listed([self._named(epoch) for epoch in report.recovered]) or "nothing"
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
                task = (job_id, self._elements.get(epoch, 0))
                again = " again" if task in self._lent else ""
                self._lent[task] = epoch
                what = f"element {task[1]} of {job_name(job_id)}" if epoch in self._elements else job_name(job_id)
                self.say(at_ms, f"the control plane lends {what}{again} to {worker}: {self._number(epoch)}")
            case Stop(worker=worker, epoch=epoch, ended_by=ended_by):
                self.say(at_ms, f"the control plane tells {worker} to end {self._named(epoch)} ({ended_by})")
            case Revoke(worker=worker, epoch=epoch):
                self.say(at_ms, f"the control plane wants {self._named(epoch)} back from {worker}", is_detail=True)
            case Void(worker=worker, epochs=epochs) if epochs:
                names = listed([self._named(epoch) for epoch in epochs])
                is_detail = self._is_old("answer", worker, epochs)
                self.say(at_ms, f"the control plane answers {worker}: not yours any more: {names}", is_detail=is_detail)
            case AskScorer(scorer=scorer):
                self.say(at_ms, f"the control plane asks scorer {scorer}", is_detail=True)
            case _:
                pass

    def _job(self, at_ms: int, image: JobImage) -> None:
        before = self._states.get(image.id)
        if before == image.state:
            return
        self._states[image.id] = image.state
        said = image.reason_message.removeprefix(f"{image.state}\n").removeprefix(image.state)
        why = f": {with_job_names(said)}" if said else ""
        if image.state.is_final:
            self.say(at_ms, f"{job_name(image.id)} ends as {image.state}{why}")
        else:
            is_news = JobState.UNREACHABLE in (before, image.state)
            again = " again" if before == JobState.UNREACHABLE else ""
            self.say(at_ms, f"{job_name(image.id)} is {image.state}{again}{why}", is_detail=not is_news)

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
                names = listed([self._named(epoch) for epoch in epochs])
                is_detail = self._is_old("heard", worker, epochs)
                are = "is" if len(epochs) == 1 else "are"
                self._why.update(dict.fromkeys(epochs, ""))
                self.say(at_ms, f"{worker} hears that {names} {are} not its own any more", is_detail=is_detail)
            case m.SpawnPutOff(key=key) if key.epoch in self._called_off:
                self.say(at_ms, f"{worker} does not start {self._named(key)}: that was called off")
            case m.SpawnPutOff(key=key):
                again = " once more" if key.epoch in self._put_off else ""
                self._put_off.add(key.epoch)
                self.say(at_ms, f"{worker} puts the start of {self._named(key)} off{again}")
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
                self.say(at_ms, f"{worker} is to start {self._named(assignment.key)} now", is_detail=True)
            case m.SignalTree(key=key):
                self._signalled.add(key.epoch)
                why = self._why.get(key.epoch)
                self.say(at_ms, f"{worker} sends SIGTERM to {self._named(key)}{f': {why}' if why else ''}")
            case m.KillTree(key=key):
                is_late = key.epoch in self._signalled and self._why.get(key.epoch) != ""
                self.say(at_ms, f"{worker} kills {self._named(key)}{': its grace time is over' if is_late else ''}")
            case m.Finish():
                self.say(at_ms, f"the agent of {worker} has nothing left to do, and ends")
            case m.Journal(key=key, progress=progress) if progress.stop is not None:
                self._why.setdefault(key.epoch, progress.stop_evidence or progress.stop.replace("_", " "))
            case m.CallOff(key=key):
                self._called_off.add(key.epoch)
                self.say(at_ms, f"{worker} calls the start of {self._named(key)} off", is_detail=True)
            case _:
                self.say(at_ms, f"{worker}: {_words(action)}{self._key_of(action)}", is_detail=True)

    def began(self, at_ms: int, worker: str, given: Assignment) -> None:
        """Its program runs now: this is told once of each attempt, or a rule is broken."""
        what = f" on {listed(given.devices)}" if given.devices else ""
        self.say(at_ms, f"{worker} starts {attempt_name(given)}{what}")

    # Faults -------------------------------------------------------------------------------------------------------

    def struck(self, at_ms: int, fault: Fault, host: str = "", *, vain: str = "") -> None:
        """Something goes wrong, as planned; with that host. vain: why it does not. What only will go wrong is told when
        it does."""
        text = fault_text(fault, host)
        self.say(at_ms, f"{text}: in vain, {vain}" if vain else text, is_detail=bool(vain) or fault.kind in ARMED)

    def went_wrong(self, what: str, of: str) -> None:
        """As was just told."""
        self._wrong.add((what, of))

    def over(self, at_ms: int, what: str, of: str, text: str) -> None:
        """What went wrong is well again; told once."""
        if (what, of) in self._wrong:
            self._wrong.discard((what, of))
            self.say(at_ms, text)

    def peace(self, at_ms: int) -> None:
        """Of all that is wrong no more is told."""
        self._wrong.clear()
        self.say(at_ms, "from now on nothing goes wrong any more; what is cut, full or stopped is well again")

    def with_attempt_names(self, text: str) -> str:
        """``attempt 12``, where that is an epoch, is what the story calls it."""
        return _EPOCH.sub(lambda found: self._named(int(found[1])), text)

    def noise(self, at_ms: int, text: str) -> None:
        """What goes wrong with single messages."""
        self.lines.append(Line(at_ms, text, is_noise=True))

    # Names --------------------------------------------------------------------------------------------------------

    def _named(self, which: int | NodeKey) -> str:
        epoch = which.epoch if isinstance(which, NodeKey) else which
        known = self._attempts.get(epoch)
        if known is None or not known[0]:
            return f"the attempt of epoch {epoch}"
        element = f"element {self._elements[epoch]} of " if epoch in self._elements else ""
        return f"attempt {known[1]} of {element}{job_name(known[0])}"

    def _is_old(self, what: str, worker: str, void: tuple[int, ...]) -> bool:
        """Nobody needs to be told (again) that these are void: it was, or they have ended."""
        told = {(what, worker, epoch) for epoch in void if epoch not in self._told}
        is_old = told <= self._void
        self._void |= told
        return is_old

    def _number(self, epoch: int) -> str:
        known = self._attempts.get(epoch)
        return f"epoch {epoch}" if known is None else f"attempt {known[1]}, epoch {epoch}"

    def _key_of(self, thing: object) -> str:
        key = getattr(thing, "key", None) or getattr(getattr(thing, "assignment", None), "key", None)
        return f" {self._named(key)}" if isinstance(key, NodeKey) else ""


def _wishes(entry: JobEntry) -> str:
    wishes = [] if entry.request.devices == 0 else [counted(entry.request.devices, "GPU")]
    if isinstance(entry.shape, Array):
        at_once = f", {entry.shape.limit} at once" if entry.shape.limit else ""
        wishes.append(f"{entry.shape.count} elements{at_once}")
    wishes += ["exclusive"] if entry.exclusive else []
    for after in entry.after:
        wishes.append(f"after the {'end' if after.is_any else 'success'} of {job_name(after.job)}")
    kind = " of any kind" if entry.retry_on is RetryOn.ANY else ""
    wishes.append(counted(entry.retries, "retry", "retries") + kind)
    return f" ({', '.join(wishes)})"


def _outcome(outcome: Outcome) -> str:
    if outcome.exit_code is not None and outcome.ended_by == "program":
        return f"exit code {outcome.exit_code}"
    return f"{outcome.ended_by}{f' ({outcome.evidence})' if outcome.evidence else ''}"


def _words(thing: object) -> str:
    """``CollectOutputs`` → ``collect outputs``"""
    name = type(thing).__name__
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name).strip()
