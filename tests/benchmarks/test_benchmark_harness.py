"""The figures that benchmarks publish are computed the right way round."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.harness import Contestant, Report, Row, compare


def row(*, better: str, limit: float | None = None) -> Row:
    return Row("what", "s", better, goal="goal", limit=limit)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("better", "ours", "theirs", "ratio"), [("lower", 1, 4, 4), ("higher", 40, 10, 4), ("lower", 4, 1, 0.25)]
)
def test_a_ratio_says_how_many_times_better_we_are(better: str, ours: float, theirs: float, ratio: float) -> None:
    line = row(better=better)
    line.figures = {"gpulayer": [ours], "peer": [theirs]}
    assert line.ratio("peer") == ratio


@pytest.mark.parametrize(("better", "figure", "is_met"), [("lower", 1, True), ("lower", 3, False), ("higher", 3, True)])
def test_a_goal_is_met_on_its_own_side(better: str, figure: float, *, is_met: bool) -> None:
    line = row(better=better, limit=2)
    assert line.is_goal_met is None
    line.figures = {"gpulayer": [figure]}
    assert line.is_goal_met is is_met


def test_contestants_run_in_turn_and_the_median_counts() -> None:
    order: list[str] = []

    def contestant(name: str, figures: Iterator[float]) -> Contestant:
        def once() -> float:
            order.append(name)
            return next(figures)

        return Contestant(name, once)

    line = row(better="lower")
    compare(line, [contestant("gpulayer", iter([99, 1, 2, 9])), contestant("peer", iter([99, 3, 4, 5]))], rounds=3)
    assert order == ["gpulayer", "peer"] * 4
    assert line.figures == {"gpulayer": [1, 2, 9], "peer": [3, 4, 5]}
    assert line.median("gpulayer") == 2


def test_one_that_fails_is_left_out_and_named() -> None:
    def broken() -> float:
        raise OSError("no such program")

    line = compare(row(better="lower"), [Contestant("gpulayer", lambda: 1.0), Contestant("peer", broken)], rounds=2)
    assert line.figures == {"gpulayer": [1.0, 1.0]}
    assert line.notes == ["peer: OSError: no such program"]


def test_a_report_keeps_every_figure_and_prints_medians(tmp_path: Path) -> None:
    line = row(better="lower", limit=0.5)
    line.figures = {"gpulayer": [1.0, 3.0, 2.0], "peer": [1.0]}
    Report(
        "Title", {"gpulayer": "0.1.0"}, [line], machine={"cpu": "a", "cores": 2, "system": "b", "python": "c"}
    ).write(tmp_path, "core")
    assert json.loads((tmp_path / "core.json").read_text())["rows"][0]["figures"]["gpulayer"] == [1.0, 3.0, 2.0]
    assert "| what | 2 s | goal (**not met**) | peer 1 s (0.5 ×) |" in (tmp_path / "core.md").read_text()
