"""What it costs to have everything running and nothing to do."""

import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.core.sources import Sources
from benchmarks.harness import Row
from benchmarks.peers import TaskSpooler
from benchmarks.plane import Plane
from benchmarks.processes import cpu_s, proportional_bytes, with_word

SETTLE_S = 5
IDLE_S = 20
GOALS = {"control plane": (1.0, 120), "worker": (0.5, 80), "spawner and watchdog": (None, 12)}


def idle_cost(sources: Sources, rounds: int) -> Sequence[Row]:
    """All of them in the same seconds: processor time in percent of one core, and memory at the end."""
    with ExitStack() as stack:
        groups: dict[str, list[int]] = {}
        notes: list[str] = []
        plane = stack.enter_context(Plane(_scratch(stack)))
        plane.run("submit", "--quiet", "--", "true")
        ours = plane.processes()
        groups["control plane"], groups["worker"] = [ours["control plane"]], [ours["worker"]]
        groups["spawner and watchdog"] = [pid for name, pid in ours.items() if name in ("spawner", "watchdog")]
        if TaskSpooler.is_installed():
            folder = _scratch(stack)
            stack.enter_context(TaskSpooler(folder, slots=2))
            groups["task-spooler"] = with_word("tsp")
        else:
            notes.append("task-spooler is not installed")
        try:
            scheduler, worker = _dask(sources, stack)
            groups["Dask scheduler"], groups["Dask worker"] = [scheduler], [worker]
        except (OSError, subprocess.SubprocessError) as error:
            notes.append(f"Dask: {error}")
        time.sleep(SETTLE_S)
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in groups}
        for _ in range(rounds):
            before = {name: sum(map(cpu_s, pids)) for name, pids in groups.items()}
            time.sleep(IDLE_S)
            for name, pids in groups.items():
                share = (sum(map(cpu_s, pids)) - before[name]) / IDLE_S * 100
                found[name].append((share, sum(map(proportional_bytes, pids)) / 1e6))
    return [row for name in GOALS for row in _rows(name, found, notes)]


def _rows(name: str, found: dict[str, list[tuple[float, float]]], notes: list[str]) -> list[Row]:
    cpu_limit, memory_limit = GOALS[name]
    cpu_goal = "" if cpu_limit is None else f"≤ {cpu_limit:g} %"
    cpu = Row(f"idle for {IDLE_S} s: {name}", "% of a core", "lower", goal=cpu_goal, limit=cpu_limit)
    memory = Row(f"idle: memory of {name} (PSS)", "MB", "lower", goal=f"≤ {memory_limit} MB", limit=memory_limit)
    peers = {
        "control plane": ("Dask scheduler", "task-spooler"),
        "worker": ("Dask worker",),
        "spawner and watchdog": (),
    }[name]
    for label, source in (("gpulayer", name), *((peer, peer) for peer in peers)):
        if source in found:
            cpu.figures[label] = [share for share, _ in found[source]]
            memory.figures[label] = [size for _, size in found[source]]
    cpu.notes.extend(notes)
    return [cpu, memory]


def _dask(sources: Sources, stack: ExitStack) -> tuple[int, int]:
    folder = _scratch(stack)
    place = folder / "scheduler.json"
    scheduler = stack.enter_context(_Running([sources.peers.python.parent / "dask", "scheduler", "--port", "0",
        "--no-dashboard", "--scheduler-file", place], folder))  # fmt: skip
    deadline = time.monotonic() + 60
    while not place.exists():
        if scheduler.poll() is not None or time.monotonic() > deadline:
            raise OSError("its scheduler did not start")
        time.sleep(0.05)
    worker = stack.enter_context(_Running([sources.peers.python.parent / "dask", "worker", "--no-dashboard",
        "--no-nanny", "--nthreads", "2", "--scheduler-file", place], folder))  # fmt: skip
    return scheduler.pid, worker.pid


class _Running:
    """A program that is ended with the context."""

    def __init__(self, command: Sequence[str | Path], folder: Path) -> None:
        self._process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __enter__(self) -> "subprocess.Popen[bytes]":
        return self._process

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _scratch(stack: ExitStack) -> Path:
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True)))
