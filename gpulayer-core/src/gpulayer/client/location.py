"""Which control plane a command is for. Pure: arguments, environment, contexts and the endpoint file's content come in
as values.

Explicit arguments win over ``GPULAYER_URL`` and its kin, which win over the current context, which wins over the
background control plane of this user's state folder.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpulayer.errors import GpulayerError, Unauthenticated, UsageError
from gpulayer.net import Address, Pin, parse_pins, parse_proxy, parse_url, parse_urls

if TYPE_CHECKING:
    from gpulayer.client.contexts import Contexts

__all__ = [
    "LOCAL",
    "PLANE_VARIABLES",
    "REMOTE",
    "Configured",
    "EndpointFound",
    "Local",
    "Location",
    "check_token",
    "is_context_wanted",
    "locate",
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


def is_context_wanted(*, environment: Mapping[str, str], url: str = "", target: str = "") -> bool:
    """Whether ``locate`` looks at the contexts: where a URL is given, their file need not even be readable."""
    return target not in ("", LOCAL, REMOTE) or (target != LOCAL and not (url or environment.get("GPULAYER_URL")))


def locate(
    *,
    environment: Mapping[str, str],
    state_dir: Path,
    url: str = "",
    token: str = "",
    fingerprint: str = "",
    target: str = "",
    contexts: "Contexts | None" = None,
) -> Configured | Local:
    """Where to go. Raises UsageError (nothing configured for ``remote``, no such context, an address that is none),
    Unauthenticated (an address without a token)."""
    chosen_url = url or environment.get("GPULAYER_URL", "")
    proxy = environment.get("GPULAYER_PROXY", "")
    if target == LOCAL:
        return Local(state_dir)
    if target not in ("", REMOTE) or not chosen_url:
        name = target if target not in ("", REMOTE) else "" if contexts is None else contexts.current
        if not name and target == REMOTE:
            raise UsageError(
                "--target remote: no control plane is configured",
                hint="gpulayer context add NAME URL adds one; or set GPULAYER_URL and GPULAYER_TOKEN",
            )
        if not name:
            return Local(state_dir)
        if contexts is None:
            raise UsageError(f"there is no context {name_shown(name)}", hint="gpulayer context add NAME URL adds one")
        return Configured(contexts.find(name).location(proxy=proxy), name)
    chosen_token = token or environment.get("GPULAYER_TOKEN", "")
    location = Location.of(
        chosen_url,
        chosen_token,
        fingerprint=fingerprint or environment.get("GPULAYER_FINGERPRINT", ""),
        proxy=proxy,
    )
    if not chosen_token:
        raise Unauthenticated(
            f"{location.addresses[0]} needs a token",
            hint="set GPULAYER_TOKEN to the client token that `gpulayer up` printed",
        )
    return Configured(location)


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
