"""A ``Provider`` makes workers: a cloud, a Kubernetes cluster, a batch system.

Idempotent throughout: a request id stands for one machine for ever, whatever was lost on the way. Nothing is kept in
memory alone: what exists is found again by ``list``, which is what the control plane believes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol, runtime_checkable

from gpulayer.spec.machine import WorkerFacts
from gpulayer.spec.request import Request

__all__ = [
    "PROVIDER_DEADLINE_S",
    "MachineState",
    "NoCapacity",
    "Offer",
    "ProvidedMachine",
    "Provider",
    "ProviderRefused",
    "WorkerStart",
]

PROVIDER_DEADLINE_S: Final = 60.0


class MachineState(StrEnum):
    """``starting``: asked for, and not running yet. ``stopping``: on its way out; it costs perhaps still."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    GONE = "gone"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Offer:
    """A kind of machine that could be made. ``facts``: as its worker would report them, as far as is known.

    usd_an_hour: None where nobody knows; 0 where it is free.
    """

    name: str
    facts: WorkerFacts
    usd_an_hour: float | None = None
    is_preemptible: bool = False


@dataclass(frozen=True, slots=True)
class WorkerStart:
    """What the machine must run to become a worker: ``gpulayer join`` with these. The token works once.

    name: the worker's; it enrols under it. labels: of the worker.
    """

    urls: tuple[str, ...]
    fingerprints: tuple[str, ...]
    token: str = field(repr=False)
    name: str = ""
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ProvidedMachine:
    """``request_id``: with which it was made. ``details``: for people: zone, address, the provider's own id."""

    request_id: str
    offer: str
    state: MachineState
    message: str = ""
    details: Mapping[str, str] = field(default_factory=dict)


class NoCapacity(Exception):
    """There is none now, or a quota is reached; another offer or a later time may do."""


class ProviderRefused(Exception):
    """It will never work as asked: credentials, permissions, a setting. Its message says what to change."""


@runtime_checkable
class Provider(Protocol):
    """Each method may block for ``PROVIDER_DEADLINE_S``, and may be repeated at any time.

    ``offers``: every machine that could be made and might fit; asked again every few minutes while somebody waits.
    ``create``: the machine of this request id: made now, or known already. It returns when the provider has accepted;
    a time-out or an error leaves open whether there is one, and ``list`` says. Raises NoCapacity and ProviderRefused.
    ``list``: all machines that this control plane (``owner``) made and that are not gone; asked every half minute.
    ``destroy``: ends it; what is gone already, or never was, is no error. It returns when the provider has accepted.
    Any other exception is a fault of the plugin: it is tried again, and shown.
    """

    @property
    def name(self) -> str: ...

    def offers(self, request: Request) -> Sequence[Offer]: ...

    def create(self, request_id: str, offer: str, start: WorkerStart, *, owner: str) -> ProvidedMachine: ...

    def list(self, *, owner: str) -> Sequence[ProvidedMachine]: ...

    def destroy(self, request_id: str, *, owner: str) -> None: ...
