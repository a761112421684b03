"""The main job, end to end, through the real program: `make demo`.

Submits examples/wordcount and examples/transcode with nothing running: a background control plane and worker start
by themselves, in a throw-away state folder, and are ended again. Everything printed after a ``$`` is a command you
can type. What the jobs made stays in gpulayer_runs/.
"""

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
JOBS = {
    "gpulayer submit --source examples/wordcount -- python3 wordcount.py": {"counts.csv"},
    "gpulayer submit --source examples/transcode -- ./transcode.sh": {"result.mp4", "contact-sheet.png"},
}


class DemoFailed(Exception):
    pass


def environment(scratch: Path) -> dict[str, str]:
    """This one, with the program of this Python first on PATH, and nothing of the user's own set-up."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GPULAYER_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return {**kept, "PATH": path, "HOME": str(scratch / "home"), "GPULAYER_STATE_DIR": str(scratch / "state")}


def run(command: list[str], env: dict[str, str]) -> None:
    print(f"\n$ {shlex.join(command)}", flush=True)
    done = subprocess.run(command, cwd=ROOT, env=env, check=False)
    if done.returncode != 0:
        raise DemoFailed(f"{shlex.join(command)} ended with {done.returncode}")


def read_json(command: list[str], env: dict[str, str]) -> Any:
    done = subprocess.run([*command, "--json"], cwd=ROOT, env=env, check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


def show_newest_job(expected: set[str], env: dict[str, str]) -> None:
    """The newest job's record, why it ran where it ran, and what came home."""
    listed = read_json(["gpulayer", "job", "list"], env)
    job_id = (listed["jobs"] if isinstance(listed, dict) else listed)[0]["id"]
    run(["gpulayer", "job", "show", job_id], env)
    record = read_json(["gpulayer", "job", "show", job_id], env)
    print(f"\nwhy there: {record['placement']}")
    home = ROOT / "gpulayer_runs" / job_id
    print(f"came home to {home.relative_to(ROOT)}/")
    for file in sorted(home.rglob("*")):
        if file.is_file():
            print(f"  {file.stat().st_size:>9,} bytes  {file.relative_to(home)}")
    missing = expected - {file.name for file in home.rglob("*")}
    if missing:
        raise DemoFailed(f"{', '.join(sorted(missing))} did not come home")


def main() -> int:
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gpulayer-demo-", ignore_cleanup_errors=True) as scratch:
        (Path(scratch) / "home").mkdir()
        env = environment(Path(scratch))
        try:
            for command, expected in JOBS.items():
                run(shlex.split(command), env)
                show_newest_job(expected, env)
        except (DemoFailed, subprocess.CalledProcessError) as failure:
            print(f"\ndemo: {failure}", file=sys.stderr)
            return 1
        finally:
            print("\n$ gpulayer down", flush=True)
            down = subprocess.run(["gpulayer", "down"], cwd=ROOT, env=env, check=False)
    if down.returncode != 0:
        print(f"\ndemo: gpulayer down ended with {down.returncode}", file=sys.stderr)
        return 1
    print(f"\ndemo: two jobs ran and brought their files home in {time.monotonic() - started:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
