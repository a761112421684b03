"""One node of an attempt as a worker is asked to run it."""

from dataclasses import dataclass, field
from typing import NamedTuple

from gpulayer.ids import Digest, Epoch, JobId
from gpulayer.spec.limits import Limits

__all__ = ["Assignment", "NodeKey"]


class NodeKey(NamedTuple):
    """Names one node of one attempt for ever: an epoch is never used again."""

    epoch: Epoch
    node: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.node}"


@dataclass(frozen=True, slots=True)
class Assignment:
    """Everything needed to run it; see the fields of the same names in ``JobSpec``. ``devices``: their UUIDs.

    has_credentials: secrets or a token are to be fetched for it, which are kept in memory alone.
    """

    key: NodeKey
    job_id: JobId
    attempt: int
    command: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    source: Digest | None = None
    devices: tuple[str, ...] = ()
    cpus: int = 1
    memory_bytes: int = 0
    outputs: tuple[str, ...] = ()
    keep_outputs: bool = True
    timeout_ms: int | None = None
    grace_ms: int = 30_000
    keep_for_ms: int = 3_600_000
    exclusive: bool = False
    limits: Limits = field(default_factory=Limits)
    split_streams: bool = False
    has_credentials: bool = False
    launcher: str = ""
    environment: str = ""
    inputs: tuple[tuple[str, str], ...] = ()
    resources: tuple[tuple[str, int], ...] = ()
