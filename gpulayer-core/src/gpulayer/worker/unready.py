"""What keeps a node from being started, in the words of its end: by whose doing, and what its user is told."""

import shutil
from pathlib import Path
from typing import Final

from gpulayer.errors import Blame, PluginFault
from gpulayer.spec import plain
from gpulayer.spec.outcome import EndedBy

__all__ = ["OWN_DEADLINE_S", "Unready", "emptied", "plain_text", "unready_by_fault"]

OWN_DEADLINE_S: Final = 60.0
"""For what core does itself without IO: when that is late the machine is overloaded, no reason to end a job."""

_LIMIT: Final = 4_000


class Unready(Exception):
    """Staging, its environment or its launcher failed. ``evidence``: for people."""

    def __init__(self, ended_by: EndedBy, evidence: str, blame: Blame) -> None:
        super().__init__(evidence)
        self.ended_by = ended_by
        self.evidence = evidence
        self.blame = blame


def unready_by_fault(ended_by: EndedBy, fault: PluginFault, *lines: str) -> Unready:
    """The plugin's doing: it is tried elsewhere. lines: what it said before."""
    return Unready(ended_by, plain_text(str(fault), *lines), Blame.PLUGIN)


def plain_text(*parts: object) -> str:
    """What a plugin says to a user, whatever it made of it: a text, its parts below each other. Runs no code of it."""
    texts = [part if type(part) is str else f"({type(part).__name__})" for part in parts]
    return plain.plain_text("\n".join(stripped for text in texts if (stripped := text.strip())), _LIMIT)


def emptied(folder: Path) -> Path:
    """The folder, made anew. Raises OSError."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
