"""``gpulayer doctor``: from the name to the token, one step after another, so that the first that fails is the trouble.

A step is done by hand where a library would say only that "it did not connect": the name, the connection, the
handshake, the answer, then who the caller is there. Each finding says what is so and, where it is bad, what to do.
Nothing is retried and every wait has a limit. The token is sent only once the server is known to be the right one.
"""

import http.client
import json
import os
import shutil
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from gpulayer.client.connection import keep_pace
from gpulayer.client.embedded import is_compatible
from gpulayer.client.limits import Limits, Pace
from gpulayer.client.location import Location
from gpulayer.net import Address, pin_of, tls_context, trust_failure
from gpulayer.spec.units import format_bytes

__all__ = ["Finding", "Mark", "examine", "examine_folder"]

_WAIT_S: Final = 5.0
_SKEW_S: Final = 30.0
_LOW_BYTES: Final = 2**30
_EMPTY_BYTES: Final = 64 * 2**20
_RENEW_S: Final = 7 * 86_400


class Mark(StrEnum):
    OK = "ok"
    WARN = "warn"  # it works; somebody should look at it before long
    FAIL = "fail"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """check: one of ``folder name address tls answer clock version token plane workers disk``."""

    check: str
    mark: Mark
    message: str
    hint: str = ""


class _Stop(Exception):
    """Nothing after this step can be looked at."""


def examine(
    location: Location,
    *,
    version: str,
    client: str,
    wall: Callable[[], float] = time.time,
    monotonic: Callable[[], float] = time.monotonic,
) -> Iterator[Finding]:
    """The findings about one control plane, as they are made. Blocks, for some seconds where nothing answers.

    version: this program's. An empty token leaves out what needs one.
    """
    reached: Address | None = None
    for address in location.addresses:
        try:
            yield from _reach(address, location, version=version, client=client, wall=wall, monotonic=monotonic)
        except _Stop:
            continue
        reached = reached or address
    if reached is not None:
        yield from _as_caller(reached, location, version=version, client=client, wall=wall)


def examine_folder(folder: Path) -> Iterator[Finding]:
    """Whether this machine's own state can be kept: the folder can be written, and its disk has room."""
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    if not os.access(place, os.W_OK | os.X_OK):
        yield Finding(
            "folder",
            Mark.FAIL,
            f"state folder {folder} can't be written",
            "set GPULAYER_STATE_DIR to a folder of yours, or mend its owner and mode",
        )
        return
    yield _disk(f"the disk of {folder}", shutil.disk_usage(place).free)


def _reach(
    address: Address,
    location: Location,
    *,
    version: str,
    client: str,
    wall: Callable[[], float],
    monotonic: Callable[[], float],
) -> Iterator[Finding]:
    hop = location.proxy or address
    yield from _named(hop, is_proxy=location.proxy is not None)
    with closing(_connection(address, location)) as connection:
        began = monotonic()
        try:
            connection.connect()
        except (OSError, http.client.HTTPException) as error:
            yield _not_connected(error, address, hop, is_proxy=location.proxy is not None)
            raise _Stop from None
        took_ms = (monotonic() - began) * 1000
        through = f" through {hop}" if location.proxy is not None else ""
        yield Finding("address", Mark.OK, f"{address} is reached{through} in {took_ms:.0f} ms")
        if isinstance(connection.sock, ssl.SSLSocket):
            yield _trusted(connection.sock, location)
        yield from _answers(connection, address, version=version, client=client, wall=wall)


def _named(address: Address, *, is_proxy: bool) -> Iterator[Finding]:
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:  # ValueError: a name that can't be asked for
        what = "the proxy" if is_proxy else "the control plane"
        yield Finding(
            "name",
            Mark.FAIL,
            f"{address.host} has no address here: {getattr(error, 'strerror', None) or error}",
            f"check the spelling, or use the numeric address of {what}",
        )
        raise _Stop from None
    numeric = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    if address.host not in numeric:
        yield Finding("name", Mark.OK, f"{address.host} is {', '.join(numeric)}")


def _connection(address: Address, location: Location) -> http.client.HTTPConnection:
    hop = location.proxy or address
    connection: http.client.HTTPConnection
    if address.is_secure:
        context = tls_context(location.pins)
        connection = http.client.HTTPSConnection(hop.host, hop.port, timeout=_WAIT_S, context=context)
    else:
        connection = http.client.HTTPConnection(hop.host, hop.port, timeout=_WAIT_S)
    if location.proxy is not None:
        connection.set_tunnel(address.host, address.port)
    return connection


def _not_connected(error: BaseException, address: Address, hop: Address, *, is_proxy: bool) -> Finding:
    untrusted = trust_failure(error, address)
    if untrusted is not None:
        return Finding("tls", Mark.FAIL, untrusted.message, untrusted.hint)
    match error:
        case ConnectionRefusedError():
            hint = "is it running there (`gpulayer status` on that machine), and is the port right?"
            return Finding("address", Mark.FAIL, f"{hop} refuses connections", hint)
        case TimeoutError():
            return Finding(
                "address",
                Mark.FAIL,
                f"{hop} does not answer within {_WAIT_S:.0f} s",
                "a firewall may drop it: open the port there, or ask for the address that others use",
            )
        case ssl.SSLError():
            return Finding(
                "tls",
                Mark.FAIL,
                f"{address} does not speak TLS: {error.reason or error}",
                "is something else listening on that port? `gpulayer status` on that machine shows its address",
            )
        case _:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            hint = "does the proxy allow that port?" if is_proxy else "is this machine on the right network or VPN?"
            return Finding("address", Mark.FAIL, f"{hop} can't be reached: {why}", hint)


def _trusted(socket_: ssl.SSLSocket, location: Location) -> Finding:
    certificate = socket_.getpeercert(binary_form=True)
    shown = "" if certificate is None else pin_of(certificate)
    how = "its certificate is the pinned one" if location.pins else "a public CA vouches for its certificate"
    return Finding("tls", Mark.OK, f"{socket_.version()}: {how} ({shown})")


def _answers(
    connection: http.client.HTTPConnection, address: Address, *, version: str, client: str, wall: Callable[[], float]
) -> Iterator[Finding]:
    sent = wall()
    try:
        status, headers, body = _get(connection, address, "/healthz", {"User-Agent": client})
    except (OSError, http.client.HTTPException) as error:
        hint = "something between may cut it; is it a control plane's port?"
        yield Finding("answer", Mark.FAIL, f"{address} gives no answer: {str(error) or type(error).__name__}", hint)
        raise _Stop from None
    if status != 200 or _document(body).get("status") != "ok":
        yield _no_plane(address, status, headers, body)
        raise _Stop
    yield Finding("answer", Mark.OK, f"{address} is a control plane")
    yield from _clock(headers.get("date", ""), (sent + wall()) / 2)


def _no_plane(address: Address, status: int, headers: dict[str, str], body: bytes) -> Finding:
    error = _document(body).get("error")
    if isinstance(error, dict):
        check = "version" if error.get("code") == "version_mismatch" else "answer"
        return Finding(check, Mark.FAIL, str(error.get("message", "")), str(error.get("hint", "")))
    where = f", and points to {headers['location'][:200]}" if "location" in headers else ""
    said = body[:80].decode("utf-8", "replace").split("\n")[0]
    return Finding(
        "answer",
        Mark.FAIL,
        f"{address} answers {status}{where}, not as a control plane does: {said!r}",
        "is the address right? a proxy or another program may stand there",
    )


def _clock(date: str, ours: float) -> Iterator[Finding]:
    try:
        theirs = parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        return
    skew = ours - theirs
    if abs(skew) <= _SKEW_S:
        yield Finding("clock", Mark.OK, "this machine's clock and the control plane's agree")
        return
    which = "ahead of" if skew > 0 else "behind"
    yield Finding(
        "clock",
        Mark.WARN,
        f"this machine's clock is {_span(abs(skew))} {which} the control plane's",
        "set the clock that is wrong (timedatectl set-ntp true): times shown will not match; "
        "certificates of a public CA may seem expired",
    )


def _as_caller(
    address: Address, location: Location, *, version: str, client: str, wall: Callable[[], float]
) -> Iterator[Finding]:
    if not location.token:
        yield Finding("token", Mark.SKIPPED, "no token was given: what needs one was not looked at")
        return
    headers = {"User-Agent": client, "Authorization": f"Bearer {location.token}", "Accept": "application/json"}
    try:
        with closing(_connection(address, location)) as connection:
            status, _, body = _get(connection, address, "/v1/plane", headers)
    except (OSError, http.client.HTTPException) as error:
        yield Finding("token", Mark.FAIL, f"{address} gives no answer: {str(error) or type(error).__name__}")
        return
    document = _document(body)
    if status != 200:
        error_fields = document.get("error")
        found = error_fields if isinstance(error_fields, dict) else {"message": f"it answers {status}"}
        is_version = found.get("code") == "version_mismatch"
        hint = found.get("hint") or "ask for another one: `gpulayer token create` where the control plane runs"
        yield Finding("version" if is_version else "token", Mark.FAIL, str(found.get("message")), str(hint))
        return
    yield from _judged(document, version=version, now=wall())


def _judged(plane: dict[str, Any], *, version: str, now: float) -> Iterator[Finding]:
    # Any: a PlaneRecord, perhaps of another version.
    theirs = str(plane.get("version", ""))
    if is_compatible(version, theirs):
        yield Finding("version", Mark.OK, f"version {theirs} there, {version} here")
    else:
        hint = f"install the same minor series: pip install 'gpulayer=={theirs}'"
        yield Finding("version", Mark.FAIL, f"version {theirs} there, {version} here: they may not understand", hint)
    yield _known(_fields(plane.get("you")), now)
    if plane.get("read_only"):
        hint = "free space on its disk; its log, plane.log, says more"
        yield Finding("plane", Mark.FAIL, "the control plane can't write: it takes no jobs now", hint)
    workers = _fields(plane.get("workers"))
    ready, silent = workers.get("ready", 0), workers.get("silent", 0)
    counts = ", ".join(f"{count} {state}" for state, count in workers.items()) or "none has joined"
    if not ready:
        hint = "`gpulayer worker list` shows them; `gpulayer token create --role join` prints a line that adds one"
        yield Finding("workers", Mark.WARN, f"no worker is ready ({counts}): jobs will wait", hint)
    else:
        hint = "`gpulayer worker list` shows which; run `gpulayer doctor URL` on such a machine" if silent else ""
        yield Finding("workers", Mark.WARN if silent else Mark.OK, f"workers: {counts}", hint)
    free = plane.get("disk_free_bytes")
    if isinstance(free, int):
        yield _disk("the control plane's disk", free)


def _known(you: dict[str, Any], now: float) -> Finding:
    # Any: a CallerRecord.
    from datetime import datetime  # noqa: PLC0415 - only here

    who = f"you are {you.get('name') or you.get('token_id')} ({you.get('role')})"
    expires = you.get("expires_at")
    if not expires:
        return Finding("token", Mark.OK, f"{who}; this token does not expire")
    try:
        left = datetime.fromisoformat(str(expires)).timestamp() - now
    except (ValueError, OverflowError):
        return Finding("token", Mark.WARN, f"{who}; nobody can tell for how long: {str(expires)[:40]!r} is no time")
    mark = Mark.WARN if left < _RENEW_S else Mark.OK
    hint = "`gpulayer token rotate` replaces it" if mark is Mark.WARN else ""
    return Finding("token", mark, f"{who}; this token is good for {_span(max(0.0, left))} more", hint)


def _disk(what: str, free: int) -> Finding:
    message = f"{what} has {format_bytes(free)} free"
    if free < _EMPTY_BYTES:
        return Finding("disk", Mark.FAIL, message, "free some: nothing can be kept there")
    if free < _LOW_BYTES:
        return Finding("disk", Mark.WARN, message, "free some soon")
    return Finding("disk", Mark.OK, message)


def _get(
    connection: http.client.HTTPConnection, address: Address, path: str, headers: dict[str, str]
) -> tuple[int, dict[str, str], bytes]:
    pace = Pace(Limits(answer_s=_WAIT_S))
    keep_pace(connection, pace)
    connection.request("GET", address.prefix + path, headers={**headers, "Host": address.netloc, "Connection": "close"})
    pace.head(0.0)
    answer = connection.getresponse()
    pace.body()
    found = {name.lower(): value for name, value in answer.getheaders()}
    return answer.status, found, answer.read(2**20)


def _document(body: bytes) -> dict[str, Any]:  # Any: what a server answered, parsed
    try:
        return _fields(json.loads(body))
    except (ValueError, RecursionError):
        return {}


def _fields(found: object) -> dict[str, Any]:  # Any: as above; nothing where it is no object
    return found if isinstance(found, dict) else {}


def _span(seconds: float) -> str:
    for size, name in ((86_400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            count = int(seconds / size)
            return f"{count} {name}{'s' if count != 1 else ''}"
    return f"{seconds:.0f} seconds"
