"""What 20 installed plugins add to a start of the program, and to the start of a control plane or worker.

Each is a distribution of its own with a plugin and a command, in a folder that ``PYTHONPATH`` names; its peer is the
same with an empty folder there.
"""

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.harness import Contestant, Row, compare, wall_s
from gpulayer.testing.distribution import install_distribution

PLUGINS = 20
# As the installed script starts it.
START = "import sys; from gpulayer.cli import main; sys.exit(main())"
LOAD = """
import sys, time
from gpulayer.clock import SystemClock
from gpulayer.plugins.contracts.context import Where
from gpulayer.plugins.host import load_plugins
from gpulayer.plugins.settings import PluginSettings
started = time.perf_counter()
host = load_plugins(Where.CHECK, PluginSettings(), clock=SystemClock(), version="0")
taken = time.perf_counter() - started
assert all(record.status == "ok" for record in host.records()), host.records()
assert len(host.registry.scorers) == int(sys.argv[2])
host.close()
with open(sys.argv[1], "w") as file:
    file.write(str(taken))
"""
SOURCE = """
from gpulayer.plugins import hookimpl

GPULAYER_API = "1.0"

class Scorer:
    name = "scorer-{number}"
    lifetime_s = 60.0

    def score(self, batch):
        return [None] * len(batch.pairs)

@hookimpl
def gpulayer_register_scorers(ctx):
    return [Scorer()]

def command():
    print("here")
"""


def help_time(rounds: int) -> Row:
    row = Row(f"`gpulayer --help`, {PLUGINS} plugins installed", "s", "lower", goal="≤ 0.2 s", limit=0.2)
    return _started(row, ["--help"], rounds)


def version_time(rounds: int) -> Row:
    row = Row(f"`gpulayer --version`, {PLUGINS} plugins installed", "s", "lower")
    return _started(row, ["--version"], rounds)


def list_time(rounds: int) -> Row:
    row = Row(f"`gpulayer plugins`, {PLUGINS} plugins installed", "s", "lower")
    return _started(row, ["plugins", "--json"], rounds)


def load(rounds: int) -> Row:
    """In a fresh process each time; the start of that process is not counted, the pre-flight child is."""
    row = Row(f"a control plane or worker loads {PLUGINS} plugins", "s", "lower")
    return _both(row, rounds, _loaded)


def _started(row: Row, arguments: Sequence[str], rounds: int) -> Row:
    command = [sys.executable, "-P", "-c", START, *arguments]
    return _both(row, rounds, lambda folder, _: wall_s(command, env=_environment(folder)))


def _both(row: Row, rounds: int, once: Callable[[Path, int], float]) -> Row:
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as scratch:
        full, empty = Path(scratch) / "full", Path(scratch) / "empty"
        full.mkdir()
        empty.mkdir()
        for number in range(PLUGINS):
            name = f"plugin-{number}"
            install_distribution(
                full,
                f"gpulayer-{name}",
                modules={f"gpulayer_plugin_{number}": SOURCE.format(number=number)},
                plugins={name: f"gpulayer_plugin_{number}"},
                commands={f"command-{number}": f"gpulayer_plugin_{number}:command"},
            )
        return compare(
            row,
            [
                Contestant("gpulayer", lambda: once(full, PLUGINS)),
                Contestant("no plugin installed", lambda: once(empty, 0)),
            ],
            rounds=rounds,
        )


def _loaded(folder: Path, count: int) -> float:
    file = folder / "taken"
    wall_s([sys.executable, "-P", "-c", LOAD, str(file), str(count)], env=_environment(folder))
    return float(file.read_text("utf-8"))


def _environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GPULAYER_")}
    path = os.pathsep.join([str(folder), *filter(None, [kept.get("PYTHONPATH")])])
    state = {"GPULAYER_STATE_DIR": str(folder / "state"), "GPULAYER_CONFIG_DIR": str(folder / "config")}
    return {**kept, "PYTHONPATH": path, **state}
