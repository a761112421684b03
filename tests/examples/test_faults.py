"""The scripts of examples/faults say OK, and docs/proofs.md quotes them as they are."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(path.name for path in (ROOT / "examples/faults").glob("*.py") if path.name != "stage.py")
PAGE = (ROOT / "docs/proofs.md").read_text(encoding="utf-8")
QUOTED = dict(re.findall(r"^```console\n\$ python examples/faults/(\S+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE))


def test_the_page_quotes_every_script() -> None:
    assert sorted(QUOTED) == SCRIPTS


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_ends_well_and_prints_what_the_page_quotes(script: str) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples/faults" / script], capture_output=True, text=True, timeout=110, check=False
    )
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["OK"]), done.stdout + done.stderr
    for shown, printed in zip(QUOTED[script].splitlines(), done.stdout.splitlines(), strict=True):
        # Dots stand for what differs from run to run: numbers, ids, folders.
        pattern = ".*".join(re.escape(part) for part in shown.split("…"))
        assert re.fullmatch(pattern, printed), f"shown: {shown}\nprinted: {printed}"
