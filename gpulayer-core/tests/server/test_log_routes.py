"""Logs by offset, and followers, against a real server."""

import asyncio
import os
import shutil
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from gpulayer.client.async_transport import AsyncTransport
from gpulayer.client.following import LogCursor, follow_logs, follow_logs_async
from gpulayer.client.location import Location
from gpulayer.client.transport import Transport
from gpulayer.clock import ManualClock
from gpulayer.errors import StorageUnavailable
from gpulayer.server.logs import LogFolder, LogKey, LogReader
from gpulayer.spec.logs import LogStream, not_whole


@pytest.fixture
def worker(plane):
    made = plane.worker()
    made.report()
    return made


def _start(plane, worker) -> tuple[str, int]:
    job = plane.submit()
    (command,) = worker.commands(hold_s=5)
    worker.holding.append(command["epoch"])
    worker.report(worker.running(command["epoch"]))
    return job["id"], command["epoch"]


def test_overlap_is_ignored_and_a_gap_is_refused_with_the_offset_wanted(plane, worker) -> None:
    job, epoch = _start(plane, worker)
    assert worker.put_log(epoch, 0, b"0123").json() == {"offset": 4}
    assert worker.put_log(epoch, 2, b"XX45").json() == {"offset": 6}
    assert worker.put_log(epoch, 0, b"YY").json() == {"offset": 6}
    gap = worker.put_log(epoch, 9, b"zz")
    assert gap.status_code == 409
    assert plane.check_envelope(gap)["details"] == {"offset": 6}
    answer = plane.http.get(f"/v1/jobs/{job}/logs")
    assert answer.content == b"012345"
    assert answer.headers["x-gpulayer-log-start"] == "0"
    assert answer.headers["x-gpulayer-attempt"] == "1"


def test_reading_from_an_offset_and_the_tail(plane, worker) -> None:
    job, epoch = _start(plane, worker)
    worker.put_log(epoch, 0, b"0123456789")
    answer = plane.http.get(f"/v1/jobs/{job}/logs", params={"offset": 7})
    assert (answer.content, answer.headers["x-gpulayer-log-start"]) == (b"789", "7")
    answer = plane.http.get(f"/v1/jobs/{job}/logs", params={"tail_bytes": 4})
    assert (answer.content, answer.headers["x-gpulayer-log-start"]) == (b"6789", "6")
    assert plane.http.get(f"/v1/jobs/{job}/logs", params={"offset": 99}).content == b""


def test_a_stale_attempt_writes_no_log_and_no_outputs(plane, worker) -> None:
    job, epoch = _start(plane, worker)
    worker.put_log(epoch, 0, b"mine")
    worker.report(worker.ended(epoch))
    for stale in (epoch, epoch + 1, 10**15):
        assert plane.check_envelope(worker.put_log(stale, 4, b"late"))["code"] == "stale_attempt"
        assert plane.check_envelope(worker.put_outputs(stale, "0" * 64))["code"] == "stale_attempt"
    other = plane.worker("other")
    job, epoch = _start(plane, worker)
    assert other.put_log(epoch, 0, b"not mine").status_code == 409
    assert plane.http.get(f"/v1/jobs/{job}/logs").content == b""


def test_a_log_piece_has_a_limit(plane, worker) -> None:
    _, epoch = _start(plane, worker)
    assert worker.put_log(epoch, 0, b"x" * (2**20 + 1)).status_code == 413
    assert worker.put_log(epoch, 0, b"x" * 2**20).status_code == 200


def test_a_follower_gets_every_byte_and_ends_with_the_attempt(plane, worker) -> None:
    job, epoch = _start(plane, worker)
    content = os.urandom(3_000_000)

    def follow() -> bytes:
        return plane.http.get(f"/v1/jobs/{job}/logs", params={"follow": 1}).content

    with ThreadPoolExecutor(3) as pool:
        followers = [pool.submit(follow) for _ in range(3)]
        for start in range(0, len(content), 500_000):
            assert worker.put_log(epoch, start, content[start : start + 500_000]).status_code == 200
        assert not any(follower.done() for follower in followers)
        worker.report(worker.ended(epoch))
        assert [follower.result(10) == content for follower in followers] == [True] * 3


def test_a_follower_sees_bytes_as_they_come(plane, worker) -> None:
    job, epoch = _start(plane, worker)
    with plane.http.stream("GET", f"/v1/jobs/{job}/logs", params={"follow": 1}) as answer:
        pieces = answer.iter_raw()
        for n in range(5):
            worker.put_log(epoch, n, b"%d" % n)
            assert next(pieces) == b"%d" % n
        worker.report(worker.ended(epoch))
        assert list(pieces) == []


def test_following_waits_for_an_attempt_that_is_still_to_come(plane, worker) -> None:
    job, epoch = _start(plane, worker)
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(lambda: plane.http.get(f"/v1/jobs/{job}/logs", params={"follow": 1, "attempt": 2}))
        outcome = {"ended_by": "staging", "exit_code": None, "signal": None, "evidence": "x", "blame": "infrastructure"}
        worker.report({"epoch": epoch, "node": 0, "state": "ended", "outcome": outcome})
        (command,) = worker.commands(hold_s=5)
        assert command["attempt"] == 2
        worker.put_log(command["epoch"], 0, b"second")
        worker.report(worker.ended(command["epoch"]))
        answer = second.result(10)
    assert (answer.content, answer.headers["x-gpulayer-attempt"]) == (b"second", "2")
    assert plane.http.get(f"/v1/jobs/{job}/logs", params={"attempt": 1}).headers["x-gpulayer-attempt"] == "1"
    assert plane.http.get(f"/v1/jobs/{job}/logs", params={"attempt": 3}).status_code == 404


def test_a_job_without_an_attempt_has_not_started_yet_or_never_did(plane) -> None:
    job = plane.submit()["id"]

    def refusal(ref, attempt):
        answer = plane.http.get(f"/v1/jobs/{ref}/logs", params={"attempt": attempt})
        assert answer.status_code == 404
        return plane.check_envelope(answer)

    for attempt in (1, 2):
        told = refusal(job, attempt)
        assert told["message"] == f"job {job} has not started yet"
        assert f"gpulayer job logs --follow {job}" in told["hint"]
    plane.http.post(f"/v1/jobs/{job}:cancel")
    told = refusal(job, 1)
    assert told["message"] == f"job {job} never started"
    assert f"gpulayer job show {job}" in told["hint"]
    worker = plane.worker()
    worker.report()
    started, _ = _start(plane, worker)
    assert refusal(started, 2)["message"] == f"job {started} has no attempt 2; it has had 1"


def test_following_a_job_that_ends_without_an_attempt_ends(plane) -> None:
    job = plane.submit()
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(lambda: plane.http.get(f"/v1/jobs/{job['id']}/logs", params={"follow": 1}))
        plane.http.post(f"/v1/jobs/{job['id']}:cancel")
        answer = following.result(10)
    assert (answer.content, answer.headers["x-gpulayer-attempt"]) == (b"", "0")


def test_a_follower_of_a_job_that_waits_is_told_to_ask_again(make_plane) -> None:
    plane = make_plane(log_hold_s=0.01).start()
    job = plane.submit()["id"]
    for query in ({}, {"attempt": 1}, {"attempt": 7}):
        answer = plane.http.get(f"/v1/jobs/{job}/logs", params={"follow": 1, **query})
        assert (answer.status_code, answer.content, answer.headers["x-gpulayer-attempt"]) == (200, b"", "0")
    assert plane.job(job)["state"] == "queued"


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("is_retry", [False, True], ids=["queued", "retry"])
def test_a_log_is_followed_however_long_its_job_waits(make_plane, monkeypatch, is_async, is_retry) -> None:
    plane = make_plane(log_hold_s=0.01).start()
    worker = plane.worker()
    worker.report()
    location, asked = Location.of(plane.url, plane.token), []
    shell = AsyncTransport if is_async else Transport
    opened = shell.stream
    monkeypatch.setattr(shell, "stream", lambda *args, **options: asked.append(1) or opened(*args, **options))

    async def follow_async(job: str) -> list[object]:
        async with AsyncTransport(location) as transport:
            return [part async for part in follow_logs_async(transport, job, cursor=LogCursor(since_ms=1))]

    def follow(job: str) -> list[object]:
        if is_async:
            return asyncio.run(follow_async(job))
        with Transport(location) as transport:
            return list(follow_logs(transport, job, cursor=LogCursor(since_ms=1)))

    if not is_retry:
        plane.http.post(f"/v1/workers/{worker.id}:drain")
    job = plane.submit()["id"]
    if is_retry:
        (command,) = worker.commands(hold_s=5)
        worker.put_log(command["epoch"], 0, b"first ")
        outcome = {"ended_by": "staging", "exit_code": None, "signal": None, "evidence": "x", "blame": "infrastructure"}
        plane.http.post(f"/v1/workers/{worker.id}:drain")
        worker.report({"epoch": command["epoch"], "node": 0, "state": "ended", "outcome": outcome})
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(follow, job)
        try:
            plane.until(lambda: len(asked) > 2 + is_retry, 30)
            assert plane.job(job)["state"] == "queued"
            plane.http.post(f"/v1/workers/{worker.id}:resume")
            (command,) = worker.commands(hold_s=10)
            worker.put_log(command["epoch"], 0, b"bytes")
            worker.report(worker.ended(command["epoch"]))
        finally:
            plane.http.post(f"/v1/jobs/{job}:cancel")
        *pieces, record = following.result(20)
    assert b"".join(pieces) == (b"first bytes" if is_retry else b"bytes")
    assert record["state"] == "succeeded"


def test_a_shutdown_ends_held_requests_at_once_and_leaves_a_followed_log_unfinished(plane, worker) -> None:
    job, epoch = _start(plane, worker)
    worker.put_log(epoch, 0, b"begun")
    got: list[object] = []
    ready = threading.Event()

    def follow() -> None:
        try:
            with plane.http.stream("GET", f"/v1/jobs/{job}/logs", params={"follow": 1}) as answer:
                for piece in answer.iter_raw():
                    got.append(piece)
                    ready.set()
        except httpx.HTTPError as error:
            got.append(type(error))

    with ThreadPoolExecutor(3) as pool:
        following = pool.submit(follow)
        waiting = pool.submit(lambda: plane.job(job, wait_s=60))
        commands = pool.submit(lambda: worker.commands(hold_s=60))
        assert ready.wait(10)
        plane.stop()  # joins within its grace
        following.result(5)
        assert waiting.result(5)["state"] == "running"
        assert commands.result(5) == []
    assert got == [b"begun", httpx.RemoteProtocolError]
    plane.start()


def test_an_attempt_that_has_not_come_when_the_plane_closes_is_no_empty_log(plane) -> None:
    job = plane.submit()
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(lambda: plane.http.get(f"/v1/jobs/{job['id']}/logs", params={"follow": 1}))
        plane.until(lambda: plane.plane.clients_now)
        plane.stop()
        answer = following.result(5)
    assert answer.status_code == 503
    plane.check_envelope(answer)
    plane.start()


def test_commands_come_again_until_they_are_acknowledged(plane, worker) -> None:
    plane.submit()
    first = worker.commands(hold_s=5, after="")
    assert worker.commands(after="") == first  # no cursor: everything outstanding
    assert worker.commands(after="nonsense.5") == first
    cursor = worker.cursor
    assert worker.commands(after=cursor) == []  # acknowledged, though not yet reported
    assert worker.commands(after="") == first  # a new agent asks again
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(lambda: worker.commands(hold_s=20))
        second = plane.submit()
        assert [command["job_id"] for command in held.result(10)] == [second["id"]]


def test_a_held_request_whose_client_leaves_is_let_go(plane, worker) -> None:
    with pytest.raises(httpx.ReadTimeout):
        plane.bare.get(
            f"{plane.url}/v1/workers/{worker.id}/commands",
            params={"hold_s": 60},
            headers=worker.headers,
            timeout=0.2,
        )
    plane.until(lambda: not plane.plane.hub._watches)


def test_a_client_that_follows_counts_as_present(plane, worker) -> None:
    job, epoch = _start(plane, worker)
    worker.put_log(epoch, 0, b"x")
    with plane.http.stream("GET", f"/v1/jobs/{job}/logs", params={"follow": 1}) as answer:
        pieces = answer.iter_raw()  # a generator that is let go closes the connection
        assert next(pieces) == b"x"
        assert plane.plane.clients_now == 1
        worker.report(worker.ended(epoch))
    plane.until(lambda: plane.plane.clients_now == 0)


def _start_split(plane, worker) -> tuple[str, int]:
    job = plane.submit(split_streams=True)
    assert job["split_streams"] is True
    (command,) = worker.commands(hold_s=5)
    assert command["split_streams"] is True
    worker.holding.append(command["epoch"])
    worker.report(worker.running(command["epoch"]))
    return job["id"], command["epoch"]


def test_a_split_jobs_streams_are_kept_and_read_apart(plane, worker) -> None:
    job, epoch = _start_split(plane, worker)
    assert worker.put_log(epoch, 0, b"result\n").json() == {"offset": 7}
    assert worker.put_log(epoch, 0, b"warning\n", stream="stderr").json() == {"offset": 8}
    assert worker.put_log(epoch, 99, b"gap", stream="stderr").status_code == 409
    logs = f"/v1/jobs/{job}/logs"
    assert plane.http.get(logs).content == b"result\n"
    assert plane.http.get(logs, params={"stream": "stdout"}).content == b"result\n"
    assert plane.http.get(logs, params={"stream": "stderr"}).content == b"warning\n"
    with ThreadPoolExecutor(2) as pool:
        follow = [
            pool.submit(lambda s=s: plane.http.get(logs, params={"stream": s, "follow": 1}).content)
            for s in ("stdout", "stderr")
        ]
        worker.put_log(epoch, 8, b"more\n", stream="stderr", final=True)
        worker.report(worker.ended(epoch))
        assert [each.result(10) for each in follow] == [b"result\n", b"warning\nmore\n"]


def test_stderr_of_a_job_that_was_not_split_is_refused_and_so_is_any_other_stream(plane, worker) -> None:
    job, epoch = _start(plane, worker)
    assert plane.job(job)["split_streams"] is False
    answer = plane.http.get(f"/v1/jobs/{job}/logs", params={"stream": "stderr"})
    assert answer.status_code == 400
    assert "--split-streams" in plane.check_envelope(answer)["hint"]
    assert plane.http.get(f"/v1/jobs/{job}/logs", params={"stream": "stdlog"}).status_code == 400
    assert worker.put_log(epoch, 0, b"x", stream="stdlog").status_code == 400


def test_a_rank_that_is_not_there_is_named(plane, worker) -> None:
    job, _ = _start(plane, worker)
    answer = plane.http.get(f"/v1/jobs/{job}/logs", params={"node": 3})
    assert answer.status_code == 404
    assert "ran on 1 node: there is no rank 3" in plane.check_envelope(answer)["message"]


def test_what_came_since_a_time_and_of_that_the_tail(make_plane) -> None:
    clock = ManualClock(wall_offset_ms=1_795_000_000_000)
    plane = make_plane(clock=clock).start()
    worker = plane.worker()
    worker.report()
    job, epoch = _start(plane, worker)
    for n in range(4):
        worker.put_log(epoch, n * 4, b"%03d\n" % n)
        clock.advance(2_000)
    logs, now = f"/v1/jobs/{job}/logs", clock.wall_ms()
    answer = plane.http.get(logs, params={"since_ms": now - 4_000})
    assert (answer.content, answer.headers["x-gpulayer-log-start"]) == (b"002\n003\n", "8")
    assert answer.headers["x-gpulayer-log-timed"] == "1"
    assert plane.http.get(logs, params={"since_ms": now}).content == b""
    assert plane.http.get(logs, params={"since_ms": 0}).content == b"000\n001\n002\n003\n"
    assert plane.http.get(logs, params={"since_ms": now - 4_000, "tail_bytes": 4}).content == b"003\n"
    assert plane.http.get(logs, params={"since_ms": now - 4_000, "tail_bytes": 400}).content == b"002\n003\n"
    assert "x-gpulayer-log-timed" not in plane.http.get(logs).headers
    plane.plane.logs.path(LogKey(job, epoch)).with_suffix(".times").unlink()
    answer = plane.http.get(logs, params={"since_ms": now})
    assert (answer.content, answer.headers["x-gpulayer-log-timed"]) == (b"000\n001\n002\n003\n", "0")
    with ThreadPoolExecutor(1) as pool:
        query = {"since_ms": now, "follow": 1}
        following = pool.submit(lambda: plane.http.get(logs, params=query).content)
        worker.put_log(epoch, 16, b"new\n")
        worker.report(worker.ended(epoch))
        assert following.result(10).endswith(b"new\n")


def test_a_log_whose_end_was_lost_on_the_worker_says_so_itself_once(plane, worker) -> None:
    job, epoch = _start_split(plane, worker)
    worker.put_log(epoch, 0, b"half a line")
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(lambda: plane.http.get(f"/v1/jobs/{job}/logs", params={"follow": 1}).content)
        evidence = f"{not_whole('[Errno 5] Input/output error')}\n{not_whole('gone', stream=LogStream.STDERR)}"
        item = worker.ended(epoch)
        item["outcome"]["evidence"] = evidence
        worker.report(item)
        worker.report(item)  # its answer was lost
        assert following.result(10) == b"half a line\n[gpulayer: the rest of the log is missing]\n"
    answer = plane.http.get(f"/v1/jobs/{job}/logs", params={"stream": "stderr"})
    assert answer.content == b"[gpulayer: the rest of the log is missing]\n"
    assert plane.job(job)["attempts"][0]["evidence"] == evidence


def test_a_stale_report_marks_no_log(plane, worker) -> None:
    job, epoch = _start(plane, worker)
    item = plane.worker("other").ended(epoch)
    item["outcome"]["evidence"] = not_whole("gone")
    stranger = plane.worker("third")
    stranger.report(item)
    worker.put_log(epoch, 0, b"mine")
    assert plane.http.get(f"/v1/jobs/{job}/logs").content == b"mine"


def test_a_reader_that_takes_nothing_stalls_nobody(plane, worker) -> None:
    job, epoch = _start(plane, worker)
    host, port = plane.url.removeprefix("http://").split(":")
    request = (
        f"GET /v1/jobs/{job}/logs?follow=1 HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {plane.token}\r\n\r\n"
    )
    piece = bytes(range(256)) * 2048
    count = 40  # 20 MB
    with ThreadPoolExecutor(1) as pool, socket.create_connection((host, int(port))) as sleeper:
        sleeper.sendall(request.encode())
        assert sleeper.recv(100).startswith(b"HTTP/1.1 200")
        reading = pool.submit(lambda: plane.http.get(f"/v1/jobs/{job}/logs", params={"follow": 1}).content)
        for n in range(count):
            assert worker.put_log(epoch, n * len(piece), piece).status_code == 200
        worker.report(worker.ended(epoch))
        assert reading.result(30) == piece * count
        assert plane.plane.hub._watches  # the sleeper is held still, in the midst of it
    plane.until(lambda: not plane.plane.hub._watches)
    assert plane.plane.clients_now == 0


def test_fifty_followers_of_one_log_all_get_it(plane, worker) -> None:
    job, epoch = _start(plane, worker)
    content = os.urandom(300_000)

    def follow(_: int) -> bytes:
        with httpx.Client(headers=plane.http.headers, timeout=60, trust_env=False, verify=False) as http:
            return http.get(f"{plane.url}/v1/jobs/{job}/logs", params={"follow": 1}).content

    with ThreadPoolExecutor(50) as pool:
        following = [pool.submit(follow, n) for n in range(50)]
        for start in range(0, len(content), 50_000):
            worker.put_log(epoch, start, content[start : start + 50_000])
        worker.report(worker.ended(epoch))
        assert {each.result(60) for each in following} == {content}
    plane.until(lambda: not plane.plane.hub._watches)


def _take_away(logs) -> None:
    """What a disk does that can't be used any more, also to root."""
    shutil.rmtree(logs)
    logs.touch()


@pytest.mark.parametrize("query", [{}, {"follow": "1"}, {"tail_bytes": "2"}, {"since_ms": "0"}], ids=str)
def test_a_log_that_can_not_be_read_is_refused_with_its_path_before_the_answer_begins(plane, worker, query) -> None:
    job, epoch = _start(plane, worker)
    worker.put_log(epoch, 0, b"0123")
    _take_away(plane.plane.settings.layout.logs)
    answer = plane.http.get(f"/v1/jobs/{job}/logs", params={"offset": 1, **query})
    assert answer.status_code == 503
    error = plane.check_envelope(answer)
    assert error["code"] == "storage_unavailable"
    assert str(plane.plane.settings.layout.logs / job) in error["message"]


def test_a_job_whose_log_can_not_be_kept_says_so_until_it_can(plane, worker) -> None:
    job, epoch = _start(plane, worker)
    logs = plane.plane.settings.layout.logs
    worker.put_log(epoch, 0, b"0123")
    assert plane.job(job)["reason"] is None
    _take_away(logs)
    assert worker.put_log(epoch, 4, b"45", final=True).status_code == 503
    for record in (plane.job(job), plane.http.get("/v1/jobs").json()["jobs"][0]):
        assert record["reason"]["code"] == "storage_unavailable"
        assert "its log is not taken" in record["reason"]["message"]
        assert str(logs / job) in record["reason"]["message"]
    logs.unlink()
    assert worker.put_log(epoch, 0, b"012345", final=True).status_code == 200
    assert plane.job(job)["reason"] is None


def test_a_log_that_fails_on_the_way_breaks_off_and_is_no_fault_of_the_server(
    plane, worker, monkeypatch, caplog
) -> None:
    job, epoch = _start(plane, worker)
    worker.put_log(epoch, 0, b"0123")
    read = LogReader.read

    def fails_later(self, offset, limit=9):
        if offset >= 4:
            raise StorageUnavailable("logs/x: Input/output error")
        return read(self, offset, limit)

    monkeypatch.setattr(LogReader, "read", fails_later)
    with (
        plane.http.stream("GET", f"/v1/jobs/{job}/logs", params={"offset": 1}) as answer,
        pytest.raises(httpx.RemoteProtocolError),
    ):
        answer.read()
    assert "can't be read on: logs/x: Input/output error" in caplog.text
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("kind", ["file", "link to nothing"])
def test_a_place_that_can_not_hold_logs_is_refused_at_the_start(tmp_path, kind) -> None:
    root = tmp_path / "logs"
    root.touch() if kind == "file" else root.symlink_to(tmp_path / "gone")
    with pytest.raises(StorageUnavailable, match=str(root)):
        LogFolder(root)


def test_logs_that_may_not_be_read_are_refused_at_the_start(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # as the kernel says to any but root
    with pytest.raises(StorageUnavailable, match=str(tmp_path)):
        LogFolder(tmp_path / "logs")
