"""examples/wordcount, run directly: what a worker would run."""

import csv
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "examples/wordcount/wordcount.py"


def wordcount(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", SCRIPT, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )


def test_the_topics_of_python_give_the_same_file_twice(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
        done = wordcount(folder)
        assert done.returncode == 0, done.stderr
        assert len(done.stdout.splitlines()) == 11
    assert (first / "counts.csv").read_bytes() == (second / "counts.csv").read_bytes()
    rows = list(csv.reader((first / "counts.csv").read_text(encoding="utf-8").splitlines()))
    assert rows[0] == ["word", "count"]
    assert rows[1][0] == "the"


def test_a_folder_is_counted_by_word_and_ties_are_ordered(tmp_path: Path) -> None:
    (tmp_path / "text/deep").mkdir(parents=True)
    (tmp_path / "text/a.txt").write_text("Don't panic. Panic!")
    (tmp_path / "text/deep/b.txt").write_bytes("été 42 été ".encode() + b"\xff")
    (tmp_path / "text/deep/c.txt").write_text("don't")
    assert wordcount(tmp_path, "text").returncode == 0
    rows = list(csv.reader((tmp_path / "counts.csv").read_text(encoding="utf-8").splitlines()))[1:]
    assert rows[:3] == [["don't", "2"], ["panic", "2"], ["été", "2"]]


def test_a_missing_folder_is_said_and_fails(tmp_path: Path) -> None:
    done = wordcount(tmp_path, "nowhere")
    assert done.returncode == 1
    assert done.stderr == "nowhere does not exist\n"
