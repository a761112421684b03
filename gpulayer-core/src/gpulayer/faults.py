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
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

__all__ = ["ACTIONS", "POINTS", "VARIABLE", "WRITES", "arm", "around", "here", "here_each", "rest_of"]

VARIABLE: Final = "GPULAYER_FAULTS"
"""Its value is as of ``arm``. Read by ``cli`` alone."""

ACTIONS: Final = ("kill", "stop", "enospc", "eio")

POINTS: Final[Mapping[str, str]] = {
    # The control plane.
    "plane.before_port": "the port is known, and kept for the next start: nothing of it is written",
    "plane.in_port": "the file of the port is whole under a temporary name",
    "plane.after_port": "the port is kept; the folder's former endpoint file is there",
    "plane.after_lock": "it holds the state folder and listens; nothing is loaded, the former endpoint file is there",
    "plane.before_certificate": "its certificate is made in memory; nothing of it is written",
    "plane.in_certificate": "the key of its certificate is written, the certificate is not; neither is in its place",
    "plane.before_certificate_name": "certificate and key are whole under a temporary name, and synced",
    "plane.after_certificate": "certificate and key have their name; nobody has been shown them",
    "plane.before_token": "its own worker is to join: nothing of its token is written",
    "plane.in_token": "the join token of its own worker is whole under a temporary name",
    "plane.after_token": "the join token of its own worker lies there; it opens nothing yet, and no worker runs",
    "plane.before_pepper": "nothing is written of the pepper of its tokens; no token was made",
    "plane.in_pepper": "the pepper of its tokens is whole and synced under a temporary name",
    "plane.after_pepper": "the pepper has its name; the folder is not synced, no token was made",
    "plane.before_key": "a first secret has come; nothing is written of the key that it is to be sealed with",
    "plane.in_key": "the key for secrets is whole and synced under a temporary name",
    "plane.after_key": "the key for secrets has its name; the folder is not synced, nothing is sealed with it",
    "plane.before_endpoint": "its state is loaded and its own tokens are durable; nobody can find it yet",
    "plane.in_endpoint": "the endpoint file is whole under a temporary name; nobody can find it yet",
    "plane.after_endpoint": "it can be found; it answers nobody yet",
    "plane.after_enrol": "a worker's enrolment is durable; the worker has not heard its id",
    "plane.in_transaction": "the rows of a batch are written, and not committed",
    "plane.in_store_sync": "a batch is handed to the disk, which is to say now that it is synced",
    "plane.in_sync": "a key, a blob, a log or a folder of it is written; it is to be synced now",
    "plane.before_commit": "a batch is stepped in memory; nothing of it is on disk",
    "plane.after_commit": "a batch is durable; no mailbox has a command of it, nobody is answered",
    "plane.before_reply": "a batch is durable and in the mailboxes; nobody is answered",
    "plane.before_commands": "commands were taken from the mailbox for an answer that is not sent",
    "plane.in_probe": "after a commit that failed a small write is made, and not committed",
    "plane.after_probe": "after a commit that failed the store can be written; its state is not loaded anew",
    "plane.before_log_piece": "a piece of a log has come; nothing of it is written",
    "plane.after_log_piece": "a piece of a log is written; the worker is not answered",
    "plane.before_log_end": "the last piece of a log is written; the log is not synced",
    "plane.after_log_end": "a log is whole and synced; the worker is not answered",
    "plane.before_log_mark": "a log lacks its end for good; it does not say so yet",
    "plane.after_log_mark": "a log says that it lacks its end, and is synced; the report that told so is not taken in",
    "plane.before_log_removal": "logs have had their time; nothing says that they are removed",
    "plane.in_log_removal": "the word is there that logs are removed; they are there as well",
    "plane.after_log_removal": "logs are gone, and the word is there; the sweep goes on",
    "plane.before_outputs": "all of an output tree is here; it is not checked",
    "plane.after_outputs": "an output tree is accepted; the worker is not answered",
    "blobs.before_write": "a blob has come, or begun to; its temporary file is empty",
    "blobs.in_stream": "some of a large blob is written under a temporary name",
    "blobs.before_sync": "blobs are written under temporary names; none is synced",
    "blobs.before_rename": "a blob is whole and synced under a temporary name",
    "blobs.after_rename": "a blob has its name; the folder is not synced, nobody is answered",
    "blobs.after_sync": "a blob has its name and its folder is synced; nobody is answered",
    "sinks.before_telling": "an event is read from the log; its sink is not told",
    "sinks.after_telling": "a sink has taken an event; that it has is not written down",
    # Its commits, by what they carry: whatever else is in the same transaction.
    "commit.in_submission": "rows of jobs are written, and not committed",
    "commit.after_submission": "jobs are durable; nobody is answered",
    "commit.in_key": "it is written what jobs an idempotency key stands for, and not committed",
    "commit.after_key": "it is durable what jobs an idempotency key stands for; nobody is answered",
    "commit.in_secret": "a job's sealed secrets are written, and not committed",
    "commit.after_secret": "a job and its sealed secrets are durable; nobody is answered",
    "commit.in_lease": "it is written that an attempt is lent, and not committed",
    "commit.after_lease": "it is durable that an attempt is lent; its worker does not know",
    "commit.in_report": "what a worker told is written, and not committed",
    "commit.after_report": "what a worker told is durable; nobody is answered",
    "commit.in_end": "a job's end is written, and not committed",
    "commit.after_end": "a job's end is durable; nobody who waits for it is told",
    "commit.in_cancel": "it is written that a job is to be cancelled, and not committed",
    "commit.after_cancel": "it is durable that a job is to be cancelled; nobody is answered",
    "commit.in_expiry": "it is written that a worker is silent, or a lease over, and not committed",
    "commit.after_expiry": "it is durable that a worker is silent, or a lease over; nobody is answered",
    "commit.in_enrolment": "a worker and its key are written, and not committed",
    "commit.after_enrolment": "a worker and its key are durable; it has not heard its id",
    "commit.in_session": "the counter of a worker's signature is written, and not committed",
    "commit.after_session": "the counter of a worker's signature is durable; it has no session",
    "commit.in_start": "a new start of a worker's agent is written, and not committed",
    "commit.after_start": "a new start of a worker's agent is durable; it has no session",
    "commit.in_facts": "what a worker's machine is is written, and not committed",
    "commit.after_facts": "it is durable what a worker's machine is; nobody is answered",
    "commit.in_drain": "it is written that a worker takes no more work, or some again, and not committed",
    "commit.after_drain": "it is durable that a worker takes no more work, or some again; nobody is answered",
    "commit.in_removal": "it is written that a worker is forgotten, and not committed",
    "commit.after_removal": "it is durable that a worker is forgotten; nobody is answered",
    "commit.in_token": "a token, or its end, is written, and not committed",
    "commit.after_token": "a token, or its end, is durable; it is not in memory",
    "commit.in_forgetting": "rows of tokens or secrets that have had their time are deleted, and not committed",
    "commit.after_forgetting": "rows of tokens or secrets that have had their time are gone; nobody is answered",
    "commit.in_compaction": "rows of events, facts or keys that have had their time are deleted, and not committed",
    "commit.after_compaction": "rows of events, facts or keys that have had their time are gone; nobody is answered",
    "commit.in_audit": "a line of the audit trail is written, and not committed",
    "commit.after_audit": "a line of the audit trail is durable; nobody is answered",
    "commit.in_cursor": "it is written how far a sink has been told, and not committed",
    "commit.after_cursor": "it is durable how far a sink has been told; nobody is answered",
    # The worker agent.
    "agent.before_recovery": "it is attached to its spawner; it has not looked at what an earlier agent left",
    "agent.before_identity": "its key, or the next number of a start or a signature, is to be kept; it is not written",
    "agent.in_identity": "its identity file is whole and synced under a temporary name",
    "agent.after_identity": "its identity file has its name; nothing was signed or asked by it",
    "agent.before_contact": "it has heard of the control plane; the time of that is not written",
    "agent.in_contact": "the time of its last contact is whole under a temporary name",
    "agent.after_contact": "the time of its last contact is kept; nothing that follows from it is done",
    "agent.before_admission": "an assignment has come; nothing of it is written down",
    "agent.in_admission": "an assignment is written down, but not that it is being staged: half a folder",
    "agent.after_admission": "an assignment is written down whole; nothing is done for it",
    "agent.before_baseline": "the source lies in the work folder; what lay there before the program is not kept",
    "agent.in_baseline": "what lay in the work folder before the program is whole under a temporary name",
    "agent.after_baseline": "what lay in the work folder before the program is kept; it is not asked to start",
    "agent.in_source": "a file of the source is to be written into the work folder, after others",
    "agent.before_inputs": "the inputs lie there; where is not written down",
    "agent.in_inputs": "where the inputs lie is whole under a temporary name",
    "agent.after_inputs": "where the inputs lie is kept; the program is not asked to start",
    "agent.before_environment": "an environment is built and on its disk; that it is finished is not written down",
    "agent.in_environment": "that an environment is finished is whole and synced under a temporary name",
    "agent.after_environment": "an environment is finished and will be found; nobody has used it",
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
    "spawner.in_entry": "the spool of a program is there; it is not in the table",
    "spawner.after_entry": "a program is in the table; it does not run",
    "spawner.after_launch": "a program runs; its process id is not in the table",
    "spawner.before_output": "a program's output waits in its pipe; the next of it is not in the spool",
    "spawner.after_pid": "a program runs and is in the table; the agent is not told",
    "spawner.in_output": "some output has gone from the pipe into the spool; the agent is not told",
    "spawner.after_exit": "a program has ended; what it left running has not, and nothing is reaped",
    "spawner.before_record": "a tree is dead and its output drained; no exit record is there",
    "spawner.in_record": "an exit record is written under a temporary name",
    "spawner.after_record": "an exit record is there; the agent is not told",
    "spawner.before_removal": "the agent wants an ended program forgotten; it is in the table",
    "spawner.in_removal": "an ended program is forgotten in memory; the table on disk has it",
    "spawner.after_removal": "an ended program is out of the table; the agent is not answered",
    # The watchdog.
    "watchdog.before_spawner": "it holds the folder; there is no spawner yet",
    "watchdog.before_cleaning": "its spawner has died; nothing is reaped or ended",
    "watchdog.in_cleaning": "the trees of a dead spawner are ended; what became of them is not written down",
    "watchdog.before_saving": "the trees of a dead spawner are ended; what their pipes hold is not saved",
    "watchdog.after_cleaning": "what became of every program is written down; the socket of the dead spawner is there",
    # A command that somebody waits for.
    "client.before_submit": "the source is shipped; the job is not submitted",
    "client.after_send": "a request has left; its answer is not read",
    "client.after_submit": "the job is durable and its record is here; nothing of it was said",
    "client.following": "a piece of the job's output is written out",
    "client.before_home": "the job has ended; none of its files has come home",
    "client.before_contexts": "a context is added or changed; nothing of that is written",
    "client.in_contexts": "the file of contexts is whole and synced under a temporary name",
    "client.after_contexts": "the file of contexts has its name; the folder is not synced, nothing was said",
    "client.before_file": "a file comes home: its temporary file is empty",
    "client.in_home": "a file that comes home is whole under a temporary name",
    "client.after_home": "all files are home; how the job ended is not said",
}

WRITES: Final = frozenset(
    {
        # The control plane.
        *("plane.before_port", "plane.before_token", "plane.before_certificate", "plane.in_certificate"),
        *("plane.before_pepper", "plane.before_key", "plane.before_endpoint"),
        *("plane.in_transaction", "plane.in_probe", "plane.before_log_piece", "plane.before_log_mark"),
        *("plane.before_log_removal", "plane.in_log_removal"),
        *("blobs.before_write", "blobs.in_stream", "blobs.before_rename"),
        *(name for name in POINTS if name.startswith("commit.in_")),
        # The worker; it keeps blobs, too.
        *("agent.before_identity", "agent.before_contact", "agent.before_admission", "agent.before_baseline"),
        *("agent.in_source", "agent.before_inputs", "agent.before_environment", "agent.before_journal"),
        *("spawner.before_entry", "spawner.in_entry", "spawner.after_launch", "spawner.before_output"),
        *("spawner.in_record", "spawner.in_removal", "watchdog.before_saving"),
        # Commands.
        *("client.before_contexts", "client.before_file"),
    }
)
"""The points at which a write may find no room or a bad disk: where ``enospc`` and ``eio`` are what the disk does."""


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


def around(moment: str, point: str) -> None:
    """``here`` for one of several moments of the same thing: ``before`` and ``plane.port`` are ``plane.before_port``.
    Nothing for an empty point."""
    if _armed is not None and point:
        place, _, thing = point.partition(".")
        _reach(_armed, f"{place}.{moment}_{thing}")


def here_each(prefix: str, things: Callable[[], Iterable[str]]) -> None:
    """``here`` for each of several things that are done at once. They are asked for only where something is armed."""
    if _armed is not None:
        for thing in things():
            _reach(_armed, f"{prefix}{thing}")


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
    # All of them count each reach, also one at which an earlier one raises.
    for fault in [fault for fault in armed.get(name, ()) if next(fault.reached) == fault.count]:
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
