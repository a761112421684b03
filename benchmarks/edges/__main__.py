"""``python -m benchmarks.edges [--only NAME]… [--rounds N] [--out DIR]``: measure, print, keep the results."""

import argparse
import importlib.metadata
import os
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.edges import reconnect, requests
from benchmarks.harness import Report, Row

ROOT = Path(__file__).resolve().parents[2]
MEASURES: dict[str, tuple[Callable[[int], Row], int]] = {
    "connection": (requests.connection, 7),
    "request": (requests.request, 7),
    "authentication": (requests.authentication, 7),
    "reconnect": (reconnect.row, 3),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.edges", description=__doc__)
    parser.add_argument("--only", action="append", choices=MEASURES, help="one measure; may be given again")
    parser.add_argument("--rounds", type=int, help="rounds of each measure instead of its own number")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results", help="where edges.json and .md go")
    chosen = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

    report = Report("Edges: other machines", {"gpulayer": importlib.metadata.version("gpulayer-core")})
    for name in chosen.only or MEASURES:
        measure, rounds = MEASURES[name]
        print(f"bench: {name}", file=sys.stderr, flush=True)
        report.rows.append(measure(chosen.rounds or rounds))
    report.write(chosen.out, "edges")
    print(report.markdown())
    return 0


if __name__ == "__main__":
    sys.exit(main())
