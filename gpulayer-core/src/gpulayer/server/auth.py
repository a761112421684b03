"""Who calls: typed bearer tokens, and sessions of workers by signature.

Stored is SHA-256 of a pepper and a token's secret; a token is found by its id and compared in constant time. Sessions
live in memory alone: a worker whose session is unknown (the control plane started anew) signs for another. A join
token is good for one worker; that worker may show it again, because the answer to its enrolment may have been lost.
"""

import hashlib
import hmac
import os
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from gpulayer.clock import Clock
from gpulayer.errors import Unauthenticated
from gpulayer.ids import RandomBytes, WorkerId
from gpulayer.server.settings import Layout
from gpulayer.server.store import IdentityRow, TokenRow
from gpulayer.server.tokens import Role, TokenKind, make_token, parse_token

__all__ = ["LOCAL_OWNER", "Auth", "Caller", "load_pepper"]

LOCAL_OWNER: Final = "local"
"""Whoever runs the control plane, at its own machine."""

_KEPT_MS = 86_400_000  # an expired token is named as such for a day; then it is unknown


@dataclass(frozen=True, slots=True)
class Caller:
    """Who a request is from. worker: of a session; name: of the token, for people.

    owner: whose jobs and idempotency keys these are; it outlives the token, which is replaced now and then: this
    machine's user gets a new one at each start of the plane. role: of a client token.
    """

    kind: TokenKind
    token_id: str
    name: str
    worker: WorkerId | None = None
    owner: str = ""
    role: Role = Role.READER


@dataclass(frozen=True, slots=True)
class _Session:
    worker: WorkerId
    secret_hash: str
    expires_ms: int


class Auth:
    """Tokens and identities as the store has them, and the sessions of this run.

    It writes nothing itself: what it makes or changes is a row that the caller commits and then ``keep``s.
    """

    def __init__(
        self,
        *,
        pepper: bytes,
        clock: Clock,
        tokens: Iterable[TokenRow] = (),
        identities: Iterable[IdentityRow] = (),
        random_bytes: RandomBytes = secrets.token_bytes,
    ) -> None:
        self._pepper = pepper
        self._clock = clock
        self._random = random_bytes
        self._tokens = {row.id: row for row in tokens}
        self._identities = {row.worker: row for row in identities}
        self._sessions: dict[str, _Session] = {}

    def authenticate(self, header: str | None) -> Caller:
        """The caller of a request with this Authorization header. Raises Unauthenticated."""
        scheme, _, token = (header or "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise Unauthenticated("this route needs a token", hint="send Authorization: Bearer TOKEN")
        kind, id_, secret = parse_token(token.strip())
        if kind is TokenKind.WORKER:
            return self._of_session(id_, secret)
        row = self._tokens.get(id_)
        # The hash is compared even for an unknown id, so that the time tells nothing.
        expected = row.secret_hash if row is not None else "0" * 64
        matches = hmac.compare_digest(self._hash(secret), expected)
        if row is None or not matches or row.kind != kind:
            raise Unauthenticated("the token is unknown here", hint="was it made by another control plane?")
        if row.is_revoked:
            raise Unauthenticated(f"token {id_} was revoked")
        if row.expires_wall_ms is not None and self._clock.wall_ms() >= row.expires_wall_ms:
            raise Unauthenticated(f"token {id_} has expired", hint="ask for a new one")
        owner = LOCAL_OWNER if row.is_local else row.owner or id_
        return Caller(kind, id_, row.name, owner=owner, role=Role(row.role) if row.role else Role.READER)

    def new_token(
        self,
        kind: TokenKind,
        *,
        name: str,
        life_s: int | None,
        role: Role | None = None,
        is_local: bool = False,
        token: str | None = None,
    ) -> tuple[str, TokenRow]:
        """A new token, to be shown once, and its row. ``token``: one that ``make_token`` gave before."""
        token = token or make_token(kind, self._random)
        _, id_, secret = parse_token(token)
        now_ms = self._clock.wall_ms()
        expires_ms = None if life_s is None else now_ms + life_s * 1000
        row = TokenRow(id_, kind, name, self._hash(secret), now_ms, expires_ms, is_local=is_local, role=role or "")
        return token, row

    def keep_token(self, row: TokenRow) -> None:
        """From now on the token is as its (committed) row says."""
        self._tokens[row.id] = row

    def forget_tokens(self, ids: Iterable[str]) -> None:
        """Their (committed) rows are gone: they open nothing any more."""
        for id_ in ids:
            self._tokens.pop(id_, None)

    def token(self, id_: str) -> TokenRow | None:
        """None for an id that is not known; revoked and expired ones are found too."""
        return self._tokens.get(id_)

    def expires_wall_ms(self, caller: Caller) -> int | None:
        """When a client's or join token ends; None: not by itself."""
        row = self._tokens.get(caller.token_id)
        return None if row is None else row.expires_wall_ms

    def stale_tokens(self) -> list[str]:
        """Ids of tokens that nobody can use: of this plane's own user in earlier runs, and expired ones."""
        now_ms = self._clock.wall_ms()
        return [
            row.id
            for row in self._tokens.values()
            if (row.is_local and row.kind == TokenKind.CLIENT)
            or (row.expires_wall_ms is not None and row.expires_wall_ms + _KEPT_MS < now_ms)
        ]

    def spend(self, caller: Caller, worker: WorkerId | None) -> TokenRow | None:
        """Check that a join token may enrol. ``worker``: the identity that the public key already has, if any.

        Returns the token's row if this is its first use. Raises Unauthenticated for another worker's token.
        """
        row = self._tokens[caller.token_id]
        if row.uses < row.max_uses:
            return row
        identity = None if worker is None else self._identities.get(worker)
        if identity is not None and identity.token_id == row.id:
            return None
        raise Unauthenticated(
            f"join token {row.id} has been used by another worker", hint="make a new one: gpulayer up prints it"
        )

    def identity(self, worker: WorkerId) -> IdentityRow | None:
        return self._identities.get(worker)

    def identity_of_key(self, public_key: str) -> IdentityRow | None:
        """None where no worker has enrolled with it."""
        return next((row for row in self._identities.values() if row.public_key == public_key), None)

    def is_local(self, worker: WorkerId) -> bool:
        """Whether it joined with this plane's own token; False for an unknown worker."""
        row = self._identities.get(worker)
        return row is not None and row.is_local

    def has_local_worker(self) -> bool:
        return any(row.is_local for row in self._identities.values())

    def keep_identity(self, row: IdentityRow) -> None:
        """In memory; call it once the row is durable."""
        self._identities[row.worker] = row

    def forget_worker(self, worker: WorkerId) -> None:
        """The worker is gone: its key and its sessions open nothing any more."""
        self._identities.pop(worker, None)
        self._sessions = {id_: session for id_, session in self._sessions.items() if session.worker != worker}

    def check_signature(self, worker: WorkerId, counter: int, signature: str) -> IdentityRow:
        """The identity's row with this counter, to be committed before a session is given.

        Raises Unauthenticated for an unknown worker, a false signature, or a counter that was used before.
        """
        from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - start-up time
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415

        row = self._identities.get(worker)
        if row is None:
            raise Unauthenticated(f"no worker {worker[:40]!r} is enrolled here", hint="join it again")
        try:
            key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(row.public_key))
            key.verify(bytes.fromhex(signature), f"gpulayer-session:{worker}:{counter}".encode())
        except (InvalidSignature, ValueError):
            raise Unauthenticated("the signature is not this worker's") from None
        if counter <= row.counter:
            raise Unauthenticated(
                f"counter {counter} was used before; the last one was {row.counter}",
                hint="send a higher counter",
            )
        return replace(row, counter=counter)

    def open_session(self, worker: WorkerId, life_s: int) -> str:
        """A session token. Older sessions of the worker go on until they expire, so that a late request is good."""
        token = make_token(TokenKind.WORKER, self._random)
        _, id_, secret = parse_token(token)
        now_ms = self._clock.monotonic_ms()
        self._sessions = {key: session for key, session in self._sessions.items() if session.expires_ms > now_ms}
        self._sessions[id_] = _Session(worker, self._hash(secret), now_ms + life_s * 1000)
        return token

    def _of_session(self, id_: str, secret: str) -> Caller:
        session = self._sessions.get(id_)
        matches = hmac.compare_digest(self._hash(secret), session.secret_hash if session is not None else "0" * 64)
        if session is None or not matches:
            raise Unauthenticated("the session is unknown here", hint="sign for a new one")
        if self._clock.monotonic_ms() >= session.expires_ms:
            raise Unauthenticated("the session has expired", hint="sign for a new one")
        return Caller(TokenKind.WORKER, id_, "worker", session.worker)

    def body_digest(self, body: bytes) -> str:
        """Tells a body from another without telling of it: a plain digest of a guessable secret would be the secret."""
        return hmac.new(self._pepper, b"gpulayer-body:" + body, hashlib.sha256).hexdigest()

    def _hash(self, secret: str) -> str:
        return hashlib.sha256(self._pepper + secret.encode("utf-8", "surrogateescape")).hexdigest()


def load_pepper(layout: Layout, random_bytes: Callable[[int], bytes] = secrets.token_bytes) -> bytes:
    """The pepper of this state folder, made at its first use (mode 0600)."""
    try:
        found = layout.pepper.read_bytes()
        if len(found) >= 32:
            return found
    except FileNotFoundError:
        pass
    made = random_bytes(32)
    temporary = layout.pepper.with_suffix(".new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(descriptor, made)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(temporary, layout.pepper)
    return made
