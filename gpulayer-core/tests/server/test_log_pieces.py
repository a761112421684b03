from pathlib import Path

from gpulayer.ids import Epoch, JobId
from gpulayer.server.logs import LogFolder


def test_the_piece_that_came_last_is_there_for_who_stands_right_before_it(tmp_path: Path) -> None:
    logs = LogFolder(tmp_path)
    job_id, epoch = JobId("0123456789abcdef"), Epoch(7)
    logs.append(job_id, epoch, 0, 0, b"hello\n", is_final=False)
    assert logs.latest(epoch, 0, 0) == b"hello\n"
    logs.append(job_id, epoch, 0, 6, b"world\n", is_final=False)
    assert logs.latest(epoch, 0, 6) == b"world\n"
    assert logs.latest(epoch, 0, 0) == b""  # further back: only a read can tell
    assert logs.latest(epoch, 1, 6) == b""


def test_a_large_piece_is_not_kept_in_memory_nor_the_one_before_it(tmp_path: Path) -> None:
    logs = LogFolder(tmp_path)
    job_id, epoch = JobId("0123456789abcdef"), Epoch(7)
    logs.append(job_id, epoch, 0, 0, b"hello\n", is_final=False)
    logs.append(job_id, epoch, 0, 6, b"x" * 100_000, is_final=False)
    assert logs.latest(epoch, 0, 0) == b""
    assert logs.latest(epoch, 0, 6) == b""
    assert logs.read(job_id, epoch, 0, 6) == b"x" * 100_000
