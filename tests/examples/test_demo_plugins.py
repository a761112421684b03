"""`make demo-plugins` is true, and docs/plugins/misbehaving.md shows what it prints."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from examples.demo_plugins import PAGE, ROOT, names, packages, same_in_every_run

TIMES = (
    r"(?:failed|noted) (?:once|[\d,]+ times)(?: in (?:here|plane|worker desk)(?:, (?:plane|worker desk))*)?"
    r"(?:(?:; last)?(?:, [\d.,]+ \w+ ago)?: [\w.]+(?: hook)?: )?"
)
PLACES = r"  (?:here|plane|worker desk)(?:, (?:plane|worker desk))*(?=  |$)"
# What a job waits for is told where it waits long enough; who is suspected depends on who ran when the worker ended.
NOW_AND_THEN = "|".join(  # noqa: FLY002 - too long for a line
    (
        "it failed several times in a row",
        " is queued: ",
        "^waiting for the control plane",
        "^  the process before this one ended",
    )
)


def as_shown(page: str) -> list[str]:
    """Its lines, without what differs from run to run: a plugin that fails now and then is being rested or tried, and
    stands in a row with those elsewhere or in one of its own."""
    text = re.sub(PLACES, "  WHERE", re.sub(TIMES, "", page.replace("suspended", "ok")), flags=re.MULTILINE)
    return sorted({line for line in same_in_every_run(text).splitlines() if not re.search(NOW_AND_THEN, line)})


@pytest.mark.timeout(240)
def test_the_quickstart_runs_unharmed_and_the_page_shows_what_was_printed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    shutil.copy(PAGE, page)
    done = subprocess.run(
        [sys.executable, ROOT / "examples/demo_plugins.py", "--write", page],
        capture_output=True,
        text=True,
        timeout=230,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "  NO " not in done.stdout
    assert done.stdout.count("\n  yes  ") == 5
    said = "to renew the page: python examples/demo_plugins.py --write"
    assert as_shown(page.read_text(encoding="utf-8")) == as_shown(PAGE.read_text(encoding="utf-8")), said


def test_every_package_is_on_the_page_and_in_the_list_that_it_shows() -> None:
    text = PAGE.read_text(encoding="utf-8")
    table, listed = text.split("$ gpulayer plugins\n")
    assert len(packages()) == 16
    assert [name for name in names() if f"`{name}`" not in table] == []
    assert [name for name in names() if not re.search(rf"^\w+ +{name} ", listed, re.MULTILINE)] == []
