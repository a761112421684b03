"""What goes wrong between agent and spawner, as errors of ours: the one place where they are made."""

from gpulayer.errors import (
    BadRequest,
    Conflict,
    Forbidden,
    GpulayerError,
    InternalError,
    NotFound,
    ProtocolError,
)
from gpulayer.spawner import messages as m

__all__ = ["ConnectionLost", "error_of", "read_message", "unexpected"]


class ConnectionLost(Exception):
    """The connection to the spawner has ended; what was asked may or may not have happened. No user sees it."""


def read_message(line: bytes) -> m.Message:
    """Raises ProtocolError for what this version does not understand."""
    try:
        return m.decode(line)
    except m.BadMessage as error:
        raise ProtocolError(f"the spawner sent what this version does not understand: {error}") from None


def unexpected(message: m.Message) -> ProtocolError:
    """The error to raise for a message that answers nothing."""
    return ProtocolError(f"the spawner answered with an unexpected {type(message).__name__}")


def error_of(reply: m.Failed) -> GpulayerError:
    """The error to raise for a request that the spawner refused."""
    match reply.code:
        case "protocol":
            return ProtocolError(
                reply.message,
                hint="let its jobs end, or end it, then start the worker again; or use the former version",
            )
        case "bad_request":
            return BadRequest(reply.message)
        case "not_found":
            return NotFound(reply.message)
        case "busy":
            return Conflict(reply.message)
        case "forbidden":
            return Forbidden(reply.message)
        case _:
            return InternalError(f"spawner: {reply.message}")
