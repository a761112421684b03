"""The process floor: everything that runs on a worker is started, watched and ended here.

Two small processes, apart from the worker agent, so that the agent may stop, crash or be upgraded:

* the *spawner* (``loop``) starts jobs, owns their pipes, splices their output into spool files, reaps them,
  ends their trees and writes their exit records; it is single-threaded;
* the *watchdog* (``watchdog``) is its parent and sub-reaper: when the spawner dies it ends everything that was
  running, keeps the exit codes it reaps, and goes.

The agent talks to the spawner over a UNIX socket in a folder of the spawner's own (``messages``, ``state``);
``gpulayer.worker.spawner_link`` is its end. This package imports nothing but the standard library (and the fault
points, which are no more than that) and reads no environment variable: what a job gets is in its order, complete.
"""

import os
from collections.abc import Sequence
from typing import Final

__all__ = ["ALL_GROUPS", "ALREADY_RUNNING", "spawner_command"]

ALREADY_RUNNING: Final = 3
"""Exit code of a start that found a live spawner (or a watchdog still cleaning up) on the same folder."""


ALL_GROUPS: Final = ("cpu", "cpuset", "freezer", "memory", "pids", "unified")
"""The control groups that a spawner may use: controllers, version 1's freezer, and the hierarchy of version 2."""


def spawner_command(
    state_dir: str,
    *,
    python: str,
    groups: Sequence[str] = ALL_GROUPS,
    lock_folders: Sequence[str] = (),
    faults: str = "",
) -> list[str]:
    """The command line that starts watchdog and spawner on ``state_dir``.

    It returns at once: exit code 0 when the socket answers, ``ALREADY_RUNNING``, or 1 with the reason on stderr.
    What it starts is detached from the caller (own session), keeps the caller's stdout and stderr as its log,
    and lives on. ``python`` needs nothing but the standard library. groups: the control groups that it may use, where
    the host has them. lock_folders: where all spawners of the host lock devices; see ``locks``. faults: as of
    ``gpulayer.faults.arm``.
    """
    # Appended, not put first: a site-packages folder may hold old backports that shadow the standard library.
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    call = f"main({state_dir!r}, lock_folders={tuple(lock_folders)!r}, groups={tuple(groups)!r}, faults={faults!r})"
    program = f"import sys; sys.path.append({root!r}); from gpulayer.spawner.watchdog import main; {call}"
    return [python, "-I", "-S", "-X", "utf8", "-c", program]
