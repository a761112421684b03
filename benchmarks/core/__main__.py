"""``python -m benchmarks.core [--only NAME]… [--rounds N] [--out DIR]``: measure, print the table, keep the results."""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.core import idle, logs, size, start, tiny
from benchmarks.core.sources import ROOT, Sources
from benchmarks.family import measure_family, own_version
from benchmarks.harness import Row
from benchmarks.peers import PeerPython, TaskSpooler, slurm_is_installed, slurm_version

Measure = Callable[[Sources, int], Row | Sequence[Row]]

MEASURES: dict[str, tuple[Measure, int]] = {
    "import": (start.import_time, 9),
    "first-use": (start.first_use, 9),
    "help": (start.help_time, 9),
    "cold": (start.cold_submit, 5),
    "cold-down": (start.cold_submit_and_down, 5),
    "warm": (tiny.warm_command, 11),
    "first-log": (tiny.first_log_line, 21),
    "log-100mb": (logs.throughput, 5),
    "log-live": (logs.live, 3),
    "idle": (idle.idle_cost, 1),
    "batch": (tiny.batch, 5),
    "run": (tiny.run, 5),
    "size": (size.install_size, 1),
}


def main() -> int:
    peers = PeerPython(ROOT / ".cache/peers", ROOT / "requirements/peers.txt")
    sources = Sources(python=Path(sys.executable), peers=peers)
    measures = {name: (partial(measure, sources), rounds) for name, (measure, rounds) in MEASURES.items()}
    return measure_family("core", "Core figures", measures, doc=__doc__ or "", versions=lambda: _versions(peers))


def _versions(peers: PeerPython) -> dict[str, str]:
    versions = own_version()
    versions.update({name: peers.version(name) for name in ("ray", "distributed")})
    if slurm_is_installed():
        versions["slurm"] = slurm_version()
    if TaskSpooler.is_installed():
        versions["task-spooler"] = TaskSpooler.version()
    return versions


if __name__ == "__main__":
    sys.exit(main())
