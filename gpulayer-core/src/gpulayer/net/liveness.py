"""What makes the kernel notice that the other end of a connection is gone, where nothing arrives to say so. Pure.

A machine that was suspended, moved to another network or unplugged closes nothing; without these a read would wait
for hours. The same for clients and workers: the end comes before a held request's own, so a dead connection is noticed
there. Linux: tcp(7).
"""

import socket
from typing import Final

__all__ = ["GONE_AFTER_S", "socket_options"]

GONE_AFTER_S: Final = 20  # of silence to probes, or to what was sent
_IDLE_S: Final = 10  # also often enough for a NAT to keep the connection in its table
_INTERVAL_S: Final = 5
_PROBES: Final = 2

_OPTIONS: Final = (
    ("TCP_KEEPIDLE", _IDLE_S),
    ("TCP_KEEPALIVE", _IDLE_S),  # macOS names it so
    ("TCP_KEEPINTVL", _INTERVAL_S),
    ("TCP_KEEPCNT", _PROBES),
    ("TCP_USER_TIMEOUT", GONE_AFTER_S * 1000),
)


def socket_options() -> tuple[tuple[int, int, int], ...]:
    """(level, option, value) of a TCP socket, as far as this platform has them."""
    known = [(getattr(socket, name, None), value) for name, value in _OPTIONS]
    return (
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        *((socket.IPPROTO_TCP, option, value) for option, value in known if option is not None),
    )
