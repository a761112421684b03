"""What an answer, or the lack of one, means: shared by both shells, so that they can't drift. Pure.

The one table in which failures of the network and of HTTP enter the project's tree of errors.
"""

import http.client
import json
import ssl
from collections.abc import Mapping
from typing import Any, Final

from gpulayer.client.calls import Call
from gpulayer.client.forms import FORMS, Fields, misfit
from gpulayer.errors import GpulayerError, ProtocolError, Unreachable
from gpulayer.net import Address
from gpulayer.protocol.retry import Backoff, Failure, FailureKind, Repeatable

__all__ = [
    "BACKOFF",
    "CHUNK",
    "NO_HTTP",
    "Failed",
    "check_length",
    "error_from_answer",
    "parse_json",
    "plain_reason",
    "raise_for_answer",
    "repeatable",
    "request_headers",
    "too_large",
    "unreachable",
    "whole_number",
]

CHUNK: Final = 256 * 1024
_DIGITS: Final = 18  # more are no number of bytes or seconds that anybody means
NO_HTTP: Final = "what listens there does not speak HTTP; is it https://?"
# Quicker than an agent's: somebody waits for the answer.
BACKOFF: Final = Backoff(base_ms=100, cap_ms=2_000)


def request_headers(call: Call[object], *, address: Address, token: str, client: str) -> dict[str, str]:
    """Without a length: that is the shell's. The key of a call goes with every try of it."""
    # The host is ours to say: an HTTP library would send the zone of an IPv6 address with it.
    headers = {"Host": address.netloc, "Authorization": f"Bearer {token}"}
    # Not compressed: what is small on the wire could be without measure here.
    headers |= {"User-Agent": client, "Accept": "application/json", "Accept-Encoding": "identity"}
    if call.content_type:
        headers["Content-Type"] = call.content_type
    if call.key:
        headers["Idempotency-Key"] = call.key
    return headers


def repeatable(call: Call[object]) -> Repeatable:
    """How a try of this call that perhaps arrived is to be treated."""
    if call.endpoint.is_keyed and not call.key:
        return Repeatable.ONCE
    return call.endpoint.repeat


class Failed(Exception):
    """One failed try, inside the shells: what the retry policy looks at, and the error to raise when it gives up.

    is_late: nothing came for as long as an answer may take, so that all that time has been one of trying.
    """

    def __init__(self, failure: Failure, error: GpulayerError, *, is_late: bool = False) -> None:
        super().__init__(str(error))
        self.failure, self.error, self.is_late = failure, error, is_late


def raise_for_answer(call: Call[object], status: int, body: bytes, headers: Mapping[str, str]) -> None:
    """Raise what an unexpected answer stands for. ``headers``: looked up in lower case."""
    after_s = whole_number(headers.get("retry-after", "").strip())
    failure = Failure(FailureKind.ANSWERED, status, None if after_s is None else after_s * 1000)
    raise Failed(failure, error_from_answer(call, status, body, location=headers.get("location", "")))


def error_from_answer(call: Call[object], status: int, body: bytes, *, location: str = "") -> GpulayerError:
    """The error an unexpected status stands for; an answer that is not the envelope is quoted. location: where it
    points; nobody goes there, because the token is for this address alone."""
    if 300 <= status < 400:
        return ProtocolError(
            f"{call.endpoint.method} {call.target} was answered {status}, which points to "
            f"{location[:200] or 'nowhere'}: not followed, and no token was sent there",
            hint="if that is the control plane's address, name it: gpulayer context add NAME URL, or GPULAYER_URL",
            details={"location": location[:200]},
        )
    from gpulayer.wire.errors import error_from_envelope  # noqa: PLC0415 - only where something failed

    try:
        found = error_from_envelope(json.loads(body))
    except (ValueError, RecursionError):
        found = None
    if found is not None:
        return found
    said = body[:200].decode("utf-8", "replace").strip() or "nothing"
    return ProtocolError(
        f"{call.endpoint.method} {call.target} was answered {status} by something that is no control plane: {said}",
        hint="check the address; gpulayer status shows which one is used",
    )


def parse_json(call: Call[object], body: bytes) -> Any:  # Any: the reply's schema is stated by the call
    """None for an empty body where no reply is due. Raises ProtocolError where it is not JSON of the reply's form; a
    field that is missing raises it when it is asked for."""
    reply = call.endpoint.reply
    if not body and not reply:
        return None
    try:
        found = json.loads(body, object_hook=Fields)
    except (ValueError, RecursionError):
        raise _not_understood(call, "something that is not JSON") from None
    why = misfit(found, reply) if reply in FORMS else None
    if why is not None:
        raise _not_understood(call, f"JSON that is not the reply it stands for: {why}")
    return found


def check_length(call: Call[object], length: str) -> None:
    """length: the answer's Content-Length; empty for none. Raises ProtocolError for what is no length."""
    if length and whole_number(length) is None:
        raise _not_understood(call, f"{length[:40]!r} for its length")


def too_large(call: Call[object], limit: int) -> ProtocolError:
    """The error for an answer that was to be read as a whole."""
    return _not_understood(call, f"more than {limit:,} bytes")


def _not_understood(call: Call[object], what: str) -> ProtocolError:
    return ProtocolError(
        f"{call.endpoint.method} {call.target} was answered with {what}",
        hint="use a client and a control plane of the same minor series; gpulayer doctor looks at what answers there",
    )


def unreachable(url: str, why: BaseException | str) -> Unreachable:
    """The error for a try that got no answer; ``why`` is told as it is, or by its type where it has no text."""
    return Unreachable(
        f"no control plane answers at {url}: {why or type(why).__name__}",
        hint="`gpulayer doctor` shows which step fails; where it has moved: gpulayer context add NAME NEW-URL",
        details={"url": url},
    )


def whole_number(text: str) -> int | None:
    """Of a header; None for anything else. ASCII: other scripts have digits, too, and int() takes signs and spaces."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else None


def plain_reason(error: BaseException) -> str:
    """What a failure of the sync shell's sockets says to people."""
    match error:
        case ConnectionRefusedError():
            return "connection refused"
        case TimeoutError():
            return "no answer in time"
        case http.client.RemoteDisconnected() | ConnectionResetError() | BrokenPipeError():
            return "the connection was closed before the answer"
        case http.client.IncompleteRead():
            return "the connection was closed before the end"
        case http.client.BadStatusLine() | http.client.LineTooLong():
            return NO_HTTP
        case ssl.SSLEOFError() | ssl.SSLZeroReturnError():
            return "the connection was closed before the answer"
        case ssl.SSLError(reason=str(reason)):
            return _no_tls(reason)
        case OSError(strerror=str(text)):
            return text
        case _:
            return str(error) or type(error).__name__


def _no_tls(reason: str) -> str:
    """``reason``: OpenSSL's."""
    if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"):
        return "what listens there does not speak TLS"
    return f"TLS failed: {reason.lower().replace('_', ' ')}"
