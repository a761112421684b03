"""How one end of a connection finds and trusts the other: addresses, and pins that are checked inside the handshake.

Shared by clients and workers, so that neither trusts a server that the other would refuse. Opens no connection itself.
"""

from gpulayer.net.address import Address, parse_proxy, parse_url, parse_urls
from gpulayer.net.liveness import GONE_AFTER_S, bytes_taken, socket_options
from gpulayer.net.trust import Pin, parse_pins, pin_of, tls_context, trust_failure
from gpulayer.net.tunnel import HEAD_LIMIT, connect_request, head_is_whole, tunnel_refusal

__all__ = [
    "GONE_AFTER_S",
    "HEAD_LIMIT",
    "Address",
    "Pin",
    "bytes_taken",
    "connect_request",
    "head_is_whole",
    "parse_pins",
    "parse_proxy",
    "parse_url",
    "parse_urls",
    "pin_of",
    "socket_options",
    "tls_context",
    "trust_failure",
    "tunnel_refusal",
]
