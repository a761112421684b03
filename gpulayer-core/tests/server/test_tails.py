"""The last lines of a log as they stand in a record."""

import pytest

from gpulayer.server.tails import MAX_BYTES, MAX_LINES, tail_text


@pytest.mark.parametrize(
    ("content", "is_cut", "text"),
    [
        (b"", False, ""),
        (b"one\ntwo\n", False, "one\ntwo"),
        (b"no newline", False, "no newline"),
        (b"\r\n".join([b"dos", b"lines", b""]), False, "dos\nlines"),
        (b"10%\r20%\r30%\ndone\n", False, "30%\ndone"),
        (b"10%\r20%\r", False, "20%"),
        (b"caf\xc3\xa9 \xff\xfe\n", False, "café ��"),
        (b"\x1b[31mred\x00\n", False, "\x1b[31mred\x00"),
        (b"lf of a line\nwhole\n", True, "whole"),
        (b"\xa9\x80one line without end", True, "one line without end"),
        (b"only the end of it\n", True, "only the end of it"),
    ],
)
def test_what_was_shown_last_is_what_stands_there(content, is_cut, text):
    assert tail_text(content, is_cut=is_cut) == text


def test_only_the_last_lines_count():
    lines = [f"line {number}" for number in range(100)]
    assert tail_text("\n".join(lines).encode(), is_cut=False).split("\n") == lines[-MAX_LINES:]


def test_a_failed_job_shows_the_end_of_its_log_alone_and_not_in_lists(plane) -> None:
    worker = plane.worker()
    worker.report()
    job_id = plane.submit("sh", "-c", "exit 3")["id"]
    (command,) = worker.commands(hold_s=5)
    epoch = command["epoch"]
    worker.holding = [epoch]
    worker.report(worker.running(epoch))
    log = b"".join(b"line %d\r%d%%\n" % (number, number) for number in range(2000))
    worker.put_log(epoch, 0, log)
    plane.plane.logs.path(job_id, epoch, 0).with_name(f"{epoch}.0.err.log").write_bytes(b"Traceback\nboom\n")
    assert "log_tail" not in plane.job(job_id)["attempts"][0]
    worker.report(worker.ended(epoch, exit_code=3))
    (attempt,) = plane.job(job_id)["attempts"]
    assert attempt["log_tail"].split("\n") == [f"{number}%" for number in range(1980, 2000)]
    assert attempt["stderr_tail"] == "Traceback\nboom"
    assert len(attempt["log_tail"]) <= MAX_BYTES
    (listed,) = plane.http.get("/v1/jobs").json()["jobs"]
    assert "log_tail" not in listed["attempts"][0]


def test_a_job_that_succeeded_shows_none(plane) -> None:
    worker = plane.worker()
    worker.report()
    job_id = plane.submit()["id"]
    (command,) = worker.commands(hold_s=5)
    epoch = command["epoch"]
    worker.put_log(epoch, 0, b"all well\n")
    worker.report(worker.ended(epoch))
    (attempt,) = plane.job(job_id)["attempts"]
    assert (attempt["ended_by"], "log_tail" in attempt) == ("program", False)
