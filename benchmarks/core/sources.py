"""What the core benchmarks are given: interpreters, peers, folders."""

from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers import PeerPython

__all__ = ["ROOT", "Sources"]

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Sources:
    python: Path
    peers: PeerPython
