"""The one tree of errors that GPUlayer raises on purpose.

Each error has a stable ``code`` (machines match on it), a ``message`` (what happened, with the values),
a ``hint`` (what to do next) and a ``blame``. Blame alone decides whether an attempt runs again, and with
``code`` it decides the CLI's exit status. Only ``cli/`` prints errors; only ``server/`` maps them to HTTP.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar

__all__ = [
    "BadRequest",
    "Blame",
    "Conflict",
    "DigestMismatch",
    "DiskFull",
    "Forbidden",
    "GpulayerError",
    "IdempotencyMismatch",
    "InternalError",
    "JobEnded",
    "JobRefused",
    "NoWorkerFits",
    "NotFound",
    "NotSupported",
    "Overloaded",
    "PluginFault",
    "PluginResting",
    "ProtocolError",
    "StaleAttempt",
    "StorageUnavailable",
    "TimedOut",
    "TooLarge",
    "TooSlow",
    "Unauthenticated",
    "Unreachable",
    "UntrustedServer",
    "UsageError",
    "VersionMismatch",
    "error_from_code",
]


class Blame(StrEnum):
    """Whose turn it is to change something."""

    USER = "user"
    CAPACITY = "capacity"
    INFRASTRUCTURE = "infrastructure"
    PLUGIN = "plugin"
    BUG = "bug"


class GpulayerError(Exception):
    """Base of every error raised on purpose; catch this one to catch them all."""

    code: ClassVar[str] = "error"
    blame: ClassVar[Blame] = Blame.BUG

    def __init__(self, message: str, *, hint: str = "", details: Mapping[str, Any] | None = None) -> None:
        # details: Any, because each code documents its own JSON-compatible fields.
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details: dict[str, Any] = dict(details or {})

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.hint, self.details))


class UsageError(GpulayerError):
    """A flag, argument or local path is wrong; nothing was sent."""

    code = "usage"
    blame = Blame.USER


class BadRequest(GpulayerError):
    """The control plane can't read or accept what was sent (400)."""

    code = "bad_request"
    blame = Blame.USER


class NotSupported(GpulayerError):
    """The request needs a capability that this version does not have; it is never silently ignored (400)."""

    code = "not_supported"
    blame = Blame.USER


class Unauthenticated(GpulayerError):
    """No token, or one that is unknown, expired or of the wrong kind (401)."""

    code = "unauthenticated"
    blame = Blame.USER


class Forbidden(GpulayerError):
    """The token is good, but may not do this (403)."""

    code = "forbidden"
    blame = Blame.USER


class NotFound(GpulayerError):
    """No such job, worker, blob or route (404)."""

    code = "not_found"
    blame = Blame.USER


class Conflict(GpulayerError):
    """The state of things does not allow it: a name is taken, a job has ended (409)."""

    code = "conflict"
    blame = Blame.USER


class StaleAttempt(GpulayerError):
    """The attempt that writes is not the current one; what it sends is dropped (409)."""

    code = "stale_attempt"
    blame = Blame.INFRASTRUCTURE


class TooLarge(GpulayerError):
    """A body, source, manifest or batch is over its limit; the message names limit and size (413)."""

    code = "too_large"
    blame = Blame.USER


class TooSlow(GpulayerError):
    """The caller took too long to send its request (408)."""

    code = "too_slow"
    blame = Blame.INFRASTRUCTURE


class IdempotencyMismatch(GpulayerError):
    """An idempotency key was used again with another body (422)."""

    code = "idempotency_mismatch"
    blame = Blame.USER


class DigestMismatch(GpulayerError):
    """Content does not have the digest it was sent under (422)."""

    code = "digest_mismatch"
    blame = Blame.INFRASTRUCTURE


class StorageUnavailable(GpulayerError):
    """The control plane can't write durably now; it is read-only until a probe write succeeds (503)."""

    code = "storage_unavailable"
    blame = Blame.INFRASTRUCTURE


class Overloaded(GpulayerError):
    """The control plane has more to do than it can, and took nothing of this request: the same may come again after
    ``details["retry_after_s"]`` (503)."""

    code = "overloaded"
    blame = Blame.INFRASTRUCTURE


class DiskFull(GpulayerError):
    """A disk has no room for what must be written (507)."""

    code = "disk_full"
    blame = Blame.INFRASTRUCTURE


class InternalError(GpulayerError):
    """A fault of GPUlayer's own (500); the message carries a reference found in the server's log."""

    code = "internal"
    blame = Blame.BUG


class Unreachable(GpulayerError):
    """No control plane answered within the deadline."""

    code = "unreachable"
    blame = Blame.INFRASTRUCTURE


class UntrustedServer(GpulayerError):
    """The server that answers does not hold the pinned or a vouched-for certificate; nothing was sent to it."""

    code = "untrusted_server"
    blame = Blame.USER


class VersionMismatch(GpulayerError):
    """The caller's program is of another minor series than the control plane (400)."""

    code = "version_mismatch"
    blame = Blame.USER


class ProtocolError(GpulayerError):
    """The other side answered something this version does not understand."""

    code = "protocol"
    blame = Blame.INFRASTRUCTURE


class TimedOut(GpulayerError):
    """A wait reached its deadline; what was waited for goes on."""

    code = "timed_out"
    blame = Blame.INFRASTRUCTURE


class NoWorkerFits(GpulayerError):
    """No worker can run the request; ``details["verdicts"]`` has one verdict a worker."""

    code = "no_worker_fits"
    blame = Blame.CAPACITY


class PluginFault(GpulayerError):
    """A plugin raised, took too long, gave something of the wrong type, or was not asked because of earlier faults.
    ``details["plugin"]`` and ``details["hook"]`` name it; everything else works on."""

    code = "plugin_fault"
    blame = Blame.PLUGIN


class PluginResting(PluginFault):
    """A plugin was not asked at all, so nothing of it has begun: it rests after failures, or was not free in time. That
    says nothing of what it was to be asked; the same may well work later: not within ``details["rest_ms"]``."""


class JobRefused(GpulayerError):
    """A job check of a plugin refused the job; ``details["problems"]`` has what each check said."""

    code = "job_refused"
    blame = Blame.USER


class JobEnded(GpulayerError):
    """A job did not succeed; ``details["job"]`` is its record."""

    code = "job_ended"
    blame = Blame.USER


def error_from_code(
    code: str, message: str, *, hint: str = "", details: Mapping[str, Any] | None = None
) -> GpulayerError:
    """Rebuild the error that an envelope describes; an unknown code becomes a ``ProtocolError`` that names it."""
    for kind in GpulayerError.__subclasses__():
        if kind.code == code:
            return kind(message, hint=hint, details=details)
    return ProtocolError(f"{code}: {message}", hint=hint, details=details)


def _rebuild(kind: type[GpulayerError], message: str, hint: str, details: dict[str, Any]) -> GpulayerError:
    return kind(message, hint=hint, details=details)
