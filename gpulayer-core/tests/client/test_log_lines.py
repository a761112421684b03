"""The last lines, the lines that match, and times as people write them. Pure, but for the tail's requests."""

import re
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulayer.client.following import LogCursor
from gpulayer.client.lines import LineFilter, compile_pattern
from gpulayer.client.since import parse_since
from gpulayer.client.tail import TailScan, find_tail
from gpulayer.client.transport import Transport
from gpulayer.errors import UsageError


def cut(content: bytes, sizes: list[int]) -> list[bytes]:
    pieces, rest = [], content
    for size in sizes:
        pieces.append(rest[:size])
        rest = rest[size:]
    return [*pieces, rest]


texts = st.binary(max_size=40) | st.text("ab\r\n", max_size=60).map(str.encode)
sizes = st.lists(st.integers(0, 9), max_size=12)


@given(texts, sizes, st.integers(0, 6))
def test_the_last_lines_begin_in_the_same_place_however_the_bytes_come(content, sizes, lines):
    scan = TailScan(lines, 0)
    for piece in cut(content, sizes):
        scan.feed(piece)
    start = scan.begins(is_whole=True)
    expected = re.findall(rb"[^\n]*\n|[^\n]+", content)[-lines:] if lines else []
    assert content[start:] == b"".join(expected)


@given(texts, sizes, st.integers(0, 6), st.integers(0, 30))
def test_a_scan_that_began_within_the_log_finds_the_same_or_asks_for_more(content, sizes, lines, skipped):
    whole, part = TailScan(lines, 0), TailScan(lines, min(skipped, len(content)))
    whole.feed(content)
    for piece in cut(content[skipped:], sizes):
        part.feed(piece)
    assert part.begins(is_whole=False) in (None, whole.begins(is_whole=True))


def test_a_tail_reads_more_until_it_has_its_lines(job_plane):
    job_plane.log = b"first\n" + b"".join(b"%d " % n * 2000 + b"\n" for n in range(30))
    with Transport(job_plane.location) as transport:
        for lines in (1, 20, 31, 99):
            start = find_tail(transport, "7f3a", LogCursor(1), lines=lines)
            assert job_plane.log[start:] == b"".join(job_plane.log.splitlines(keepends=True)[-lines:])
        assert find_tail(transport, "7f3a", LogCursor(1), lines=0) == len(job_plane.log)


def test_a_tail_counts_only_lines_that_match_where_asked(job_plane):
    job_plane.log = b"".join(b"line %d\n" % n for n in range(5000))
    with Transport(job_plane.location) as transport:
        start = find_tail(transport, "7f3a", LogCursor(1), lines=3, only=LineFilter(re.compile("7$")))
        assert job_plane.log[start:].startswith(b"line 4977\n")
        assert find_tail(transport, "7f3a", LogCursor(1), lines=3, only=LineFilter(re.compile("none"))) == len(
            job_plane.log
        )


def grepped(content: bytes, pattern: str, sizes=(), **options) -> bytes:
    lines = LineFilter(re.compile(pattern), **options)
    return b"".join(map(lines.feed, cut(content, list(sizes)))) + lines.end()


def test_lines_that_match_pass_as_they_came():
    content = b"one\ntw\xff\xfeo\n\nthree\r\nfour"
    assert grepped(content, "o") == b"one\ntw\xff\xfeo\nfour"
    assert grepped(content, "^t") == b"tw\xff\xfeo\nthree\r\n"
    assert grepped(content, "^$") == b"\n"
    assert grepped(content, "\N{REPLACEMENT CHARACTER}{2}") == b"tw\xff\xfeo\n"
    assert grepped(content, "") == content


def test_of_a_progress_line_the_last_state_counts():
    bar = b"".join(b"\r%d%%" % n for n in range(101))
    assert grepped(bar + b"\nnext\n", "%") == b"100%\n"
    assert grepped(bar + b"\n", "50%") == b""
    assert grepped(bar + b"\r\n", "100") == b"100%\r\n"
    assert grepped(bar, "100") == b"100%"


@given(texts, sizes, st.sampled_from(["a", "^b", "a$", "^$", ""]))
def test_what_passes_does_not_depend_on_how_the_bytes_come(content, sizes, pattern):
    assert grepped(content, pattern, sizes) == grepped(content, pattern)


def test_an_endless_line_stays_within_its_bound():
    lines = LineFilter(re.compile("x"), longest=1000)
    out = 0
    for _ in range(1000):
        out += len(lines.feed(b"x" * 777))
        assert len(lines._state) <= 2000
    assert out + len(lines.end()) == 777_000
    assert lines.feed(b"\nyes x\nno\n") == b"yes x\n"
    lines = LineFilter(re.compile("z"), longest=1000)
    assert lines.feed(b"x" * 5000) == b""
    assert lines._state == b""
    assert lines.feed(b"z\nz\n") == b"z\n"  # beyond the bound nothing is looked at
    assert lines.feed(b"x" * 5000 + b"\rz\n") == b"z\n"  # but what is written over it is
    started: list[int] = []
    lines.feed(b"x\nz!\n", started.append)
    assert started == [5000 + 4 + 5003 + 2]


def test_a_pattern_that_is_none_is_a_usage_error():
    with pytest.raises(UsageError, match="not a regular expression"):
        compile_pattern("a(b", what="--grep")


NOW = datetime(2026, 11, 30, 14, 30, tzinfo=timezone(timedelta(hours=1)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10m", "2026-11-30T14:20:00+01:00"),
        ("1h30m", "2026-11-30T13:00:00+01:00"),
        ("90", "2026-11-30T14:28:30+01:00"),
        ("14:00", "2026-11-30T14:00:00+01:00"),
        ("14:30:01", "2026-11-29T14:30:01+01:00"),  # today it is still to come
        ("2026-11-30T12:00", "2026-11-30T12:00:00+01:00"),
        ("2026-11-30T12:00:00.5Z", "2026-11-30T12:00:00.5+00:00"),
        ("2026-11-29", "2026-11-29T00:00:00+01:00"),
    ],
)
def test_a_time_is_read_as_people_mean_it(text, expected):
    assert parse_since(text, now=NOW) == int(datetime.fromisoformat(expected).timestamp() * 1000)


@pytest.mark.parametrize("text", ["", "yesterday", "25:00", "10 minutes", "-5m", "2026-13-01"])
def test_what_is_no_time_is_a_usage_error_with_an_example(text):
    with pytest.raises(UsageError, match="is not a time") as raised:
        parse_since(text, now=NOW, what="--since")
    assert "14:30" in raised.value.hint
