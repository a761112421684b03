"""Fault points: off unless armed, known by one table, and dead where they say."""

import errno
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import gpulayer
from gpulayer import faults
from gpulayer.server.store import AuditEntry, Batch, EventRow, Side
from gpulayer.server.store.carried import KINDS, carried
from gpulayer.whole import write_whole

SOURCE = Path(gpulayer.__file__).parent


@pytest.fixture(autouse=True)
def disarmed():
    yield
    faults.arm("")


def test_the_table_has_exactly_the_points_that_the_source_has():
    used = {f"commit.{moment}_{kind}" for moment in ("in", "after") for kind in KINDS}
    for file in SOURCE.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        if file.name != "faults.py":
            used.update(re.findall(r'\bhere\("([^"]*)"\)', text))
            assert re.findall(r'\bhere\([^"]', text) == [], file  # a name that is put together is in no search
        for point in re.findall(r'\bpoint="([^"]+)"', text):
            place, _, thing = point.partition(".")
            used.update(f"{place}.{moment}_{thing}" for moment in ("before", "in", "after"))
    assert used == set(faults.POINTS)


def test_a_batch_is_known_by_what_it_carries_and_every_kind_has_its_points():
    rows = [EventRow(0, 0, "cancel_requested", "{}"), EventRow(0, 0, "worker_reported", "{}")]
    batch = Batch(events=rows, sides=[Side(forget_tokens=("a",), audit=(AuditEntry(0, "me", "x"),))])
    assert list(carried(batch)) == ["cancel", "report", "forgetting", "audit"]
    reached = []
    faults.arm("commit.in_audit:1:eio")
    with pytest.raises(OSError, match=r"commit\.in_audit"):
        faults.here_each("commit.in_", lambda: reached.append("asked") or carried(batch))
    faults.arm("")
    faults.here_each("commit.in_", lambda: reached.append("asked") or carried(batch))
    assert reached == ["asked"]


def test_the_moments_of_a_file_are_points_of_their_own(tmp_path):
    path = tmp_path / "port"
    for moment, is_new in (("before", False), ("in", False), ("after", True)):
        path.write_bytes(b"old")
        faults.arm(f"plane.{moment}_port:1:enospc")
        with pytest.raises(OSError, match=f"plane.{moment}_port"):
            write_whole(path, b"new", point="plane.port", is_synced=True)
        assert path.read_bytes() == (b"new" if is_new else b"old")
        assert os.listdir(tmp_path) == ["port"]


def test_what_is_written_is_written_at_a_point_that_says_what_is_not_there_yet():
    assert set(faults.WRITES) < set(faults.POINTS)


def test_every_point_says_what_has_happened_and_what_has_not():
    assert [name for name, sentence in faults.POINTS.items() if len(sentence.split()) < 6] == []


def test_a_point_does_nothing_unless_it_is_armed():
    faults.here("agent.before_report")
    faults.arm("agent.after_report:1:enospc")
    faults.here("agent.before_report")
    with pytest.raises(OSError, match=r"agent\.after_report"):
        faults.here("agent.after_report")


def test_a_point_fires_at_the_reach_that_was_asked_for_and_only_then():
    faults.arm("plane.before_commit:3:eio, plane.after_commit:1:enospc")
    fired = []
    for number in range(1, 6):
        try:
            faults.here("plane.before_commit")
        except OSError as error:
            fired.append((number, error.errno))
    assert fired == [(3, errno.EIO)]


@pytest.mark.parametrize(
    "text",
    ["nonsense", "agent.before_report:0", "agent.before_report:x", "agent.before_report:1:kill:2", "agent"],
)
def test_what_can_not_be_armed_is_refused(text):
    with pytest.raises(ValueError, match="GPULAYER_FAULTS"):
        faults.arm(text)


def test_what_stands_behind_a_semicolon_is_for_the_next_life():
    text = "spawner.after_pid:1:eio;spawner.after_launch;;spawner.before_entry"
    faults.arm(text)
    with pytest.raises(OSError, match=r"spawner\.after_pid"):
        faults.here("spawner.after_pid")
    assert faults.rest_of(text) == "spawner.after_launch;;spawner.before_entry"
    assert faults.rest_of(faults.rest_of(text)) == ";spawner.before_entry"
    assert faults.rest_of("spawner.after_pid") == ""


PROGRAM = "from gpulayer import faults; faults.arm({text!r}); faults.here('agent.before_spawn'); print('went on')"


def test_kill_is_a_kill_minus_nine_that_says_where():
    text = "agent.before_spawn"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(text=text)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "")
    assert done.stderr == "fault point agent.before_spawn: kill\n"


def test_stop_stands_still_until_it_is_told_to_go_on():
    process = subprocess.Popen([sys.executable, "-c", PROGRAM.format(text="agent.before_spawn:stop")], stdout=-1)
    try:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        process.send_signal(signal.SIGCONT)
        out, _ = process.communicate(timeout=60)
        assert (out, process.returncode) == (b"went on\n", 0)
    finally:
        process.kill()
        process.wait()


def test_each_of_several_faults_of_a_point_counts_every_reach():
    faults.arm("plane.before_commit:1:eio,plane.before_commit:2:enospc,plane.before_commit:4:eio")
    fired = []
    for number in range(1, 6):
        try:
            faults.here("plane.before_commit")
        except OSError as error:
            fired.append((number, error.errno))
    assert fired == [(1, errno.EIO), (2, errno.ENOSPC), (4, errno.EIO)]
