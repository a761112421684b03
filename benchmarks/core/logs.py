"""A program's output on its way to somebody who follows it: how much a second, how soon, at what price in memory."""

import hashlib
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.core.sources import Sources
from benchmarks.harness import Contestant, Row, compare
from benchmarks.peers import TaskSpooler
from benchmarks.plane import PROGRAM, Plane
from benchmarks.processes import watched_growth

MEGABYTES = 100
LINES = 40

# Everything is in memory before the word to go, so that only the way of the bytes is measured.
WRITER = f"""
import os, sys, time
block = b"".join(b"%099d\\n" % n for n in range(10_000))
print("ready", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.001)
for number in range({MEGABYTES}):
    left = memoryview(block)
    while left:
        left = left[os.write(1, left):]
"""

CLOCK = f"""
import time
for _ in range({LINES}):
    time.sleep(0.05)
    print(time.perf_counter_ns(), flush=True)
"""


def throughput(sources: Sources, rounds: int) -> Row:
    """From the word to go until the follower, which was there before, has the last byte."""
    what = f"{MEGABYTES} MB of log, worker to following client, byte-exact"
    row = Row(what, "s", "lower", goal="≤ 1.5 s, no process grows by more than 50 MB", limit=1.5)
    with ExitStack() as stack:
        ours = _Ours(sources, stack)
        most: dict[str, int] = {}

        def once() -> float:
            taken, growth = ours.burst()
            for name, size in growth.items():
                most[name] = max(most.get(name, 0), size)
            return taken

        contestants = [Contestant("gpulayer", once)]
        if TaskSpooler.is_installed():
            spooler = stack.enter_context(TaskSpooler(_scratch(stack), slots=2))
            contestants.append(Contestant("task-spooler -c", lambda: _spooled(sources, stack, spooler.env, _burst)))
        else:
            row.notes.append("task-spooler is not installed")
        contestants.append(Contestant("a bare pipe", lambda: _piped(sources, stack)))
        compare(row, contestants, rounds=rounds)
    grown = ", ".join(f"{name} {size / 1e6:+.1f} MB" for name, size in most.items())
    row.notes.append(f"the most that a process of ours grew by in any round: {grown}")
    return row


def live(sources: Sources, rounds: int) -> Row:
    """A line every 50 ms, stamped by the program and again when the follower has it; the median of a round."""
    row = Row("live log: a line written → at the follower", "s", "lower", goal="≤ 0.5 s", limit=0.5)
    with ExitStack() as stack:
        ours = _Ours(sources, stack)
        contestants = [Contestant("gpulayer", ours.delay)]
        if TaskSpooler.is_installed():
            spooler = stack.enter_context(TaskSpooler(_scratch(stack), slots=2))
            contestants.append(Contestant("task-spooler -c", lambda: _spooled(sources, stack, spooler.env, _delays)))
        else:
            row.notes.append("task-spooler is not installed")
        return compare(row, contestants, rounds=rounds)


class _Ours:
    def __init__(self, sources: Sources, stack: ExitStack) -> None:
        self._python = sources.python
        self._stack = stack
        self._plane = stack.enter_context(Plane(_scratch(stack)))
        self._plane.run("submit", "--quiet", "--", "true")

    def burst(self) -> tuple[float, dict[str, int]]:
        gate = _scratch(self._stack) / "go"
        with self._follower(WRITER, str(gate)) as follower:
            _ready(follower)
            with watched_growth({**self._plane.processes(), "following command": follower.pid}) as growth:
                taken = _burst(follower, gate)
        _check(follower)
        return taken, growth

    def delay(self) -> float:
        with self._follower(CLOCK) as follower:
            taken = _delays(follower, None)
        _check(follower)
        return taken

    def _follower(self, code: str, *arguments: str) -> "subprocess.Popen[bytes]":
        command = [PROGRAM, "submit", "--quiet", "--no-outputs", "--", self._python, "-c", code, *arguments]
        return subprocess.Popen(
            command, env=self._plane.env, cwd=self._plane.work, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        )


def _piped(sources: Sources, stack: ExitStack) -> float:
    gate = _scratch(stack) / "go"
    with subprocess.Popen([sources.python, "-c", WRITER, gate], stdout=subprocess.PIPE) as writer:
        _ready(writer)
        taken = _burst(writer, gate)
    _check(writer)
    return taken


def _spooled(
    sources: Sources,
    stack: ExitStack,
    env: Mapping[str, str],
    measure: "Callable[[subprocess.Popen[bytes], Path | None], float]",
) -> float:
    folder = _scratch(stack)
    gate, script = folder / "go", folder / "program.py"  # a file: tsp would take the -c of a python command for its own
    script.write_text(WRITER if measure is _burst else CLOCK, "utf-8")
    submit: Sequence[str | Path] = ["tsp", sources.python, script, gate]
    number = subprocess.run(submit, env=dict(env), check=True, capture_output=True, text=True).stdout.strip()
    while subprocess.run(["tsp", "-s", number], env=dict(env), check=True, capture_output=True).stdout != b"running\n":
        time.sleep(0.001)  # before that there is nothing to follow
    with subprocess.Popen(["tsp", "-c", number], env=dict(env), stdout=subprocess.PIPE) as follower:
        if measure is _burst:
            _ready(follower)
        taken = measure(follower, gate)
    _check(follower)
    return taken


def _ready(follower: "subprocess.Popen[bytes]") -> None:
    assert follower.stdout is not None
    if follower.stdout.readline() != b"ready\n":
        raise ValueError(f"{follower.args[0]} did not start")  # type: ignore[index]


def _burst(follower: "subprocess.Popen[bytes]", gate: Path | None) -> float:
    """Seconds from the word to go to the last byte; all bytes must be the right ones."""
    assert follower.stdout is not None
    assert gate is not None
    pieces: list[bytes] = []
    left = MEGABYTES * 1_000_000
    started = time.perf_counter()
    gate.touch()
    while left > 0 and (piece := follower.stdout.read1(1 << 20)):
        left -= len(piece)
        pieces.append(piece)
    taken = time.perf_counter() - started
    follower.stdout.read()
    found, expected = hashlib.sha256(), hashlib.sha256()
    for piece in pieces:
        found.update(piece)
    block = b"".join(b"%099d\n" % n for n in range(10_000))
    for _ in range(MEGABYTES):
        expected.update(block)
    if found.digest() != expected.digest():
        raise ValueError("the bytes that came are not those that were written")
    return taken


def _delays(follower: "subprocess.Popen[bytes]", _gate: Path | None) -> float:
    """Seconds; the program's clock and ours are the same one of this machine."""
    assert follower.stdout is not None
    delays = [time.perf_counter_ns() - int(line) for line in follower.stdout]
    if len(delays) != LINES:
        raise ValueError(f"{len(delays)} of {LINES} lines came")
    return statistics.median(delays) / 1e9


def _check(process: "subprocess.Popen[bytes]") -> None:
    if process.returncode:
        raise ValueError(f"exit {process.returncode}")


def _scratch(stack: ExitStack) -> Path:
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True)))
