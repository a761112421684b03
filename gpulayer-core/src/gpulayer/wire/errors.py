"""The one error envelope of every route."""

from typing import Any

from typing_extensions import TypedDict

from gpulayer.errors import GpulayerError, error_from_code

__all__ = ["ErrorBody", "ErrorEnvelope", "envelope", "error_from_envelope"]


class ErrorBody(TypedDict):
    """``code`` is for scripts and stable; ``message`` and ``hint`` are for people and may change."""

    code: str
    message: str
    hint: str
    blame: str
    details: dict[str, Any]  # Any: each code documents its own JSON fields


class ErrorEnvelope(TypedDict):
    """The body of every answer with a status of 400 or above."""

    error: ErrorBody


def envelope(error: GpulayerError) -> ErrorEnvelope:
    """``details`` must be JSON already; they are handed on as they are."""
    return {
        "error": {
            "code": error.code,
            "message": error.message,
            "hint": error.hint,
            "blame": str(error.blame),
            "details": error.details,
        }
    }


def error_from_envelope(document: object) -> GpulayerError | None:
    """The error an answer's body describes, or None where it is no envelope."""
    match document:
        case {"error": {"code": str(code), "message": str(message), **rest}}:
            hint, details = rest.get("hint"), rest.get("details")
            return error_from_code(
                code,
                message,
                hint=hint if isinstance(hint, str) else "",
                details=details if isinstance(details, dict) else None,
            )
        case _:
            return None
