"""Which server is trusted: the one with a pinned certificate or, without a pin, one that a public CA vouches for.

A pin is the SHA-256 of the server's certificate (DER). It is checked inside the handshake, by the very object that
does it, so that no byte of a request, and so no token, can leave before. A pinned certificate needs no name and no
date that fits: the pin says all. Several pins may stand while a certificate is being replaced; a malformed pin is an
error, never "no pin".
"""

import hashlib
import re
import ssl
from collections.abc import Collection, Iterable
from typing import Any, Final, NewType

from gpulayer.errors import UntrustedServer, UsageError
from gpulayer.net.address import Address

__all__ = ["Pin", "parse_pins", "pin_of", "tls_context", "trust_failure"]

Pin = NewType("Pin", str)
"""``sha256:`` and 64 lower-case hex characters."""

_PIN: Final = re.compile(r"sha256:[0-9a-f]{64}")


class _PinMismatch(ssl.SSLCertVerificationError):
    """Carries what was shown."""

    shown: str = ""


def pin_of(certificate: bytes) -> Pin:
    """The pin of a certificate in DER."""
    return Pin(f"sha256:{hashlib.sha256(certificate).hexdigest()}")


def parse_pins(texts: Iterable[str]) -> tuple[Pin, ...]:
    """Each text may hold several, with commas or spaces between; case and colons within do not matter.

    Raises UsageError for anything that is no whole pin.
    """
    found: dict[Pin, None] = {}
    for text in texts:
        for word in text.replace(",", " ").split():
            kind, _, digest = word.lower().partition(":")
            pin = f"{kind}:{digest.replace(':', '')}"
            if not _PIN.fullmatch(pin):
                raise UsageError(
                    f"{word[:90]!r} is not a fingerprint",
                    hint="it is sha256: and 64 hex characters, as `gpulayer up` prints it",
                )
            found[Pin(pin)] = None
    return tuple(found)


def tls_context(pins: Collection[Pin]) -> ssl.SSLContext:
    """For connections that trust ``pins`` alone or, where there are none, what this machine's CAs vouch for."""
    if not pins:
        return ssl.create_default_context()
    wanted = frozenset(pins)

    class PinnedSocket(ssl.SSLSocket):
        def do_handshake(self, block: bool = False) -> None:
            super().do_handshake(block)
            _check(self.getpeercert(binary_form=True), wanted)

    class PinnedObject(ssl.SSLObject):
        def do_handshake(self) -> None:
            super().do_handshake()
            _check(self.getpeercert(binary_form=True), wanted)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the pin is the check, and a stricter one
    context.sslsocket_class = PinnedSocket
    context.sslobject_class = PinnedObject
    return context


def trust_failure(error: BaseException, address: Address) -> UntrustedServer | None:
    """What a failed handshake says about the server, for people; None where trust was not the trouble.

    error: also one that wraps it, as HTTP libraries do.
    """
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        match cause:
            case _PinMismatch():
                return UntrustedServer(
                    f"the server at {address} is not the pinned one: it shows {cause.shown or 'no certificate'}",
                    hint="somebody may be in the middle: nothing was sent. If the control plane has a new certificate, "
                    "take the fingerprint that `gpulayer up` prints on its own machine",
                    details={"shown": cause.shown},
                )
            case ssl.SSLCertVerificationError():
                return UntrustedServer(
                    f"the certificate of {address} is not trusted here: {_reason(cause)}",
                    hint="give the fingerprint that `gpulayer up` printed: with --fingerprint, or for commands by"
                    " GPULAYER_FINGERPRINT; where a CA of your own signed it, SSL_CERT_FILE names that",
                )
            case _:
                cause = cause.__cause__ or cause.__context__
    return None


def _check(shown: bytes | None, wanted: frozenset[Pin]) -> None:
    if shown is not None and pin_of(shown) in wanted:
        return
    error = _PinMismatch(1, "[PIN] the server's certificate is not the pinned one")
    error.shown = "" if shown is None else pin_of(shown)
    raise error


def _reason(error: Any) -> str:  # Any: the attribute is missing from the class's stub
    text: str = error.verify_message or str(error)
    if "expired" in text or "not yet valid" in text:
        return f"{text} (is this machine's clock right?)"
    return text
