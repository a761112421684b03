"""What a control plane is reached by: addresses, token and pins, as values. Pure: the endpoint file's content comes in.

Which of them a command is for is the question of ``locate``.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpulayer.errors import GpulayerError, UsageError
from gpulayer.net import Address, Pin, parse_pins, parse_proxy, parse_url, parse_urls

__all__ = [
    "LOCAL",
    "PLANE_VARIABLES",
    "REMOTE",
    "Configured",
    "EndpointFound",
    "Local",
    "Location",
    "check_token",
    "name_shown",
    "parse_endpoint",
]

# ``--target``; any other word is the name of a context, and none is the usual order.
LOCAL: Final = "local"
REMOTE: Final = "remote"

# What tells a client where to go; not for this machine's own control plane and its jobs.
PLANE_VARIABLES: Final = ("GPULAYER_URL", "GPULAYER_TOKEN", "GPULAYER_FINGERPRINT", "GPULAYER_PROXY")


@dataclass(frozen=True, slots=True)
class Location:
    """How to reach one control plane, and as whom. addresses: tried in turn; pins: of its certificate, empty where a
    public CA vouches for it; proxy: an HTTP proxy to tunnel through."""

    addresses: tuple[Address, ...]
    token: str = field(repr=False)
    pins: tuple[Pin, ...] = ()
    proxy: Address | None = None

    @classmethod
    def of(cls, url: str, token: str, *, fingerprint: str = "", proxy: str = "") -> "Location":
        """From the texts that people give; ``url`` may name several. Raises UsageError."""
        return cls(parse_urls(url), check_token(token), parse_pins([fingerprint]), parse_proxy(proxy))


@dataclass(frozen=True, slots=True)
class Configured:
    """A control plane that somebody named; it is never started from here. context: the name it was named by, if any."""

    location: Location
    context: str = ""


@dataclass(frozen=True, slots=True)
class Local:
    """The control plane of a state folder on this machine; it may have to be started."""

    state_dir: Path


@dataclass(frozen=True, slots=True)
class EndpointFound:
    """What ``endpoint.json`` says. urls, fingerprints: for other machines; restart: the arguments it was started with,
    empty where it does not say."""

    url: str
    host: str
    port: int
    token: str = field(repr=False)
    pid: int
    version: str
    embedded: bool
    urls: tuple[str, ...] = ()
    fingerprints: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()

    @property
    def location(self) -> Location:
        """For this user's own commands, on this machine."""
        return Location((Address(self.host, self.port),), self.token)


def check_token(token: str) -> str:
    """Raises UsageError, without showing it, for a token that can't stand in a header, or is not a client's."""
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise UsageError("the token is not one: it holds spaces or other signs", hint="copy it once more, as a whole")
    if token.startswith(("gle_", "glw_")):
        raise UsageError(
            "that token is for workers, not for clients",
            hint="`gpulayer up` prints a client's (glc_…); gpulayer token create makes more",
        )
    return token


def name_shown(name: str) -> str:
    """A context's name for messages. A URL that was given in its place may hold a password."""
    return "'…'" if "@" in name or "%40" in name else repr(name[:80])


def parse_endpoint(content: bytes) -> EndpointFound | None:
    """Read ``endpoint.json``; None for a file that is damaged, of another schema or not on loopback."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or type(document.get("schema")) is not int:  # true is equal to 1
        return None
    match document:
        case {
            "schema": 1,
            "url": str(url),
            "token": str(token),
            "pid": int(pid),
            "version": str(version),
            "embedded": bool(embedded),
        }:
            try:
                address = parse_url(url)
            except GpulayerError:
                return None
            return EndpointFound(
                url=str(address),
                host=address.host,
                port=address.port,
                token=token,
                pid=pid,
                version=version,
                embedded=embedded,
                urls=_texts(document, "urls"),
                fingerprints=_texts(document, "fingerprints"),
                restart=_texts(document, "restart"),
            )
        case _:
            return None


def _texts(document: Mapping[str, object], name: str) -> tuple[str, ...]:
    """Empty where the file, of another version perhaps, does not say."""
    found = document.get(name)
    return tuple(map(str, found)) if isinstance(found, list) else ()
