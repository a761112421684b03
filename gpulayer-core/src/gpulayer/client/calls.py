"""Every request a client makes, planned as a value: ``Call``. The shells only send them.

One function an endpoint, named like its row in ``endpoints``. A call that creates something carries a key made once
by the caller, so that sending the same ``Call`` again can never create a second one.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from urllib.parse import quote, urlencode

from gpulayer.client.endpoints import ENDPOINTS, Endpoint

if TYPE_CHECKING:
    from gpulayer.wire.jobs import (
        BatchReply,
        ElementPage,
        EventPage,
        ExplainReply,
        JobPage,
        JobRecord,
        JobSubmission,
        OutputsReply,
        RequestFields,
        WhyReply,
    )
    from gpulayer.wire.plane import MissingReply, PackReply, PlaneRecord
    from gpulayer.wire.plugins import PluginPage
    from gpulayer.wire.tokens import AuditPage, TokenPage, TokenReply
    from gpulayer.wire.workers import WorkerPage, WorkerRecord

__all__ = [
    "HOLD_LIMIT_S",
    "Call",
    "FileBody",
    "cancel_job",
    "create_token",
    "drain_worker",
    "explain",
    "fetch_blobs",
    "find_missing",
    "get_blob",
    "get_job",
    "get_plane",
    "get_why",
    "get_worker",
    "list_audit",
    "list_elements",
    "list_events",
    "list_jobs",
    "list_outputs",
    "list_plugins",
    "list_tokens",
    "list_workers",
    "make_backup",
    "put_blob",
    "put_pack",
    "read_logs",
    "remove_worker",
    "resume_worker",
    "retry_job",
    "revoke_token",
    "rotate_token",
    "shutdown_plane",
    "submit_batch",
    "submit_job",
]

PAGE_LIMIT: Final = 500
HOLD_LIMIT_S: Final = 60.0  # the longest the control plane holds one answer back
_BACKUP_S: Final = 600.0  # a store of many gigabytes is read whole and copied first
_SCHEMA: Final = 1

Reply_co = TypeVar("Reply_co", covariant=True)


@dataclass(frozen=True, slots=True)
class FileBody:
    """A body read from a file as it is sent, so that its size does not count against memory."""

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class Call(Generic[Reply_co]):
    """One request. target: path with its query, encoded. hold_s: how long the answer may be held back on purpose;
    None where it may take for ever (following a log). A body does not show itself: it may hold secrets."""

    endpoint: Endpoint
    target: str
    body: bytes | FileBody | None = field(default=None, repr=False)
    content_type: str = ""
    key: str = ""
    hold_s: float | None = 0.0


def get_plane() -> "Call[PlaneRecord]":
    """The record of the control plane itself: version, mode, counts of workers and jobs."""
    return _call("get_plane")


def shutdown_plane(*, keep_worker: bool = False) -> "Call[None]":
    """End the control plane. keep_worker: its own worker goes on, for another plane on the same state."""
    return _call("shutdown_plane", json_body={"keep_worker": True} if keep_worker else {})


def make_backup(*, blobs: bool = True, logs: bool = True) -> "Call[bytes]":
    """All of the control plane as one file, its keys too. It may take long to begin: the store is checked first."""
    return _call("make_backup", json_body={"blobs": blobs, "logs": logs}, hold_s=_BACKUP_S)


def create_token(
    role: str = "join",
    *,
    name: str = "",
    expires_in_s: int | None = None,
    max_uses: int | None = None,
    labels: Mapping[str, str] | None = None,
    max_devices: int | None = None,
) -> "Call[TokenReply]":
    """A token, shown in the reply and never again. Not to be repeated: each answer is another token.

    See ``wire.tokens.TokenBody``; what is None or empty is as the role has it. name: of a client token, its owner.
    """
    body = {
        "role": role,
        "name": name or None,
        "expires_in_s": expires_in_s,
        "max_uses": max_uses,
        "labels": dict(labels) if labels else None,
        "max_devices": max_devices,
    }
    return _call("create_token", json_body={field: value for field, value in body.items() if value is not None})


def list_tokens() -> "Call[TokenPage]":
    """All tokens, newest first, without their secrets; there is one page."""
    return _call("list_tokens")


def revoke_token(ref: str, *, all_of_name: bool = False) -> "Call[TokenPage]":
    """By id or name. Answered with Conflict where several tokens of the name are good, unless all are meant."""
    return _call("revoke_token", path={"ref": ref}, query={"all": 1 if all_of_name else None})


def rotate_token() -> "Call[TokenReply]":
    """Another token in place of the one this is sent with, which is good for 10 more minutes."""
    return _call("rotate_token")


def list_audit(*, after: int = 0, limit: int | None = None) -> "Call[AuditPage]":
    """Entries of the audit trail, oldest first, after number ``after``; the reply's ``next`` is the following one."""
    return _call("list_audit", query={"after": after or None, "limit": limit})


def submit_job(submission: "JobSubmission", *, key: str) -> "Call[JobRecord]":
    """Accepted durably when it is answered. The same key with another body is a Conflict."""
    return _call("submit_job", json_body=submission, key=key)


def submit_batch(submissions: "Sequence[JobSubmission]", *, key: str) -> "Call[BatchReply]":
    """All accepted or none; the reply has the ids in this order. One key for the whole batch."""
    return _call("submit_batch", json_body={"schema": _SCHEMA, "jobs": list(submissions)}, key=key)


def list_jobs(
    *, state: str = "", name: str = "", mine: bool = False, limit: int | None = None, cursor: str = ""
) -> "Call[JobPage]":
    """One page, newest first. state: names, comma-separated. mine: the caller's own. cursor: ``next`` of the page
    before. limit: of more than a page holds, a page."""
    most = None if limit is None else min(limit, PAGE_LIMIT)
    query = {"state": state, "name": name, "mine": 1 if mine else None, "limit": most, "cursor": cursor}
    return _call("list_jobs", query=query)


def get_job(ref: str, *, wait_s: float = 0.0, index: int | None = None) -> "Call[JobRecord]":
    """``wait_s``: the answer is held until the job is final, that long at most. index: of that element of an array."""
    held = min(wait_s, HOLD_LIMIT_S)
    query = {"wait_s": _number(held) if held > 0 else None, "index": index}
    return _call("get_job", path={"ref": ref}, query=query, hold_s=held)


def list_elements(ref: str, *, after: int = 0, limit: int | None = None, failed: bool = False) -> "Call[ElementPage]":
    """Elements of an array from number ``after`` on; failed: those that are done and have not succeeded."""
    query = {"after": after or None, "limit": limit, "failed": 1 if failed else None}
    return _call("list_elements", path={"ref": ref}, query=query)


def cancel_job(ref: str, *, grace_ms: int | None = None) -> "Call[JobRecord]":
    """Ask for its end; a job that has ended is left as it is. grace_ms: overrides the job's own."""
    return _call("cancel_job", path={"ref": ref}, json_body={} if grace_ms is None else {"grace_ms": grace_ms})


def retry_job(ref: str, *, key: str) -> "Call[JobRecord]":
    """Submit the same again, as a new job. Answered with Conflict while the old one lives."""
    return _call("retry_job", path={"ref": ref}, key=key)


def read_logs(
    ref: str,
    *,
    offset: int = 0,
    attempt: int | None = None,
    node: int = 0,
    stream: str = "stdout",
    follow: bool = False,
    tail_bytes: int | None = None,
    since_ms: int | None = None,
    index: int | None = None,
) -> "Call[bytes]":
    """Bytes of one node's log. attempt: None for the latest. stream: ``stderr`` of a job that was split. tail_bytes:
    only the last so many. since_ms: only what came to the control plane at this wall time or later. index: of an array,
    the element; None: the first.

    follow: the answer goes on until the attempt has ended, for as long as that takes; else it ends with what there is.
    """
    query = {
        "offset": offset or None,
        "attempt": attempt,
        "node": node or None,
        "stream": None if stream == "stdout" else stream,
        "follow": 1 if follow else None,
        "tail_bytes": tail_bytes,
        "since_ms": since_ms,
        "index": index or None,
    }
    return _call("read_logs", path={"ref": ref}, query=query, hold_s=None if follow else 0.0)


def list_events(ref: str, *, after: int = 0, limit: int | None = None) -> "Call[EventPage]":
    """What happened to a job, in order, after event ``after``; the reply's ``next`` is the following ``after``."""
    return _call("list_events", path={"ref": ref}, query={"after": after or None, "limit": limit})


def get_why(ref: str) -> "Call[WhyReply]":
    """Why a job is where it is: what was weighed when it was placed, or what it waits for."""
    return _call("get_why", path={"ref": ref})


def list_outputs(ref: str, *, index: int | None = None) -> "Call[OutputsReply]":
    """Paths, sizes and digests; the content is fetched by digest. index: of that element of an array."""
    return _call("list_outputs", path={"ref": ref}, query={"index": index})


def explain(request: "RequestFields") -> "Call[ExplainReply]":
    """Every worker's verdict for a request, and which would get it now. Nothing is reserved by asking."""
    return _call("explain", json_body={"request": request})


def find_missing(digests: Sequence[str]) -> "Call[MissingReply]":
    """Which of these blobs the control plane does not have, so that only they need be sent."""
    return _call("find_missing", json_body={"digests": list(digests)})


def put_blob(digest: str, body: bytes | FileBody) -> "Call[None]":
    """One blob under its digest; refused when the body does not have it."""
    return _call("put_blob", path={"digest": digest}, raw=body)


def get_blob(digest: str) -> "Call[bytes]":
    """One blob, streamed. A blob damaged over there ends short of its length."""
    return _call("get_blob", path={"digest": digest})


def put_pack(pack: bytes) -> "Call[PackReply]":
    """Many small blobs in one body, framed as ``wire.packs`` does it."""
    return _call("put_pack", raw=pack)


def fetch_blobs(digests: Sequence[str]) -> "Call[bytes]":
    """Many small blobs in one body of frames. Refused as a whole when one is missing or too large to pack."""
    return _call("fetch_blobs", json_body={"digests": list(digests)})


def list_workers() -> "Call[WorkerPage]":
    """All workers, by name; there is one page."""
    return _call("list_workers")


def get_worker(ref: str) -> "Call[WorkerRecord]":
    """By id, a unique beginning of one, or name."""
    return _call("get_worker", path={"ref": ref})


def drain_worker(ref: str) -> "Call[WorkerRecord]":
    """It finishes what it runs and gets nothing new, until it is resumed."""
    return _call("drain_worker", path={"ref": ref})


def resume_worker(ref: str) -> "Call[WorkerRecord]":
    """The end of draining; nothing happens to a worker that does not drain."""
    return _call("resume_worker", path={"ref": ref})


def remove_worker(ref: str, *, force: bool = False) -> "Call[WorkerRecord]":
    """Forget a worker. Answered with Conflict while it is there and works, unless forced."""
    return _call("remove_worker", path={"ref": ref}, query={"force": 1 if force else None})


def list_plugins() -> "Call[PluginPage]":
    """The control plane's and all workers'; there is one page."""
    return _call("list_plugins")


def _call(
    name: str,
    *,
    path: Mapping[str, str] | None = None,
    query: Mapping[str, str | int | None] | None = None,
    json_body: object = None,
    raw: bytes | FileBody | None = None,
    key: str = "",
    hold_s: float | None = 0.0,
) -> "Call[Any]":  # Any: each public function above states the reply
    endpoint = ENDPOINTS[name]
    target = endpoint.path
    for part, value in (path or {}).items():
        target = target.replace("{" + part + "}", quote(value, safe=""))
    given = [(field, str(value)) for field, value in (query or {}).items() if value not in (None, "")]
    if given:
        target += "?" + urlencode(given)
    if raw is not None:
        return Call(endpoint, target, raw, "application/octet-stream", key, hold_s)
    if json_body is None:
        return Call(endpoint, target, None, "", key, hold_s)
    body = json.dumps(json_body, separators=(",", ":"), ensure_ascii=True).encode()
    return Call(endpoint, target, body, "application/json", key, hold_s)


def _number(seconds: float) -> str:
    return f"{seconds:.3f}".rstrip("0").rstrip(".")
