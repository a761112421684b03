"""The worker's word with its control plane: where it is, who we are, and one call that takes care of both.

``Plane.call`` finds the control plane (several URLs, or an endpoint file that is read again at every reconnect),
mints a session by signature, mints another when it is refused or two thirds old, and raises the error that an answer
describes. It does not wait and try again: ``until_answered`` does, for work that outlives an outage.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from gpulayer import __version__
from gpulayer.clock import Clock
from gpulayer.errors import (
    Conflict,
    DiskFull,
    Forbidden,
    GpulayerError,
    InternalError,
    NotFound,
    Overloaded,
    ProtocolError,
    StorageUnavailable,
    TimedOut,
    Unauthenticated,
    Unreachable,
    UntrustedServer,
    UsageError,
    VersionMismatch,
)
from gpulayer.net import Address, parse_url
from gpulayer.protocol.retry import DEFAULT_BACKOFF, Backoff, asked_ms, backoff_ms
from gpulayer.wire import SCHEMA_VERSION
from gpulayer.wire.errors import error_from_envelope
from gpulayer.wire.workers import EnrolBody, EnrolReply, SessionBody, SessionReply, WorkerFactsFields
from gpulayer.worker.http import Body, HttpClient, Incoming
from gpulayer.worker.identity import IdentityStore

__all__ = ["Endpoints", "NotKnown", "Plane", "Superseded", "is_passing"]

_log: Final = logging.getLogger(__name__)
_PASSING: Final = (
    Unreachable,
    UntrustedServer,
    VersionMismatch,
    TimedOut,
    StorageUnavailable,
    Overloaded,
    DiskFull,
    InternalError,
    ProtocolError,
    Unauthenticated,
    Forbidden,
)
_SAY_EVERY: Final = 200  # of tries, once their waits have grown: every ten minutes or so
_USER_AGENT: Final = f"gpulayer-worker/{__version__}"
_MINT_S: Final = 10.0  # of all workers at once, perhaps, after a restart; then nobody's lease is short
_SIGNATURES: Final = 5  # more are asked for only where somebody else signs with the same key
_COUNTER_END: Final = 2**62  # of the wire's counters
_AGAIN_MS: Final = "again_ms"  # where an answer's Retry-After is kept with its error
_DIGITS: Final = 9
_LONGEST_S: Final = 10  # of what is said: a worker is missed sooner than a client
_Result = TypeVar("_Result")


def _never() -> bool:
    return False


class NotKnown(Unauthenticated):
    """The control plane has no worker with this worker's key: it was removed, or that is another control plane."""


class Superseded(Forbidden):
    """Another agent runs with this worker's key, from a copy of its folder: this one has lost its place."""

    @property
    def free_place(self) -> int | None:
        """The number of the start whose place may be taken; None where that one may live."""
        boot = self.details.get("boot")
        is_number = isinstance(boot, int) and 0 <= boot < _COUNTER_END
        return boot if is_number and self.details.get("is_free") is True else None


def is_passing(error: GpulayerError) -> bool:
    """True for what an operator or a restart of the control plane mends; the rest is an answer."""
    return isinstance(error, _PASSING)


class Endpoints:
    """The addresses of one control plane. Exactly one of ``urls`` and ``endpoint_file`` is given."""

    def __init__(self, *, urls: tuple[str, ...] = (), endpoint_file: Path | None = None) -> None:
        self._file = endpoint_file
        self._addresses = [parse_url(url) for url in urls]
        self.count = max(1, len(self._addresses))
        self._position = 0
        self._known: Address | None = None

    def current(self) -> Address:
        """Raises Unreachable where the endpoint file is not there: nobody serves that state now."""
        if self._file is None:
            return self._addresses[self._position]
        if self._known is None:
            self._known = self._read(self._file)
        return self._known

    def shown(self) -> str:
        """For messages: the address, or the file that is to name it where there is none."""
        try:
            return str(self.current())
        except Unreachable:
            return str(self._file)

    def failed(self, address: Address) -> None:
        """It did not answer: the next call tries the next one, or reads the file again. Of several requests that met
        the same silence only one moves on."""
        self._known = None
        if self._addresses and self._addresses[self._position] == address:
            self._position = (self._position + 1) % len(self._addresses)

    def _read(self, path: Path) -> Address:
        try:
            return parse_url(str(json.loads(path.read_bytes())["url"]))
        except FileNotFoundError:
            raise Unreachable("no control plane serves this state now", details={"is_sent": False}) from None
        except (ValueError, KeyError, TypeError, OSError, UsageError) as error:
            raise Unreachable(f"{path} can't be read: {error}", details={"is_sent": False}) from None


class Plane:
    """One control plane as one worker sees it. ``on_session`` hears of every new session."""

    def __init__(
        self,
        http: HttpClient,
        endpoints: Endpoints,
        identities: IdentityStore,
        *,
        clock: Clock,
        random: Callable[[], float],
        on_session: Callable[[SessionReply], None],
        backoff: Backoff = DEFAULT_BACKOFF,
    ) -> None:
        self._http = http
        self._endpoints = endpoints
        self._identities = identities
        self._clock = clock
        self._random = random
        self._on_session = on_session
        self._backoff = backoff
        self._minting = asyncio.Lock()
        self._token = ""
        self._renew_at_ms = 0

    @property
    def where(self) -> str:
        """The address that is used now, for people."""
        return self._endpoints.shown()

    @property
    def reached_by(self) -> Mapping[str, str]:
        """How a program on this machine reaches the control plane, as variables. Raises Unreachable."""
        variables = {"GPULAYER_URL": str(self._endpoints.current())}
        if self._http.pins:
            variables["GPULAYER_FINGERPRINT"] = ",".join(self._http.pins)
        if self._http.proxy is not None:
            variables["GPULAYER_PROXY"] = str(self._http.proxy)
        return variables

    @property
    def address_count(self) -> int:
        """How many addresses there are to try."""
        return self._endpoints.count

    @property
    def local_address(self) -> str:
        """This machine's own end of the last connection that was made, numeric; empty before the first."""
        return self._http.local_address

    def forget_connections(self) -> None:
        """What was open before a suspend, or on another network, is of no use: everything is asked again."""
        self._http.forget_connections()

    @property
    def worker_name(self) -> str:
        """As the control plane calls this worker."""
        return self._identities.identity.name

    @property
    def worker_path(self) -> str:
        return f"/v1/workers/{self._identities.identity.worker_id}"

    async def enrol(self, facts: WorkerFactsFields, *, token: str, name: str, default_name: str) -> None:
        """Exchange a join token for an identity; may be repeated with the same key and token.

        Raises Conflict where ``name`` is held by another worker, Unauthenticated for a token that is not good, and
        Unreachable.
        """
        identity, token_id = self._identities.identity, _token_id(token)
        key = identity.public_key
        names = [name] if name else [default_name, f"{default_name}-{key[:4]}", f"{default_name}-{key[:12]}"]
        for candidate in names:
            body: EnrolBody = {
                "schema": SCHEMA_VERSION,
                "name": candidate,
                "public_key": key,
                "signature": identity.sign_enrolment(token_id, candidate),
                "facts": facts,
            }
            try:
                reply: EnrolReply = await self._exchange("POST", "/v1/workers:enrol", token, json.dumps(body).encode())
            except Conflict:
                if candidate == names[-1]:
                    raise
            else:
                self._identities.enrolled(reply["worker_id"], reply["name"])
                return

    async def open_session(self) -> None:
        """Mint a session now. Raises NotKnown where this worker is not known (any more), Superseded where another agent
        has its place, and Unreachable."""
        await self._mint(self._token)

    def follow(self, boot: int) -> None:
        """Sessions from now on are of a start that comes after the one of this number."""
        self._identities.follow(boot)

    async def call(
        self,
        method: str,
        path: str,
        *,
        document: object = None,
        content: bytes = b"",
        timeout_s: float = 30.0,
        asks_again: bool = False,
    ) -> Any:  # Any: a JSON document, as the route says
        """One exchange under this worker's session. Raises the error that the answer describes, NotKnown, Superseded,
        UntrustedServer, or Unreachable. asks_again: as of ``HttpClient.request``."""
        body = content if document is None else json.dumps(document).encode()
        is_json = document is not None
        token = await self._session()
        try:
            return await self._exchange(
                method, path, token, body, is_json=is_json, timeout_s=timeout_s, asks_again=asks_again
            )
        except Unauthenticated:
            await self._mint(token)
        return await self._exchange(
            method, path, self._token, body, is_json=is_json, timeout_s=timeout_s, asks_again=asks_again
        )

    @asynccontextmanager
    async def stream(
        self, method: str, path: str, *, document: object = None, body: Body | None = None
    ) -> AsyncIterator[Incoming]:
        """An exchange whose bodies come in pieces. Raises like ``call``; a refused session is left to the next try."""
        headers = {"User-Agent": _USER_AGENT, "Authorization": f"Bearer {await self._session()}"}
        content: bytes | Body = b"" if body is None else body
        if document is not None:
            content = json.dumps(document).encode()
            headers["Content-Type"] = "application/json"
        address = self._endpoints.current()
        try:
            async with self._http.stream(address, method, path, headers=headers, body=content) as incoming:
                if incoming.status >= 400:
                    error = _error(incoming.status, await incoming.read(), incoming.headers)
                    if isinstance(error, Unauthenticated):
                        self._renew_at_ms = 0
                    raise error
                yield incoming
        except (Unreachable, UntrustedServer):
            self._endpoints.failed(address)
            raise

    async def until_answered(
        self, operation: Callable[[], Awaitable[_Result]], *, what: str, gives_up: Callable[[], bool] = _never
    ) -> _Result:
        """Run ``operation`` again until it succeeds or fails for good, with growing, jittered waits in between.
        gives_up: asked each time that the control plane had no room; True: DiskFull is for good."""
        tries = 0
        while True:
            try:
                return await operation()
            except GpulayerError as error:
                if not is_passing(error) or (isinstance(error, DiskFull) and gives_up()):
                    raise
                tries += 1
                if tries == 1 or tries % _SAY_EVERY == 0:
                    _log.warning("%s: %s; trying again", what, error.message)
                wait_s = self.backoff_s(tries, after=error)
            await asyncio.sleep(wait_s)

    def backoff_s(self, tries: int, *, after: GpulayerError | None = None) -> float:
        """Seconds to wait after ``tries`` failures; drawn at random, so it differs each time. after: the last one; a
        control plane that has too much to do says itself when to come again."""
        random = self._random()
        wait_ms = backoff_ms(tries, random=random, backoff=self._backoff)
        if isinstance(after, Overloaded):
            wait_ms = max(wait_ms, asked_ms(after.details[_AGAIN_MS], random=random))
        return wait_ms / 1000

    async def _session(self) -> str:
        if not self._token or self._clock.monotonic_ms() >= self._renew_at_ms:
            await self._mint(self._token)
        return self._token

    async def _mint(self, refused: str) -> None:
        """Replace the session ``refused``; of several that ask at once, one does it."""
        async with self._minting:
            if self._token != refused:
                return
            reply = await self._sign()
            self._token = reply["token"]
            self._renew_at_ms = self._clock.monotonic_ms() + reply["expires_in_s"] * 1000 * 2 // 3
        self._on_session(reply)

    async def _sign(self) -> SessionReply:
        """Each signature is sent once. One that comes too late (this folder is older than its worker: it was restored
        from a backup) is followed by another, above the last that the control plane has seen."""
        path = f"{self.worker_path}/sessions"
        for _ in range(_SIGNATURES):
            counter, signature = self._identities.next_signature()
            body: SessionBody = {
                "schema": SCHEMA_VERSION,
                "counter": counter,
                "signature": signature,
                "boot": self._identities.identity.boot,
                "instance": self._identities.instance,
            }
            content = json.dumps(body).encode()
            try:
                reply: SessionReply = await self._exchange("POST", path, "", content, timeout_s=_MINT_S, is_once=True)
            except (Unauthenticated, NotFound) as error:
                raise NotKnown(error.message, hint=error.hint) from None
            except Conflict as error:
                if error.details.get("superseded"):
                    self._identities.set_superseded(True)
                    raise Superseded(error.message, hint=error.hint, details=error.details) from None
                last = error.details.get("counter")
                if not isinstance(last, int) or not 0 <= last < _COUNTER_END:
                    raise ProtocolError(f"a session was refused without a counter: {error.message}") from None
                self._identities.count_from(last)
            else:
                self._identities.set_superseded(False)
                return reply
        raise Unauthenticated(
            "somebody else signs with this worker's key, and is always first",
            hint="a worker's folder can't be used twice: end the other one, or join from an empty folder",
        )

    async def _exchange(
        self,
        method: str,
        path: str,
        token: str,
        body: bytes,
        *,
        is_json: bool = True,
        timeout_s: float = 30.0,
        asks_again: bool = False,
        is_once: bool = False,
    ) -> Any:  # Any: see call
        headers = {"User-Agent": _USER_AGENT}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        if is_json:
            headers["Content-Type"] = "application/json"
        address = self._endpoints.current()
        try:
            answer = await self._http.request(
                address,
                method,
                path,
                headers=headers,
                body=body,
                timeout_s=timeout_s,
                asks_again=asks_again,
                is_once=is_once,
            )
        except (Unreachable, UntrustedServer):
            self._endpoints.failed(address)
            raise
        if answer.status >= 400:
            error = _error(answer.status, answer.body, answer.headers)
            if answer.status == 503 and not isinstance(error, Overloaded):
                self._endpoints.failed(address)  # a standby says so; the leader may be the next one
            raise error
        try:
            return json.loads(answer.body or b"null")
        except ValueError:
            raise ProtocolError(f"{method} {path}: the answer is no JSON") from None


def _token_id(token: str) -> str:
    """Of ``gle_<id>_<secret>``."""
    return token.partition("_")[2].partition("_")[0]


def _error(status: int, body: bytes, headers: Mapping[str, str]) -> GpulayerError:
    try:
        error = error_from_envelope(json.loads(body))
    except ValueError:
        error = None
    if error is None:
        kinds: Mapping[int, type[GpulayerError]] = {401: Unauthenticated, 403: Forbidden, 503: StorageUnavailable}
        return kinds.get(status, ProtocolError)(f"the control plane answered {status} without saying why")
    if isinstance(error, Overloaded):
        said = headers.get("retry-after", "")
        after_s = int(said) if said.isascii() and said.isdigit() and len(said) <= _DIGITS else 1
        error.details[_AGAIN_MS] = min(after_s, _LONGEST_S) * 1000
    return error
