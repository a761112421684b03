"""How a route is declared, and what its handler is given.

A ``Route`` says who may call it; ``app`` refuses to start with one that does not. Handlers get a ``Call``, raise
errors of the one tree, and return a response; bodies are read with a limit and checked against a wire schema here.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_core import CoreConfig, SchemaValidator
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from gpulayer.errors import BadRequest, Forbidden, GpulayerError, Overloaded, TooLarge, TooSlow
from gpulayer.server.admission import Demand, Held
from gpulayer.server.auth import Caller
from gpulayer.server.hub import Watch
from gpulayer.server.onewrite import KNOWN
from gpulayer.server.tokens import Grant, Role, TokenKind
from gpulayer.spec.units import format_bytes
from gpulayer.wire.errors import envelope

if TYPE_CHECKING:
    from gpulayer.server.plane import Plane

__all__ = [
    "ADMIN",
    "JOIN",
    "OPEN",
    "READ",
    "READ_OR_JOB",
    "READ_OR_WORKER",
    "SUBMIT",
    "SUBMIT_OR_WORKER",
    "WORKER",
    "Access",
    "Call",
    "Hold",
    "Query",
    "Route",
    "adapter",
    "check_slice",
    "error_response",
    "held",
    "json_response",
]

T = TypeVar("T")

_OPEN_BODY: Final = 64 * 1024  # of a route that anybody may call


@dataclass(frozen=True, slots=True)
class Access:
    """Whose tokens open a route. Empty and ``is_open``: nobody needs one. role: the least that a client token needs;
    grant: the least that a job's token needs. Whose jobs, leases and blobs they may touch is in ``rights``."""

    kinds: frozenset[TokenKind] = frozenset()
    role: Role = Role.ADMIN
    is_open: bool = False
    grant: Grant = Grant.SUBMIT

    def check(self, caller: Caller) -> None:
        """Raises Forbidden that says what the route takes."""
        if caller.kind not in self.kinds:
            accepted = " or ".join(sorted(self.kinds))
            hint = _job_may(caller) if caller.kind is TokenKind.JOB else _MADE_FOR[caller.kind]
            raise Forbidden(f"a {caller.kind} token does not open this route; it takes a {accepted} token", hint=hint)
        if caller.kind is TokenKind.JOB and not caller.grant.includes(self.grant):
            raise Forbidden(
                f"the token of job {caller.job} only reads what is its own",
                hint="submit the job with --grant submit, and it may submit others",
            )
        if caller.kind is TokenKind.CLIENT and not caller.role.includes(self.role):
            raise Forbidden(
                f"token {caller.token_id} has the role {caller.role}; this needs {self.role}",
                hint="ask whoever runs the control plane for another token: gpulayer token create",
            )


_MADE_FOR: Final = {
    TokenKind.CLIENT: "only workers and jobs call it",
    TokenKind.JOIN: "a join token (gle_…) is for `gpulayer join` alone; commands take a client token (glc_…)",
    TokenKind.WORKER: "a worker's session only serves the work of that worker",
}


def _job_may(caller: Caller) -> str:
    """What the token of a job is good for, in commands."""
    own = f"with this job's token: gpulayer job show, logs, events and result {caller.job}"
    if not caller.grant.includes(Grant.SUBMIT):
        return f"{own}; with --grant submit also gpulayer submit"
    return f"{own} and of the jobs it submits; gpulayer submit; job cancel and retry of those"


_CLIENT: Final = frozenset({TokenKind.CLIENT})
_WORKER: Final = frozenset({TokenKind.WORKER})
_JOB: Final = frozenset({TokenKind.JOB})
OPEN: Final = Access(is_open=True)
READ: Final = Access(_CLIENT, Role.READER)
READ_OR_JOB: Final = Access(_CLIENT | _JOB, Role.READER, grant=Grant.OWN)
SUBMIT: Final = Access(_CLIENT | _JOB, Role.SUBMITTER)
ADMIN: Final = Access(_CLIENT, Role.ADMIN)
JOIN: Final = Access(frozenset({TokenKind.JOIN}))
WORKER: Final = Access(_WORKER)
READ_OR_WORKER: Final = Access(_CLIENT | _WORKER | _JOB, Role.READER, grant=Grant.OWN)
SUBMIT_OR_WORKER: Final = Access(_CLIENT | _WORKER | _JOB, Role.SUBMITTER)


@dataclass(frozen=True, slots=True)
class Query:
    """A query parameter, as described in /openapi.json. kind: of JSON schema, or ``flag``: 0 or 1. most: its end, of
    a text the longest. choices: of a text; empty for any."""

    name: str
    text: str
    kind: Literal["integer", "number", "string", "flag"] = "integer"
    least: int = 0
    most: int = 2**62
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Route:
    """One operation. ``body``, ``reply``: wire schemas, None for bytes or nothing; ``access`` None: refused by
    ``app``. ``raw``: the media type of a body that is no JSON. ``repeated``: the status where that was done before.
    ``demand``: whether it may be refused while there is too much to do."""

    method: str
    path: str
    handler: "Callable[[Call], Awaitable[Response]]"
    access: Access | None
    summary: str
    body: type[Any] | None = None  # Any: each wire schema
    reply: type[Any] | None = None
    status: int = 200
    repeated: int | None = None
    demand: Demand = Demand.AHEAD
    query: tuple[Query, ...] = ()
    raw: str = ""
    raw_reply: str = ""


@dataclass(slots=True)
class Call:
    """One request: who calls, and what was sent. held: what of it is in memory, where that is counted."""

    plane: "Plane"
    request: Request
    caller: Caller | None
    held: Held | None = None

    @property
    def client(self) -> Caller:
        """The caller of a route that is not open."""
        if self.caller is None:
            raise AssertionError("an open route asked for its caller")
        return self.caller

    def recognise(self, party: str, *, is_worker: bool) -> None:
        """The connection has shown whose it is (see ``gate``), if whatever serves it counts connections."""
        known = self.request.scope.get("state", {}).get(KNOWN)
        if known is not None:
            known(party, is_worker=is_worker)

    def path(self, name: str) -> str:
        return cast("str", self.request.path_params[name])

    def path_int(self, name: str) -> int:
        """Raises BadRequest for anything but a number of 0 or more."""
        return _integer(self.path(name), name, 0, 2**62)

    def query(self, name: str, default: str = "") -> str:
        """The default where it is absent; an empty value stays empty."""
        return self.request.query_params.get(name, default)

    def query_int(self, name: str, default: int | None, *, least: int = 0, most: int = 2**62) -> int | None:
        """The default where it is absent or empty. Raises BadRequest outside ``least`` to ``most``."""
        text = self.request.query_params.get(name)
        return default if text is None or text == "" else _integer(text, name, least, most)

    def query_number(self, name: str, default: float, *, most: float) -> float:
        """A number of seconds, 0 to ``most``."""
        text = self.request.query_params.get(name)
        if text is None or text == "":
            return default
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value <= most:
            raise BadRequest(f"{name}: {text[:40]!r} must be a number from 0 to {most:g}")
        return value

    def query_flag(self, name: str) -> bool:
        """False where it is absent. Raises BadRequest for anything but 0, 1, true and false."""
        text = self.request.query_params.get(name, "0")
        if text not in ("0", "1", "true", "false"):
            raise BadRequest(f"{name}: {text[:40]!r} must be 0 or 1")
        return text in ("1", "true")

    async def content(self, limit: int | None = None) -> bytes:
        """The whole body. Raises TooLarge that names the limit, TooSlow, and Overloaded where it finds no room."""
        if limit is None:
            limit = _OPEN_BODY if self.caller is None else self.plane.settings.max_body_bytes
        pieces: list[bytes] = []
        async for piece in self.pieces(limit, "the body"):
            try:
                if self.held is not None:
                    self.held.take(len(piece))
            except Overloaded:
                pieces.clear()
                await self._drain(limit)
                raise
            pieces.append(piece)
        return b"".join(pieces)

    async def pieces(self, limit: int, what: str) -> AsyncIterator[bytes]:
        """The body as it comes, at most ``limit`` bytes, whatever its headers claim. Raises TooLarge, and TooSlow for
        a sender that stands still or drips. What the taker of a piece needs is not counted.

        A body may take its time, and what its sender came with may have ended meanwhile: raises Unauthenticated at its
        end then, so that nothing is done with it."""
        said = self.request.headers.get("content-length", "")
        if said.isascii() and said.isdigit() and (len(said) > 18 or int(said) > limit):
            await self._drain(limit)
            raise _too_large(what, limit, format_bytes(int(said[:18])))
        total, waited_s, is_more = 0, 0.0, True
        settings, clock = self.plane.settings, asyncio.get_running_loop().time
        while is_more:
            began = clock()
            piece, is_more = await self._piece(what, total)
            waited_s += clock() - began
            total += len(piece)
            if total > limit:
                await self._drain(limit)
                raise _too_large(what, limit, "more")
            if waited_s > settings.body_piece_s + total / settings.body_bytes_a_second:
                raise TooSlow(
                    f"{what}: {format_bytes(total)} came in {waited_s:.0f} s; at least "
                    f"{format_bytes(settings.body_bytes_a_second)} a second must",
                    hint="send it again over a better connection",
                )
            if piece:
                yield piece
        if self.caller is not None:
            self.plane.auth.check_still(self.caller)

    async def _piece(self, what: str, came: int) -> tuple[bytes, bool]:
        """What came since the last one, and whether there is more."""
        patience_s = self.plane.settings.body_piece_s
        try:
            async with asyncio.timeout(patience_s):
                message = await self.request.receive()
        except TimeoutError:
            raise TooSlow(
                f"{what}: nothing came for {patience_s:g} s, after {format_bytes(came)}", hint="send it again"
            ) from None
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        return message.get("body", b""), message.get("more_body", False)

    async def json(self, schema: type[T], *, optional: bool = False) -> T:
        """The body as this wire schema. Raises BadRequest that names the field; an absent body is ``{}`` where it is
        ``optional``."""
        raw = await self.content()
        if optional and not raw:
            raw = b"{}"
        return check_json(schema, raw)

    async def _drain(self, limit: int) -> None:
        """Take what still comes, up to a point: closing at once would reset the connection, and the sender would
        see that instead of the answer."""
        left = 4 * limit
        with suppress(ClientDisconnect, RuntimeError, TimeoutError):
            async with asyncio.timeout(5):
                while left > 0:
                    message = await self.request.receive()
                    if message["type"] != "http.request" or not message.get("more_body"):
                        return
                    left -= len(message.get("body", b""))


@dataclass(slots=True)
class Hold:
    """A request that is held open. ``is_over``: nobody waits for the answer any more, or the plane is closing.

    Its caller is looked at again with every wake-up, which the end of a token is, too, and now and then in between.
    """

    watch: Watch
    call: Call
    is_gone: bool = False

    @property
    def is_over(self) -> bool:
        """The caller has gone or the plane is closing: answer now."""
        return self.is_gone or self.call.plane.is_closing

    async def wait(self, timeout_s: float | None = None) -> None:
        """Until the watch is woken, the client has gone, the plane closes, the time is over, or for no reason: look.

        Raises Unauthenticated once the caller's token is no good any more.
        """
        if not self.is_over:
            look_s = self.call.plane.settings.look_again_s
            with suppress(TimeoutError):
                # Not wait_for, which wraps its work in a task: a wake-up would take two turns of the loop more.
                async with asyncio.timeout(look_s if timeout_s is None else min(timeout_s, look_s)):
                    await self.watch.wait()
        self.check()

    def check(self) -> None:
        """Raises Unauthenticated once the caller's token is no good any more; for what goes on without waiting."""
        self.call.plane.auth.check_still(self.call.client)


@asynccontextmanager
async def held(call: Call, watch: Watch) -> AsyncIterator[Hold]:
    """Hold a request whose body has been read: its end is noticed while waiting."""
    hold = Hold(watch, call)

    async def notice() -> None:
        while (await call.request.receive())["type"] != "http.disconnect":
            pass
        hold.is_gone = True
        watch.wake()

    noticing = asyncio.ensure_future(notice())
    try:
        with call.plane.hub.waking(watch, ("token", call.client.token_id)):
            yield hold
    finally:
        noticing.cancel()
        with suppress(asyncio.CancelledError):
            await noticing


@lru_cache(maxsize=64)
def _adapter(schema: Any) -> TypeAdapter[Any]:  # Any: a wire schema; typing has no name for "a TypedDict class"
    """The validator of a wire schema, made at its first use: made at start, they would cost a tenth of a second."""
    return TypeAdapter(schema)


def adapter(schema: Any) -> TypeAdapter[Any]:  # Any: as above
    """The validator of a wire schema."""
    return _adapter(schema)


@lru_cache(maxsize=64)
def _json_validator(schema: Any) -> SchemaValidator:  # Any: as above
    """It remembers the names of fields, and no values: those of bodies would be kept by the thousand, tokens too."""
    return SchemaValidator(_adapter(schema).core_schema, CoreConfig(cache_strings="keys"))


def check_json(schema: type[T], raw: bytes) -> T:
    """Strict: no text is taken for a number. Raises BadRequest that names the field."""
    try:
        validator: SchemaValidator = _json_validator(cast("Any", schema))
        return cast("T", validator.validate_json(raw, strict=True))
    except ValidationError as error:
        raise _bad_request(error) from None


def check_slice(schema: Any, items: Sequence[object], first: int | None) -> Any:  # Any: as adapter; the items checked
    """Part of a list that was parsed before. ``first``: its place in the list, for the message; None: it is no list
    but one value."""
    try:
        return adapter(list[schema]).validate_python(items, strict=True)
    except ValidationError as error:
        raise _bad_request(error, in_list=True, first=first) from None


def json_response(document: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """``document`` holds plain JSON values only."""
    # ASCII: names of files may hold surrogate escapes, which no UTF-8 text can carry.
    content = json.dumps(document, separators=(",", ":")).encode("ascii")
    return Response(content, status, headers=dict(headers or {}), media_type="application/json")


_STATUS: Final = {
    "bad_request": 400,
    "not_supported": 400,
    "usage": 400,
    "version_mismatch": 400,
    "unauthenticated": 401,
    "forbidden": 403,
    "not_found": 404,
    "too_slow": 408,
    "conflict": 409,
    "stale_attempt": 409,
    "no_worker_fits": 409,
    "job_ended": 409,
    "too_large": 413,
    "job_refused": 422,
    "idempotency_mismatch": 422,
    "digest_mismatch": 422,
    "overloaded": 503,
    "storage_unavailable": 503,
    "disk_full": 507,
}


def error_response(error: GpulayerError, status: int | None = None) -> Response:
    """The one envelope, with the status of the error's code."""
    status = status or _STATUS.get(error.code, 500)
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    if status == 503:
        headers["Retry-After"] = str(error.details.get("retry_after_s", 1))
    if status == 408:
        headers["Connection"] = "close"  # the rest of that body may never come
    return json_response(envelope(error), status, headers)


def _bad_request(error: ValidationError, *, in_list: bool = False, first: int | None = None) -> BadRequest:
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    problem = problems[0]
    if problem["type"] == "json_invalid":
        return BadRequest(f"the body is not JSON: {problem['msg'].removeprefix('Invalid JSON: ')}")
    loc = list(problem["loc"])
    if in_list:
        loc = loc[1:] if first is None else ["jobs", first + int(loc[0]), *loc[1:]]
    where = ".".join(str(part) for part in loc)
    more = f" (and {len(problems) - 1} more problems)" if len(problems) > 1 else ""
    details = {"fields": [".".join(str(part) for part in each["loc"]) for each in problems[:20]]}
    return BadRequest(f"{where or 'the body'}: {problem['msg']}{more}", details=details)


def _integer(text: str, name: str, least: int, most: int) -> int:
    # int() would take signs, spaces, underscores and other scripts' digits, too.
    if text.isascii() and text.isdigit() and len(text) <= 19 and least <= int(text) <= most:
        return int(text)
    raise BadRequest(f"{name}: {text[:40]!r} must be a whole number from {least} to {most}")


def _too_large(what: str, limit: int, size: str) -> TooLarge:
    return TooLarge(f"{what} is over the limit of {format_bytes(limit)} ({size} was sent)", details={"limit": limit})
