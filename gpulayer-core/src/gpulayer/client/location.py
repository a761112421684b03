"""Which control plane a command is for. Pure: arguments, environment and the endpoint file's content come in as values.

Explicit arguments win over ``GPULAYER_URL`` and ``GPULAYER_TOKEN``, which win over the background control plane of
this user's state folder.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from gpulayer.client.answers import parse_url
from gpulayer.errors import GpulayerError, NotSupported, Unauthenticated, UsageError

__all__ = ["Configured", "EndpointFound", "Local", "Target", "locate", "parse_endpoint", "parse_target"]


class Target(StrEnum):
    """``--target``."""

    DEFAULT = "default"  # the configured one, else local
    LOCAL = "local"
    REMOTE = "remote"


@dataclass(frozen=True, slots=True)
class Configured:
    """A control plane that somebody named; it is never started from here."""

    url: str
    token: str


@dataclass(frozen=True, slots=True)
class Local:
    """The control plane of a state folder on this machine; it may have to be started."""

    state_dir: Path


@dataclass(frozen=True, slots=True)
class EndpointFound:
    """What ``endpoint.json`` says. keep_logs_ms: None where it does not say."""

    url: str
    host: str
    port: int
    token: str
    pid: int
    version: str
    embedded: bool
    has_worker: bool = True
    keep_logs_ms: int | None = None


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
    address = parse_url(chosen_url)
    if not chosen_token:
        raise Unauthenticated(
            f"{address.url} needs a token", hint="set GPULAYER_TOKEN to the client token that `gpulayer up` printed"
        )
    return Configured(address.url, chosen_token)


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
            has_worker, keep_logs_ms = document.get("has_worker"), document.get("keep_logs_ms")
            return EndpointFound(
                url=address.url,
                host=address.host,
                port=address.port,
                token=token,
                pid=pid,
                version=version,
                embedded=embedded,
                has_worker=has_worker is not False,
                keep_logs_ms=keep_logs_ms if type(keep_logs_ms) is int else None,
            )
        case _:
            return None
