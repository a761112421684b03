"""What all of the process shares is as it was after a call of a plugin, and who is blamed for what it changed."""

import asyncio
import os
import threading

import pytest

from gpulayer.plugins.ambient import Place
from gpulayer.plugins.guard import Guard
from gpulayer.plugins.marks import Marks
from tests.guarded import fault, ok, wait_until


def test_process_wide_state_is_put_back_and_noted_and_the_answer_counts(guard, monkeypatch, tmp_path):
    monkeypatch.setenv("KEPT", "1")
    cwd = os.getcwd()

    def change():
        os.environ["KEPT"] = "2"
        os.environ["NEW"] = "hunter22"
        os.chdir(tmp_path)
        return 42

    assert guard.call("p", "h", change, deadline_s=10.0) == 42
    assert (os.environ["KEPT"], os.environ.get("NEW"), os.getcwd()) == ("1", None, cwd)
    count, notes = guard.faults_of("p")
    assert count == 2
    assert "os.environ (KEPT, NEW)" in notes[0].message
    assert "the working directory" in notes[1].message


def test_a_call_that_hangs_for_good_keeps_nobody_from_being_looked_at(guard, gate, monkeypatch):
    monkeypatch.delenv("NEW", raising=False)
    fault(guard, lambda: gate.wait(10), deadline_s=0.05)
    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(asyncio.wait_for(guard.acall("q", "h", lambda: gate.wait(10), deadline_s=10.0), 0.05))
    guard.call("p", "h", lambda: os.environ.update(NEW="1"), deadline_s=10.0)
    assert "NEW" not in os.environ
    assert "os.environ (NEW)" in guard.faults_of("p")[1][-1].message


def overlapping(guard, first, second):
    """Two calls of two plugins; ``first`` is done, and its call over, while the second runs."""
    second_runs, first_ended = threading.Event(), threading.Event()

    def one():
        first()
        assert second_runs.wait(10)

    def two():
        second_runs.set()
        assert first_ended.wait(10)
        second()

    def ask_first():
        guard.call("p", "h", one, deadline_s=10.0)
        first_ended.set()

    threads = [
        threading.Thread(target=ask_first),
        threading.Thread(target=lambda: guard.call("q", "h", two, deadline_s=10.0)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)


@pytest.mark.parametrize("is_seconds", [False, True])
def test_of_calls_that_overlap_none_is_blamed_and_nothing_is_taken_from_the_other(guard, monkeypatch, is_seconds):
    monkeypatch.delenv("NEW", raising=False)

    def change():
        monkeypatch.setenv("NEW", "1")

    def nothing():
        pass

    overlapping(guard, *((nothing, change) if is_seconds else (change, nothing)))
    assert os.environ["NEW"] == "1"
    assert (guard.faults_of("p")[0], guard.faults_of("q")[0]) == (0, 0)
    assert guard.call("p", "h", lambda: os.environ.pop("NEW"), deadline_s=10.0) == "1"
    assert guard.faults_of("p")[0] == 1, "the next one is alone again"


def test_whatever_fails_around_a_call_its_mark_is_removed_and_its_answer_counts(clock, tmp_path, monkeypatch, caplog):
    def fails(self):
        raise ValueError("odd")

    marks = Marks(tmp_path / "marks", {"p": "1.0"}, wall_ms=0)
    guard = Guard(clock=clock, marks=marks)
    monkeypatch.setattr(Place, "put_back", fails)
    assert ok(guard) == 42
    wait_until(lambda: "must not raise" in caplog.text)
    assert (tmp_path / "marks").read_bytes()[256:].strip(b"\0") == b""
    guard.close()
