"""Logs by offset, and followers, against a real server."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest


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


def test_following_a_job_that_ends_without_an_attempt_ends(plane) -> None:
    job = plane.submit()
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(lambda: plane.http.get(f"/v1/jobs/{job['id']}/logs", params={"follow": 1}))
        plane.http.post(f"/v1/jobs/{job['id']}:cancel")
        answer = following.result(10)
    assert (answer.content, answer.headers["x-gpulayer-attempt"]) == (b"", "0")


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
