"""A tunnel through an HTTP proxy (CONNECT): what is sent to it, and what its answer means. Pure.

Form: RFC 9110, section 9.3.6. TLS begins inside the tunnel, so a proxy sees an address and no more.
"""

import re
from typing import Final

from gpulayer.net.address import Address

__all__ = ["HEAD_LIMIT", "connect_request", "head_is_whole", "tunnel_refusal"]

HEAD_LIMIT: Final = 16 * 1024  # of an answer's head; a longer one is none

_STATUS: Final = re.compile(rb"HTTP/1\.[01] (\d{3})(?: ([^\r\n]*))?\r?\n")
_END: Final = re.compile(rb"\r?\n\r?\n")


def connect_request(address: Address) -> bytes:
    """Asks for a tunnel to ``address``."""
    host = address.host if address.host.isascii() else address.host.encode("idna").decode()
    netloc = Address(host, address.port).netloc
    return f"CONNECT {netloc} HTTP/1.1\r\nHost: {netloc}\r\n\r\n".encode()


def head_is_whole(received: bytes) -> bool:
    """Whether the answer's head has come, or will never."""
    is_http = received[:5] == b"HTTP/"[: len(received)]
    return not is_http or _END.search(received) is not None or len(received) >= HEAD_LIMIT


def tunnel_refusal(received: bytes, *, proxy: Address, address: Address) -> str | None:
    """Why there is no tunnel, for people; None where it stands. received: all that the proxy sent."""
    status, end = _STATUS.match(received), _END.search(received)
    if status is None or end is None:
        said = received[:60].decode("ascii", "replace")
        return f"the proxy {proxy} answered with something that is no HTTP: {said!r}" if said else _closed(proxy)
    code, reason = int(status[1]), (status[2] or b"")[:80].decode("ascii", "replace").strip()
    match code:
        case 407:
            return f"the proxy {proxy} wants a name and a password (407), which GPUlayer does not give"
        case _ if not 200 <= code < 300:
            return f"the proxy {proxy} opens no tunnel to {address.netloc}: it answered {code} {reason}".rstrip()
        case _ if end.end() != len(received):
            return f"the proxy {proxy} answered {code} and went on with something that is no tunnel"
        case _:
            return None


def _closed(proxy: Address) -> str:
    return f"the proxy {proxy} closed the connection without an answer"
