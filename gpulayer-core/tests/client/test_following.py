"""A log over attempts, restarts and broken connections: every byte once, in order."""

import pytest

from gpulayer.client.following import FollowEvents, LogCursor, Next, follow_logs
from gpulayer.client.tail import last_lines, read_tail
from gpulayer.client.transport import Transport
from gpulayer.errors import Unreachable


def follow(plane, **options):
    with Transport(plane.url, plane.token, sleep=lambda _: None) as transport:
        parts = list(follow_logs(transport, "7f3a", **options))
    return b"".join(part for part in parts if isinstance(part, bytes)), parts[-1]


@pytest.mark.parametrize("final", [True, False])
def test_the_cursor_moves_on_only_when_an_attempt_has_ended(parts, final):
    state = "succeeded" if final else "queued"
    cursor = LogCursor(1, 5)
    assert cursor.ended(parts.job(state="queued", attempts=[])) is Next.HOLD
    assert cursor.ended(parts.job(state="running", attempts=[parts.attempt(ended_at=None)])) is Next.HOLD
    assert (cursor.attempt, cursor.offset) == (1, 5)
    expected = Next.DONE if final else Next.READ
    assert cursor.ended(parts.job(state=state)) is expected
    assert (cursor.attempt, cursor.offset) == ((1, 5) if final else (2, 0))


def test_a_job_that_never_ran_ends_its_log(parts):
    assert LogCursor().ended(parts.job(state="cancelled", attempts=[])) is Next.DONE


def test_a_broken_connection_goes_on_at_the_byte_where_it_broke(plane, parts):
    log = bytes(range(256)) * 40

    def logs(asked):
        offset = int(asked.query.get("offset", 0))
        rest = log[offset:]
        headers = {"X-Gpulayer-Log-Start": offset, "X-Gpulayer-Attempt": 1}
        if len(rest) > 1000:
            return parts.Answer(pieces=[rest[:777]], cut=True, headers=headers)
        return parts.Answer(pieces=[rest] if rest else [], headers=headers)

    plane.on("GET", "/v1/jobs/{ref}/logs", logs)
    plane.on("GET", "/v1/jobs/{ref}", parts.job())
    losses = []
    text, record = follow(plane, events=FollowEvents(lost=losses.append))
    assert text == log
    assert record["state"] == "succeeded"
    assert len(losses) == (len(log) - 1000) // 777 + 1


def test_attempts_follow_each_other_and_are_announced(plane, parts):
    lost = parts.attempt(ended_by="worker_lost", evidence="silent for 33 s")
    records = [
        parts.job(state="queued", attempts=[lost]),
        parts.job(attempts=[lost, parts.attempt(number=2)]),
    ]
    plane.on("GET", "/v1/jobs/{ref}", records)
    plane.on(
        "GET", "/v1/jobs/{ref}/logs", lambda asked: parts.Answer(body=b"attempt " + asked.query["attempt"].encode())
    )
    heard = []
    text, _ = follow(plane, events=FollowEvents(ended=lambda record, number: heard.append(number)))
    assert text == b"attempt 1attempt 2"
    assert heard == [1]


def test_a_stream_that_ends_while_the_attempt_runs_is_opened_again(plane, parts):
    running = parts.job(state="running", attempts=[parts.attempt(ended_at=None)])
    plane.on("GET", "/v1/jobs/{ref}", [running, running, parts.job()])
    plane.on("GET", "/v1/jobs/{ref}/logs", [parts.Answer(body=b"first "), parts.Answer(body=b"second")])
    assert follow(plane)[0] == b"first second"
    assert [asked.query.get("offset") for asked in plane.of("GET", "/v1/jobs/7f3a/logs")] == [None, "6"]


def test_bytes_dropped_by_the_limit_are_told(plane, parts):
    plane.on("GET", "/v1/jobs/{ref}", parts.job())
    plane.on("GET", "/v1/jobs/{ref}/logs", parts.Answer(body=b"end", headers={"X-Gpulayer-Log-Start": 1000}))
    gaps = []
    assert follow(plane, events=FollowEvents(dropped=gaps.append))[0] == b"end"
    assert gaps == [1000]


def test_nothing_but_broken_connections_ends_as_unreachable(plane, parts):
    plane.on("GET", "/v1/jobs/{ref}", parts.job(state="running"))
    plane.on("GET", "/v1/jobs/{ref}/logs", parts.Answer(pieces=[], cut=True))
    with pytest.raises(Unreachable, match="in a row"):
        follow(plane)


@pytest.mark.parametrize(
    ("content", "lines", "expected"),
    [
        (b"a\nb\nc\n", 2, b"b\nc\n"),
        (b"a\nb\nc", 2, b"b\nc"),
        (b"a\nb\nc\n", 9, b"a\nb\nc\n"),
        (b"a\nb\n", 0, b""),
        (b"", 3, b""),
        (b"\n\n\n", 2, b"\n\n"),
    ],
)
def test_the_last_lines_are_those_at_the_end(content, lines, expected):
    assert last_lines(content, lines) == expected


def test_a_tail_reads_more_until_it_has_its_lines(job_plane):
    job_plane.log = b"first\n" + b"".join(b"%d " % n * 2000 + b"\n" for n in range(30))
    with Transport(job_plane.url, job_plane.token) as transport:
        tail = read_tail(transport, "7f3a", attempt=1, lines=20)
    assert tail.content == b"\n".join(job_plane.log.split(b"\n")[-21:])
    assert tail.end == len(job_plane.log)
