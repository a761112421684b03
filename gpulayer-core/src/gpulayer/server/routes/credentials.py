"""What one attempt may know, for the worker that holds it and nobody else: secrets of its job, a token of its own."""

from typing import Final

from starlette.responses import Response

from gpulayer.server.fence import lent
from gpulayer.server.job_secrets import open_secrets
from gpulayer.server.web import WORKER, Call, Route, json_response
from gpulayer.wire.workers import Credentials

__all__ = ["ROUTES"]


async def credentials(call: Call) -> Response:
    """As often as it is asked for while the lease lasts: an agent that starts again has forgotten them."""
    plane = call.plane
    epoch, job_id = await lent(call, None)
    submission = (await plane.submissions([job_id]))[job_id]
    reply: Credentials = {
        "secrets": await open_secrets(plane, job_id, submission.get("secret_names", ())),
        "token": plane.auth.job_token(epoch, job_id) if submission.get("grant") else None,
    }
    plane.auth.check_still(call.client)
    return json_response(reply, headers={"Cache-Control": "no-store"})


ROUTES: Final = (
    Route(
        "GET",
        "/v1/workers/{id}/attempts/{epoch}/credentials",
        credentials,
        WORKER,
        "Secrets and token of an attempt, for the worker that holds it",
        reply=Credentials,
    ),
)
