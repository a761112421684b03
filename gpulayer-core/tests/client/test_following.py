"""A log over attempts, restarts and broken connections: every byte once, in order."""

from urllib.parse import parse_qs, urlsplit

import pytest

from gpulayer.client.following import FollowEvents, LogCursor, Next, follow_logs, read_logs
from gpulayer.client.transport import Transport
from gpulayer.errors import Unreachable


def follow(plane, **options):
    with Transport(plane.location, sleep=lambda _: None) as transport:
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


def test_an_attempt_that_came_and_went_after_the_answer_that_there_is_none_is_read(plane, parts):
    """The record that is asked for after that answer has the attempt already, and its end."""
    none_yet = parts.Answer(body=b"", headers={"X-Gpulayer-Log-Start": 0, "X-Gpulayer-Attempt": 0})
    whole = parts.Answer(body=b"quick", headers={"X-Gpulayer-Log-Start": 0, "X-Gpulayer-Attempt": 1})
    plane.on("GET", "/v1/jobs/{ref}", parts.job())
    heard = []
    for cursor in (LogCursor(), LogCursor(None), LogCursor(1, is_single=True)):
        plane.on("GET", "/v1/jobs/{ref}/logs", [none_yet, whole])
        text, record = follow(plane, cursor=cursor, events=FollowEvents(ended=lambda *args: heard.append(args)))
        assert (text, record["state"], heard) == (b"quick", "succeeded", [])


def test_one_that_stays_away_though_its_record_says_it_was_there_ends_the_log(plane, parts):
    none_yet = parts.Answer(body=b"", headers={"X-Gpulayer-Log-Start": 0, "X-Gpulayer-Attempt": 0})
    plane.on("GET", "/v1/jobs/{ref}/logs", none_yet)
    plane.on("GET", "/v1/jobs/{ref}", parts.job())
    assert follow(plane)[0] == b""
    assert len(plane.of("GET", "/v1/jobs/7f3a/logs")) == 2


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
    text, _ = follow(plane, events=FollowEvents(dropped=gaps.append))
    assert text == b"[gpulayer: 1000 bytes of the log are missing here]\nend"
    assert gaps == [1000]


def test_nothing_but_broken_connections_ends_as_unreachable(plane, parts):
    plane.on("GET", "/v1/jobs/{ref}", parts.job(state="running"))
    plane.on("GET", "/v1/jobs/{ref}/logs", parts.Answer(pieces=[], cut=True))
    with pytest.raises(Unreachable, match="in a row"):
        follow(plane)


@pytest.mark.parametrize("last", [b"", b"\n", b"x"])
def test_a_gap_stands_in_the_bytes_on_a_line_of_its_own(plane, parts, last):
    """The log shrank to its last 7 bytes while the reader was away."""

    def logs(asked):
        if not asked.query.get("offset"):
            return parts.Answer(pieces=[b"begun" + last], cut=True, headers={"X-Gpulayer-Log-Start": 0})
        return parts.Answer(body=b"the end", headers={"X-Gpulayer-Log-Start": 100})

    plane.on("GET", "/v1/jobs/{ref}/logs", logs)
    plane.on("GET", "/v1/jobs/{ref}", parts.job())
    missing = 100 - len(b"begun" + last)
    middle = b"" if last == b"\n" else b"\n"
    expected = b"begun" + last + middle + b"[gpulayer: %d bytes of the log are missing here]\nthe end" % missing
    assert follow(plane)[0] == expected
    plane.asked.clear()
    with Transport(plane.location, sleep=lambda _: None) as transport:
        assert b"".join(read_logs(transport, "7f3a")) == expected


def test_since_is_asked_for_until_the_log_is_open_and_is_no_gap(plane, parts):
    asked_for = []

    def logs(asked):
        asked_for.append((asked.query.get("since_ms"), asked.query.get("offset")))
        if len(asked_for) == 1:
            return parts.Answer(pieces=[b"half"], cut=True, headers={"X-Gpulayer-Log-Start": 50})
        return parts.Answer(body=b" whole", headers={"X-Gpulayer-Log-Start": 54})

    plane.on("GET", "/v1/jobs/{ref}/logs", logs)
    plane.on("GET", "/v1/jobs/{ref}", parts.job())
    gaps = []
    text, _ = follow(plane, cursor=LogCursor(since_ms=1234), events=FollowEvents(dropped=gaps.append))
    assert (text, gaps) == (b"half whole", [])
    assert asked_for == [("1234", None), (None, "54")]


def test_a_log_without_times_is_told(plane, parts):
    headers = {"X-Gpulayer-Log-Start": 0, "X-Gpulayer-Log-Timed": 0}
    plane.on("GET", "/v1/jobs/{ref}/logs", parts.Answer(body=b"all of it", headers=headers))
    plane.on("GET", "/v1/jobs/{ref}", parts.job())
    told = []
    text, _ = follow(plane, cursor=LogCursor(since_ms=5), events=FollowEvents(untimed=lambda: told.append(1)))
    assert (text, told) == (b"all of it", [1])


def test_one_attempt_alone_ends_with_it(plane, parts):
    lost = parts.attempt(ended_by="worker_lost")
    record = parts.job(state="running", attempts=[lost, parts.attempt(number=2, ended_at=None)])
    plane.on("GET", "/v1/jobs/{ref}", record)
    plane.on("GET", "/v1/jobs/{ref}/logs", parts.Answer(body=b"first"))
    text, last = follow(plane, cursor=LogCursor(1, is_single=True))
    assert (text, last["state"]) == (b"first", "running")
    running = parts.job(state="running", attempts=[parts.attempt(ended_at=None)])
    assert LogCursor(1, is_single=True).ended(running) is Next.HOLD


def test_a_read_goes_on_in_the_attempt_that_it_began(plane, parts):
    def logs(asked):
        if asked.query.get("attempt") is None:
            return parts.Answer(pieces=[b"of the second, "], cut=True, headers={"X-Gpulayer-Attempt": 2})
        return parts.Answer(body=b"not of the third", headers={"X-Gpulayer-Log-Start": asked.query["offset"]})

    plane.on("GET", "/v1/jobs/{ref}/logs", logs)
    with Transport(plane.location, sleep=lambda _: None) as transport:
        assert b"".join(read_logs(transport, "7f3a")) == b"of the second, not of the third"
    assert plane.asked[-1].query == {"attempt": "2", "offset": "15"}


def test_the_cursor_carries_stream_and_rank_into_each_request():
    call = LogCursor(3, 17, stream="stderr", rank=2).call("7f3a")
    assert parse_qs(urlsplit(call.target).query) == {
        "offset": ["17"],
        "attempt": ["3"],
        "node": ["2"],
        "stream": ["stderr"],
        "follow": ["1"],
    }
