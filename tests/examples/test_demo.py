"""`make demo` is true."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_demo_runs_both_jobs_and_shows_record_reason_and_files() -> None:
    done = subprocess.run([sys.executable, ROOT / "examples/demo.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("\n$ gpulayer job show ") == 2
    assert done.stdout.count("\nwhy there: ") == 2
    for name in ("counts.csv", "result.mp4", "contact-sheet.png"):
        assert f" bytes  {name}\n" in done.stdout
    assert "\n$ gpulayer down" in done.stdout
