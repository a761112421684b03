"""What every family of benchmarks is run with: ``[--only NAME]… [--rounds N] [--out DIR]``."""

import argparse
import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.harness import Report, Row

__all__ = ["ROOT", "Measures", "measure_family", "own_version"]

ROOT = Path(__file__).resolve().parents[1]

Measures = Mapping[str, tuple[Callable[[int], Row | Sequence[Row]], int]]
"""By name: what measures so many rounds, and how many it takes by itself."""


def measure_family(
    name: str, title: str, measures: Measures, *, doc: str, versions: Callable[[], dict[str, str]]
) -> int:
    """Measure, print the table, keep the results as ``name.json`` and ``name.md``. doc: for ``--help``."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=doc)
    parser.add_argument("--only", action="append", choices=measures, help="one measure; may be given again")
    parser.add_argument("--rounds", type=int, help="rounds of each measure instead of its own number")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results", help="where the results go")
    chosen = parser.parse_args()
    # People's interpreters keep bytecode; without it every start would pay for compiling, the peers' most of all.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

    report = Report(title, versions())
    for each in chosen.only or measures:
        measure, rounds = measures[each]
        print(f"bench: {each}", file=sys.stderr, flush=True)
        found = measure(chosen.rounds or rounds)
        report.rows.extend([found] if isinstance(found, Row) else found)
    report.write(chosen.out, name)
    print(report.markdown())
    return 0


def own_version() -> dict[str, str]:
    """Ours, with the commit where it is known."""
    shown = subprocess.run(
        ["git", "-C", ROOT, "describe", "--always", "--dirty"], check=False, capture_output=True, text=True
    )
    commit = f" ({shown.stdout.strip()})" if shown.returncode == 0 else ""
    return {"gpulayer": f"{importlib.metadata.version('gpulayer-core')}{commit}"}
