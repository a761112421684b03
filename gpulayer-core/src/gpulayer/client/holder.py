"""Who has a state folder now: what the lock says that goes with its process, however that ends.

Files beside the lock may be left of a process that is long gone, and name a PID and a port that others have by now.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["ENDPOINT_FILE", "FORMER_FILE", "LOCK_FILE", "RESTORED_FILE", "Holder", "folder_holder", "is_restored"]

ENDPOINT_FILE: Final = "endpoint.json"
FORMER_FILE: Final = "endpoint.json.former"  # of a plane that was killed, from the next start until that serves
LOCK_FILE: Final = "plane.lock"
RESTORED_FILE: Final = "restored"


@dataclass(frozen=True, slots=True)
class Holder:
    """pid: None where it can't be told. doing: of one that is no control plane, what it is at (``gpulayer backup``)."""

    pid: int | None
    doing: str = ""


def is_restored(state_dir: Path) -> bool:
    """Whether it was restored from a backup, and no control plane has served it since. The former one may run still,
    with the same identity, so that nobody is to start this one without meaning to."""
    return (state_dir / RESTORED_FILE).exists()


def folder_holder(state_dir: Path) -> Holder | None:
    """None where nobody has it. Takes the lock for an instant where it is free, shared, so that those who look do not
    hinder each other; whoever wants it for itself tries more than once."""
    try:
        import fcntl  # noqa: PLC0415 - not there on Windows, where no control plane runs
    except ImportError:
        return Holder(None)
    try:
        descriptor = os.open(state_dir / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return Holder(None)  # another's, perhaps: that does not make it free
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        said, _, doing = os.read(descriptor, 64).decode("ascii", "replace").strip().partition(" ")
        return Holder(int(said) if said.isdecimal() and int(said) > 1 else None, doing)
    except OSError:
        return Holder(None)  # a file system without locks
    finally:
        os.close(descriptor)
    return None
