"""The parts that need no spawner: messages, the folder's table, trees as values, the reactor."""

import os
import subprocess
import sys
from dataclasses import fields, replace

import pytest

from gpulayer.spawner import messages as m
from gpulayer.spawner import spawner_command, tree
from gpulayer.spawner.reactor import Reactor
from gpulayer.spawner.recovery import end_leftovers, record_what_became
from gpulayer.spawner.state import JobEntry, StateDir, read_exit_record, write_exit_record
from gpulayer.spawner.table import Table

RECORD = m.ExitRecord(
    key="1.0",
    exit_code=None,
    signal=9,
    reason="signaled",
    message="\udcff",
    ended_at_wall_ms=5,
    log_bytes=7,
    log_complete=True,
    tree_clean=False,
    survivors=(4, 5),
    cpu_s=0.5,
    max_rss_bytes=8,
)
ENTRY = JobEntry("1.0", 12, "/log", "/exit", 1000, "boot", pid=77, started_ticks=88)


@pytest.mark.parametrize(
    "message",
    [
        m.Hello(1, "observer"),
        m.Spawn(1, "1.0", ("a", "\udc80\n"), "/", {"A": "=\0"}, "/l", "/e", 5, 3),
        m.Signal(2, "1.0", 15),
        m.Kill(3, "1.0"),
        m.ListJobs(4),
        m.Forget(5, "1.0"),
        m.Shutdown(6, force=True),
        m.Welcome(1, 2, None, "x"),
        m.Spawned(7, "1.0", 5, existing=True, exit=RECORD),
        m.SpawnFailed(8, "1.0", 2, "no", None),
        m.Done(9, 2),
        m.Table(10, (m.Row("1.0", "ended", 5, 6, 7, None, RECORD), m.Row("2.0", "running", 5, 6, 7, 8))),
        m.Failed(11, "busy", "text"),
        m.Exited(RECORD, record_written=False),
        m.Output("1.0", 5),
        m.Stalled("1.0", 28, "full"),
        m.Superseded(),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_message_is_one_line_and_comes_back_as_it_was(message):
    line = m.encode(message)
    assert line.count(b"\n") == 1
    assert m.decode(line) == message
    assert m.decode(line.replace(b"{", b'{"new_in_version_2": [1], ', 1)) == message


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"type": "kill", "id": 1}', r"Kill\.key is missing"),
        (b'{"type": "kill", "id": true, "key": "x"}', r"Kill\.id: int expected, not bool"),
        (b'{"type": "spawn", "id": 1, "key": "x", "argv": ["a", 1]}', r"Spawn\.argv: str expected"),
        (b'{"type": "exited", "record": 3}', "ExitRecord is no JSON object"),
        (b'{"type": "never"}', "unknown type 'never'"),
        (b"3", "no JSON object"),
        (b"{", "no JSON"),
    ],
)
def test_a_bad_message_says_what_is_wrong(line, words):
    with pytest.raises(m.BadMessage, match=words):
        m.decode(line)


def test_an_exit_record_is_written_whole_and_read_back(tmp_path):
    path = str(tmp_path / "exit")
    write_exit_record(path, RECORD)
    assert read_exit_record(path) == RECORD
    assert os.listdir(tmp_path) == ["exit"]
    with pytest.raises(FileNotFoundError):
        write_exit_record(str(tmp_path / "no" / "exit"), RECORD)
    (tmp_path / "exit").write_bytes(b'{"key": "1.0"')
    assert read_exit_record(path) is None


def test_the_table_outlives_its_writer_and_survives_a_torn_line(tmp_path):
    state = StateDir(str(tmp_path / "s"))
    state.prepare()
    state.add(ENTRY)
    state.add_pid("1.0", pid=77, started_ticks=88)
    state.add(JobEntry("2.0", None, "/log", "/exit", 999, "boot"))
    state.close()
    with (tmp_path / "s" / "table").open("ab") as file:
        file.write(b'{"key": "2.0", "pid": 12')
    loaded = state.load()
    assert [entry.key for entry in loaded] == ["2.0", "1.0"]
    assert loaded[1] == ENTRY
    assert (loaded[0].pid, {field.name for field in fields(JobEntry)}) == (0, set(JobEntry.__slots__))
    state = StateDir(str(tmp_path / "s"))
    state.add_pid("2.0", pid=13, started_ticks=14)
    assert [entry.pid for entry in state.load()] == [13, 77]
    state.remove("1.0")
    state.remove("1.0")
    assert [entry.key for entry in state.load()] == ["2.0"]
    state.close()


def test_a_table_that_is_mostly_of_forgotten_jobs_is_written_anew(tmp_path, monkeypatch):
    monkeypatch.setattr("gpulayer.spawner.table._RENEW_BYTES", 2000)
    state = StateDir(str(tmp_path))
    state.prepare()
    state.add(ENTRY)
    for number in range(2, 200):
        state.add(replace(ENTRY, key=f"{number}.0", pid=0, started_ticks=0))
        state.remove(f"{number}.0")
    state.add_pid("1.0", pid=77, started_ticks=88)
    assert state.load() == [ENTRY]
    assert (tmp_path / "table").stat().st_size < 4000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["table"]
    state.close()


def test_what_is_forgotten_on_a_full_disk_is_told_later(tmp_path, monkeypatch):
    table = Table(str(tmp_path / "table"))
    table.put("1.0", {"marker": 1})
    with monkeypatch.context() as full:
        full.setattr(table, "_append", _no_room)
        table.drop("1.0")
        with pytest.raises(OSError, match="full"):
            table.put("2.0", {"marker": 2})
    assert table.read() == {"1.0": {"key": "1.0", "marker": 1}}
    table.put("3.0", {"marker": 3})
    assert table.read() == {"3.0": {"key": "3.0", "marker": 3}}
    table.close()


def _no_room(_content):
    raise OSError(28, "the disk is full")


def test_only_one_may_hold_the_folder(tmp_path):
    state = StateDir(str(tmp_path))
    state.prepare()
    held = state.lock()
    assert held is not None
    assert state.lock() is None
    os.close(held)
    again = state.lock()
    assert again is not None
    os.close(again)


def test_what_ran_before_a_reboot_is_lost_and_no_process_of_today_is_touched(tmp_path):
    own = tree.process(os.getpid())
    entry = JobEntry(
        "1.0", None, str(tmp_path / "l"), str(tmp_path / "e"), 1, "another boot", own.pid, own.started_ticks
    )
    assert end_leftovers([entry], spare=frozenset()) == set()
    ((_, record),) = record_what_became([entry], statuses={}, left=set(), wall_ms=lambda: 3)
    assert (record.reason, record.log_bytes, record.ended_at_wall_ms) == ("spawner_lost", 0, 3)
    assert "its folder is a copy of another one's" in record.message


def test_the_spawner_loads_nothing_but_the_standard_library_itself_and_two_modules_that_are_no_more():
    command = spawner_command("/nowhere", python=sys.executable)
    program = command[-1].rsplit(";", 1)[0] + "; print(*sys.modules)"
    loaded = subprocess.run([*command[:-1], program], capture_output=True, text=True, check=True, env={}).stdout.split()
    foreign = {name for name in loaded if name.split(".")[0] not in {"__main__", *sys.stdlib_module_names}}
    alone = ("gpulayer", "gpulayer.faults", "gpulayer.hiding")
    own = {name for name in foreign if name in alone or name.startswith("gpulayer.spawner")}
    assert foreign == own
    assert "asyncio" not in loaded
    assert "subprocess" not in loaded


IDLE = """
import os, time
from gpulayer.spawner.loop import Spawner
from gpulayer.spawner.state import StateDir
state = StateDir({folder!r})
state.prepare()
watchdog, keep = os.pipe()
clocks = dict(now=time.monotonic, wall_ms=lambda: 0, continuous_ms=lambda: 0)
spawner = Spawner(state, watchdog_pid=1, watchdog_fd=watchdog, idle_exit_s=0.02, **clocks)
raise SystemExit(spawner.run(lambda: print("ready", flush=True)))
"""


def test_a_spawner_that_nobody_needs_ends_by_itself(tmp_path):
    folder = str(tmp_path / "s")
    command = spawner_command(folder, python=sys.executable)
    command[-1] = command[-1].rsplit(";", 1)[0].replace("; ", "\n") + IDLE.format(folder=folder)
    ended = subprocess.run(command, capture_output=True, text=True, env={}, timeout=20, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "ready\n", "")
    assert not (tmp_path / "s" / "spawner.sock").exists()


def _process(pid, ppid, group, session, state="S"):
    return tree.Process(pid, state, ppid, group, session, 0)


def test_a_tree_is_session_group_and_descendants_without_the_dead_and_the_spared():
    seen = {
        one.pid: one
        for one in (
            _process(10, 1, 10, 10, "Z"),
            _process(11, 10, 10, 10),
            _process(12, 11, 12, 12),
            _process(13, 12, 13, 13, "Z"),
            _process(14, 13, 14, 14),
            _process(20, 1, 20, 20),
            _process(21, 14, 21, 21),
        )
    }
    assert tree.members(seen, roots={10}, markers=(), spare={21}) == {11, 12, 14}


def test_a_marker_is_carried_and_dropped_again():
    before = tree.marker_of(os.getpid())
    limits = tree.set_marker(4711)
    assert limits is not None
    assert tree.marker_of(os.getpid()) == 4711
    tree.restore_marker(limits)
    assert tree.marker_of(os.getpid()) == before


def test_a_process_whose_number_was_reused_is_not_signalled():
    own = tree.process(os.getpid())
    assert tree.send_signal([own._replace(started_ticks=own.started_ticks + 1)], 9) == 0
    assert tree.send_signal([own], 0) == 1


def test_the_reactor_calls_what_is_due_in_order_and_nothing_that_was_unwatched():
    now = [0.0]
    reactor = Reactor(lambda: now[0])
    first_r, first_w = os.pipe()
    second_r, second_w = os.pipe()
    calls = []

    def on_first():
        calls.append("first")
        reactor.unwatch(second_r)
        reactor.unwatch(first_r)

    def on_second():
        calls.append("second")
        reactor.unwatch(first_r)
        reactor.unwatch(second_r)

    reactor.watch(first_r, on_first)
    reactor.watch(second_r, on_second)
    os.write(first_w, b"x")
    os.write(second_w, b"x")
    reactor.later(0.0, lambda: calls.append("now"))
    reactor.later(5.0, lambda: calls.append("later"))
    reactor.run_once()
    assert len(calls) == 2
    assert calls[1] == "now"
    now[0] = 5.0
    reactor.run_once()
    assert calls[-1] == "later"
    reactor.close()
    for fd in (first_r, first_w, second_r, second_w):
        os.close(fd)
