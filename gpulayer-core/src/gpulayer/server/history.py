"""What is written into the event log: each event for replay, and each change of a job for people.

A worker's report covers many jobs, so the changes that it brought are rows of their own under the job's id; rows
without a job id are the log that a replay reads. Pure, but for remembering the last phase of what is live.
"""

from collections.abc import Iterable, Sequence
from typing import assert_never

from gpulayer.engine.events import (
    AfterMet,
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
    OpinionsLapsed,
    PlaneRestored,
    ScorersRegistered,
    WorkerJoined,
    WorkerRemoved,
    WorkerReported,
    WorkerResumed,
    WorkerWentSilent,
)
from gpulayer.engine.records import AttemptImage, JobImage, Record
from gpulayer.ids import Epoch, JobId
from gpulayer.server.store import EventRow
from gpulayer.server.store.codec import dump
from gpulayer.spec.job import JobState
from gpulayer.spec.opinion import Mark, Refusal

__all__ = ["RESTORED", "History", "is_logged"]

RESTORED = "plane_restored"
"""The kind of the row that the log of a restored store goes on with: the numbers between it and the row before it were
never given out here."""

_SHOWN_STATES = frozenset({JobState.QUEUED, JobState.UNREACHABLE}) | frozenset(s for s in JobState if s.is_final)


def is_logged(event: Event, records: Sequence[Record]) -> bool:
    """A heartbeat that changed nothing is not logged, nor opinions by which nobody was placed, nor that there are no
    scorers; everything else is."""
    match event:
        case WorkerReported():
            return bool(records or event.items or event.leaving or event.recovered)
        case OpinionsGiven() | OpinionsLapsed():
            return bool(records)
        case ScorersRegistered():
            return bool(records or event.scorers)
        case _:
            return True


class History:
    """Turns steps into rows. ``restart`` it with the live images whenever the state is loaded."""

    def __init__(self) -> None:
        self._phases: dict[Epoch, tuple[NodePhase, bool]] = {}
        self._states: dict[JobId, JobState] = {}  # but of those that are queued, which may be very many

    def restart(self, jobs: Iterable[JobImage], attempts: Iterable[AttemptImage]) -> None:
        """Begin from what the store holds, so that nothing of it is told as new."""
        self._states = {image.id: image.state for image in jobs if image.state is not JobState.QUEUED}
        self._phases = {image.epoch: (image.phase, image.is_unreachable) for image in attempts if image.is_shown}

    def rows(self, event: Event, records: Sequence[Record]) -> list[EventRow]:
        """The event's own row, then the changes that people see: of attempts, then of jobs."""
        at_ms, wall_ms = event.at
        rows, jobs = [_event_row(event)], []
        for record in records:
            match record:
                case AttemptImage():
                    rows.extend(
                        EventRow(at_ms, wall_ms, kind, body, record.job_id)
                        for kind, body in self._attempt_changes(record)
                    )
                case JobImage():
                    kind = self._job_change(record)
                    if kind:
                        body = {"code": record.reason_code, "message": record.reason_message}
                        jobs.append(EventRow(at_ms, wall_ms, kind, dump(body), record.id))
                case _:
                    pass
        return rows + jobs

    def _attempt_changes(self, image: AttemptImage) -> list[tuple[str, str]]:
        """Kinds and bodies. An attempt that was lent ahead is told of from the moment on that it counts."""
        if not image.is_shown:
            return []
        now = (image.phase, image.is_unreachable)
        before = self._phases.get(image.epoch)
        if image.phase is NodePhase.ENDED:
            self._phases.pop(image.epoch, None)
        else:
            self._phases[image.epoch] = now
        if now == before:
            return []
        changes = []
        if before is None and image.phase is not NodePhase.ASSIGNED:
            changes.append((f"attempt_{NodePhase.ASSIGNED}", _attempt_body(image, NodePhase.ASSIGNED)))
        kind = "attempt_unreachable" if image.is_unreachable else f"attempt_{image.phase}"
        return [*changes, (kind, _attempt_body(image, image.phase))]

    def _job_change(self, image: JobImage) -> str:
        before = self._states.get(image.id, JobState.QUEUED)
        if image.state.is_final or image.state is JobState.QUEUED:
            self._states.pop(image.id, None)
        else:
            self._states[image.id] = image.state
        if image.begun and image.state is JobState.QUEUED:
            return ""  # of an array, between two of its elements
        if image.state is before or image.state not in _SHOWN_STATES:
            return ""  # of one that is queued and was: the submission itself
        return f"job_{image.state}"


def _attempt_body(image: AttemptImage, phase: NodePhase) -> str:
    body: dict[str, object] = {"attempt": image.number, "epoch": image.epoch}
    if image.task_index:
        body["index"] = image.task_index  # of an array, which element
    match phase:
        case NodePhase.ASSIGNED:
            body["workers"] = [node.worker_name for node in image.nodes]
            body["devices"] = [list(node.devices) for node in image.nodes]
            body["placement"] = image.placement
        case NodePhase.ENDED if image.outcome is not None:
            outcome = image.outcome
            body["ended_by"], body["blame"] = outcome.ended_by, outcome.blame
            body["exit_code"], body["signal"] = outcome.exit_code, outcome.signal
            body["evidence"] = outcome.evidence
        case _:
            pass
    return dump(body)


def _event_row(event: Event) -> EventRow:
    at_ms, wall_ms = event.at
    match event:
        case JobSubmitted():  # the job's row holds everything else
            ends = dump({"ends": dict(event.ends)}) if event.ends else "{}"
            return EventRow(at_ms, wall_ms, "job_submitted", ends, event.job.id)
        case CancelRequested():
            return EventRow(
                at_ms, wall_ms, "cancel_requested", dump({"by": event.by, "grace_ms": event.grace_ms}), event.job_id
            )
        case WorkerJoined():
            body = {"name": event.name, "facts": event.facts_digest}
            return EventRow(at_ms, wall_ms, "worker_joined", dump(body), worker=event.worker)
        case WorkerReported():
            return EventRow(at_ms, wall_ms, "worker_reported", _report_body(event), worker=event.worker)
        case WorkerWentSilent():
            return EventRow(at_ms, wall_ms, "worker_went_silent", "{}", worker=event.worker)
        case LeaseExpired():
            return EventRow(at_ms, wall_ms, "lease_expired", dump({"epoch": event.epoch}), worker=event.worker)
        case KeepForPassed():
            return EventRow(at_ms, wall_ms, "keep_for_passed", dump({"epoch": event.epoch}), worker=event.worker)
        case HoldPassed():
            return EventRow(at_ms, wall_ms, "hold_passed", dump({"task": event.task_index}), event.job_id)
        case AfterMet():
            return EventRow(at_ms, wall_ms, "after_met", "{}")
        case AheadWaitPassed():
            return EventRow(at_ms, wall_ms, "ahead_wait_passed", dump({"epoch": event.epoch}), worker=event.worker)
        case OpinionsGiven():
            return EventRow(at_ms, wall_ms, "opinions_given", _opinions_body(event))
        case OpinionsLapsed():
            return EventRow(at_ms, wall_ms, "opinions_lapsed", dump({"request": event.request.summary()}))
        case ScorersRegistered():
            return EventRow(at_ms, wall_ms, "scorers_registered", dump({"scorers": event.scorers}))
        case PlaneRestored():
            return EventRow(at_ms, wall_ms, RESTORED, dump({"first": event.first}))
        case DrainRequested():
            return EventRow(at_ms, wall_ms, "drain_requested", "{}", worker=event.worker)
        case WorkerResumed():
            return EventRow(at_ms, wall_ms, "worker_resumed", "{}", worker=event.worker)
        case WorkerRemoved():
            return EventRow(at_ms, wall_ms, "worker_removed", "{}", worker=event.worker)
        case _:
            assert_never(event)


def _report_body(event: WorkerReported) -> str:
    return dump(
        {
            "boot": event.boot,
            "seq": event.seq,
            "holding": event.holding,
            "recovered": event.recovered,
            "items": [_item(item) for item in event.items],
            "facts": event.facts_digest,
            "stopping": event.stopping,
            "unstarted": event.unstarted,
            "unsure": event.unsure,
            "untold": sorted(event.untold),
            "leaving": event.leaving,
        }
    )


def _opinions_body(event: OpinionsGiven) -> str:
    """In short: there may be thousands, gone in a moment. What of them decided, the attempt's ``placement`` says."""
    opinions = [opinion for _, opinion in event.said]
    return dump(
        {
            "scorer": event.scorer,
            "request": event.request.summary(),
            "lifetime_ms": event.lifetime_ms,
            "marks": sum(isinstance(opinion, Mark) for opinion in opinions),
            "refusals": sum(isinstance(opinion, Refusal) for opinion in opinions),
            "none": opinions.count(None),
        }
    )


def _item(item: NodeReport) -> list[object]:
    outcome = item.outcome
    told = outcome and [
        *(outcome.ended_by, outcome.exit_code, outcome.signal, outcome.evidence, outcome.blame),
        outcome.ran_ms,
    ]
    fields: list[object] = [item.epoch, item.node, item.phase, told, item.outputs]
    return fields if item.started_ago_ms is None else [*fields, item.started_ago_ms]
