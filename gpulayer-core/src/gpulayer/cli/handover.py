"""What to do with a new token: the lines to paste where it is to be used. Pure: text out of records."""

import shlex
from typing import TYPE_CHECKING

from gpulayer.spec.units import format_duration

if TYPE_CHECKING:
    from gpulayer.wire.plane import PlaneRecord
    from gpulayer.wire.tokens import TokenReply

__all__ = ["PLACEHOLDER", "handover_lines"]

PLACEHOLDER = "TOKEN"
"""Stands for the token in lines that may end up in a log."""


def handover_lines(reply: "TokenReply", plane: "PlaneRecord", *, token: str, max_uses: int = 1) -> list[str]:
    """One line each, for people. token: as it is to stand in them, itself or ``PLACEHOLDER``."""
    url = (plane["urls"] or [plane["url"]])[0]
    pins = plane["fingerprints"] if plane["urls"] else []
    word = token if token == PLACEHOLDER else shlex.quote(token)
    life = format_duration(reply["expires_in_s"] * 1000)
    if reply["role"] == "join":
        uses = "once" if max_uses == 1 else f"for {max_uses:,} workers"
        pinned = "".join(f" --fingerprint {pin}" for pin in pins)
        lines = [f"it adds a worker; it works {uses}, for {life}:", f"  gpulayer join {url} --token {word}{pinned}"]
    else:
        pinned = f" GPULAYER_FINGERPRINT={','.join(pins)}" if pins else ""
        lines = [
            f"it is shown this once, and is good for {life}; use it there with",
            f"  export GPULAYER_URL={url} GPULAYER_TOKEN={word}{pinned}",
            "or keep it under a name; the command asks for the token:",
            f"  gpulayer context add NAME {url}{''.join(f' --fingerprint {pin}' for pin in pins)}",
        ]
    if plane["urls"][1:]:
        lines.append(f"the control plane is reached at {', '.join(plane['urls'][1:])}, too")
    if not plane["urls"]:
        lines.append(
            "that works on the control plane's own machine alone, where it listens; `gpulayer up` serves others, too"
        )
    return lines
