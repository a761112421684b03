"""A line with a delay between two network namespaces: ``delay_link.py MS NAMESPACE DEVICE NAMESPACE DEVICE``.

One TUN device in each; what is read from one is written to the other that much later. Says "up" once both are there,
and ends with whoever started it.
"""

import ctypes
import fcntl
import os
import select
import signal
import struct
import sys
import time
from collections import deque

_TUNSETIFF = 0x400454CA
_TUN_WITHOUT_HEADER = 0x0001 | 0x1000
_CLONE_NEWNET = 0x40000000
_PR_SET_PDEATHSIG = 1
_LONGEST = 4096  # packets on the line; more are lost, as on a real one

libc = ctypes.CDLL(None, use_errno=True)


def tun(namespace: str, device: str) -> int:
    """Open one there. The device lives as long as the descriptor."""
    here = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    assert libc.setns(there, _CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", device.encode(), _TUN_WITHOUT_HEADER))
    assert libc.setns(here, _CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
    os.close(here)
    os.close(there)
    return descriptor


def relay(one: int, other: int, delay_s: float) -> None:
    """Carry packets for ever. The delay is the same for all, so each direction is a queue."""
    ways = {one: other, other: one}
    lines: dict[int, deque[tuple[float, bytes]]] = {one: deque(), other: deque()}
    while True:
        due = min((line[0][0] for line in lines.values() if line), default=None)
        wait_s = None if due is None else max(0.0, due - time.monotonic())
        for readable in select.select([one, other], [], [], wait_s)[0]:
            line = lines[readable]
            try:
                while packet := os.read(readable, 65536):
                    if len(line) < _LONGEST:
                        line.append((time.monotonic() + delay_s, packet))
            except BlockingIOError:
                pass
        now = time.monotonic()
        for start, line in lines.items():
            while line and line[0][0] <= now:
                try:
                    os.write(ways[start], line.popleft()[1])
                except OSError:
                    pass  # the device is down, or its queue is full: the packet is lost


def main() -> int:
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    delay_ms, one, device, other, other_device = sys.argv[1:]
    ends = tun(one, device), tun(other, other_device)
    print("up", flush=True)
    relay(*ends, float(delay_ms) / 1000)
    return 0


if __name__ == "__main__":
    sys.exit(main())
