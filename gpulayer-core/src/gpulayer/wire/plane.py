"""The control plane itself on the wire: its state, its blobs, its join tokens, and the file that tells where it is."""

from typing import Annotated, Literal, NotRequired

from annotated_types import MaxLen
from typing_extensions import TypedDict

__all__ = ["EndpointFile", "FetchBody", "MissingBody", "MissingReply", "PackReply", "PlaneRecord", "ShutdownBody"]
__all__ += ["TokenBody", "TokenReply"]

MAX_DIGESTS = 200_000


class EndpointFile(TypedDict):
    """``endpoint.json`` (mode 0600) in the state folder: how commands of this user reach this control plane.

    Left behind by one that was killed, it says how to start it again as it was: ``has_worker``, ``keep_logs_ms``.
    """

    schema: int
    url: str
    token: str
    pid: int
    version: str
    embedded: bool
    has_worker: NotRequired[bool]
    keep_logs_ms: NotRequired[int]


class PlaneRecord(TypedDict):
    """``mode``: ``embedded`` ends when idle, ``standing`` was started by ``gpulayer up``."""

    version: str
    incarnation: str
    mode: Literal["embedded", "standing"]
    url: str
    pid: int
    state_dir: str
    started_at: str
    read_only: bool
    workers: dict[str, int]
    jobs: dict[str, int]


class ShutdownBody(TypedDict, total=False):
    """``keep_worker``: the plane's own worker goes on (used when another plane takes over the same state)."""

    keep_worker: bool


class MissingBody(TypedDict):
    """Digests that the caller could send."""

    digests: Annotated[list[str], MaxLen(MAX_DIGESTS)]


class MissingReply(TypedDict):
    """Those of them that are not here."""

    missing: list[str]


class FetchBody(TypedDict):
    """Blobs wanted in one body of frames; each must be small enough to be packed."""

    digests: Annotated[list[str], MaxLen(MAX_DIGESTS)]


class PackReply(TypedDict):
    """``stored``: how many blobs of the pack were not here before."""

    stored: int


class TokenBody(TypedDict):
    """``name``: for people, to know the token by."""

    kind: Literal["join"]
    name: NotRequired[Annotated[str, MaxLen(100)]]


class TokenReply(TypedDict):
    """``token`` is shown this once and never again."""

    token: str
    token_id: str
    expires_in_s: int
