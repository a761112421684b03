"""Which control plane a command is for. Pure: arguments, environment and the endpoint file's content come in as values.

Explicit arguments win over ``GPULAYER_URL`` and ``GPULAYER_TOKEN``, which win over the background control plane of
this user's state folder.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from gpulayer.errors import GpulayerError, NotSupported, Unauthenticated, UsageError
from gpulayer.net import Address, Pin, parse_pins, parse_proxy, parse_url, parse_urls

__all__ = ["Configured", "EndpointFound", "Local", "Location", "Target", "locate", "parse_endpoint", "parse_target"]


class Target(StrEnum):
    """``--target``."""

    DEFAULT = "default"  # the configured one, else local
    LOCAL = "local"
    REMOTE = "remote"


@dataclass(frozen=True, slots=True)
class Location:
    """How to reach one control plane, and as whom. addresses: tried in turn; pins: of its certificate, empty where a
    public CA vouches for it; proxy: an HTTP proxy to tunnel through."""

    addresses: tuple[Address, ...]
    token: str
    pins: tuple[Pin, ...] = ()
    proxy: Address | None = None

    @classmethod
    def of(cls, url: str, token: str, *, fingerprint: str = "", proxy: str = "") -> "Location":
        """From the texts that people give; ``url`` may name several. Raises UsageError."""
        return cls(parse_urls(url), token, parse_pins([fingerprint]), parse_proxy(proxy))


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
    token: str
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


def parse_target(text: str) -> Target:
    """``--target``. Raises NotSupported for a context's name: contexts are not there yet."""
    match text:
        case "":
            return Target.DEFAULT
        case "local" | "remote":
            return Target(text)
        case _:
            raise NotSupported(
                f"--target {text}: named contexts come with a later version",
                hint="use --target local, or set GPULAYER_URL and GPULAYER_TOKEN",
            )


def locate(
    *,
    environment: Mapping[str, str],
    state_dir: Path,
    url: str = "",
    token: str = "",
    target: Target = Target.DEFAULT,
) -> Configured | Local:
    """Where to go. Raises UsageError (nothing configured for ``remote``, an address that is none), NotSupported
    (not on this machine), Unauthenticated (an address without a token)."""
    chosen_url = url or environment.get("GPULAYER_URL", "")
    if target is Target.LOCAL or (target is Target.DEFAULT and not chosen_url):
        return Local(state_dir)
    if not chosen_url:
        raise UsageError("--target remote: no control plane is configured", hint="set GPULAYER_URL and GPULAYER_TOKEN")
    chosen_token = token or environment.get("GPULAYER_TOKEN", "")
    fingerprint, proxy = environment.get("GPULAYER_FINGERPRINT", ""), environment.get("GPULAYER_PROXY", "")
    location = Location.of(chosen_url, chosen_token, fingerprint=fingerprint, proxy=proxy)
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
    except ValueError:
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
