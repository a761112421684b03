"""One tiny job while everything runs, 10,000 of them handed over, and 1,000 run."""

import json
import os
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.core.sources import ROOT, Sources
from benchmarks.harness import Contestant, Row, compare, wall_s
from benchmarks.peers import TaskSpooler, private_slurm, slurm_is_installed
from benchmarks.plane import Plane

PROBE = ROOT / "benchmarks/core/sdk_probe.py"
BATCH = 10_000
SLURM_JOBS = 50
SPOOLER_JOBS = 200
RUN = 1_000
SLOTS = 2


def warm_command(sources: Sources, rounds: int) -> Row:
    row = Row("everything running: CLI wall for `true`", "s", "lower", goal="≤ 0.5 s", limit=0.5)
    with ExitStack() as stack:
        plane = stack.enter_context(Plane(_scratch(stack)))
        contestants = [Contestant("gpulayer", lambda: plane.wall_s("submit", "--", "true"))]
        slurm, spooler = _queues(stack, row)
        if slurm is not None:
            contestants.append(Contestant("srun", lambda: wall_s(["srun", "-n1", "true"], env=slurm)))
        if spooler is not None:
            contestants.append(Contestant("task-spooler", lambda: wall_s(["tsp", "-f", "true"], env=spooler)))
        return compare(row, contestants, rounds=rounds)


def first_log_line(sources: Sources, rounds: int) -> Row:
    """Ours is a call in a running Python program; the peers have none, so theirs is their command's first byte."""
    row = Row("everything running: SDK submit → first log line", "s", "lower", goal="≤ 0.025 s", limit=0.025)
    with ExitStack() as stack:
        plane = stack.enter_context(Plane(_scratch(stack)))
        probe = stack.enter_context(Probe(sources.python, plane))
        contestants = [Contestant("gpulayer", probe.first_log_line)]
        slurm, spooler = _queues(stack, row)
        if slurm is not None:
            contestants.append(Contestant("srun", lambda: _first_byte_s(["srun", "-n1", "echo", "hello"], slurm)))
        if spooler is not None:
            contestants.append(
                Contestant("task-spooler", lambda: _first_byte_s(["tsp", "-nf", "echo", "hello"], spooler))
            )
        return compare(row, contestants, rounds=rounds)


def batch(sources: Sources, rounds: int) -> Row:
    """No worker is there, so that only accepting is measured. Slurm saves its state to disk; task-spooler does not."""
    what = f"`submit_batch` of {BATCH:,}, accepted durably"
    row = Row(what, "jobs/s", "higher", goal="≥ 10,000 jobs/s", limit=10_000)
    with ExitStack() as stack:
        plane = stack.enter_context(Plane(_scratch(stack)))
        try:
            plane.run("up", "--no-worker", "--detach", "--port", "0")
        except (OSError, subprocess.SubprocessError) as error:
            row.notes.append(f"gpulayer up: {type(error).__name__}")
        probe = stack.enter_context(Probe(sources.python, plane))
        contestants = [Contestant("gpulayer", lambda: BATCH / probe.batch(BATCH))]
        slurm, spooler = _queues(stack, row)
        if slurm is not None:
            one = ["sbatch", "--hold", "--wrap", "true"]
            contestants.append(Contestant("sbatch, one by one", lambda: _each(one, SLURM_JOBS, slurm)))
        if spooler is not None:
            contestants.append(
                Contestant("task-spooler, one by one", lambda: _each(["tsp", "-n", "true"], SPOOLER_JOBS, spooler))
            )
        return compare(row, contestants, rounds=rounds)


def run(sources: Sources, rounds: int) -> Row:
    """From handing over the first to the end of the last. The worker has a slot a core, so only a machine of two cores
    measures two. Nothing that task-spooler and Popen do is durable, and neither keeps an exit code or a log for later.
    """
    what = f"{RUN:,} × `true`, one worker, {SLOTS} slots, durable"
    row = Row(what, "jobs/s", "higher", goal="≥ 400 jobs/s", limit=400)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if cores != SLOTS:
        row.notes.append(f"{cores} slots, not {SLOTS}: a worker has as many as its machine has cores")
    with ExitStack() as stack:
        plane = stack.enter_context(Plane(_scratch(stack)))
        probe = stack.enter_context(Probe(sources.python, plane))
        contestants = [Contestant("gpulayer", lambda: RUN / probe.run(RUN))]
        if TaskSpooler.is_installed():
            spooler = stack.enter_context(TaskSpooler(_scratch(stack), slots=SLOTS)).env
            contestants.append(Contestant("task-spooler", lambda: _spooled(RUN, spooler)))
        else:
            row.notes.append("task-spooler is not installed")
        contestants.append(Contestant("bare Popen, two in flight", lambda: _popen(RUN)))
        return compare(row, contestants, rounds=rounds)


class Probe:
    """A Python program that holds a client and measures on demand: one JSON line in, one out."""

    def __init__(self, python: Path, plane: Plane) -> None:
        self._command = [python, PROBE]
        self._plane = plane
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> "Probe":
        self._process = subprocess.Popen(
            self._command,
            env=self._plane.env,
            cwd=self._plane.work,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            with self._process as process:
                if process.stdin is not None:
                    process.stdin.close()
                process.wait(timeout=30)

    def first_log_line(self) -> float:
        return self._ask({"measure": "first_log_line"})

    def batch(self, jobs: int) -> float:
        return self._ask({"measure": "batch", "jobs": jobs})

    def run(self, jobs: int) -> float:
        return self._ask({"measure": "run", "jobs": jobs})

    def _ask(self, question: Mapping[str, object]) -> float:
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise ValueError("the probe does not run")
        process.stdin.write(json.dumps(question) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        if not answer:
            raise ValueError(f"the probe ended with {process.wait(timeout=10)}")
        return float(json.loads(answer)["seconds"])


def _queues(stack: ExitStack, row: Row) -> tuple[Mapping[str, str] | None, Mapping[str, str] | None]:
    """The environments of a private Slurm and a private task-spooler, where they are installed."""
    slurm = spooler = None
    if slurm_is_installed():
        try:
            slurm = stack.enter_context(private_slurm(_scratch(stack), cpus=2))
        except (OSError, subprocess.SubprocessError) as error:
            row.notes.append(f"Slurm did not start: {error}")
    else:
        row.notes.append("Slurm is not installed")
    if TaskSpooler.is_installed():
        spooler = stack.enter_context(TaskSpooler(_scratch(stack), slots=2)).env
    else:
        row.notes.append("task-spooler is not installed")
    return slurm, spooler


def _scratch(stack: ExitStack) -> Path:
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True)))


def _first_byte_s(command: Sequence[str], env: Mapping[str, str]) -> float:
    started = time.perf_counter()
    with subprocess.Popen(command, env=dict(env), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        first = process.stdout.read(1)
        taken = time.perf_counter() - started
        process.stdout.read()
    if not first or process.returncode:
        raise ValueError(f"{command[0]} printed nothing (exit {process.returncode})")
    return taken


def _spooled(count: int, env: Mapping[str, str]) -> float:
    """Jobs run to their end a second. ``-C`` first: its list of finished jobs slows it down from round to round."""
    subprocess.run(["tsp", "-C"], env=dict(env), check=True)
    started = time.perf_counter()
    for _ in range(count):
        subprocess.run(["tsp", "-n", "true"], env=dict(env), check=True, stdin=subprocess.DEVNULL, capture_output=True)
    subprocess.run(["tsp", "-w"], env=dict(env), check=True, stdin=subprocess.DEVNULL, capture_output=True)
    return count / (time.perf_counter() - started)


def _popen(count: int) -> float:
    running: deque[subprocess.Popen[bytes]] = deque()
    started = time.perf_counter()
    for _ in range(count):
        if len(running) == SLOTS:
            running.popleft().wait()
        running.append(subprocess.Popen(["true"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL))
    while running:
        running.popleft().wait()
    return count / (time.perf_counter() - started)


def _each(command: Sequence[str], count: int, env: Mapping[str, str]) -> float:
    """Commands accepted a second when each is handed over by itself."""
    started = time.perf_counter()
    for _ in range(count):
        subprocess.run(command, env=dict(env), check=True, stdin=subprocess.DEVNULL, capture_output=True)
    return count / (time.perf_counter() - started)
