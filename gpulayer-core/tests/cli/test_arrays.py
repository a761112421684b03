"""Arrays on the command line: lines with their element's number, the code of the first that failed, a table."""

import io

import pytest

from gpulayer.cli.raw import ElementsOutput
from gpulayer.cli.records import array_text, element_row, ending_line, job_fields, state_text
from gpulayer.client.following import LogCursor
from gpulayer.errors import UsageError
from gpulayer.spec.array import parse_array


@pytest.mark.parametrize(
    ("text", "means"), [("24", (24, 0)), ("24%4", (24, 4)), ("2%9", (2, 2)), ("1", (1, 0)), ("10000%1", (10_000, 1))]
)
def test_an_array_is_written_as_in_slurm(text, means):
    assert parse_array(text) == means


@pytest.mark.parametrize("text", ["", "0", "x", "0-23", "24%", "24%0", "%4", "-1", "1.5", "٣", "24%4%2", " 24"])
def test_what_is_no_number_of_elements_is_refused_with_an_example(text):
    with pytest.raises(UsageError, match="not a number of elements") as raised:
        parse_array(text)
    assert "--array 24%4" in raised.value.hint


def test_more_elements_than_may_be_are_refused(cli, job_plane):
    said = cli("submit", "--array", "10001", "--", "true", plane=job_plane)
    assert said.code == 2
    assert "--array 10001: an array has 10,000 elements at most" in said.err


@pytest.mark.parametrize("text", ["9999999999", "9" * 5_000, "1" + "0" * 30 + "%4"])
def test_a_number_of_any_length_is_too_many(text):
    with pytest.raises(UsageError, match="10,000 elements at most"):
        parse_array(text)


def test_the_array_is_sent(cli, job_plane):
    assert cli("submit", "--detach", "--array", "24%4", "--", "true", plane=job_plane).code == 0
    body = job_plane.of("POST", "/v1/jobs")[-1].json
    assert (body["array"], body["array_limit"]) == (24, 4)


@pytest.fixture
def shown(tmp_path):
    path = tmp_path / "out"
    with open(path, "w") as stream:
        output = ElementsOutput(stream, LogCursor(index=0))
        yield lambda piece: output.write(piece, output.cursor()), output.next_element, path.read_bytes


def test_each_line_begins_with_the_number_of_its_element(shown):
    write, next_element, read = shown
    for piece in (b"on", b"e\ntwo\n", b"", b"no end"):
        write(piece)
    next_element()
    write(b"\r\n\nbar\rbar\n")
    next_element()
    next_element()
    write(b"x")
    next_element()
    assert read() == b"[0] one\n[0] two\n[0] no end\n[1] \r\n[1] \n[1] bar\rbar\n[3] x\n"


def record(parts, **changes):
    array = {"count": 24, "limit": 4, "states": {"running": 4, "succeeded": 2, "timed_out": 1}, "first_failed": 1}
    return parts.job(**{"array": array, "attempts": [], **changes})


def test_a_listing_says_how_many_are_done(parts):
    assert state_text(record(parts, state="running")) == "running 3/24"
    assert state_text(parts.job(state="running")) == "running"
    assert array_text(record(parts)["array"]) == "24 elements, 4 at once: 4 running, 2 succeeded, 1 timed out"


def test_the_last_line_names_the_element_that_failed(parts):
    ended = record(parts, state="failed", exit_code=9, reason={"code": "program", "message": "element 3: exit code 9"})
    assert ending_line(ended, "").startswith(
        f"job {parts.JOB_ID} failed (element 3: exit code 9; 2 of 24 succeeded) in"
    )
    assert ending_line(record(parts, state="succeeded"), "").startswith(
        f"job {parts.JOB_ID} succeeded (24 elements) in"
    )
    assert "(2 of 24 succeeded)" in ending_line(record(parts, state="cancelled"), "")


def test_an_element_is_a_row():
    element = {
        "index": 7,
        "state": "failed",
        "attempts": 2,
        "worker": "box",
        "started_at": "2026-11-30T05:00:00.000Z",
        "ended_at": "2026-11-30T05:00:02.500Z",
        "exit_code": None,
        "signal": None,
        "ended_by": "disk_full",
        "output_tree": None,
    }
    assert element_row(element) == ["7", "failed (disk full)", "2", "box", "2.5 s", ""]


def test_parts_of_a_log_are_of_one_element(cli, job_plane, parts):
    job_plane.record = record(parts, state="running")
    said = cli("job", "logs", "--tail", "3", parts.JOB_ID, plane=job_plane)
    assert said.code == 2
    assert "is an array: --tail, --grep and --attempt are of one element's log" in said.err
    assert "--index 0" in said.err


def test_files_that_are_left_out_are_told(parts):
    assert "3 files have the name of an earlier element's" in "\n".join(
        cells[1] for cells in job_fields(record(parts, state="succeeded", clashes=3))
    )


def test_nothing_is_written_where_nothing_came():
    stream = io.StringIO()
    ElementsOutput(stream, LogCursor(index=0)).next_element()
    assert stream.getvalue() == ""
