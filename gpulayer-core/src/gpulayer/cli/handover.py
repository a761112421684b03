"""What to do with a new token: the lines to paste where it is to be used, for all who make one. Pure.

``gpulayer up`` and ``gpulayer token create`` say the same of the same control plane: which of its addresses stand in a
line, how long a token lives, whether anybody else gets there.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpulayer.net.address import LOOPBACK

if TYPE_CHECKING:
    from gpulayer.client.location import EndpointFound
    from gpulayer.wire.plane import PlaneRecord
    from gpulayer.wire.tokens import TokenReply

__all__ = ["PLACEHOLDER", "announcement", "handover_lines", "life_text"]

PLACEHOLDER = "TOKEN"
"""Stands for the token in lines that may end up in a log."""


@dataclass(frozen=True, slots=True)
class _Entrance:
    """Where others come in. urls: they stand in the lines; more: they lead there, too."""

    urls: Sequence[str]
    more: Sequence[str]
    pins: Sequence[str]

    @classmethod
    def of(cls, urls: Sequence[str], public: Sequence[str], own: str, pins: Sequence[str]) -> "_Entrance":
        """urls: for others; public: those that somebody named with --public-url, all of them meant for others. Of the
        machine's own addresses the best one is enough. own: where it listens, if there is nothing else."""
        if not urls:
            return cls([own], [], [])
        chosen = public or urls[:1]
        return cls(chosen, [url for url in urls if url not in chosen], pins)

    def join_line(self, token: str) -> str:
        """What makes another machine a worker."""
        return f"  gpulayer join {' '.join(self.urls)} --token {_word(token)}{self.flags}"

    def export_line(self, token: str) -> str:
        """What makes commands typed after it go there. By variables, which no list of processes shows."""
        pinned = f" GPULAYER_FINGERPRINT={','.join(self.pins)}" if self.pins else ""
        return f"  export GPULAYER_URL={','.join(self.urls)} GPULAYER_TOKEN={_word(token)}{pinned}"

    @property
    def flags(self) -> str:
        return "".join(f" --fingerprint {pin}" for pin in self.pins)


def announcement(
    endpoint: "EndpointFound", join: "TokenReply", client: "TokenReply | None"
) -> Sequence[tuple[str, bool]]:
    """Of a control plane that has started: the lines, each with whether it is one to paste (stdout).

    client: None where its line might end up in a log; then it says how to make one.
    """
    public = endpoint.urls if "--public-url" in endpoint.restart else ()
    entrance = _Entrance.of(endpoint.urls, public, endpoint.url, endpoint.fingerprints)
    if client is None:
        use = [("use it from elsewhere: gpulayer token create --role submitter --name WHO prints the line", False)]
    else:
        use = [
            (f"use it from elsewhere (submits, and manages what it submitted; {life_text(client)}):", False),
            (entrance.export_line(client["token"]), True),
        ]
    return [
        (f"the control plane serves {' '.join(entrance.urls)}", False),
        (f"add a worker (works once, for {life_text(join)}):", False),
        (entrance.join_line(join["token"]), True),
        *use,
        *([(f"other addresses of this machine: {' '.join(entrance.more)}", False)] if entrance.more else []),
        ("more of both, for people by name or for many workers: gpulayer token create", False),
        *((text, False) for text in _unreachable(endpoint)),
    ]


def handover_lines(reply: "TokenReply", plane: "PlaneRecord", *, token: str, max_uses: int = 1) -> list[str]:
    """One line each, for people. token: as it is to stand in them, itself or ``PLACEHOLDER``."""
    entrance = _Entrance.of(plane["urls"], plane.get("public_urls", []), plane["url"], plane["fingerprints"])
    life = life_text(reply)
    if reply["role"] == "join":
        uses = "once" if max_uses == 1 else f"for {max_uses:,} workers"
        lines = [f"it adds a worker; it works {uses}, for {life}:", entrance.join_line(token)]
    else:
        lines = [
            f"it is shown this once, and is good for {life}; use it there with",
            entrance.export_line(token),
            "or keep it under a name; the command asks for the token:",
            f"  gpulayer context add NAME {' '.join(entrance.urls)}{entrance.flags}",
        ]
    if entrance.more:
        lines.append(f"the control plane is reached at {', '.join(entrance.more)}, too")
    if not plane["urls"]:
        lines.append(
            "that works on the control plane's own machine alone, where it listens; `gpulayer up` serves others, too"
        )
    return lines


def life_text(reply: "TokenReply") -> str:
    """How long a token lives, in one unit, rounded down: ``15 min``, ``8 hours``, ``90 days``."""
    seconds = reply["expires_in_s"]
    for size, name in ((86_400, "days"), (3600, "hours"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {name}"
    return f"{seconds} s"


def _unreachable(endpoint: "EndpointFound") -> Sequence[str]:
    """Why no other machine gets here, and what to do about it; nothing where they do."""
    if endpoint.urls:
        return []
    port = endpoint.port
    if _is_alone(endpoint):
        return [
            "no other machine reaches it there. Start it without --host for that; or forward the port, and these lines"
            " hold there:",
            f"  ssh -R {port}:127.0.0.1:{port} THERE from here, or ssh -L {port}:127.0.0.1:{port} HERE from there",
        ]
    return ["no address is known that others could use: say it with --public-url URL"]


def _is_alone(endpoint: "EndpointFound") -> bool:
    """Whether it was started for this machine alone."""
    words = endpoint.restart
    return "--host" in words and words[words.index("--host") + 1] in LOOPBACK


def _word(token: str) -> str:
    return token if token == PLACEHOLDER else shlex.quote(token)
