"""The client's side of ``/v1`` as data: one row an endpoint, read by the sync shell, the async shell and the tests.

Nothing here does IO. A new route is one row here and one function in ``calls``; neither shell changes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gpulayer.protocol.retry import Repeatable

__all__ = ["ENDPOINTS", "Endpoint", "ReplyForm"]


class ReplyForm(StrEnum):
    """How the body of an answer is read."""

    JSON = "json"
    BYTES = "bytes"  # a body of any length, handed on as it comes


@dataclass(frozen=True, slots=True)
class Endpoint:
    """body, reply: the wire schema as ``module.Name`` below ``gpulayer.wire`` (``raw`` is bytes, empty is nothing).

    repeat: whether it may be sent again after a try that perhaps arrived. is_keyed: only because the Idempotency-Key of
    the call goes with every try.

    Names rather than types: a client need not import, so need not pay for, schemas that only a server validates.
    """

    name: str
    method: str
    path: str
    body: str = ""
    reply: str = ""
    repeat: Repeatable = Repeatable.IDEMPOTENT
    is_keyed: bool = False
    form: ReplyForm = ReplyForm.JSON
    statuses: tuple[int, ...] = (200,)


_ROWS: Final = (
    Endpoint("get_plane", "GET", "/v1/plane", reply="plane.PlaneRecord"),
    Endpoint("shutdown_plane", "POST", "/v1/plane:shutdown", body="plane.ShutdownBody"),
    Endpoint("make_backup", "POST", "/v1/plane:backup", body="plane.BackupBody", reply="raw", form=ReplyForm.BYTES),
    Endpoint(
        "create_token",
        "POST",
        "/v1/tokens",
        body="tokens.TokenBody",
        reply="tokens.TokenReply",
        repeat=Repeatable.ONCE,
        statuses=(200, 201),
    ),
    Endpoint("list_tokens", "GET", "/v1/tokens", reply="tokens.TokenPage"),
    Endpoint("revoke_token", "POST", "/v1/tokens/{ref}:revoke", reply="tokens.TokenPage"),
    # Asked for again, it revokes the token that got lost with the answer.
    Endpoint("rotate_token", "POST", "/v1/tokens:rotate", reply="tokens.TokenReply", statuses=(200, 201)),
    Endpoint("list_audit", "GET", "/v1/audit", reply="tokens.AuditPage"),
    Endpoint(
        "submit_job",
        "POST",
        "/v1/jobs",
        body="jobs.JobSubmission",
        reply="jobs.JobRecord",
        is_keyed=True,
        statuses=(200, 201),
    ),
    Endpoint(
        "submit_batch",
        "POST",
        "/v1/jobs:batch",
        body="jobs.BatchSubmission",
        reply="jobs.BatchReply",
        is_keyed=True,
        statuses=(200, 201),
    ),
    Endpoint("list_jobs", "GET", "/v1/jobs", reply="jobs.JobPage"),
    Endpoint("get_job", "GET", "/v1/jobs/{ref}", reply="jobs.JobRecord"),
    Endpoint("cancel_job", "POST", "/v1/jobs/{ref}:cancel", body="jobs.CancelBody", reply="jobs.JobRecord"),
    Endpoint(
        "retry_job",
        "POST",
        "/v1/jobs/{ref}:retry",
        reply="jobs.JobRecord",
        is_keyed=True,
        statuses=(200, 201),
    ),
    Endpoint("read_logs", "GET", "/v1/jobs/{ref}/logs", reply="raw", form=ReplyForm.BYTES),
    Endpoint("get_why", "GET", "/v1/jobs/{ref}/why", reply="jobs.WhyReply"),
    Endpoint("list_events", "GET", "/v1/jobs/{ref}/events", reply="jobs.EventPage"),
    Endpoint("list_elements", "GET", "/v1/jobs/{ref}/elements", reply="jobs.ElementPage"),
    Endpoint("list_outputs", "GET", "/v1/jobs/{ref}/outputs", reply="jobs.OutputsReply"),
    Endpoint("explain", "POST", "/v1/explain", body="jobs.ExplainBody", reply="jobs.ExplainReply"),
    Endpoint("find_missing", "POST", "/v1/sources:missing", body="plane.MissingBody", reply="plane.MissingReply"),
    Endpoint("put_blob", "PUT", "/v1/blobs/{digest}", body="raw", statuses=(200, 201, 204)),
    Endpoint("get_blob", "GET", "/v1/blobs/{digest}", reply="raw", form=ReplyForm.BYTES),
    Endpoint("put_pack", "POST", "/v1/blobs:pack", body="raw", reply="plane.PackReply", statuses=(200, 201)),
    Endpoint("fetch_blobs", "POST", "/v1/blobs:fetch", body="plane.FetchBody", reply="raw", form=ReplyForm.BYTES),
    Endpoint("list_workers", "GET", "/v1/workers", reply="workers.WorkerPage"),
    Endpoint("get_worker", "GET", "/v1/workers/{ref}", reply="workers.WorkerRecord"),
    Endpoint("drain_worker", "POST", "/v1/workers/{ref}:drain", reply="workers.WorkerRecord"),
    Endpoint("resume_worker", "POST", "/v1/workers/{ref}:resume", reply="workers.WorkerRecord"),
    Endpoint("remove_worker", "POST", "/v1/workers/{ref}:remove", reply="workers.WorkerRecord"),
    Endpoint("list_plugins", "GET", "/v1/plugins", reply="plugins.PluginPage"),
)

ENDPOINTS: Final[Mapping[str, Endpoint]] = {row.name: row for row in _ROWS}
