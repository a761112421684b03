"""Measuring side by side: what every benchmark here shares.

A benchmark is a list of *contestants*, each a function that does the work once and returns its figure. They run in
turn, round after round, in one process on one machine, so that a busy minute hits all of them; the median counts.
What is published is the ratio of one run, with every single figure beside it.
"""

import json
import math
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

__all__ = ["Contestant", "Report", "Row", "compare", "machine", "wall_s"]

OURS = "gpulayer"
Better = Literal["lower", "higher"]


@dataclass(frozen=True, slots=True)
class Contestant:
    """``once`` does the work one time and returns the figure; it may raise, which is reported, not hidden."""

    name: str
    once: Callable[[], float]


@dataclass(slots=True)
class Row:
    """One line of the results. ``figures``: every single measurement, by contestant. ``notes``: what was left out."""

    what: str
    unit: str
    better: Better
    goal: str = ""
    limit: float | None = None
    figures: dict[str, list[float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def median(self, name: str) -> float:
        return statistics.median(self.figures[name])

    @property
    def is_goal_met(self) -> bool | None:
        """None without a goal or a figure."""
        if self.limit is None or OURS not in self.figures:
            return None
        return self.median(OURS) <= self.limit if self.better == "lower" else self.median(OURS) >= self.limit

    def ratio(self, peer: str) -> float | None:
        """How many times better we are than this peer; below 1 we are worse."""
        if OURS not in self.figures:
            return None
        ours, theirs = self.median(OURS), self.median(peer)
        over, under = (theirs, ours) if self.better == "lower" else (ours, theirs)
        return over / under if under else math.inf


def compare(row: Row, contestants: Sequence[Contestant], *, rounds: int, warm_up: int = 1) -> Row:
    """Run the contestants in turn. One that fails is dropped from the row, and a note says why."""
    failed: set[str] = set()
    for number in range(-warm_up, rounds):
        for contestant in contestants:
            if contestant.name in failed:
                continue
            try:
                figure = contestant.once()
            except (OSError, subprocess.SubprocessError, ValueError, LookupError) as error:
                failed.add(contestant.name)
                row.notes.append(f"{contestant.name}: {_short(error)}")
                continue
            if number >= 0:
                row.figures.setdefault(contestant.name, []).append(figure)
    return row


def wall_s(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_s: float = 120,
) -> float:
    """Seconds from starting the command to its exit 0. Raises CalledProcessError with its output otherwise."""
    started = time.perf_counter()
    subprocess.run(
        command,
        env=None if env is None else dict(env),
        cwd=cwd,
        check=True,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=timeout_s,
    )
    return time.perf_counter() - started


def machine() -> dict[str, Any]:
    """What a reader needs to judge the figures; no name and no address of the machine."""
    facts: dict[str, Any] = {
        "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        facts["memory_gib"] = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    if hasattr(os, "getloadavg"):
        facts["load_at_start"] = round(os.getloadavg()[0], 2)
    return facts


@dataclass(slots=True)
class Report:
    """All rows of one run, written as JSON (everything) and Markdown (medians and ratios)."""

    title: str
    versions: dict[str, str]
    rows: list[Row] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=machine)
    date: str = field(default_factory=lambda: datetime.now(UTC).strftime("%Y-%m-%d"))

    def write(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.json").write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n", "utf-8")
        (folder / f"{name}.md").write_text(self.markdown(), "utf-8")

    def markdown(self) -> str:
        facts = self.machine
        lines = [
            f"# {self.title}",
            "",
            f"{self.date}. {facts['cpu']}, {facts['cores']} cores, {facts.get('memory_gib', '?')} GiB, "
            f"{facts['system']}, Python {facts['python']}; load at the start {facts.get('load_at_start', '?')}.",
            "Versions: " + ", ".join(f"{name} {version}" for name, version in self.versions.items()) + ".",
            "Medians of contestants that ran in turn, in one run; × says how many times better GPUlayer is "
            "(below 1: worse).",
            "",
            "| what | GPUlayer | goal | peers |",
            "|---|---|---|---|",
        ]
        lines += [self._line(row) for row in self.rows]
        notes = [f"* {row.what}: {note}" for row in self.rows for note in row.notes]
        return "\n".join([*lines, "", *notes]).rstrip() + "\n"

    @staticmethod
    def _line(row: Row) -> str:
        ours = f"{_figure(row.median(OURS))} {row.unit}" if OURS in row.figures else "–"
        goal = row.goal + {True: " (met)", False: " (**not met**)", None: ""}[row.is_goal_met]
        peers = []
        for name in row.figures:
            if name != OURS:
                ratio = row.ratio(name)
                times = "" if ratio is None else f" ({_figure(ratio)} ×)"
                peers.append(f"{name} {_figure(row.median(name))} {row.unit}{times}")
        return f"| {row.what} | {ours} | {goal} | {'; '.join(peers)} |"


def _figure(value: float) -> str:
    """Three significant digits, without exponents."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _short(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        said = (error.stderr or b"").decode(errors="replace").strip().splitlines()
        return f"exit {error.returncode}{': ' + said[-1][:200] if said else ''}"
    return f"{type(error).__name__}: {str(error)[:200]}"


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()
