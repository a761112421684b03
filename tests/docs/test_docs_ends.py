"""The table of ends in the documentation says what the code does."""

import re
from pathlib import Path

import pytest

from gpulayer.cli.exits import exit_for_job
from gpulayer.engine.ends import final_state
from gpulayer.spec.outcome import EndedBy, Outcome, blame_for

PAGE = Path(__file__).parents[2] / "docs" / "ends.md"
ROWS = {
    cells[0].strip("`"): cells
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if re.match(r"\| `(?!ended_by)\w+` \|", line)
    and len(cells := [cell.strip() for cell in line.strip("|").split(" | ")]) == 6
}


def test_every_end_has_its_row() -> None:
    assert set(ROWS) == set(EndedBy)


@pytest.mark.parametrize("ended_by", EndedBy)
def test_a_row_says_what_the_code_does(ended_by: EndedBy) -> None:
    _, _, state, code, blame, _ = ROWS[ended_by]
    outcome = Outcome(ended_by, exit_code=3 if ended_by is EndedBy.PROGRAM else None, blame=blame_for(ended_by))
    assert state.split()[-1] == f"`{final_state(outcome)}`"
    assert blame == outcome.blame
    record = {"state": final_state(outcome), "ended_by": ended_by, "signal": None, "exit_code": outcome.exit_code}
    found = exit_for_job(record)
    assert code in (str(found), {3: "the program's", 137: "128 + n"}.get(found))
