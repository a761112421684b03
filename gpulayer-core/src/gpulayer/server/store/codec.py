"""Engine images to JSON text and back: the one conversion place between engine and tables.

Short keys and lists keep the rows small; they are read by this module alone. What they hold changes only with a
migration, or by a part at the end that older rows may lack.
"""

import json
from typing import Any, cast

from pydantic_core import to_json

from gpulayer.engine.events import NodePhase
from gpulayer.engine.records import AttemptImage, NodeImage
from gpulayer.errors import Blame
from gpulayer.ids import Digest, Epoch, JobId, WorkerId
from gpulayer.spec.after import parse_after
from gpulayer.spec.considered import Considered, Place
from gpulayer.spec.job import DEFAULT_LEASE_TTL_MS, Array, Gang, JobEntry, JobSpec, RetryOn, Shape, Single
from gpulayer.spec.machine import WorkerFacts
from gpulayer.spec.outcome import EndedBy, Outcome
from gpulayer.wire.convert import request_from_wire, request_to_wire
from gpulayer.wire.facts import facts_from_wire, facts_to_wire
from gpulayer.wire.jobs import JobSubmission

__all__ = [
    "EntryReader",
    "ScheduleWriter",
    "attempt_from_text",
    "attempt_to_text",
    "dump",
    "facts_from_text",
    "facts_to_text",
    "outcome_from_text",
    "outcome_to_text",
    "submission_to_text",
]

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True).encode


def dump(value: object) -> str:
    """Compact JSON. Enums are strings and integers, so they need no default."""
    return _encode(value)


def submission_to_text(submission: JobSubmission) -> str:
    """What ``json.loads`` reads again. Not ``dump``: there is one a job, and this takes a third of the time."""
    return to_json(submission).decode()


def outcome_to_text(outcome: Outcome | None) -> str | None:
    """None stays None: no end yet."""
    return None if outcome is None else _encode(_outcome_out(outcome))


def outcome_from_text(text: str | None) -> Outcome | None:
    """The inverse of ``outcome_to_text``."""
    return None if text is None else _outcome_in(json.loads(text))


def attempt_to_text(image: AttemptImage) -> str:
    """Everything but epoch and job, which have columns of their own."""
    return _encode(
        {
            "t": image.task_index,
            "n": image.number,
            "p": image.phase,
            "s": image.stop,
            "u": image.is_unreachable,
            "f": image.first_failure,
            "b": image.started_wall_ms,
            "e": image.ended_wall_ms,
            "o": _outcome_out(image.outcome),
            "w": image.placement,
            **_considered_out(image.considered),
            **({} if image.lease_ttl_ms == DEFAULT_LEASE_TTL_MS else {"l": image.lease_ttl_ms}),
            "nodes": [
                [
                    node.worker,
                    node.worker_name,
                    node.devices,
                    node.cpus,
                    node.memory_bytes,
                    node.phase,
                    _outcome_out(node.outcome),
                    node.outputs,
                    *_node_end(node),
                ]
                for node in image.nodes
            ],
        }
    )


def attempt_from_text(epoch: int, job_id: str, text: str) -> AttemptImage:
    """The image's two keys are columns of their own and come from there."""
    fields = json.loads(text)
    return AttemptImage(
        epoch=Epoch(epoch),
        job_id=JobId(job_id),
        task_index=fields["t"],
        number=fields["n"],
        phase=NodePhase(fields["p"]),
        nodes=tuple(
            NodeImage(
                worker=WorkerId(worker),
                worker_name=name,
                devices=tuple(devices),
                cpus=cpus,
                memory_bytes=memory,
                phase=NodePhase(phase),
                outcome=_outcome_in(outcome),
                outputs=None if outputs is None else Digest(outputs),
                is_ahead=bool(end and end[0][0]),
                is_revoked=bool(end and end[0][1]),
                resources=tuple((name, count) for name, count in end[1]) if len(end) > 1 else (),
            )
            for worker, name, devices, cpus, memory, phase, outcome, outputs, *end in fields["nodes"]
        ),
        stop=None if fields["s"] is None else EndedBy(fields["s"]),
        is_unreachable=fields["u"],
        first_failure=fields["f"],
        started_wall_ms=fields["b"],
        ended_wall_ms=fields["e"],
        outcome=_outcome_in(fields["o"]),
        placement=fields["w"],
        lease_ttl_ms=fields.get("l", DEFAULT_LEASE_TTL_MS),
        considered=_considered_in(fields.get("c")),
    )


def _considered_out(considered: Considered | None) -> dict[str, object]:
    """Older programs do not look for it."""
    if considered is None:
        return {}
    best = [
        [one.worker, int(one.is_avoided), one.preference, one.mark_lost, one.devices_left, one.cpus_left]
        for one in considered.best
    ]
    counts = (considered.away, considered.ineligible, considered.busy, considered.refused, considered.fitting)
    return {"c": [*counts, best]}


def _considered_in(fields: list[Any] | None) -> Considered | None:  # Any: counts, and a list
    if fields is None:
        return None
    away, ineligible, busy, refused, fitting, best = fields
    places = (Place(worker, bool(is_avoided), *rest) for worker, is_avoided, *rest in best)
    return Considered(away, ineligible, busy, refused, fitting, tuple(places))


def facts_to_text(facts: WorkerFacts) -> str:
    """Canonical: equal facts have equal text, so that its digest names them."""
    return json.dumps(facts_to_wire(facts), separators=(",", ":"), sort_keys=True)


def facts_from_text(text: str) -> WorkerFacts:
    """Stored in the form of the wire, so checked like it."""
    return facts_from_wire(json.loads(text))


class ScheduleWriter:
    """The scheduling part of specs as text. Jobs that are placed alike share one text, so that 100,000 of them are
    rebuilt by parsing it once, and a batch of them is stored by making it once. One for each commit."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], str] = {}
        self._last: tuple[object, ...] = ()
        self._last_text = ""

    def text(self, spec: JobSpec) -> str:
        """Equal parts of specs give the same text object: there is one a job, and most are alike."""
        key = (
            spec.request,
            spec.shape,
            spec.priority,
            spec.retries,
            spec.retry_on,
            spec.timeout_ms,
            spec.grace_ms,
            spec.keep_for_ms,
            spec.exclusive,
            spec.wait,
            spec.after,
        )
        if key == self._last:  # neighbours share their parts, and the same object is equal at once; a hash is not
            return self._last_text
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = _schedule(spec)
        self._last, self._last_text = key, known
        return known


class EntryReader:
    """Builds entries from the texts of ``ScheduleWriter`` and remembers each text that it has read; one per load."""

    def __init__(self) -> None:
        self._known: dict[str, JobEntry] = {}

    def entry(self, job_id: str, owner: str, text: str) -> JobEntry:
        """Entries of equal text share their request, which speeds up a start with many jobs."""
        known = self._known.get(text)
        if known is None:
            known = self._known[text] = _entry(text)
        return JobEntry(
            JobId(job_id),
            owner,
            known.request,
            known.shape,
            known.priority,
            known.retries,
            known.retry_on,
            known.timeout_ms,
            known.grace_ms,
            known.keep_for_ms,
            known.exclusive,
            known.wait,
            known.after,
        )


def _entry(text: str) -> JobEntry:
    fields = json.loads(text)
    return JobEntry(
        id=JobId(""),
        owner="",
        request=request_from_wire(fields["r"]),
        shape=_shape_in(fields["s"]),
        priority=fields["p"],
        retries=fields["n"],
        retry_on=RetryOn(fields["o"]),
        timeout_ms=fields["t"],
        grace_ms=fields["g"],
        keep_for_ms=fields["k"],
        exclusive=fields["x"],
        wait=fields["w"],
        after=tuple(parse_after(text) for text in fields.get("a", ())),
    )


def _schedule(spec: JobSpec) -> str:
    return _encode(
        {
            "r": request_to_wire(spec.request),
            "s": _shape_out(spec.shape),
            "p": spec.priority,
            "n": spec.retries,
            "o": spec.retry_on,
            "t": spec.timeout_ms,
            "g": spec.grace_ms,
            "k": spec.keep_for_ms,
            "x": spec.exclusive,
            "w": spec.wait,
            **({"a": [str(after) for after in spec.after]} if spec.after else {}),
        }
    )


def _node_end(node: NodeImage) -> list[object]:
    """What most nodes do not have, and older rows lack."""
    if node.resources:
        return [[node.is_ahead, node.is_revoked], node.resources]
    return [[node.is_ahead, node.is_revoked]] if node.is_ahead or node.is_revoked else []


def _outcome_out(outcome: Outcome | None) -> list[object] | None:
    if outcome is None:
        return None
    return [outcome.ended_by, outcome.exit_code, outcome.signal, outcome.evidence, outcome.blame, outcome.ran_ms]


def _outcome_in(fields: list[object] | None) -> Outcome | None:
    if fields is None:
        return None
    known = [*fields, None][:6]  # an older store has five
    ended_by, exit_code, signal, evidence, blame, ran_ms = cast(
        "tuple[str, int | None, int | None, str, str, int | None]", tuple(known)
    )
    return Outcome(EndedBy(ended_by), exit_code, signal, evidence, Blame(blame), ran_ms)


def _shape_out(shape: Shape) -> list[object]:
    match shape:
        case Single():
            return ["single"]
        case Gang(nodes):
            return ["gang", nodes]
        case Array(count, limit):
            return ["array", count, limit]
        case _:
            raise ValueError(f"jobs of shape {shape} are not stored yet")


def _shape_in(fields: list[Any]) -> Shape:  # Any: parsed JSON
    match fields:
        case ["gang", int(nodes)]:
            return Gang(nodes)
        case ["array", int(count), int(limit)]:
            return Array(count, limit)
        case _:
            return Single()
