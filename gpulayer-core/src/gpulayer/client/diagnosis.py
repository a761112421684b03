"""``gpulayer doctor``: from the name to the token, one step after another, so that the first that fails is the trouble.

The connection is opened by what every command opens its own with, so that a proxy, a pin and an address mean the same
here: first the name, the connection, the handshake, the answer, then who the caller is there. Each finding says what is
so and, where it is bad, what to do. Nothing is retried and every wait has a limit. The token is sent only once the
server is known to be the right one.
"""

import http.client
import json
import os
import shutil
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, assert_never

from gpulayer.client.answers import Failed, plain_reason
from gpulayer.client.connection import Connection, Opening, Step, open_connection
from gpulayer.client.embedded import is_compatible
from gpulayer.client.limits import Limits
from gpulayer.client.location import Location
from gpulayer.client.reach import Route, Way
from gpulayer.errors import UntrustedServer
from gpulayer.net import Address, pin_of, tls_context
from gpulayer.spec.units import format_bytes

__all__ = ["Finding", "Mark", "examine", "examine_folder", "plugin_findings"]

_WAIT_S: Final = 5.0
_SKEW_S: Final = 30.0
_LOW_BYTES: Final = 2**30
_EMPTY_BYTES: Final = 64 * 2**20
_RENEW_S: Final = 7 * 86_400
_PAGE_BYTES: Final = 16 * 2**20


class Mark(StrEnum):
    """How a step went. Only ``fail`` decides the exit code."""

    OK = "ok"
    WARN = "warn"  # it works; somebody should look at it before long
    FAIL = "fail"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """check: one of ``folder store name address tls answer clock version token plane workers disk plugins``."""

    check: str
    mark: Mark
    message: str
    hint: str = ""


class _Stop(Exception):
    """Nothing after this step can be looked at."""


def examine(
    location: Location, *, version: str, client: str, wall: Callable[[], float] = time.time
) -> Iterator[Finding]:
    """The findings about one control plane, as they are made. Blocks, for some seconds where nothing answers.

    version: this program's. An empty token leaves out what needs one.
    """
    reached: Way | None = None
    for address in location.addresses:
        way = Way(Route.of(location, address), location.token, _WAIT_S)
        try:
            yield from _reach(way, client=client, wall=wall)
        except _Stop:
            continue
        reached = reached or way
    if reached is not None:
        yield from _as_caller(reached, version=version, client=client, wall=wall)


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
            "mend its owner, mode or disk: the control plane with your jobs lies there"
            if (folder / "store.db").exists()
            else "set GPULAYER_STATE_DIR to a folder of yours, or mend its owner and mode",
        )
        return
    yield _disk(f"the disk of {folder}", shutil.disk_usage(place).free)


def _reach(way: Way, *, client: str, wall: Callable[[], float]) -> Iterator[Finding]:
    route, opening = way.route, Opening()
    try:
        connection = open_connection(way, lambda: tls_context(route.pins), Limits(answer_s=_WAIT_S), opening=opening)
    except (Failed, UntrustedServer) as error:
        yield from _passed(route, opening)
        yield _not_opened(error, route, opening)
        raise _Stop from None
    with closing(connection):
        yield from _passed(route, opening)
        if isinstance(connection.sock, ssl.SSLSocket):
            yield _trusted(connection.sock, route)
        yield from _answers(connection, client=client, wall=wall)


def _passed(route: Route, opening: Opening) -> Iterator[Finding]:
    """The steps to a connection that were good."""
    hop = route.proxy or route.address
    if opening.numeric and hop.host not in opening.numeric:
        yield Finding("name", Mark.OK, f"{hop.host} is {', '.join(opening.numeric)}")
    if opening.step in (Step.TLS, Step.OPEN):
        through = "" if route.proxy is None else f" through {hop}"
        took_ms = opening.connected_s * 1000
        yield Finding("address", Mark.OK, f"{route.address} is reached{through}: connected in {took_ms:.0f} ms")


def _not_opened(error: Failed | UntrustedServer, route: Route, opening: Opening) -> Finding:
    if isinstance(error, UntrustedServer):
        return Finding("tls", Mark.FAIL, error.message, error.hint)
    hop, met = route.proxy or route.address, opening.error
    why = plain_reason(met) if met is not None else error.error.message
    match opening.step:
        case Step.NAME:
            what = "the control plane" if route.proxy is None else "the proxy"
            hint = f"check the spelling, or use the numeric address of {what}"
            return Finding("name", Mark.FAIL, f"{hop.host} has no address here: {why}", hint)
        case Step.ADDRESS if isinstance(met, ConnectionRefusedError):
            hint = "is it running there (`gpulayer status` on that machine), and is the port right?"
            return Finding("address", Mark.FAIL, f"{hop} refuses connections", hint)
        case Step.ADDRESS if isinstance(met, TimeoutError):
            hint = "a firewall may drop it: open the port there, or ask for the address that others use"
            return Finding("address", Mark.FAIL, f"{hop} does not answer within {_WAIT_S:.0f} s", hint)
        case Step.ADDRESS:
            hint = "is this machine on the right network or VPN?"
            return Finding("address", Mark.FAIL, f"{hop} can't be reached: {why}", hint)
        case Step.TUNNEL:
            return Finding("address", Mark.FAIL, why, f"does the proxy {hop} allow {route.address.netloc}?")
        case Step.TLS:
            hint = "is something else listening on that port? `gpulayer status` on that machine shows its address"
            return Finding("tls", Mark.FAIL, f"{route.address} opens no TLS: {why}", hint)
        case Step.OPEN:
            raise AssertionError("it was opened") from error
        case _:
            assert_never(opening.step)


def _trusted(socket_: ssl.SSLSocket, route: Route) -> Finding:
    certificate = socket_.getpeercert(binary_form=True)
    shown = "" if certificate is None else pin_of(certificate)
    how = "its certificate is the pinned one" if route.pins else "a public CA vouches for its certificate"
    return Finding("tls", Mark.OK, f"{socket_.version()}: {how} ({shown})")


def _answers(connection: Connection, *, client: str, wall: Callable[[], float]) -> Iterator[Finding]:
    address, sent = connection.route.address, wall()
    try:
        status, headers, body = _get(connection, "/healthz", {"User-Agent": client})
    except (OSError, http.client.HTTPException) as error:
        hint = "something between may cut it; is it a control plane's port?"
        yield Finding("answer", Mark.FAIL, f"{address} gives no answer: {plain_reason(error)}", hint)
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


def _as_caller(way: Way, *, version: str, client: str, wall: Callable[[], float]) -> Iterator[Finding]:
    if not way.token:
        yield Finding("token", Mark.SKIPPED, "no token was given: what needs one was not looked at")
        return
    headers = {"User-Agent": client, "Authorization": f"Bearer {way.token}", "Accept": "application/json"}
    try:
        with closing(open_connection(way, lambda: tls_context(way.route.pins))) as connection:
            status, _, body = _get(connection, "/v1/plane", headers)
    except (Failed, UntrustedServer) as failed:
        error = failed.error if isinstance(failed, Failed) else failed
        yield Finding("token", Mark.FAIL, error.message, error.hint)
        return
    except (OSError, http.client.HTTPException) as broken:
        yield Finding("token", Mark.FAIL, f"{way.route.address} gives no answer: {plain_reason(broken)}")
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
    yield from _plugins(way, headers)


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


def _plugins(way: Way, headers: dict[str, str]) -> Iterator[Finding]:
    """Those that do not work, of the control plane and its workers; nothing where only gpulayer's own are there."""
    try:
        with closing(open_connection(way, lambda: tls_context(way.route.pins))) as connection:
            status, _, body = _get(connection, "/v1/plugins", headers, limit=_PAGE_BYTES)
    except (Failed, UntrustedServer, OSError, http.client.HTTPException):
        status, body = 0, b""
    if status == 404:
        return  # of a version without plugins
    plugins = _document(body).get("plugins")
    if status != 200 or not isinstance(plugins, list):
        hint = "`gpulayer plugins` says more; `plane.log` of the control plane, too"
        yield Finding("plugins", Mark.WARN, "the control plane does not tell how its plugins are", hint)
        return
    yield from plugin_findings([plugin for plugin in plugins if isinstance(plugin, dict)])


def plugin_findings(plugins: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """plugins: records as ``wire.plugins.PluginRecord``, perhaps of another version. One finding a trouble."""
    # Any: as above.
    troubles: dict[tuple[str, str, str], list[str]] = {}
    others: set[str] = set()
    for plugin in plugins:
        name, status = str(plugin.get("name")), plugin.get("status")
        if not plugin.get("is_builtin"):
            others.add(name)
        if status in ("ok", "disabled"):
            continue
        whose = f"{plugin.get('distribution', '')} {plugin.get('version', '')}".strip()
        what = f"plugin {name}" + (f" ({whose})" if whose else "") + f" is {status}"
        said = plugin.get("error") or _last_fault(plugin.get("last_faults"))
        where = troubles.setdefault((what, str(said), str(plugin.get("hint", ""))), [])
        where.append(str(plugin.get("where", "")))
    for (what, said, hint), places in sorted(troubles.items()):
        place = places[0] if len(places) == 1 else f"{places[0]} and {len(places) - 1} more"
        message = f"{place}: {what}" + (f": {said}" if said else "")
        yield Finding("plugins", Mark.WARN, message, hint or "`gpulayer plugins` has its record")
    if others and not troubles:
        yield Finding("plugins", Mark.OK, f"plugins: {', '.join(sorted(others))}")


def _last_fault(faults: object) -> str:
    match faults:
        case [*_, {"hook": hook, "message": message}]:
            return f"{hook}: {message}"
    return ""


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
    connection: Connection, path: str, headers: dict[str, str], *, limit: int = 2**20
) -> tuple[int, dict[str, str], bytes]:
    connection.sock.settimeout(_WAIT_S)
    connection.request("GET", connection.route.address.prefix + path, headers={**headers, "Connection": "close"})
    connection.pace.head(0.0)
    answer = connection.getresponse()
    connection.pace.body()
    found = {name.lower(): value for name, value in answer.getheaders()}
    return answer.status, found, answer.read(limit)


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
