"""What an installation brings along: third-party distributions and MiB, before bytecode."""

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.core.sources import ROOT, Sources
from benchmarks.harness import Contestant, Row, compare

OUR_OWN = "gpulayer"


def install_size(sources: Sources, rounds: int) -> Sequence[Row]:
    """Installed once each: sizes do not vary. Our own code is not counted, nor is pip."""
    ours, ray, dask = ["--no-build-isolation", str(ROOT / "gpulayer-core")], ["ray"], ["dask[distributed]"]
    wanted = {"gpulayer": ours, "ray": ray, "dask[distributed]": dask}
    size = Row("base install, third-party, before bytecode", "MiB", "lower", goal="≤ 75 MiB", limit=75)
    count = Row("base install, third-party", "distributions", "lower", goal="≤ 42 distributions", limit=42)
    measured: dict[str, tuple[float, int]] = {}
    for name, what in wanted.items():
        try:
            measured[name] = _installed(sources.python, what)
        except subprocess.CalledProcessError as error:
            size.notes.append(f"{name}: pip exit {error.returncode}")
    compare(size, [Contestant(name, lambda m=m: m[0]) for name, m in measured.items()], rounds=1, warm_up=0)
    compare(count, [Contestant(name, lambda m=m: m[1]) for name, m in measured.items()], rounds=1, warm_up=0)
    return [size, count]


def _installed(python: Path, what: Sequence[str]) -> tuple[float, int]:
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        target = Path(scratch) / "site"
        install = [python, "-m", "pip", "--disable-pip-version-check", "-qq", "install", "--no-compile"]
        subprocess.run([*install, "--target", target, *what], check=True, stdin=subprocess.DEVNULL)
        folders = [f for f in target.glob("*.dist-info") if not f.name.startswith(OUR_OWN)]
        files = [
            file
            for file in target.rglob("*")
            if file.is_file() and not file.is_symlink() and not file.relative_to(target).parts[0].startswith(OUR_OWN)
        ]
        return sum(file.stat().st_size for file in files) / 2**20, len(folders)
