"""How a program is started that dies with the process that starts it, however that ends: Linux itself sees to it.

A small start in this Python asks for that and becomes the program, as nothing of ours may run between fork and exec of
a process with threads: 15 ms. The death is that of the thread that starts it, which has to live as long. Elsewhere the
program is started as it stands.
"""

import os
import sys
from collections.abc import Mapping
from typing import Final

__all__ = ["dying_with_us", "started_error"]

# LC_CTYPE is this Python's own idea (PEP 538).
_START: Final = """
import ctypes, fcntl, os, signal, sys
parent, pipe, locale, *command = sys.argv[1:]
fcntl.fcntl(int(pipe), fcntl.F_SETFD, fcntl.FD_CLOEXEC)
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
if os.getppid() != int(parent):
    os._exit(1)
for number in (signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(number, signal.SIG_DFL)
os.environ.pop("LC_CTYPE", None)
if locale:
    os.environ["LC_CTYPE"] = locale[1:]
try:
    os.execvpe(command[0], command, os.environ)
except OSError as error:
    os.write(int(pipe), str(error.errno).encode())
    os._exit(127)
"""


def dying_with_us(environment: Mapping[str, str], *, failed: int) -> list[str]:
    """What comes before the command; nothing elsewhere than on Linux. environment: the program's. failed: the end of a
    pipe to write to, for ``started_error``; to be handed on by its number where anything comes before the command."""
    if sys.platform != "linux" or not sys.executable:
        return []
    locale = f"={environment['LC_CTYPE']}" if "LC_CTYPE" in environment else ""
    return [sys.executable, "-I", "-S", "-c", _START, str(os.getpid()), str(failed), locale]


def started_error(failing: int) -> OSError | None:
    """Why the program could not be run; None where it could. failing: the other end of that pipe, whose writing end is
    closed here. To be asked once the program has ended: earlier it waits until it runs."""
    said = os.read(failing, 16)
    return OSError(int(said), os.strerror(int(said))) if said else None
