"""The control plane itself on the wire: its state, its blobs, and the file that tells where it is."""

from typing import Annotated, Literal, NotRequired

from annotated_types import MaxLen
from typing_extensions import TypedDict

__all__ = [
    "BackupBody",
    "CallerRecord",
    "EndpointFile",
    "FetchBody",
    "MissingBody",
    "MissingReply",
    "PackReply",
    "PlaneRecord",
    "ShutdownBody",
]

MAX_DIGESTS = 200_000
Hash = Annotated[str, MaxLen(64)]


class EndpointFile(TypedDict):
    """``endpoint.json`` (mode 0600) in the state folder: how commands of this user reach this control plane.

    urls, fingerprints: how other machines reach it; empty where they can't. Left behind by one that was killed, it says
    how to start it again as it was: ``restart``, its arguments.
    """

    schema: int
    url: str
    token: str
    pid: int
    version: str
    embedded: bool
    urls: NotRequired[list[str]]
    fingerprints: NotRequired[list[str]]
    restart: NotRequired[list[str]]


class CallerRecord(TypedDict):
    """Whose token the request came with, and until when that is good (None: no end)."""

    token_id: str
    name: str
    role: str
    expires_at: str | None


class PlaneRecord(TypedDict):
    """``mode``: ``embedded`` ends when idle, ``standing`` was started by ``gpulayer up``. ``now``: its wall clock, ISO
    text in UTC. ``urls``, ``fingerprints``: how other machines reach it; ``public_urls``: those of
    them that somebody named (``up --public-url``). ``you``: the caller. ``starting``: what submissions wait for since
    it was started, for people; left out once they need not."""

    version: str
    incarnation: str
    mode: Literal["embedded", "standing"]
    url: str
    pid: int
    state_dir: str
    started_at: str
    now: str
    read_only: bool
    urls: list[str]
    public_urls: NotRequired[list[str]]
    fingerprints: list[str]
    disk_free_bytes: int | None
    you: CallerRecord
    workers: dict[str, int]
    jobs: dict[str, int]
    starting: NotRequired[str]


class ShutdownBody(TypedDict, total=False):
    """``keep_worker``: the plane's own worker goes on (used when another plane takes over the same state)."""

    keep_worker: bool


class BackupBody(TypedDict, total=False):
    """What goes into a backup beside store and keys; both are in it where nothing is said."""

    blobs: bool
    logs: bool


class MissingBody(TypedDict):
    """Digests that the caller could send."""

    digests: Annotated[list[Hash], MaxLen(MAX_DIGESTS)]


class MissingReply(TypedDict):
    """Those of them that are not here."""

    missing: list[str]


class FetchBody(TypedDict):
    """Blobs wanted in one body of frames; each must be small enough to be packed."""

    digests: Annotated[list[Hash], MaxLen(MAX_DIGESTS)]


class PackReply(TypedDict):
    """``stored``: how many blobs of the pack were not here before."""

    stored: int
