"""What a batch of the store is about: the kinds of commits that its fault points tell apart.

A batch may carry several; two that carry the same kinds are alike to whoever dies over them.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from gpulayer.engine.events import NodePhase
from gpulayer.engine.records import AttemptImage, FactsForgotten, FactsImage, JobImage
from gpulayer.server.store.rows import Batch, Side

__all__ = ["KINDS", "carried"]

KINDS: Final[Mapping[str, str]] = {
    "submission": "jobs",
    "key": "what jobs an idempotency key stands for",
    "secret": "secrets of jobs, sealed",
    "lease": "an attempt that is lent to a worker",
    "report": "what a worker told",
    "end": "a job that has come to its end",
    "cancel": "that a job is to be cancelled",
    "expiry": "that a worker is silent, or that a lease or its time alone is over",
    "enrolment": "a worker and its key",
    "session": "the counter of a worker's signature",
    "start": "a new start of a worker's agent",
    "facts": "what a worker's machine is, or that nobody needs to know that any more",
    "drain": "that a worker takes no more work, or takes some again",
    "removal": "that a worker is forgotten",
    "token": "a token, or what has become of one",
    "forgetting": "that tokens or secrets that have had their time are forgotten",
    "compaction": "that events, facts or idempotency keys that have had their time are forgotten",
    "audit": "lines of the audit trail",
    "cursor": "how far an event sink has been told",
}
"""What a batch of that kind carries."""

_OF_EVENTS: Final = {
    "job_submitted": "submission",
    "worker_reported": "report",
    "cancel_requested": "cancel",
    "worker_went_silent": "expiry",
    "lease_expired": "expiry",
    "keep_for_passed": "expiry",
    "ahead_wait_passed": "expiry",
    "worker_joined": "enrolment",
    "drain_requested": "drain",
    "worker_resumed": "drain",
    "worker_removed": "removal",
}


def carried(batch: Batch) -> Iterable[str]:
    """Names of ``KINDS``, each once."""
    return dict.fromkeys(_carried(batch))


def _carried(batch: Batch) -> Iterator[str]:
    for row in batch.events:
        if row.kind in _OF_EVENTS:
            yield _OF_EVENTS[row.kind]
    for record in batch.records:
        match record:
            case AttemptImage() if record.phase is NodePhase.ASSIGNED:
                yield "lease"
            case JobImage() if record.state.is_final:
                yield "end"
            case FactsImage() | FactsForgotten():
                yield "facts"
            case _:
                pass
    for side in batch.sides:
        yield from _beside(side)


def _beside(side: Side) -> Iterator[str]:
    rows: dict[str, object] = {
        "key": side.idempotency,
        "secret": side.secrets,
        "session": side.counters,
        "start": side.starts,
        "token": side.tokens,
        "forgetting": (*side.forget_tokens, *side.forget_secrets),
        "compaction": (side.forget_events, side.forget_facts, side.forget_idempotency_ms) != (0, (), 0),
        "audit": side.audit,
        "cursor": side.sink_cursors,
    }
    return (kind for kind, carried in rows.items() if carried)
