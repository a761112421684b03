"""What an attempt may use at most on its worker, and how it is run there beside others.

A ``Request`` says what placement counts; ``Limits`` what the worker enforces. The two differ where a number was not
given: a job that named no cores is counted with one, and slowed down by nothing.
"""

from dataclasses import dataclass
from typing import Final

__all__ = ["DEFAULT_LOG_BYTES", "Limits"]

DEFAULT_LOG_BYTES: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Limits:
    """0 means "no limit" throughout.

    cpus: processor time of so many cores. pids: processes and threads at one time. disk_bytes: of the work folder and
    the outputs together. log_bytes: kept of each stream. nice: 0 to 19, as in nice(1). pin_cores: run on ``cpus``
    cores (one, where none were named) that no other pinned job of this worker has.
    """

    cpus: int = 0
    memory_bytes: int = 0
    pids: int = 0
    disk_bytes: int = 0
    log_bytes: int = DEFAULT_LOG_BYTES
    nice: int = 0
    pin_cores: bool = False
