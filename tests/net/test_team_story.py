"""`make demo-team` is true, and the README quotes it as it is."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "examples/demo_team.py"
MARK = "<!-- not run: tests/net/test_team_story.py runs it and compares -->\n```console\n"


@pytest.mark.timeout(300)
def test_a_server_a_worker_behind_a_router_and_a_laptop_become_a_team_as_the_readme_tells_it() -> None:
    done = subprocess.run([sys.executable, DEMO], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "  NO " not in done.stdout
    assert done.stdout.count("\n  yes  ") == 6
    shown = "".join(part.split("```")[0] for part in (ROOT / "README.md").read_text().split(MARK)[1:])
    assert shown
    for command, *lines in (part.splitlines() for part in re.split(r"^(?=\w+\$ )", shown, flags=re.MULTILINE) if part):
        # Dots stand for anything on a line and, alone on one, for any lines.
        pattern = "".join(
            r"(?:[^\n]*\n)*" if line == "…" else re.escape(line).replace("…", r"[^\n]*") + r"\n"
            for line in (command, *lines)
        )
        assert re.search(f"^{pattern}", done.stdout, flags=re.MULTILINE), f"not printed:\n{command}\n{lines}"


def test_where_no_network_can_be_made_it_says_why() -> None:
    done = subprocess.run(
        [sys.executable, DEMO], capture_output=True, text=True, timeout=60, check=False, env={"PATH": ""}
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("demo-team: not installed: ip, tc, nft, nsenter, unshare ")
