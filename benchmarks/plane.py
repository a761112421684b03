"""Our own side of a benchmark: the real program with a state folder of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.harness import wall_s
from benchmarks.processes import with_word

__all__ = ["PROGRAM", "Plane"]

PROGRAM = Path(sys.executable).with_name("gpulayer")


class Plane:
    """Commands against one throw-away state folder; leaving the context runs ``gpulayer down`` there."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        self.work = folder / "work"
        self.work.mkdir(parents=True)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GPULAYER_")}
        self.env = {**kept, "HOME": str(folder), "GPULAYER_STATE_DIR": str(self.state), "NO_COLOR": "1"}

    def __enter__(self) -> "Plane":
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run([PROGRAM, "down"], env=self.env, cwd=self.work, check=False, capture_output=True, timeout=60)

    def wall_s(self, *arguments: str) -> float:
        """Seconds that ``gpulayer ARGUMENTS`` takes, from start to exit 0."""
        return wall_s([PROGRAM, *arguments], env=self.env, cwd=self.work)

    def processes(self) -> dict[str, int]:
        """What runs for this state folder, once something has been submitted: name to process id."""
        plane = int(json.loads((self.state / "endpoint.json").read_bytes())["pid"])
        worker = int((self.state / "worker/agent.lock").read_text("ascii").split()[0])
        under = with_word("gpulayer.spawner", str(self.state))
        return {"control plane": plane, "worker": worker, **dict(zip(("watchdog", "spawner"), under, strict=False))}

    def run(self, *arguments: str) -> str:
        """What ``gpulayer ARGUMENTS`` prints; it must exit 0."""
        command = [PROGRAM, *arguments]
        return subprocess.run(
            command, env=self.env, cwd=self.work, check=True, capture_output=True, text=True, timeout=120
        ).stdout
