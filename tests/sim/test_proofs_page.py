"""What the pages on proofs and reliability say of the simulated fleets is what is printed, and what is there."""

import re
import shlex
from pathlib import Path

import pytest

from gpulayer.testing.sim.__main__ import main
from gpulayer.testing.sim.mutants import MUTANTS, UNSEEN
from tests.docs.test_docs_examples import blocks, is_as_shown, steps
from tests.soak import power

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "proofs.md"
PROGRAM = "python -m gpulayer.testing.sim"


def shown():
    """(command, lines) of each example of the simulator."""
    every = [step for block in blocks(PAGE) if block.language == "console" for step in steps(block.text)]
    return [(command, lines) for command, lines in every if command.startswith(PROGRAM)]


@pytest.mark.parametrize(("command", "lines"), shown())
def test_an_example_of_the_page_is_what_is_printed(command, lines, capsys):
    """Where it is not any more, because the fleets or the stories have changed, what is printed belongs there."""
    assert main([*shlex.split(command.removeprefix(PROGRAM)), "--minimise-s", "300"]) == 1
    printed = capsys.readouterr().out
    assert is_as_shown(lines, printed), f"$ {command}\n{printed}"


def test_the_page_has_an_example():
    assert len(shown()) == 1


def test_each_command_of_the_page_takes_its_options(capsys):
    page = PAGE.read_text(encoding="utf-8")
    commands = re.findall(rf"^{re.escape(PROGRAM)}((?: \S+)+?) +#", page, re.MULTILINE)
    assert len(commands) == 5
    for command in commands:
        argv = command.replace("NAME", "exclusive_unminded").replace("0:1000", "0:2").split()
        assert main([*argv, "--jobs", "9", "--minimise-s", "0"]) in (0, 1)
        assert capsys.readouterr().err == ""


def test_the_planted_faults_that_are_not_counted_on_are_listed_with_what_hides_them():
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == [(name, mutant.text, mutant.unseen) for name, mutant in sorted(UNSEEN.items())]


def test_both_pages_say_how_many_planted_faults_are_noticed_and_how_many_are_not():
    proofs, more = PAGE.read_text(encoding="utf-8"), r"(\d+) more are not noticed, or hardly ever"
    said = re.search(rf"There are (\d+) that are, and (\d+) of the store.*\s+{more}", proofs)
    there = [len(MUTANTS), len(power.MUTANTS), len(UNSEEN)]
    assert [int(number) for number in said.groups()] == there
    (row,) = re.findall(r"^\| 14 \|.*$", (DOCS / "reliability.md").read_text(encoding="utf-8"), re.MULTILINE)
    said = re.search(rf"each of (\d+) .*, (\d+) of the store .*; {more}", row)
    assert [int(number) for number in said.groups()] == there
