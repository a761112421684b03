"""``gpulayer resources detect`` as a whole, and the survey of what the Python of jobs has, each beside a bare Python.

No tool of a vendor is a peer on a machine without a GPU: they end there with an error.
"""

import os
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

from benchmarks.harness import OURS, Contestant, Row, compare, wall_s
from gpulayer.worker.survey import read_survey, survey_source

__all__ = ["survey", "whole"]

_MODULES = ("torch", "jax", "cupy", "mlx", "tensorflow", "onnxruntime")
_BARE = "bare Python start"


def whole(rounds: int) -> Row:
    """With the Python of an environment that has no framework: importing those is not ours to make quick."""
    row = Row("gpulayer resources detect, no GPU, no framework", "s", "lower", goal="≤ 1 s", limit=1)
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        python = _empty_python(Path(name) / "python")
        gpulayer = [sys.executable, "-P", "-m", "gpulayer.cli", "resources", "detect", "--python", str(python)]
        env = {**os.environ, "HOME": name}
        contestants = [
            Contestant(OURS, lambda: wall_s(gpulayer, env=env)),
            Contestant(_BARE, lambda: wall_s([sys.executable, "-c", "pass"], env=env)),
        ]
        compare(row, contestants, rounds=rounds)
    row.notes.append("no peer: what the vendors' tools (nvidia-smi, gpustat, nvitop) say without a GPU is an error")
    return row


def survey(rounds: int) -> Row:
    """Of this Python, which has some dozens of packages."""
    row = Row("which frameworks the Python of jobs has, none imported", "ms", "lower")

    def once() -> float:
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", survey_source(_MODULES)], check=True, capture_output=True, timeout=60
        )
        read_survey(done.stdout)
        return (time.perf_counter() - started) * 1000

    bare = Contestant(_BARE, lambda: 1000 * wall_s([sys.executable, "-c", "pass"]))
    return compare(row, [Contestant(OURS, once), bare], rounds=rounds)


def _empty_python(folder: Path) -> Path:
    venv.create(folder, with_pip=False)
    return folder / "bin/python"
