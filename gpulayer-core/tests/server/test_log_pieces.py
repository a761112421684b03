import os
from pathlib import Path

import pytest

from gpulayer.errors import Conflict
from gpulayer.ids import Epoch, JobId
from gpulayer.server import logs as logs_module
from gpulayer.server.logs import LogFolder, LogKey
from gpulayer.spec.logs import LogStream

KEY = LogKey(JobId("0123456789abcdef"), Epoch(7))
ERR = KEY._replace(stream=LogStream.STDERR)


def _read(logs: LogFolder, key: LogKey, offset: int = 0) -> bytes:
    with logs.open(key) as reader:
        return reader.read(offset)


def test_the_piece_that_came_last_is_there_for_who_stands_right_before_it(tmp_path: Path) -> None:
    logs = LogFolder(tmp_path)
    logs.append(KEY, 0, b"hello\n", wall_ms=0)
    assert logs.latest(KEY, 0) == b"hello\n"
    logs.append(KEY, 6, b"world\n", wall_ms=0)
    assert logs.latest(KEY, 6) == b"world\n"
    assert logs.latest(KEY, 0) == b""  # further back: only a read can tell
    assert logs.latest(KEY._replace(node=1), 6) == b""
    assert logs.latest(ERR, 6) == b""


def test_a_large_piece_is_not_kept_in_memory_nor_the_one_before_it(tmp_path: Path) -> None:
    logs = LogFolder(tmp_path)
    logs.append(KEY, 0, b"hello\n", wall_ms=0)
    logs.append(KEY, 6, b"x" * 100_000, wall_ms=0)
    assert logs.latest(KEY, 0) == b""
    assert logs.latest(KEY, 6) == b""
    assert _read(logs, KEY, 6) == b"x" * 100_000


def test_the_last_short_lines_of_ever_so_many_logs_are_not_all_kept_in_memory(tmp_path: Path, monkeypatch) -> None:
    """Each of them takes more than its bytes."""
    monkeypatch.setattr(logs_module, "_KEPT_BYTES", 10_000)
    logs = LogFolder(tmp_path)
    keys = [KEY._replace(epoch=Epoch(number)) for number in range(30)]
    for key in keys:
        logs.append(key, 0, b".", wall_ms=0)
    assert logs.latest(keys[0], 0) == b""
    assert logs.latest(keys[-1], 0) == b"."
    for number in range(1, 30):  # one log that goes on and on takes the place of one
        logs.append(keys[-1], number, b".", wall_ms=0)
    assert logs.latest(keys[-5], 0) == b"."


def test_two_streams_are_two_logs(tmp_path: Path) -> None:
    logs = LogFolder(tmp_path)
    logs.append(KEY, 0, b"out", wall_ms=0)
    logs.append(ERR, 0, b"trouble", wall_ms=0)
    assert (_read(logs, KEY), _read(logs, ERR)) == (b"out", b"trouble")
    assert logs.size(KEY) == 3
    with pytest.raises(Conflict):
        logs.append(ERR, 9, b"gap", wall_ms=0)


def test_a_missing_end_is_marked_once_on_a_line_of_its_own(tmp_path: Path) -> None:
    logs = LogFolder(tmp_path)
    logs.append(KEY, 0, b"half a li", wall_ms=0)
    for _ in range(2):
        logs.mark_missing(KEY, wall_ms=1)
    assert _read(logs, KEY) == b"half a li\n[gpulayer: the rest of the log is missing]\n"
    logs.mark_missing(ERR, wall_ms=1)
    assert _read(logs, ERR) == b"[gpulayer: the rest of the log is missing]\n"


def test_what_came_since_a_time_begins_within_a_second_before_it_and_never_after(tmp_path: Path) -> None:
    logs = LogFolder(tmp_path)
    for n in range(100):  # ten bytes each 250 ms
        logs.append(KEY, n * 10, b"%09d\n" % n, wall_ms=10_000 + n * 250)
    for since in range(9_000, 36_000, 333):
        start = logs.start_since(KEY, since)
        assert start is not None
        first = min(max(0, -(-(since - 10_000) // 250)), 100) * 10  # of the first piece that came then or later
        assert first - 40 <= start <= first
    assert logs.start_since(KEY, 10_000 + 99 * 250 + 1_000) == 1000


def test_times_cost_ten_pairs_a_second_at_most_and_one_for_a_slow_second(tmp_path: Path) -> None:
    logs = LogFolder(tmp_path)
    times = logs.path(KEY).with_suffix(".times")
    for n in range(1000):  # 100 MB in two seconds
        logs.append(KEY, n * 100_000, b"x" * 100_000, wall_ms=n * 2)
    assert times.stat().st_size <= 16 * 21
    slow = logs.path(ERR).with_suffix(".times")
    for n in range(1000):
        logs.append(ERR, n, b"x", wall_ms=n * 50)
    assert slow.stat().st_size <= 16 * 51


def test_torn_times_and_times_of_bytes_that_a_crash_took_do_no_harm(tmp_path: Path) -> None:
    logs = LogFolder(tmp_path)
    for n in range(10):
        logs.append(KEY, n * 5, b"hello", wall_ms=n * 2000)
    path = logs.path(KEY)
    times = path.with_suffix(".times")
    with open(times, "ab") as file:
        file.write(b"torn")
    os.truncate(path, 23)  # written, not yet on the disk
    again = LogFolder(tmp_path)
    assert again.start_since(KEY, 1_000_000) == 23
    again.append(KEY, 23, b"more!", wall_ms=60_000)
    assert times.stat().st_size % 16 == 0
    assert again.start_since(KEY, 60_000) == 23
    assert again.start_since(KEY, 4_000) == 10
    assert again.start_since(KEY, 70_000) == 28


def test_a_wall_clock_that_falls_makes_no_time_fall(tmp_path: Path) -> None:
    logs = LogFolder(tmp_path)
    for n, wall_ms in enumerate((50_000, 10_000, 60_000)):
        logs.append(KEY, n, b"x", wall_ms=wall_ms)
    assert logs.start_since(KEY, 40_000) == 0
    assert logs.start_since(KEY, 60_000) == 2


def test_a_log_without_times_says_that_nobody_knows(tmp_path: Path) -> None:
    logs = LogFolder(tmp_path)
    assert logs.start_since(KEY, 5) == 0  # it has not begun
    logs.append(KEY, 0, b"old", wall_ms=0)
    logs.path(KEY).with_suffix(".times").unlink()
    assert LogFolder(tmp_path).start_since(KEY, 5) is None


def test_removed_logs_leave_a_word_and_who_reads_one_reads_on(tmp_path: Path) -> None:
    logs = LogFolder(tmp_path)
    logs.append(KEY, 0, b"hello", wall_ms=0)
    logs.append(ERR, 0, b"trouble", wall_ms=0)
    assert list(logs.held()) == [KEY.job_id]
    assert logs.removed_at(KEY.job_id) is None
    with logs.open(KEY) as reader:
        assert reader.read(0, 2) == b"he"
        logs.remove(KEY.job_id, wall_ms=1_234_567)
        assert reader.read(2) == b"llo"
    logs.remove(KEY.job_id, wall_ms=9_999_999)  # again: the first date stays
    assert logs.removed_at(KEY.job_id) == 1_234_567
    assert list(logs.held()) == []
    assert [entry.name for entry in tmp_path.iterdir()] == [f"{KEY.job_id}.removed"]
