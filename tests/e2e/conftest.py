"""The whole program as a user has it: real command, control plane, worker, spawner; a state folder of its own.

At the end everything is told to go down, and nothing that was started for the folder may be left.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

DEADLINE_S = 90.0


@dataclass(frozen=True)
class Ended:
    code: int
    out: bytes
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Story:
    """``here`` is where the user stands; ``state`` is the program's own folder."""

    def __init__(self, folder: Path) -> None:
        self.here = folder / "here"
        self.here.mkdir()
        self.state = folder / "state"
        self.environment = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(folder),
            "GPULAYER_STATE_DIR": str(self.state),
            **{name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ},  # the code under test
        }

    def start(self, *argv: str, **options: Any) -> subprocess.Popen[bytes]:
        defaults = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(
            [sys.executable, "-m", "gpulayer.cli", *argv],
            cwd=self.here,
            env=self.environment,
            **{**defaults, **options},
        )

    def end(self, process: subprocess.Popen[bytes]) -> Ended:
        out, err = process.communicate(timeout=DEADLINE_S)
        return Ended(process.returncode, out or b"", (err or b"").decode())

    def run(self, *argv: str, **options: Any) -> Ended:
        return self.end(self.start(*argv, **options))

    def job(self, job_id: str) -> Any:
        return self.run("job", "show", job_id, "--json").json

    def processes(self) -> list[int]:
        """Of this user's program: whatever has the state folder in its environment, directory or command line."""
        marks = str(self.state).encode()
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                if marks in (entry / "cmdline").read_bytes() or os.readlink(entry / "cwd").startswith(str(self.state)):
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def agent_pid(self) -> int:
        return int((self.state / "worker" / "agent.lock").read_text().split()[0])

    def plane_pid(self) -> int:
        return int(json.loads((self.state / "endpoint.json").read_text())["pid"])

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        ends = time.monotonic() + DEADLINE_S
        while not (found := condition()):
            assert time.monotonic() < ends, f"not within {DEADLINE_S} s: {what}"
            time.sleep(0.02)
        return found


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    story = Story(tmp_path)
    yield story
    _end(story)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """One control plane for the tests that leave nothing behind."""
    story = Story(tmp_path_factory.mktemp("shared"))
    yield story
    _end(story)


def _end(story: Story) -> None:
    ended = story.run("down")
    assert ended.code == 0, ended.err
    story.until(lambda: not story.processes(), "every process of this story has ended")
