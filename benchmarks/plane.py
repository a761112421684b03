"""Our own side of a benchmark: the real program with a state folder of its own."""

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.harness import wall_s

__all__ = ["PROGRAM", "Plane"]

PROGRAM = Path(sys.executable).with_name("gpulayer")


class Plane:
    """Commands against one throw-away state folder; leaving the context runs ``gpulayer down`` there."""

    def __init__(self, folder: Path) -> None:
        self.work = folder / "work"
        self.work.mkdir(parents=True)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GPULAYER_")}
        self.env = {**kept, "HOME": str(folder), "GPULAYER_STATE_DIR": str(folder / "state"), "NO_COLOR": "1"}

    def __enter__(self) -> "Plane":
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run([PROGRAM, "down"], env=self.env, cwd=self.work, check=False, capture_output=True, timeout=60)

    def wall_s(self, *arguments: str) -> float:
        """Seconds that ``gpulayer ARGUMENTS`` takes, from start to exit 0."""
        return wall_s([PROGRAM, *arguments], env=self.env, cwd=self.work)

    def run(self, *arguments: str) -> str:
        """What ``gpulayer ARGUMENTS`` prints; it must exit 0."""
        command = [PROGRAM, *arguments]
        return subprocess.run(
            command, env=self.env, cwd=self.work, check=True, capture_output=True, text=True, timeout=120
        ).stdout
