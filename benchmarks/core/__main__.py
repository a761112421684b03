"""``python -m benchmarks.core [--only NAME]… [--rounds N] [--out DIR]``: measure, print the table, keep the results."""

import argparse
import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.core import durable, idle, logs, size, start, tiny
from benchmarks.core.sources import ROOT, Sources
from benchmarks.harness import Report, Row
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
    "events": (durable.durable_events, 5),
    "restart": (durable.restart, 5),
    "size": (size.install_size, 1),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.core", description=__doc__)
    parser.add_argument("--only", action="append", choices=MEASURES, help="one measure; may be given again")
    parser.add_argument("--rounds", type=int, help="rounds of each measure instead of its own number")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results", help="where core.json and core.md go")
    chosen = parser.parse_args()
    # People's interpreters keep bytecode; without it every start would pay for compiling, the peers' most of all.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

    peers = PeerPython(ROOT / ".cache/peers", ROOT / "requirements/peers.txt")
    sources = Sources(python=Path(sys.executable), peers=peers)
    report = Report("Core figures", _versions(peers))
    for name in chosen.only or MEASURES:
        measure, rounds = MEASURES[name]
        print(f"bench: {name}", file=sys.stderr, flush=True)
        found = measure(sources, chosen.rounds or rounds)
        report.rows.extend([found] if isinstance(found, Row) else found)
    report.write(chosen.out, "core")
    print(report.markdown())
    return 0


def _versions(peers: PeerPython) -> dict[str, str]:
    versions = {"gpulayer": f"{importlib.metadata.version('gpulayer-core')}{_commit()}"}
    versions.update({name: peers.version(name) for name in ("ray", "distributed")})
    if slurm_is_installed():
        versions["slurm"] = slurm_version()
    if TaskSpooler.is_installed():
        versions["task-spooler"] = TaskSpooler.version()
    return versions


def _commit() -> str:
    shown = subprocess.run(
        ["git", "-C", ROOT, "describe", "--always", "--dirty"], check=False, capture_output=True, text=True
    )
    return f" ({shown.stdout.strip()})" if shown.returncode == 0 else ""


if __name__ == "__main__":
    sys.exit(main())
