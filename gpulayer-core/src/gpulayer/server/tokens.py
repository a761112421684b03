"""The form of tokens: ``<prefix><12 id>_<43 secret><6 check>``. Knows no store; imports nothing heavy.

The id in the middle breaks the run that secret scanners take for another vendor's token; the check (CRC-32) tells a
token that was cut off while copying from one that is unknown.
"""

import base64
import secrets
import zlib
from enum import StrEnum
from typing import Final

from gpulayer.errors import Unauthenticated
from gpulayer.ids import RandomBytes, new_id

__all__ = ["Grant", "Role", "TokenKind", "form_token", "make_token", "parse_token", "secret_text"]

_ID_LENGTH: Final = 12
_SECRET_LENGTH: Final = 43
_CHECK_LENGTH: Final = 6
_BASE62: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class TokenKind(StrEnum):
    """``client`` is for people and scripts, ``join`` enrols a worker, ``worker`` lives for one session of an agent,
    ``job`` for one attempt."""

    CLIENT = "client"
    JOIN = "join"
    WORKER = "worker"
    JOB = "job"


class Role(StrEnum):
    """What a client token may do; each role may what the ones before it may.

    reader: see everything but secrets. submitter: also submit, and manage its owner's jobs. admin: also manage
    everybody's jobs, workers, tokens and the control plane.
    """

    READER = "reader"
    SUBMITTER = "submitter"
    ADMIN = "admin"

    def includes(self, other: "Role") -> bool:
        """Whether this role may all that the other may."""
        order = tuple(Role)
        return order.index(self) >= order.index(other)


class Grant(StrEnum):
    """What the token of a job may do, as its submission says; a job without a grant has no token.

    own: read the job's own record, log and files. submit: also submit jobs of the same owner, and manage those.
    """

    NONE = ""
    OWN = "own"
    SUBMIT = "submit"

    def includes(self, other: "Grant") -> bool:
        """Whether this grant allows all that the other does."""
        order = tuple(Grant)
        return order.index(self) >= order.index(other)


_PREFIXES: Final = {
    TokenKind.CLIENT: "glc_",
    TokenKind.JOIN: "gle_",
    TokenKind.WORKER: "glw_",
    TokenKind.JOB: "glj_",
}


def make_token(kind: TokenKind, random_bytes: RandomBytes = secrets.token_bytes) -> str:
    """A token that nobody knows yet."""
    return form_token(kind, new_id(random_bytes, _ID_LENGTH), random_bytes(32))


def form_token(kind: TokenKind, id_: str, secret: bytes) -> str:
    """The token of this id (12 characters) and secret (32 bytes)."""
    body = f"{_PREFIXES[kind]}{id_}_{secret_text(secret)}"
    return body + _check(body)


def secret_text(secret: bytes) -> str:
    """A secret of 32 bytes as it stands in a token."""
    return base64.urlsafe_b64encode(secret).decode().rstrip("=")


def parse_token(token: str) -> tuple[TokenKind, str, str]:
    """Kind, id and secret. Raises Unauthenticated for what is no whole token."""
    for kind, prefix in _PREFIXES.items():
        if token.startswith(prefix):
            id_, separator, rest = token[len(prefix) :].partition("_")
            secret, check = rest[:_SECRET_LENGTH], rest[_SECRET_LENGTH:]
            if separator and len(id_) == _ID_LENGTH and check == _check(token[:-_CHECK_LENGTH]):
                return kind, id_, secret
            raise Unauthenticated(
                f"the token begins with {prefix} and is not whole, or not as it was made",
                hint="copy it again, all of it: it was perhaps cut off",
            )
    raise Unauthenticated(
        "this is no token",
        hint="a token begins with glc_ (to use a control plane) or gle_ (to join a worker to it)",
    )


def _check(body: str) -> str:
    number, digits = zlib.crc32(body.encode("utf-8", "replace")), ""
    for _ in range(_CHECK_LENGTH):
        number, digit = divmod(number, 62)
        digits = _BASE62[digit] + digits
    return digits
