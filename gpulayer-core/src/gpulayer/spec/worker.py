"""States of a worker as people see them."""

from enum import StrEnum

__all__ = ["WorkerState"]


class WorkerState(StrEnum):
    JOINING = "joining"
    READY = "ready"
    DRAINING = "draining"
    SILENT = "silent"
    GONE = "gone"
