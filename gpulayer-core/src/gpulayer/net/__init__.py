"""How one end of a connection finds and trusts the other: addresses, and pins that are checked inside the handshake.

Shared by clients and workers, so that neither trusts a server that the other would refuse. Opens no connection itself.
"""

from gpulayer.net.address import Address, parse_proxy, parse_url, parse_urls
from gpulayer.net.trust import Pin, parse_pins, pin_of, tls_context, trust_failure

__all__ = [
    "Address",
    "Pin",
    "parse_pins",
    "parse_proxy",
    "parse_url",
    "parse_urls",
    "pin_of",
    "tls_context",
    "trust_failure",
]
