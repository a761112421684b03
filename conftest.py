"""What holds for every test: Hypothesis draws the same examples each time, so a run tells of the code alone.

``HYPOTHESIS_PROFILE=search`` looks for new ones (``make soak`` does). ``--seed`` is for what tests leave to chance
themselves. The fixtures of the plugin test kit are there for all, as they are for anybody's plugin.

And a disk of one's own, to be filled: a mount where that is allowed, else one inside a user namespace, reached through
the process that holds it; a test of a full disk is skipped nowhere.

No test hangs: what its deadline does not end (an exception that only a task of an event loop gets) ends the process.
"""

import ctypes
import faulthandler
import os
import subprocess
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

pytest_plugins = ["gpulayer.testing.fixtures"]

settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.register_profile("search", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

_AFTER_DEADLINE_S = 60
_stderr: pytest.StashKey[int] = pytest.StashKey()

_MNT_DETACH = 2  # lazily: what a failed test left open must not fail this too


def pytest_addoption(parser: pytest.Parser) -> None:
    """Hypothesis has a ``--hypothesis-seed`` of its own."""
    group = parser.getgroup("gpulayer")
    group.addoption("--seed", type=int, default=1, help="of the tests that kill at random moments (default: 1)")
    group.addoption("--kills", type=int, help="how many of them under -m soak (default: 1000, scaled)")
    group.addoption("--scale", type=float, default=1.0, help="share of the full numbers under -m soak (default: 1)")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_stderr] = os.dup(2)  # nothing is captured yet


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Of a process that is ended so all stacks are printed, and its test counts as failed."""
    marker = item.get_closest_marker("timeout")
    deadline_s = float(marker.args[0] if marker and marker.args else item.config.getini("timeout"))
    faulthandler.dump_traceback_later(deadline_s + _AFTER_DEADLINE_S, exit=True, file=item.config.stash[_stderr])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def scaled(pytestconfig: pytest.Config) -> Callable[[int], int]:
    """``scaled(2000)``: what is left of a full number of the soak."""
    return lambda full: max(1, round(full * pytestconfig.getoption("--scale")))


@pytest.fixture
def disk_of(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """``disk_of(kib)``: an empty folder on a file system of its own, of that size."""
    mounted: list[Path] = []
    holders: list[subprocess.Popen[str]] = []
    libc = ctypes.CDLL(None, use_errno=True)

    def make(kib: int) -> Path:
        folder = tmp_path / f"disk{len(mounted) + len(holders)}"
        folder.mkdir()
        if libc.mount(b"none", bytes(folder), b"tmpfs", 0, f"size={kib}k".encode()) == 0:
            mounted.append(folder)
            return folder
        script = f'mount -t tmpfs -o size={kib}k none "$0" && echo ready && exec sleep infinity'
        holder = subprocess.Popen(
            ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, folder],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        holders.append(holder)
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n", "a small file system can be had neither way"
        return Path(f"/proc/{holder.pid}/root{folder}")

    yield make
    for holder in holders:
        holder.kill()
        holder.communicate()
    for folder in mounted:
        libc.umount2(bytes(folder), _MNT_DETACH)


@pytest.fixture
def fill() -> Callable[[Path], None]:
    """Write a file until the disk that it is on is full."""

    def write(path: Path) -> None:
        with path.open("ab", buffering=0) as file:
            for size in (1 << 16, 1 << 12, 1):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError:
                    continue

    return write
