"""Named points in the product's code at which a test makes it die, stop or fail. Off unless armed; stdlib only.

``here("agent.before_report")`` stands where a crash would matter and costs one look at a global until ``arm`` was
called, which only a process's entry point does (``cli`` reads ``GPULAYER_FAULTS``; the spawner gets it in its command
line). ``POINTS`` is the one table of them: what has happened there, and what has not. The kill tests go through the
table, so a point that is added is a point that is tested.

What is armed is the one piece of state that this module has: handing it to every place that might die would change
the signatures of half the program for the sake of its tests.
"""

import errno
import itertools
import os
import signal
from collections.abc import Iterator, Mapping
from typing import Final

__all__ = ["ACTIONS", "POINTS", "VARIABLE", "arm", "here", "rest_of"]

VARIABLE: Final = "GPULAYER_FAULTS"
"""Its value is as of ``arm``. Read by ``cli`` alone."""

ACTIONS: Final = ("kill", "stop", "enospc", "eio")

POINTS: Final[Mapping[str, str]] = {
    # The control plane.
    "plane.after_lock": "it holds the state folder and listens; nothing is loaded, the former endpoint file is there",
    "plane.before_endpoint": "its state is loaded and its own tokens are durable; nobody can find it yet",
    "plane.after_enrol": "a worker's enrolment is durable; the worker has not heard its id",
    "plane.in_transaction": "the rows of a batch are written, and not committed",
    "plane.before_commit": "a batch is stepped in memory; nothing of it is on disk",
    "plane.after_commit": "a batch is durable; no mailbox has a command of it, nobody is answered",
    "plane.before_reply": "a batch is durable and in the mailboxes; nobody is answered",
    "plane.before_commands": "commands were taken from the mailbox for an answer that is not sent",
    "plane.before_log_piece": "a piece of a log has come; nothing of it is written",
    "plane.after_log_piece": "a piece of a log is written; the worker is not answered",
    "plane.before_outputs": "all of an output tree is here; it is not checked",
    "plane.after_outputs": "an output tree is accepted; the worker is not answered",
    "blobs.before_rename": "a blob is whole and synced under a temporary name",
    "blobs.after_rename": "a blob has its name; the folder is not synced, nobody is answered",
    "sinks.after_telling": "a sink has taken an event; that it has is not written down",
    # The worker agent.
    "agent.before_recovery": "it is attached to its spawner; it has not looked at what an earlier agent left",
    "agent.in_admission": "an assignment is written down, but not that it is being staged: half a folder",
    "agent.after_admission": "an assignment is written down whole; nothing is done for it",
    "agent.before_baseline": "the source lies in the work folder; what lay there before the program is not kept",
    "agent.before_journal": "a node's next phase is decided; it is not written down",
    "agent.after_journal": "a node's next phase is written down; nothing that follows from it is done",
    "agent.before_spawn": "the spawner is about to be asked to start a program",
    "agent.after_spawn": "the spawner has started a program; the agent has not taken that in",
    "agent.after_exit": "the spawner has told a program's end; the agent has not taken that in",
    "agent.before_report": "a report is made; it is not sent",
    "agent.after_report": "a report is answered; the agent has not taken the answer in",
    "agent.before_log_piece": "a piece of a log is read from the spool; it is not sent",
    "agent.after_log_piece": "a piece of a log is acknowledged; the agent has not taken that in",
    "agent.before_outputs": "the outputs are found; nothing of them is sent",
    "agent.in_outputs": "one parcel of outputs has been sent",
    "agent.before_acceptance": "all outputs are sent; the control plane is not asked to accept them",
    "agent.after_acceptance": "the outputs are accepted; the agent has not taken that in",
    "agent.before_forget": "the control plane has acknowledged an end; spawner and folder still know the node",
    "agent.before_delete": "the spawner has forgotten the node; its folder is there",
    "agent.in_delete": "the folder of a node is out of the way, under another name; it is not deleted",
    # The spawner.
    "spawner.before_entry": "an order has come; nothing of it is in the table",
    "spawner.after_entry": "a program is in the table; it does not run",
    "spawner.after_launch": "a program runs; its process id is not in the table",
    "spawner.after_pid": "a program runs and is in the table; the agent is not told",
    "spawner.in_output": "some output has gone from the pipe into the spool; the agent is not told",
    "spawner.after_exit": "a program has ended; what it left running has not, and nothing is reaped",
    "spawner.before_record": "a tree is dead and its output drained; no exit record is there",
    "spawner.in_record": "an exit record is written under a temporary name",
    "spawner.after_record": "an exit record is there; the agent is not told",
    "spawner.before_removal": "the agent wants an ended program forgotten; it is in the table",
    "spawner.after_removal": "an ended program is out of the table; the agent is not answered",
    # The watchdog.
    "watchdog.before_spawner": "it holds the folder; there is no spawner yet",
    "watchdog.before_cleaning": "its spawner has died; nothing is reaped or ended",
    "watchdog.in_cleaning": "the trees of a dead spawner are ended; what became of them is not written down",
    "watchdog.after_cleaning": "what became of every program is written down; the socket of the dead spawner is there",
    # A command that somebody waits for.
    "client.before_submit": "the source is shipped; the job is not submitted",
    "client.after_send": "a request has left; its answer is not read",
    "client.after_submit": "the job is durable and its record is here; nothing of it was said",
    "client.following": "a piece of the job's output is written out",
    "client.before_home": "the job has ended; none of its files has come home",
    "client.in_home": "a file that comes home is whole under a temporary name",
    "client.after_home": "all files are home; how the job ended is not said",
}


class _Fault:
    """One armed point: ``action`` at its ``count``-th reach, once."""

    __slots__ = ("action", "count", "reached")

    def __init__(self, action: str, count: int) -> None:
        self.action = action
        self.count = count
        self.reached: Iterator[int] = itertools.count(1)  # next() of it is one step for threads, too


_armed: dict[str, list[_Fault]] | None = None


def here(name: str) -> None:
    """Do what is armed for this point. Raises OSError for ``enospc`` and ``eio``; ``kill`` does not return."""
    if _armed is not None:
        _reach(_armed, name)


def arm(text: str) -> None:
    """Arm points for the rest of this process's life: ``name[:count][:action]``, several with commas between.

    count: fires at that reach of the point (default: the first), and only then. action: ``kill`` (the default, SIGKILL
    to itself), ``stop`` (SIGSTOP), ``enospc``, ``eio``. What stands behind a semicolon is for the process that comes
    after this one, if whoever starts it hands it on (``rest_of``). Nothing is armed by an empty text. Raises
    ValueError for a name that is not in ``POINTS``, and for what is no count or action.
    """
    global _armed  # noqa: PLW0603 - see the module
    armed: dict[str, list[_Fault]] = {}
    for word in text.partition(";")[0].split(","):
        if not word.strip():
            continue
        name, *rest = word.strip().split(":")
        if name not in POINTS:
            raise ValueError(f"{VARIABLE}: there is no fault point {name!r}")
        count = int(rest.pop(0)) if rest and rest[0].isdigit() else 1
        action = rest.pop(0) if rest else "kill"
        if action not in ACTIONS or rest or count < 1:
            raise ValueError(f"{VARIABLE}: {word.strip()!r} is not name[:count][:{'|'.join(ACTIONS)}]")
        armed.setdefault(name, []).append(_Fault(action, count))
    _armed = armed or None


def rest_of(text: str) -> str:
    """What is left of a text of ``arm`` for the lives after this one."""
    return text.partition(";")[2]


def _reach(armed: dict[str, list[_Fault]], name: str) -> None:
    for fault in armed.get(name, ()):
        if next(fault.reached) != fault.count:
            continue
        # Straight to the descriptor: what is buffered dies with this process, and this line must not.
        os.write(2, f"fault point {name}: {fault.action}\n".encode())
        match fault.action:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
                signal.pause()  # in a thread the signal may arrive a little later; nothing goes on until it does
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "enospc":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), f"fault point {name}")
            case _:
                raise OSError(errno.EIO, os.strerror(errno.EIO), f"fault point {name}")
