"""What is refused before any route sees it: requests that a web page makes a browser send, and other versions.

A page that a user has open can point a name of its own at this machine (DNS rebinding) or send a request here from
elsewhere. So the Host header must name this machine: by a numeric address, which no page can take over, or by one of
the names that are its own. What a browser sends on behalf of another site is refused whatever it asks for. Nothing of
a body is read, and no answer says more than the request did.
"""

import re
from collections.abc import Callable, Collection
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from gpulayer import __version__
from gpulayer.errors import BadRequest, Forbidden, GpulayerError, VersionMismatch
from gpulayer.server.web import error_response

__all__ = ["SECURITY_HEADERS", "Guard", "is_own_host"]

SECURITY_HEADERS: Final = (
    ("x-content-type-options", "nosniff"),
    ("cache-control", "no-store"),
    ("content-security-policy", "default-src 'none'"),
    ("referrer-policy", "no-referrer"),
)
"""Of every answer. The server adds them, so that they are on those, too, that no route has made."""

_HOST: Final = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::(?P<port>[0-9]{0,5}))?")
_OWN_SITE: Final = (b"none", b"same-origin")  # typed by the user, and sent by a page of this very server
_PROGRAM: Final = re.compile(rb"gpulayer(?:-worker)?/(\d{1,6})\.(\d{1,6})\.([0-9a-z.+]{0,20})")
_SERIES: Final = tuple(__version__.encode().split(b".")[:2])
# What ends or replaces a control plane of another version, and what looks whether it is there.
_ANY_VERSION: Final = frozenset({"/v1/plane", "/v1/plane:shutdown", "/healthz", "/readyz"})


class Guard:
    """hosts: the names that this control plane goes by, lower-case, beside ``localhost`` and any numeric address; one
    that starts with ``*.`` stands for one label. Asked for each request: they change with the certificate."""

    def __init__(self, app: ASGIApp, *, hosts: Callable[[], Collection[str]]) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            refusal = self._refusal(scope)
            if refusal is not None:
                await error_response(refusal)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> GpulayerError | None:
        hosts: list[bytes] = []
        origins: list[bytes] = []
        is_foreign, agent, authorizations = False, b"", 0
        for name, value in scope["headers"]:
            match name:
                case b"host":
                    hosts.append(value)
                case b"sec-fetch-site":
                    is_foreign |= value.strip().lower() not in _OWN_SITE
                case b"authorization":
                    authorizations += 1
                case b"origin":
                    origins.append(value)
                case b"user-agent":
                    agent = value
                case _:
                    pass
        if len(hosts) != 1:
            return BadRequest(f"{len(hosts) or 'no'} Host headers; a request has one")
        if authorizations > 1:
            return BadRequest("several Authorization headers; a request has one")
        host = hosts[0].decode("latin-1")
        if _HOST.fullmatch(host) is None:  # not repeated: it may be a token in the wrong place
            return BadRequest("the Host header is not a name or address, with or without a port")
        if not is_own_host(host, self._hosts()):
            return BadRequest(
                f"this is not host {host[:100]!r}",
                hint="use an address that `gpulayer up` printed; it takes more names with --public-url",
            )
        if not scope["path"].startswith("/"):
            return BadRequest("the request's target must be a path: this is no proxy")
        own = hosts[0].lower()
        if is_foreign or any(origin.partition(b"://")[2].lower() != own for origin in origins):
            return Forbidden("another site's page may not send requests here")
        program = _PROGRAM.match(agent)
        if program is not None and program.groups()[:2] != _SERIES and scope["path"] not in _ANY_VERSION:
            theirs = f"{program[1].decode()}.{program[2].decode()}.{program[3].decode()}".rstrip(".")
            return VersionMismatch(
                f"this control plane is version {__version__}, the caller is {theirs}",
                hint=f"install the same minor series on both: pip install 'gpulayer=={b'.'.join(_SERIES).decode()}.*'",
                details={"control_plane": __version__, "caller": theirs},
            )
        return None


def is_own_host(host: str, names: Collection[str]) -> bool:
    """Whether a Host header names this control plane: ``NAME``, ``ADDRESS`` or ``[ADDRESS]``, with a port or without
    (forwarded ports differ). One dot after a name is the same name."""
    found = _HOST.fullmatch(host)
    if found is None or int(found["port"] or 0) > 65_535:
        return False
    if found["v6"] is not None:
        return _is_address(found["v6"], IPv6Address)
    name = found["name"].lower().removesuffix(".")
    if name == "localhost" or name in names or _is_address(name, IPv4Address):
        return True
    label, _, above = name.partition(".")
    return bool(label) and f"*.{above}" in names


def _is_address(text: str, kind: type[IPv4Address] | type[IPv6Address]) -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return True
