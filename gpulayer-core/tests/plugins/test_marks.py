"""Who is suspected when a process has ended in the middle of a plugin's call, and for how long."""

import hashlib
import os
import subprocess
import sys
import threading

import pytest

from gpulayer.plugins.marks import STRIKES, Mark, Marks

HOUR = 3600 * 1000


@pytest.fixture
def start(tmp_path):
    """``start(version=…, …)``: a process begins. ``end=``: how the one before it ended."""
    opened = []

    def make(version="1.0", wall_ms=0, boot="b1", versions=None):
        marks = Marks(tmp_path / "state" / "marks", versions or {"p": version}, wall_ms=wall_ms, boot=boot)
        opened.append(marks)
        return marks

    yield make
    for marks in opened:
        marks.close()


def mark(hook="Probe.look", version="1.0"):
    return Mark("p", hashlib.sha256(version.encode()).hexdigest()[:16], hook)


def crash(marks, plugin="p", hook="Probe.look"):
    """It ends while that call runs."""
    marks.begin(plugin, hook)
    os.close(marks._file)
    marks._file = -1


def given_up(marks, plugin="p"):
    return marks.gave_up(plugin, is_named=False)


def test_a_peaceful_end_leaves_nothing_not_even_of_a_call_that_hangs(start):
    marks = start()
    marks.begin("p", "Probe.look")
    marks.close()
    marks.close()
    marks.end(1, "p", "Probe.look")
    assert start().left == ()


def test_a_call_that_ran_at_the_end_is_known_at_the_next_start_and_one_that_returned_is_not(start):
    marks = start(versions={"p": "1.0", "q": "2.0"})
    marks.end(marks.begin("q", "Scorer.score"), "q", "Scorer.score")
    marks.begin("file", "Stager.fetch")  # core's own: nobody would be the wiser
    crash(marks)
    assert start().left == (mark(),)


def test_after_three_starts_in_a_row_that_found_its_mark_it_is_given_up_and_stays_so(start):
    for _ in range(STRIKES):
        marks = start()
        assert given_up(marks) is None
        crash(marks)
    for _ in range(3):
        marks = start()
        assert given_up(marks) == mark()
        marks.close()


def test_one_that_was_killed_now_and_then_is_not_given_up(start):
    """kill -9 of a healthy process finds some call running, too."""
    for _ in range(5):
        crash(start())
        crash(start())
        start().close()
    assert given_up(start()) is None


def test_a_call_that_returns_clears_its_plugin(start):
    for _ in range(4):
        marks = start()
        marks.end(marks.begin("p", "Probe.look"), "p", "Probe.look")
        assert given_up(marks) is None
        crash(marks)


def test_another_hook_that_returns_does_not(start):
    for _ in range(STRIKES):
        marks = start()
        marks.end(marks.begin("p", "import"), "p", "import")
        crash(marks)
    assert given_up(start()) is not None


def gone(start):
    for _ in range(STRIKES):
        crash(start())
    return start()


def test_another_version_is_tried_at_once(start):
    gone(start).close()
    assert given_up(start(version="1.1")) is None


def test_one_that_is_named_is_tried_at_once_and_then_again_from_the_beginning(start):
    marks = gone(start)
    assert marks.gave_up("p", is_named=True) is None
    crash(marks)
    assert given_up(start()) is None


def test_after_a_day_it_gets_one_more_try(start):
    gone(start).close()
    assert given_up(start(wall_ms=23 * HOUR)) is not None
    marks = start(wall_ms=24 * HOUR)
    assert given_up(marks) is None
    crash(marks)
    assert given_up(start(wall_ms=25 * HOUR)) is not None


def test_a_machine_that_went_down_blames_nobody(start):
    for number in range(5):
        crash(start(boot=f"b{number}"))
    marks = start(boot="b9")
    assert marks.left == ()
    assert given_up(marks) is None


def test_more_calls_at_a_time_than_there_is_room_for_leave_no_marks_and_do_no_harm(start):
    marks = start()
    places = [marks.begin("p", f"h{number}") for number in range(100)]
    assert places.count(0) == 36
    for number, place in enumerate(places):
        marks.end(place, "p", f"h{number}")
    crash(marks)
    assert start().left == (mark(),)


@pytest.mark.parametrize("rubbish", [b"", b"\xff" * 5000, b"b1\0" + b"\t" * 600, b"b1".ljust(256, b"\0") + b"p"])
def test_rubbish_in_its_files_is_nobodys_mark(start, tmp_path, rubbish):
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "marks").write_bytes(rubbish)
    for counts in (rubbish, b"[]", b'{"p": 3}', b'{"p": ["1.0", "h", "x", 0]}'):
        (tmp_path / "state" / "marks.counts").write_bytes(counts)
        marks = start()
        assert (marks.left, given_up(marks)) == ((), None)


def test_it_outlives_every_way_in_which_a_process_ends(tmp_path):
    script = """
import os, sys
from pathlib import Path
from gpulayer.plugins.marks import Marks
marks = Marks(Path(sys.argv[1]), {"p": "1.0"}, wall_ms=0)
marks.begin("p", sys.argv[2])
exec(sys.argv[3])
"""
    for hook, end in (
        ("exit", "os._exit(0)"),
        ("segv", "os.kill(os.getpid(), 11)"),
        ("kill", "os.kill(os.getpid(), 9)"),
    ):
        subprocess.run([sys.executable, "-c", script, tmp_path / "marks", hook, end], timeout=30, check=False)
        marks = Marks(tmp_path / "marks", {"p": "1.0"}, wall_ms=0)
        assert marks.left == (mark(hook),)
        marks.close()


def test_an_import_that_hung_is_not_waited_for_again_for_an_hour(start):
    start(wall_ms=0).hung("p", 10.0)
    assert start(wall_ms=HOUR - 1).hangs("p", 10.0, is_named=False)
    assert start(wall_ms=HOUR - 1).hangs("p", 5.0, is_named=False)
    assert not start(wall_ms=HOUR).hangs("p", 10.0, is_named=False)
    assert not start(wall_ms=-1).hangs("p", 10.0, is_named=False)  # the clock was set back: nobody knows


def test_more_time_another_version_or_its_name_try_it_at_once(start):
    start().hung("p", 10.0)
    assert not start().hangs("p", 10.5, is_named=False)
    assert not start(version="1.1").hangs("p", 10.0, is_named=False)
    assert not start().hangs("p", 10.0, is_named=True)
    assert not start().hangs("q", 10.0, is_named=False)
    assert start().hangs("p", 10.0, is_named=False)


def test_a_damaged_list_of_hangs_is_none(start, tmp_path):
    start().hung("p", 10.0)
    (tmp_path / "state" / "marks.hangs").write_text("{")
    assert not start().hangs("p", 10.0, is_named=False)


@pytest.mark.parametrize("version", ["1.0\t2", "1" * 264, "1\n2", "", "ü\0", "\udcff", "１"])
def test_no_version_is_too_odd_to_be_given_up(start, version):
    for _ in range(STRIKES):
        marks = start(version)
        assert given_up(marks) is None
        crash(marks)
    assert given_up(start(version)) is not None
    assert given_up(start(f"{version}x")) is None


BOTH = {"p": "1.0", "q": "1.0"}


def ask(marks, plugin, hook):
    marks.wait_turn(plugin, hook)
    marks.begin(plugin, hook)


def test_marks_of_several_accuse_nobody_and_at_the_next_start_the_guilty_one_is_alone(start):
    waited = []
    for _ in range(STRIKES + 1):
        marks = start(versions=BOTH)
        assert given_up(marks, "p") is given_up(marks, "q") is None
        ask(marks, "p", "Probe.look")
        waited.append("q" in marks._strikes)
        if waited[-1]:
            waits, beside = waiting(marks, "q", "Scorer.score")
            assert waits.wait(10)
        else:
            ask(marks, "q", "Scorer.score")
        content = marks._path.read_bytes()
        if waited[-1]:
            marks.end(marks._turn[0], "p", "another hook")  # so that the thread ends
            beside.join(10)
        marks.close()
        marks._path.write_bytes(content)  # as if it had crashed then
    assert waited == [False, True, False, False]
    marks = start(versions=BOTH)
    assert given_up(marks, "p") is not None
    assert given_up(marks, "q") is None


def waiting(marks, plugin, hook):
    waits = threading.Event()
    wait_for = marks._turns.wait_for

    def wait(*arguments):
        waits.set()
        return wait_for(*arguments)

    marks._turns.wait_for = wait
    thread = threading.Thread(target=ask, args=(marks, plugin, hook))
    thread.start()
    return waits, thread


def test_one_that_runs_for_long_keeps_nobody_waiting_and_is_not_the_one_that_is_suspected(start, monkeypatch):
    monkeypatch.setattr("gpulayer.plugins.marks._TURN_S", 0.01)
    for _ in range(STRIKES + 1):
        marks = start(versions=BOTH)
        assert given_up(marks, "p") is given_up(marks, "q") is None
        ask(marks, "q", "Stager.fetch")
        ask(marks, "p", "Probe.look")
        crash(marks, "r")
    marks = start(versions=BOTH)
    assert given_up(marks, "p") is not None
    assert given_up(marks, "q") is None


def test_a_suspect_whose_call_returns_is_none_any_more_and_waits_for_nobody(start):
    marks = start(versions=BOTH)
    ask(marks, "q", "Scorer.score")
    crash(marks)
    marks = start(versions=BOTH)
    place = marks.begin("q", "Scorer.score")
    marks.end(place, "q", "Scorer.score")
    assert marks._strikes.keys() == {"p"}
    crash(marks)
    assert start(versions=BOTH)._strikes["p"].count == 1
