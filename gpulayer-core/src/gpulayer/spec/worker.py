"""States of a worker as people see them."""

from enum import StrEnum

__all__ = ["WorkerState"]


class WorkerState(StrEnum):
    """``joining``: enrolled, no report yet. ``draining``: gets nothing new. ``silent``: out of contact, or stopped.
    ``gone``: removed, and final."""

    JOINING = "joining"
    READY = "ready"
    DRAINING = "draining"
    SILENT = "silent"
    GONE = "gone"
