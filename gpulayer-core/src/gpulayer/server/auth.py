"""Who calls: typed bearer tokens, sessions of workers by signature, and tokens of jobs.

Stored is SHA-256 of a pepper and a token's secret; a token is found by its id and compared in constant time. Sessions
live in memory alone: a worker whose session is unknown (the control plane started anew) signs for another. A join
token that is used up may be shown again by a worker that it joined, because the answer to an enrolment may be lost.
The token of a job is stored nowhere: it follows from the pepper, the job and the attempt, and is good while that lives.

What a refusal says of a token (revoked, expired, used up) it says to whoever holds its secret, and to nobody else.
"""

import hashlib
import hmac
import secrets
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, Protocol

from gpulayer.clock import Clock
from gpulayer.errors import BadRequest, Conflict, Unauthenticated
from gpulayer.ids import Epoch, JobId, RandomBytes, WorkerId
from gpulayer.server.folder import unusable
from gpulayer.server.settings import Layout
from gpulayer.server.starts import Start, check_newest, superseded, with_newest, with_start
from gpulayer.server.store import IdentityRow, StartRow, TokenRow
from gpulayer.server.tokens import Grant, Role, TokenKind, form_token, make_token, parse_token, secret_text
from gpulayer.syncing import Syncs
from gpulayer.whole import write_whole
from gpulayer.wire.sessions import session_text

__all__ = [
    "CLIENT_LIFE_S",
    "LOCAL_OWNER",
    "SYSTEM",
    "Attempts",
    "Auth",
    "Caller",
    "check_token_name",
    "load_pepper",
    "lost_pepper",
    "worker_party",
]

LOCAL_OWNER: Final = "local"
"""Whoever runs the control plane, at its own machine."""

SYSTEM: Final = "system"
"""In the audit trail: the control plane itself, or the machine it runs on."""

_DAY_S: Final = 86_400
CLIENT_LIFE_S: Final[Mapping[Role, int]] = MappingProxyType(
    {Role.READER: 90 * _DAY_S, Role.SUBMITTER: 90 * _DAY_S, Role.ADMIN: 30 * _DAY_S}
)
"""How long a client token lives where nobody says otherwise."""

_KEPT_MS: Final = 86_400_000  # an expired token is named as such for a day; then it is unknown
_PEPPER_BYTES: Final = 32
_MINUTE_MS: Final = 60_000
_NO_HASH: Final = "0" * 64
_HEX: Final = frozenset("0123456789abcdef")
_ASK: Final = "ask whoever runs the control plane for a new one: gpulayer token create"
_SIGN: Final = "sign for a new one"
_OF_ATTEMPT: Final = "it lives as long as the attempt that it was given to; a retry gets its own"
_JOIN_ANEW: Final = "make a new one on the control plane's machine: gpulayer token create --role join"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who a request is from. worker: of a session; name: of the token, for people.

    owner: whose jobs and idempotency keys these are; it outlives the token, which is replaced now and then: this
    machine's user gets a new one at each start of the plane. role: of a client token. job, grant: of a job's token.
    """

    kind: TokenKind
    token_id: str
    name: str
    worker: WorkerId | None = None
    owner: str = ""
    role: Role = Role.READER
    job: JobId | None = None
    grant: Grant = Grant.NONE

    @property
    def party(self) -> str:
        """Among whose connections its own counts: an owner's tokens and jobs together, each worker, each join token."""
        match self.kind:
            case TokenKind.WORKER:
                return worker_party(self.worker or WorkerId(""))
            case TokenKind.JOIN:
                return f"join {self.token_id}"
            case _:
                return f"owner {self.owner}"

    @property
    def key_owner(self) -> str:
        """Whose idempotency keys its own are apart from: those of a job are not its owner's, so that neither is
        answered with what the other submitted."""
        return self.name if self.kind is TokenKind.JOB else self.owner


def worker_party(worker: WorkerId) -> str:
    """Of its session, and of whoever has signed with its key."""
    return f"worker {worker}"


class Attempts(Protocol):
    """The part of the plane that tells which attempts live."""

    async def live_job(self, epoch: Epoch) -> tuple[JobId, str] | None:
        """The job of this attempt and its owner; None unless it lives. Raises StorageUnavailable."""
        ...

    async def grant_of(self, job_id: JobId) -> Grant:
        """What this job was granted when it was submitted."""
        ...

    def is_live(self, epoch: Epoch) -> bool:
        """At once, of a state that may not be committed yet: for who asks again and again."""
        ...


@dataclass(frozen=True, slots=True)
class _Session:
    worker: WorkerId
    secret_hash: str
    expires_ms: int
    start: Start | None


class Auth:
    """Tokens and identities as the store has them, and the sessions of this run.

    It writes nothing itself: what it makes or changes is a row that the caller commits and then ``keep``s. The rule by
    which no change is written over another, and nothing that was removed comes back:

    * Whoever changes a token's row, or makes, changes or removes an identity, holds ``Plane.enrolling`` from the look
      at what there is until the change is kept or forgotten here.
    * A session changes nothing of an identity but its counter, and takes no lock: all that are asked for at once share
      a commit. ``take_signature`` checks the counter and raises it here in one turn, before the commit: of two requests
      with one counter one wins. It stays raised when the commit fails: a signature is used up by the try, and its
      worker signs with a higher counter.
    * Counters only rise, in ``keep_identity`` and in the store (``Side.counters``), and neither makes an identity of
      one. A session that was on its way while its worker was removed is refused after its commit (``open_session``).
    * Starts of agents only rise, likewise (``server.starts``). A newer one ends the sessions of all others in the turn
      in which it is taken; what they have under way is refused where it would change something (``check_still``).
    """

    def __init__(
        self,
        *,
        pepper: bytes,
        clock: Clock,
        attempts: Attempts,
        tokens: Iterable[TokenRow] = (),
        identities: Iterable[IdentityRow] = (),
        random_bytes: RandomBytes = secrets.token_bytes,
    ) -> None:
        self._pepper = pepper
        self._clock = clock
        self._attempts = attempts
        self._random = random_bytes
        self._tokens = {row.id: row for row in tokens}
        self._used: set[str] = set()
        self._identities = {row.worker: row for row in identities}
        self._sessions: dict[str, _Session] = {}
        self._refused: dict[WorkerId, tuple[Start, int]] = {}

    async def authenticate(self, header: str | None) -> Caller:
        """The caller of a request with this Authorization header. Raises Unauthenticated, and StorageUnavailable where
        it can't be told now whether a job's attempt lives."""
        scheme, _, token = (header or "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise Unauthenticated("this route needs a token", hint="send Authorization: Bearer TOKEN")
        kind, id_, secret = parse_token(token.strip())
        match kind:
            case TokenKind.WORKER:
                return self._of_session(id_, secret)
            case TokenKind.JOB:
                return await self._of_attempt(id_, secret)
            case TokenKind.CLIENT | TokenKind.JOIN:
                return self._of_row(kind, id_, secret)

    def check_still(self, caller: Caller) -> None:
        """For a request that goes on for a while. Raises Unauthenticated once what it came with is no good any more.

        A wait for commits would cost each wake-up of whoever waits, so a job's token ends here with its attempt even if
        that change then fails; whoever holds it asks again.
        """
        match caller.kind:
            case TokenKind.WORKER:
                session = self._sessions.get(caller.token_id)
                if session is None:
                    raise Unauthenticated("the session is unknown here", hint=_SIGN)
                self._check_session(session)
            case TokenKind.JOB:
                if not self._attempts.is_live(Epoch(int(caller.token_id, 16))):
                    raise Unauthenticated("the job's token is no good any more", hint=_OF_ATTEMPT)
            case TokenKind.CLIENT | TokenKind.JOIN:
                row = self._tokens.get(caller.token_id)
                if row is None:
                    raise Unauthenticated("the token is unknown here", hint=_ASK)
                self._check_row(row)

    def new_token(
        self,
        kind: TokenKind,
        *,
        name: str,
        life_s: int | None,
        role: Role | None = None,
        owner: str = "",
        is_local: bool = False,
        token: str | None = None,
    ) -> tuple[str, TokenRow]:
        """A new token, to be shown once, and its row. ``token``: one that ``make_token`` gave before."""
        token = token or make_token(kind, self._random)
        _, id_, secret = parse_token(token)
        now_ms = self._clock.wall_ms()
        expires_ms = None if life_s is None else now_ms + life_s * 1000
        row = TokenRow(
            id=id_,
            kind=kind,
            name=name,
            secret_hash=self._hash(secret),
            created_wall_ms=now_ms,
            expires_wall_ms=expires_ms,
            is_local=is_local,
            role=role or "",
            owner=owner,
        )
        return token, row

    def new_client_token(self, *, name: str, role: Role, life_s: int | None = None) -> tuple[str, TokenRow]:
        """A token for a person or a program, who owns what is submitted with any token of this name; an empty one makes
        it the only one of its owner, who is called as its id.

        life_s None: as long as its role usually lives. Raises BadRequest for a name that nobody can have.
        """
        check_token_name(name)
        life_s = CLIENT_LIFE_S[role] if life_s is None else life_s
        token, row = self.new_token(TokenKind.CLIENT, name=name, life_s=life_s, role=role, owner=name)
        return token, row if name else replace(row, name=row.id, owner=row.id)

    def job_token(self, epoch: Epoch, job_id: JobId) -> str:
        """The token of a job's attempt: the same each time, and good for as long as the attempt lives."""
        return form_token(TokenKind.JOB, f"{epoch:012x}", self._job_secret(epoch, job_id))

    def keep_token(self, row: TokenRow) -> None:
        """From now on the token is as its (committed) row says; what came meanwhile is not forgotten: its last use."""
        known = self._tokens.get(row.id)
        if known is not None and (known.used_wall_ms or 0) > (row.used_wall_ms or 0):
            row = replace(row, used_wall_ms=known.used_wall_ms)
        self._tokens[row.id] = row

    def forget_tokens(self, ids: Iterable[str]) -> None:
        """Their (committed) rows are gone: they open nothing any more."""
        for id_ in ids:
            self._tokens.pop(id_, None)
            self._used.discard(id_)

    def tokens(self) -> list[TokenRow]:
        """All that are known, also revoked and expired ones."""
        return list(self._tokens.values())

    def token(self, id_: str) -> TokenRow | None:
        """None for an id that is not known; revoked and expired ones are found too."""
        return self._tokens.get(id_)

    def used_tokens(self) -> list[TokenRow]:
        """The rows whose last use is newer than what was ``saved``."""
        return [self._tokens[id_] for id_ in sorted(self._used) if id_ in self._tokens]

    def saved(self, rows: Iterable[TokenRow]) -> None:
        """These rows are durable; those that were used again meanwhile stay to be written."""
        for row in rows:
            now = self._tokens.get(row.id)
            if now is None or now.used_wall_ms == row.used_wall_ms:
                self._used.discard(row.id)

    def expires_wall_ms(self, caller: Caller) -> int | None:
        """When a client's or join token ends; None: not by itself."""
        row = self._tokens.get(caller.token_id)
        return None if row is None else row.expires_wall_ms

    def ended_tokens(self, now_ms: int) -> list[str]:
        """Ids of tokens that expired more than a day before ``now_ms``."""
        return [
            row.id
            for row in self._tokens.values()
            if row.expires_wall_ms is not None and row.expires_wall_ms + _KEPT_MS < now_ms
        ]

    def stale_tokens(self, now_ms: int) -> list[str]:
        """Ids of tokens that nobody can use at a start: of this plane's own user in earlier runs, and ended ones."""
        own = [row.id for row in self._tokens.values() if row.is_local and row.kind == TokenKind.CLIENT]
        return list(dict.fromkeys((*own, *self.ended_tokens(now_ms))))

    def spend(self, caller: Caller, public_key: str, worker: WorkerId | None) -> TokenRow | None:
        """Check that a join token may enrol. ``worker``: the identity that the public key already has, if any.

        Returns the token's row if it has to be counted, None for a worker that comes again with its own. Raises
        Unauthenticated for a token that is used up, or was revoked since its caller was looked at, and for the key of a
        worker that joined with it and was removed: it would come back by itself.
        """
        row = self._tokens.get(caller.token_id)
        if row is None or row.is_revoked:
            raise Unauthenticated(f"token {caller.token_id} was revoked", hint=_JOIN_ANEW)
        if public_key in row.removed_keys:
            raise Unauthenticated(
                f"this worker was removed, and join token {row.id}, which it had, joins it no more",
                hint=f"to have it back, {_JOIN_ANEW}",
            )
        identity = None if worker is None else self._identities.get(worker)
        if identity is not None and identity.token_id == row.id:
            return None
        if row.uses < row.max_uses:
            return row
        spent = "used by another worker" if row.max_uses == 1 else f"used by the {row.max_uses} workers it was made for"
        raise Unauthenticated(f"join token {row.id} has been {spent}", hint=_JOIN_ANEW)

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
        """In memory; call it once the row is durable. What was raised meanwhile stays so: counter and start."""
        known = self._identities.get(row.worker)
        self._identities[row.worker] = row if known is None else with_newest(row, known)

    def removal(self, worker: WorkerId) -> TokenRow | None:
        """What keeps a worker that is to be removed from joining again with the token that it has: the token's row, to
        be committed and kept. None where nobody has such a token any more."""
        identity = self._identities.get(worker)
        row = None if identity is None else self._tokens.get(identity.token_id)
        if identity is None or row is None or identity.public_key in row.removed_keys:
            return None
        return replace(row, removed_keys=(*row.removed_keys, identity.public_key))

    def forget_worker(self, worker: WorkerId) -> None:
        """The worker is gone: its key and its sessions open nothing any more."""
        self._identities.pop(worker, None)
        self._refused.pop(worker, None)
        self._sessions = {id_: session for id_, session in self._sessions.items() if session.worker != worker}

    def check_enrolment(self, caller: Caller, name: str, public_key: str, signature: str) -> None:
        """Raises Unauthenticated unless whoever shows this join token has the private key, too."""
        if not _is_signed(public_key, signature, f"gpulayer-enrol:{caller.token_id}:{name}"):
            raise Unauthenticated(
                "the enrolment is not signed with its own key",
                hint="a worker signs it with the key in its folder: join it with gpulayer join",
            )

    def take_signature(
        self, worker: WorkerId, counter: int, signature: str, *, start: Start | None = None
    ) -> tuple[StartRow, ...]:
        """Check the signature and use its counter up, which is to be committed before a session is given.

        Returns the start, to be committed with it, where the worker's agent has started anew; then all sessions of
        its earlier starts have ended. Raises Unauthenticated for an unknown worker or a false signature, and Conflict:
        for a start that is not the newest (``details.superseded``), and for a counter that is not higher than the last
        one, which ``details.counter`` then names: the worker may sign again above it.
        """
        row = self._enrolled(worker)
        named = (None, None) if start is None else (start.boot, start.instance)
        if not _is_signed(row.public_key, signature, session_text(worker, counter, boot=named[0], instance=named[1])):
            raise Unauthenticated("the signature is not this worker's")
        if start is not None:
            check_newest(row, start)
            if start != Start(row.boot, row.instance):
                self._refused.pop(worker, None)
        if counter <= row.counter:
            raise Conflict(
                f"counter {counter} was used before; the last one was {row.counter}",
                hint="sign with a higher counter",
                details={"counter": row.counter},
            )
        raised = replace(row, counter=counter)
        self._identities[worker] = raised if start is None else with_start(raised, start, self._clock.wall_ms())
        if start is None or start == Start(row.boot, row.instance):
            return ()
        self._sessions = {
            id_: session
            for id_, session in self._sessions.items()
            if session.worker != worker or session.start == start
        }
        return (StartRow(worker, start.boot, start.instance, self._clock.wall_ms()),)

    def is_refusal_told(self, worker: WorkerId, start: Start) -> bool:
        """Whether the trail tells already that this start was refused, which may ask again and again."""
        return self._refused.get(worker, (None, 0))[0] == start

    def refused_wall_ms(self, worker: WorkerId) -> int | None:
        """When a start of its agent was refused, if none was served since."""
        return self._refused[worker][1] if worker in self._refused else None

    def refusal_told(self, worker: WorkerId, start: Start) -> None:
        """Call it once the entry is durable."""
        self._refused[worker] = (start, self._clock.wall_ms())

    def check_boot(self, worker: WorkerId, boot: int) -> None:
        """Raises the Conflict of ``superseded`` for what an agent says that has started anew since."""
        row = self._enrolled(worker)
        if boot < row.boot:
            raise superseded(row)

    def open_session(self, worker: WorkerId, life_s: int, *, start: Start | None = None) -> str:
        """A session token. Older sessions of this start go on until they expire, so that a late request is good.

        Raises Unauthenticated for a worker that is not known, or no more, and the Conflict of ``superseded`` where
        another start was taken since this one.
        """
        row = self._enrolled(worker)
        if start is not None:
            check_newest(row, start)
        token = make_token(TokenKind.WORKER, self._random)
        _, id_, secret = parse_token(token)
        now_ms = self._clock.monotonic_ms()
        self._sessions = {key: session for key, session in self._sessions.items() if session.expires_ms > now_ms}
        self._sessions[id_] = _Session(worker, self._hash(secret), now_ms + life_s * 1000, start)
        return token

    def _enrolled(self, worker: WorkerId) -> IdentityRow:
        row = self._identities.get(worker)
        if row is None:
            raise Unauthenticated(f"no worker {worker[:40]!r} is enrolled here", hint="join it again")
        return row

    def _of_row(self, kind: TokenKind, id_: str, secret: str) -> Caller:
        row = self._tokens.get(id_)
        # The hash is compared even for an unknown id, so that the time tells nothing.
        matches = hmac.compare_digest(self._hash(secret), row.secret_hash if row is not None else _NO_HASH)
        if row is None or not matches or row.kind != kind:
            raise Unauthenticated(
                "the token is unknown here",
                hint=f"it is another control plane's, or was removed a day after its end; {_ASK}",
            )
        now_ms = self._check_row(row)
        minute_ms = now_ms - now_ms % _MINUTE_MS
        if (row.used_wall_ms or 0) < minute_ms:
            self._tokens[id_] = replace(row, used_wall_ms=minute_ms)
            self._used.add(id_)
        owner = LOCAL_OWNER if row.is_local else row.owner or id_
        return Caller(kind, id_, row.name, owner=owner, role=Role(row.role) if row.role else Role.READER)

    def _check_row(self, row: TokenRow) -> int:
        """Gives the time that it was looked at."""
        anew = _JOIN_ANEW if row.kind == TokenKind.JOIN else _ASK
        if row.is_revoked:
            raise Unauthenticated(f"token {row.id} was revoked", hint=anew)
        now_ms = self._clock.wall_ms()
        if row.expires_wall_ms is not None and now_ms >= row.expires_wall_ms:
            raise Unauthenticated(f"token {row.id} has expired", hint=anew)
        return now_ms

    def _of_session(self, id_: str, secret: str) -> Caller:
        session = self._sessions.get(id_)
        matches = hmac.compare_digest(self._hash(secret), session.secret_hash if session is not None else _NO_HASH)
        if session is None or not matches:
            raise Unauthenticated("the session is unknown here", hint=_SIGN)
        self._check_session(session)
        return Caller(TokenKind.WORKER, id_, "worker", session.worker)

    def _check_session(self, session: _Session) -> None:
        if self._clock.monotonic_ms() >= session.expires_ms:
            raise Unauthenticated("the session has expired", hint=_SIGN)

    def body_digest(self, body: bytes) -> str:
        """Tells a body from another without telling of it: a plain digest of a guessable secret would be the secret."""
        return hmac.new(self._pepper, b"gpulayer-body:" + body, hashlib.sha256).hexdigest()

    async def _of_attempt(self, id_: str, secret: str) -> Caller:
        epoch = Epoch(int(id_, 16)) if _HEX.issuperset(id_) else Epoch(0)
        found = await self._attempts.live_job(epoch)
        job_id, owner = found or (JobId(""), "")
        expected = secret_text(self._job_secret(epoch, job_id))
        # What was granted is read from the store, and not for whoever has no such token.
        is_known = hmac.compare_digest(secret.encode("utf-8", "surrogateescape"), expected.encode()) and found
        grant = await self._attempts.grant_of(job_id) if is_known else Grant.NONE
        if grant is Grant.NONE:
            raise Unauthenticated("the job's token is no good here, or no more", hint=_OF_ATTEMPT)
        return Caller(TokenKind.JOB, id_, f"{owner} (job {job_id})", owner=owner, job=job_id, grant=grant)

    def _job_secret(self, epoch: Epoch, job_id: JobId) -> bytes:
        # With the job, because a store that is restored from a backup counts the same epochs again.
        return hmac.digest(self._pepper, f"job-token:{epoch}:{job_id}".encode(), "sha256")

    def _hash(self, secret: str) -> str:
        return hashlib.sha256(self._pepper + secret.encode("utf-8", "surrogateescape")).hexdigest()


def _is_signed(public_key: str, signature: str, text: str) -> bool:
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - start-up time
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415

    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key))
        key.verify(bytes.fromhex(signature), text.encode())
    except (InvalidSignature, ValueError):
        return False
    return True


def check_token_name(name: str) -> None:
    """Raises BadRequest for a name that nobody can have."""
    looks = _looks(name)
    if looks == LOCAL_OWNER:
        raise BadRequest(f"name: {name!r} is whoever runs the control plane, on its own machine", hint="choose another")
    if looks == SYSTEM:
        raise BadRequest(f"name: {name!r} is the control plane itself, in its audit trail", hint="choose another")
    if " (job " in looks:
        raise BadRequest(f"name: {name[:60]!r} looks like a job's: NAME (job ID)", hint="choose another")
    # A slash and dots: it stands in paths.
    if not name.isprintable() or name != name.strip() or "/" in name or name in (".", ".."):
        raise BadRequest(f"name: {name[:60]!r} has characters or spaces that a name can't have")


def _looks(name: str) -> str:
    """The same for names that look alike: in letters of other widths, styles and case, with marks or without."""
    apart = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", name).casefold())
    return "".join(each for each in apart if unicodedata.category(each) != "Mn").strip()


def load_pepper(
    layout: Layout,
    random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    *,
    syncs: Syncs | None = None,
    is_needed: bool = False,
) -> bytes:
    """The pepper of this state folder, made at its first use (mode 0600). is_needed: there are tokens that were made
    with it, so that one that is missing was lost.

    Raises Conflict for one that is damaged or lost, StorageUnavailable where it can't be read or made.
    """
    try:
        try:
            found = layout.pepper.read_bytes()
        except FileNotFoundError:
            if is_needed:
                raise lost_pepper(layout) from None
            found = random_bytes(_PEPPER_BYTES)
            # Before anything is hashed with it: a pepper that is lost takes every token with it.
            write_whole(layout.pepper, found, point="plane.pepper", is_synced=True, syncs=syncs or Syncs())
    except OSError as error:
        raise unusable(layout.pepper, error) from None
    if len(found) != _PEPPER_BYTES:
        # Never replaced by a new one: every token that was handed out is good only with what it was.
        raise Conflict(
            f"{layout.pepper} is damaged: {len(found)} bytes instead of {_PEPPER_BYTES}",
            hint="put it back from a backup of the state folder; without one, put"
            f" {_PEPPER_BYTES} random bytes there: then every token has to be made anew",
        )
    return found


def lost_pepper(layout: Layout) -> Conflict:
    """A new one in its place would end every token, and nobody would know why."""
    return Conflict(
        f"{layout.pepper} is gone, and the store holds tokens that are good only with it",
        hint="put it back from a backup of the state folder, or restore a backup into an empty one (gpulayer restore"
        f" FILE). Without either: head -c {_PEPPER_BYTES} /dev/urandom > {layout.pepper} lets the control plane start,"
        " and every token has to be made anew; workers and jobs stay",
    )
