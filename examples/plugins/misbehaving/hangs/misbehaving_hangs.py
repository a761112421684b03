"""Wrong: the import waits for a server that never answers, without a time-out. So would its command.

Right: nothing is waited for while importing, and never without a deadline.
"""

import socket

GPULAYER_API = "1.0"

HERE, THERE = socket.socketpair()
PRICES = HERE.recv(1)
