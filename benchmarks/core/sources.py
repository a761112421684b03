"""What the core benchmarks are given: interpreters, peers, folders."""

from dataclasses import dataclass
from pathlib import Path

from benchmarks.family import ROOT
from benchmarks.peers import PeerPython

__all__ = ["ROOT", "Sources"]


@dataclass(frozen=True, slots=True)
class Sources:
    python: Path
    peers: PeerPython
