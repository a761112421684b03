"""Which exit code says what. Pure; the codes are those of INTERFACES.md.

A job that ran to an end of its own gives the program's code (128 + n for a signal n). Errors follow their blame.
"""

from enum import IntEnum
from typing import TYPE_CHECKING

from gpulayer.errors import Blame, Forbidden, GpulayerError, TimedOut, Unauthenticated, Unreachable, UntrustedServer
from gpulayer.syncing import SYNC_FAILED_EXIT

if TYPE_CHECKING:
    from gpulayer.wire.jobs import JobRecord

__all__ = ["Exit", "exit_for_error", "exit_for_job"]

_SIGKILL = 9


class Exit(IntEnum):
    """GPUlayer's own codes. A job's program may end with the same number, which is then passed on as it is."""

    OK = 0
    USAGE = 2
    NO_WORKER = 3
    NOT_AUTHORISED = 4
    UNREACHABLE = 5
    INFRASTRUCTURE = 6
    CANCELLED = 7
    TIMED_OUT = 8
    BUG = 70  # EX_SOFTWARE
    SYNC_FAILED = SYNC_FAILED_EXIT  # of a control plane whose disk could not be synced: it ends at once
    INTERRUPTED = 130
    PIPE_CLOSED = 141


def exit_for_job(record: "JobRecord") -> int:
    """Of a job that has ended."""
    match record["state"]:
        case "succeeded":
            return Exit.OK
        case "cancelled":
            return Exit.CANCELLED
        case "timed_out":
            return Exit.TIMED_OUT
        case "rejected":
            return Exit.NO_WORKER
        case _:
            return _exit_of_program(record)


def exit_for_error(error: GpulayerError) -> int:
    """By what the error is where it has a code of its own, else by whom it blames."""
    match error:
        case Unauthenticated() | Forbidden():
            return Exit.NOT_AUTHORISED
        case Unreachable() | UntrustedServer():
            return Exit.UNREACHABLE
        case TimedOut():
            return Exit.TIMED_OUT
    match error.blame:
        case Blame.USER:
            return Exit.USAGE
        case Blame.CAPACITY:
            return Exit.NO_WORKER
        case Blame.INFRASTRUCTURE | Blame.PLUGIN:
            return Exit.INFRASTRUCTURE
        case Blame.BUG:
            return Exit.BUG


def _exit_of_program(record: "JobRecord") -> int:
    if record["ended_by"] not in ("program", "signal", "out_of_memory"):
        return Exit.INFRASTRUCTURE
    if record["signal"] is not None:
        return 128 + record["signal"]
    if record["exit_code"] is not None:
        return record["exit_code"]
    return 128 + _SIGKILL  # out of memory without a status: the kernel's kill
