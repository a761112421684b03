"""Starting: ``import gpulayer``, ``gpulayer --help``, and from nothing running to a result."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.core.sources import Sources
from benchmarks.harness import Contestant, Row, compare, wall_s
from benchmarks.plane import PROGRAM, Plane

RAY = """
import os
os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_DEDUP_LOGS="0")
import ray
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
assert ray.get(ray.remote(lambda: 0).remote()) == 0
ray.shutdown()
"""

DASK = """
from dask.distributed import Client, LocalCluster
if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        assert client.submit(int).result() == 0
"""


def import_time(sources: Sources, rounds: int) -> Row:
    row = Row("`import gpulayer`, whole process", "s", "lower", goal="≤ 0.08 s", limit=0.08)
    peers = sources.peers.python
    return compare(
        row,
        [
            _python("gpulayer", sources.python, "import gpulayer"),
            _python("bare Python", sources.python, "pass"),
            _python("dask.distributed", peers, "import dask.distributed"),
            _python("ray", peers, "import ray"),
        ],
        rounds=rounds,
    )


def first_use(sources: Sources, rounds: int) -> Row:
    """The import is lazy; this is what the first use costs on top of it."""
    row = Row("`import gpulayer; gpulayer.submit`, whole process", "s", "lower")
    return compare(row, [_python("gpulayer", sources.python, "import gpulayer; gpulayer.submit")], rounds=rounds)


def help_time(sources: Sources, rounds: int) -> Row:
    row = Row("`gpulayer --help`", "s", "lower", goal="≤ 0.2 s", limit=0.2)
    scripts = sources.peers.python.parent
    return compare(
        row,
        [
            Contestant("gpulayer", lambda: wall_s([PROGRAM, "--help"])),
            Contestant("ray --help", lambda: wall_s([scripts / "ray", "--help"])),
            Contestant("dask --help", lambda: wall_s([scripts / "dask", "--help"])),
        ],
        rounds=rounds,
    )


def cold_submit(sources: Sources, rounds: int) -> Row:
    """Ours ends with the background control plane still there, as designed; the row below counts its end too."""
    row = Row("nothing running → first result → clean exit", "s", "lower", goal="≤ 1.8 s", limit=1.8)
    return compare(row, [Contestant("gpulayer", _cold(with_down=False)), *_clusters(sources)], rounds=rounds)


def cold_submit_and_down(sources: Sources, rounds: int) -> Row:
    row = Row("the same, and `gpulayer down` after it", "s", "lower")
    return compare(row, [Contestant("gpulayer", _cold(with_down=True))], rounds=rounds)


def _cold(*, with_down: bool) -> Callable[[], float]:
    def once() -> float:
        with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as scratch:
            with Plane(Path(scratch)) as plane:
                taken = plane.wall_s("submit", "--", "true")
                return taken + plane.wall_s("down") if with_down else taken

    return once


def _clusters(sources: Sources) -> list[Contestant]:
    return [
        _script("Dask LocalCluster", sources, DASK),
        _script("Ray", sources, RAY),
    ]


def _python(name: str, python: Path, code: str) -> Contestant:
    return Contestant(name, lambda: wall_s([python, "-c", code]))


def _script(name: str, sources: Sources, code: str) -> Contestant:
    """As a file, because Dask's worker processes import the main module again."""

    def once() -> float:
        with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as scratch:
            script = Path(scratch) / "peer.py"
            script.write_text(code, "utf-8")
            return wall_s([sources.peers.python, script], cwd=Path(scratch))

    return Contestant(name, once)
