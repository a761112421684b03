"""What to do with a new token: the lines to paste where it is to be used, for all who make one. Pure."""

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpulayer.spec.units import format_duration

if TYPE_CHECKING:
    from gpulayer.wire.plane import PlaneRecord
    from gpulayer.wire.tokens import TokenReply

__all__ = ["PLACEHOLDER", "export_line", "handover_lines", "join_line"]

PLACEHOLDER = "TOKEN"
"""Stands for the token in lines that may end up in a log."""


def join_line(urls: Sequence[str], token: str, pins: Sequence[str]) -> str:
    """What makes another machine a worker."""
    return f"  gpulayer join {' '.join(urls)} --token {_word(token)}{_flags(pins)}"


def export_line(urls: Sequence[str], token: str, pins: Sequence[str]) -> str:
    """What makes commands typed after it go there. By variables, which no list of processes shows."""
    pinned = f" GPULAYER_FINGERPRINT={','.join(pins)}" if pins else ""
    return f"  export GPULAYER_URL={','.join(urls)} GPULAYER_TOKEN={_word(token)}{pinned}"


def handover_lines(reply: "TokenReply", plane: "PlaneRecord", *, token: str, max_uses: int = 1) -> list[str]:
    """One line each, for people. token: as it is to stand in them, itself or ``PLACEHOLDER``."""
    url = (plane["urls"] or [plane["url"]])[0]
    pins = plane["fingerprints"] if plane["urls"] else []
    life = format_duration(reply["expires_in_s"] * 1000)
    if reply["role"] == "join":
        uses = "once" if max_uses == 1 else f"for {max_uses:,} workers"
        lines = [f"it adds a worker; it works {uses}, for {life}:", join_line([url], token, pins)]
    else:
        lines = [
            f"it is shown this once, and is good for {life}; use it there with",
            export_line([url], token, pins),
            "or keep it under a name; the command asks for the token:",
            f"  gpulayer context add NAME {url}{_flags(pins)}",
        ]
    if plane["urls"][1:]:
        lines.append(f"the control plane is reached at {', '.join(plane['urls'][1:])}, too")
    if not plane["urls"]:
        lines.append(
            "that works on the control plane's own machine alone, where it listens; `gpulayer up` serves others, too"
        )
    return lines


def _flags(pins: Sequence[str]) -> str:
    return "".join(f" --fingerprint {pin}" for pin in pins)


def _word(token: str) -> str:
    return token if token == PLACEHOLDER else shlex.quote(token)
