"""What makes the kernel notice that the other end of a connection is gone, where nothing arrives to say so.

A machine that was suspended, moved to another network or unplugged closes nothing; without these a read would wait
for hours. The same for clients, workers and the control plane: the end comes before a held request's own, so a dead
connection is noticed there. Linux: tcp(7).
"""

import socket
import struct
from typing import Final, Protocol

__all__ = ["GONE_AFTER_S", "bytes_taken", "socket_options"]

GONE_AFTER_S: Final = 20  # of silence to probes, or to what was sent
_IDLE_S: Final = 10  # also often enough for a NAT to keep the connection in its table
_INTERVAL_S: Final = 5
_PROBES: Final = 2

_BYTES_ACKED: Final = 120  # where tcpi_bytes_acked is in struct tcp_info of linux/tcp.h, since Linux 4.1

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


class _Socket(Protocol):
    """A socket, or what asyncio shows of one."""

    def getsockopt(self, level: int, optname: int, buflen: int, /) -> bytes: ...


def bytes_taken(connection: _Socket) -> int | None:
    """How many bytes of what was sent the other end has acknowledged since the connection was made; None where the
    platform does not tell. Between two looks at a reader, however slow its line, this moves; the size of what waits
    to be sent need not, because the kernel makes room for megabytes at a time."""
    option = getattr(socket, "TCP_INFO", None)
    if option is None:
        return None
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, option, _BYTES_ACKED + 8)
    except OSError:  # no TCP, or closed
        return None
    return int(struct.unpack_from("=Q", info, _BYTES_ACKED)[0]) if len(info) >= _BYTES_ACKED + 8 else None
