"""Both shells against a real socket: the same requests, the same errors, the same patience."""

import importlib
import itertools
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from typing_extensions import is_typeddict

from gpulayer.client import calls, connect, reach
from gpulayer.client import transport as transports
from gpulayer.client.connect import Settings, open_transport
from gpulayer.client.endpoints import ENDPOINTS
from gpulayer.client.limits import LIMITS, Pace
from gpulayer.client.location import Configured, Local, Location
from gpulayer.client.reach import Awaited
from gpulayer.client.transport import StreamBroken, Transport
from gpulayer.errors import (
    GpulayerError,
    NotFound,
    Overloaded,
    ProtocolError,
    StorageUnavailable,
    Unauthenticated,
    Unreachable,
)
from gpulayer.protocol.retry import Repeatable

DIGEST = "ab" * 32
TOKEN = "glc_" + "a" * 12 + "_secret"


def example_calls(tmp_path):
    file = tmp_path / "blob"
    file.write_bytes(b"x" * 100_000)
    return {
        "get_plane": calls.get_plane(),
        "shutdown_plane": calls.shutdown_plane(keep_worker=True),
        "make_backup": calls.make_backup(logs=False),
        "create_token": calls.create_token(name="box", max_uses=2, labels={"a": "b"}, max_devices=0, expires_in_s=60),
        "list_tokens": calls.list_tokens(),
        "revoke_token": calls.revoke_token("a/b", all_of_name=True),
        "rotate_token": calls.rotate_token(),
        "list_audit": calls.list_audit(after=3, limit=9),
        "submit_job": calls.submit_job({"schema": 1, "command": ["true"]}, key="k1"),
        "submit_batch": calls.submit_batch([{"schema": 1, "command": ["é"]}], key="k2"),
        "list_jobs": calls.list_jobs(state="running", name="a b&c", limit=5, cursor="x"),
        "get_job": calls.get_job("7f3a/..", wait_s=1.5),
        "cancel_job": calls.cancel_job("7f3a", grace_ms=5),
        "retry_job": calls.retry_job("7f3a", key="k3"),
        "read_logs": calls.read_logs("7f3a", offset=7, attempt=2, follow=True, tail_bytes=9),
        "list_events": calls.list_events("7f3a", after=3, limit=4),
        "get_why": calls.get_why("7f3a"),
        "list_outputs": calls.list_outputs("7f3a"),
        "list_elements": calls.list_elements("a b", after=3, limit=5, failed=True),
        "explain": calls.explain({"devices": 2}),
        "find_missing": calls.find_missing([DIGEST]),
        "put_blob": calls.put_blob(DIGEST, calls.FileBody(str(file), 100_000)),
        "get_blob": calls.get_blob(DIGEST),
        "put_pack": calls.put_pack(b"\0\1\2"),
        "fetch_blobs": calls.fetch_blobs([DIGEST]),
        "list_plugins": calls.list_plugins(),
        "list_workers": calls.list_workers(),
        "get_worker": calls.get_worker("box"),
        "drain_worker": calls.drain_worker("box"),
        "resume_worker": calls.resume_worker("box"),
        "remove_worker": calls.remove_worker("box", force=True),
    }


def test_every_endpoint_has_a_call_and_its_schemas_exist(tmp_path):
    assert set(example_calls(tmp_path)) == set(ENDPOINTS)
    for name, endpoint in ENDPOINTS.items():
        assert name in calls.__all__
        for schema in (endpoint.body, endpoint.reply):
            if schema not in ("", "raw"):
                module, _, kind = schema.partition(".")
                assert is_typeddict(getattr(importlib.import_module(f"gpulayer.wire.{module}"), kind))


def test_both_shells_put_every_call_on_the_wire_in_the_same_way(plane, shells, tmp_path):
    for method in ("GET", "POST", "PUT"):
        plane.on(method, "/v1/.*", lambda asked: {"ok": 1})
    seen = []
    for kind in shells:
        shell = kind(plane.url)
        for name, call in example_calls(tmp_path).items():
            if ENDPOINTS[name].form == "json":
                assert shell.send(call) == {"ok": 1}
            else:
                assert shell.read(call)[0] == b'{"ok": 1}'
        shell.close()
        kept = ("authorization", "content-type", "idempotency-key", "user-agent", "accept", "content-length")
        seen.append(
            [
                (
                    asked.method,
                    asked.path,
                    asked.query,
                    {k: asked.headers.get(k) for k in kept if asked.headers.get(k) != "0"},
                    asked.body,
                )
                for asked in plane.asked
            ]
        )
        plane.asked.clear()
    first, second = seen
    for ours, theirs in zip(first, second, strict=True):
        assert {**ours[3], "content-length": len(ours[4])} == {**theirs[3], "content-length": len(theirs[4])}
        assert (ours[:3], ours[4]) == (theirs[:3], theirs[4])


def test_a_reference_can_not_leave_its_place_in_the_path(plane, shell):
    plane.on("GET", "/v1/jobs/.*", lambda asked: {})
    shell(plane.url).send(calls.get_job("../workers?x=1"))
    assert plane.asked[0].path == "/v1/jobs/../workers?x=1"
    assert plane.asked[0].query == {}


def test_an_error_envelope_becomes_its_error(plane, parts, shell):
    plane.on("GET", "/v1/plane", parts.error(404, "not_found", "no such job: 7f", "gpulayer job list", {"a": 1}))
    with pytest.raises(NotFound) as caught:
        shell(plane.url).send(calls.get_plane())
    assert (caught.value.message, caught.value.hint) == ("no such job: 7f", "gpulayer job list")
    assert caught.value.details == {"a": 1}
    assert len(plane.asked) == 1


def test_a_wrong_token_is_refused_at_once(plane, shell):
    plane.token = "another"
    with pytest.raises(Unauthenticated):
        shell(plane.url).send(calls.get_plane())


def test_an_answer_that_is_no_envelope_is_quoted(plane, parts, shell):
    plane.on("GET", "/v1/plane", parts.Answer(418, body=b"<html>teapot"))
    with pytest.raises(ProtocolError, match=r"418.*<html>teapot"):
        shell(plane.url).send(calls.get_plane())


def test_an_answer_that_is_not_json_is_a_protocol_error(plane, parts, shell):
    plane.on("GET", "/v1/plane", parts.Answer(200, body=b"<html>"))
    with pytest.raises(ProtocolError, match="not JSON"):
        shell(plane.url).send(calls.get_plane())


def test_not_now_is_tried_again_until_it_is_answered(plane, parts, shell):
    refused = parts.error(503, "storage_unavailable", "read-only for now")
    plane.on("GET", "/v1/plane", [refused, refused, parts.plane()])
    assert shell(plane.url).send(calls.get_plane())["version"] == "0.1.0"


def test_not_now_for_too_long_raises_what_was_said(plane, parts, shell):
    plane.on("GET", "/v1/plane", parts.error(503, "storage_unavailable", "read-only for now"))
    with pytest.raises(StorageUnavailable, match="read-only"):
        shell(plane.url, retry_for_s=0.0).send(calls.get_plane())


def test_a_busy_control_plane_is_waited_for_as_long_as_it_asks_and_not_for_ever(plane, parts, shell):
    now, slept = [0.0], []

    def sleep(seconds):
        slept.append(seconds)
        now[0] += seconds

    busy = parts.error(503, "overloaded", "the control plane is busy", headers={"Retry-After": "3"})
    plane.on("GET", "/v1/plane", [busy] * 6 + [parts.plane()])
    patient = shell(plane.url, retry_for_s=3.0, sleep=sleep, monotonic=lambda: now[0])
    assert patient.send(calls.get_plane())["version"] == "0.1.0"
    waits = [seconds for seconds in slept if seconds]
    assert len(waits) == 6
    assert all(3 <= seconds <= 4.5 for seconds in waits)

    plane.on("GET", "/v1/plane", busy)
    with pytest.raises(Overloaded, match="busy"):
        patient.send(calls.get_plane())
    assert now[0] < 180, "it has an end"


def test_whoever_wants_no_patience_hears_at_once_that_the_control_plane_is_busy(plane, parts, shell):
    plane.on("GET", "/v1/plane", parts.error(503, "overloaded", "busy", headers={"Retry-After": "3"}))
    with pytest.raises(Overloaded):
        shell(plane.url, retry_for_s=0.0).send(calls.get_plane())
    assert len(plane.asked) == 1


def test_a_terminal_is_told_that_the_control_plane_is_busy_and_when_it_is_asked_again(plane, parts):
    said, lost = [], []
    busy = parts.error(503, "overloaded", "busy", headers={"Retry-After": "3"})
    plane.on("GET", "/v1/plane", [busy, parts.plane()])
    where = Configured(Location.of(plane.url, TOKEN))
    settings = Settings(where=where, environment={}, version="0", client="test")
    with open_transport(settings, say=said.append) as transport:
        transport._sleep = transport.waiting = lost.append
        transport.send(calls.get_plane())
    assert [text.rstrip("345 s") for text in said] == ["the control plane is busy; trying again in"]
    assert [type(each) for each in lost] == [float], "it slept, and spoke of no loss"


def test_a_control_plane_that_says_that_it_is_starting_is_waited_for_beyond_the_usual_patience(plane, parts, shell):
    now = [0.0]

    def sleep(seconds):
        now[0] += max(seconds, 1.0)

    starting = parts.error(503, "storage_unavailable", "still loads its plugins", details={"starting": True})
    plane.on("GET", "/v1/plane", [starting] * 20 + [parts.plane()])
    patient = shell(plane.url, retry_for_s=3.0, sleep=sleep, monotonic=lambda: now[0])
    assert patient.send(calls.get_plane())["version"] == "0.1.0"
    assert now[0] > 10

    plane.on("GET", "/v1/plane", starting)
    with pytest.raises(StorageUnavailable, match="still loads"):
        patient.send(calls.get_plane())
    assert now[0] < 700, "it has an end"


def test_the_next_control_plane_of_a_machine_is_waited_for_while_it_starts(plane, parts, shell):
    """Who takes over from another may take long to start; whoever asks meanwhile is patient, to an end."""
    plane.on("GET", "/v1/plane", parts.plane())
    now, looks = [0.0], [0]

    def sleep(seconds):
        now[0] += max(seconds, 1.0)

    def relocate():
        looks[0] += 1
        return plane.location if looks[0] == 20 else Awaited.STARTS

    patient = shell("http://127.0.0.1:9", retry_for_s=3.0, sleep=sleep, monotonic=lambda: now[0], relocate=relocate)
    assert patient.send(calls.get_plane())["version"] == "0.1.0"
    assert now[0] > 10
    patient = shell(
        "http://127.0.0.1:9", retry_for_s=3.0, sleep=sleep, monotonic=lambda: now[0], relocate=lambda: Awaited.STARTS
    )
    began = now[0]
    with pytest.raises(Unreachable):
        patient.send(calls.get_plane())
    assert 50 < now[0] - began < 100, "it has an end"


@pytest.mark.parametrize("ending", ["closed", "bad gateway"])
def test_patience_begins_when_a_held_request_is_lost_and_not_when_it_was_sent(plane, parts, shell, ending):
    now, told = [0.0], []
    gateway = parts.Answer(status=502, body=b"nobody behind it")

    def sleep(seconds):
        now[0] += seconds

    def held(asked):
        """The first two are held for almost a minute, and then lost; next comes a while in which nobody is there."""
        tries = len(plane.asked)
        now[0] += {1: 58.0, 2: 59.0}.get(tries, 0.0)
        return gateway if ending == "bad gateway" and tries < 6 else parts.job(state="succeeded")

    plane.on("GET", "/v1/jobs/{ref}", held)
    if ending == "closed":
        plane.drop("GET", "/v1/jobs/j", 5)
    waits = shell(plane.url, retry_for_s=5.0, sleep=sleep, monotonic=lambda: now[0], relocate=lambda: told.append(1))
    assert waits.send(calls.get_job("j", wait_s=60.0))["state"] == "succeeded"
    assert len(plane.asked) == 6
    assert now[0] > 117


def test_who_awaits_the_next_control_plane_is_as_patient_after_a_held_request(plane, parts, shell):
    now = [0.0]

    def sleep(seconds):
        now[0] += max(seconds, 1.0)

    def held(asked):
        if len(plane.asked) == 1:
            now[0] += 58.0
        return parts.Answer(drop=True) if now[0] < 98.0 else parts.job(state="succeeded")

    plane.on("GET", "/v1/jobs/{ref}", held)
    waits = shell(plane.url, retry_for_s=3.0, sleep=sleep, monotonic=lambda: now[0], relocate=lambda: Awaited.STARTS)
    assert waits.send(calls.get_job("j", wait_s=60.0))["state"] == "succeeded"


def test_the_time_in_which_an_answer_was_waited_for_in_vain_counts_as_patience(mute, shell, monkeypatch):
    """Nobody was at work on it, as far as can be told: it is not asked for over and over."""
    monkeypatch.setattr(reach, "_HELD_S", 0.0)
    monkeypatch.setattr(transports, "_SLOW_AFTER_S", 0.05)
    slept = []
    with pytest.raises(Unreachable, match="no answer in time"):
        shell(mute, retry_for_s=0.2, limits=replace(LIMITS, answer_s=0.3), sleep=slept.append).send(calls.get_plane())
    assert slept == []


@pytest.mark.parametrize("patience_s", [0.5, 3.0])
def test_the_next_control_plane_is_waited_for_whatever_waits_between_tries_are_drawn(patience_s):
    """Two long ones in a row are longer than the patience of a command."""
    now, draws = [0.0], itertools.cycle([0.99, 0.99, 0.2, 0.7])
    with Transport(
        Location.of("http://127.0.0.1:9", "t"), retry_for_s=patience_s, relocate=lambda: Awaited.STARTS,
        random01=lambda: next(draws), monotonic=lambda: now[0],
        sleep=lambda seconds: now.__setitem__(0, now[0] + seconds),
    ) as transport, pytest.raises(Unreachable):  # fmt: skip
        transport.send(calls.get_plane())
    assert 58 < now[0] < 70


@pytest.mark.parametrize("ending", ["closed", "starting", "busy"])
def test_a_call_with_a_limit_of_its_own_is_over_with_it_whatever_is_said_meanwhile(plane, parts, shell, ending):
    now = [0.0]
    says = {
        "closed": parts.Answer(drop=True),
        "starting": parts.error(503, "unavailable", "it is starting", details={"starting": True}),
        "busy": parts.error(503, "overloaded", "too much to do"),
    }
    plane.on("GET", "/v1/jobs/{ref}", says[ending])

    def sleep(seconds):
        now[0] += seconds

    asks = shell(plane.url, sleep=sleep, monotonic=lambda: now[0], relocate=lambda: Awaited.STARTS)
    with pytest.raises(GpulayerError):
        asks.send(calls.get_job("j"), retry_for_s=60.0, within_s=20.0)
    assert 18 < now[0] < 20
    with pytest.raises(GpulayerError):
        asks.send(calls.get_job("j"), retry_for_s=30.0)
    assert now[0] > 48, "and only that call"


def test_no_answer_is_waited_for_longer_than_a_call_may_take(plane, parts, shell):
    """Its connection stands, so that by itself it would be waited for over a minute, and be there."""
    over, slept = threading.Event(), []
    plane.on("GET", "/v1/jobs/{ref}", lambda asked: (over.wait(20), parts.job(state="succeeded"))[1])
    asks = shell(plane.url, sleep=slept.append)
    try:
        with pytest.raises(Unreachable, match="no answer in time"):
            asks.send(calls.get_job("j", wait_s=60.0), retry_for_s=60.0, within_s=0.3)
    finally:
        over.set()
    assert slept == []


def test_a_limit_is_of_the_next_answer_as_a_whole_and_not_of_those_after_it_on_the_same_connection():
    pace = Pace(LIMITS)
    pace.within(5.0)
    pace.head(60.0)
    pace.came(10, waited_s=4.0)
    pace.body()
    assert pace.left_s() == pytest.approx(1.0)
    pace.came(10, waited_s=1.0)
    with pytest.raises(TimeoutError):
        pace.left_s()
    pace.within(None)
    pace.head(60.0)
    assert pace.left_s() == LIMITS.answer_s + 60.0


def test_nothing_listening_is_unreachable_and_names_the_address(shell):
    with pytest.raises(Unreachable, match=r"http://127\.0\.0\.1:9: connection refused|All connection") as caught:
        shell("http://127.0.0.1:9", retry_for_s=0.0).send(calls.get_plane())
    assert caught.value.hint


def test_a_dropped_answer_to_a_keyed_post_is_asked_for_again_with_the_same_key(job_plane, shell):
    job_plane.drop("POST", "/v1/jobs", 2)
    record = shell(job_plane.url).send(calls.submit_job({"schema": 1, "command": ["true"]}, key="once"))
    assert record["id"]
    assert len(job_plane.created) == 1
    assert [asked.headers["idempotency-key"] for asked in job_plane.of("POST", "/v1/jobs")] == ["once"] * 3


def test_a_dropped_answer_is_not_asked_for_again_where_that_would_do_it_twice(plane, shell):
    assert ENDPOINTS["create_token"].repeat is Repeatable.ONCE
    plane.on("POST", "/v1/tokens", {"token": "gle_"})
    plane.drop("POST", "/v1/tokens", 1)
    with pytest.raises(Unreachable):
        shell(plane.url).send(calls.create_token())
    assert len(plane.asked) == 1


def test_two_hundred_submits_with_dropped_answers_make_one_job_a_key(job_plane):
    job_plane.drop("POST", "/v1/jobs", 60)
    with Transport(job_plane.location, sleep=lambda _: None, retry_for_s=30) as transport:
        call = [calls.submit_job({"schema": 1, "command": ["true"]}, key=f"k{n % 10}") for n in range(200)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(transport.send, call))
    assert len(job_plane.created) == 10


def test_a_body_cut_short_is_asked_for_again(plane, parts, shell):
    plane.on("GET", "/v1/plane", [parts.Answer(json=parts.plane(), cut=True), parts.plane()])
    assert shell(plane.url).send(calls.get_plane())["version"] == "0.1.0"


def test_a_stream_tells_where_its_bytes_begin(plane, parts, shell):
    headers = {"X-Gpulayer-Log-Start": 7, "X-Gpulayer-Attempt": 2}
    plane.on("GET", "/v1/jobs/{ref}/logs", parts.Answer(pieces=[b"\x00\xff", b"\r\n"], headers=headers))
    assert shell(plane.url).read(calls.read_logs("j", follow=True)) == (b"\x00\xff\r\n", 7, 2)


@pytest.mark.parametrize("body", [{"pieces": [b"abc"]}, {"body": b"abcdef"}], ids=["chunked", "counted"])
def test_a_stream_cut_short_says_so(plane, parts, shell, body):
    plane.on("GET", "/v1/jobs/{ref}/logs", parts.Answer(**body, cut=True))
    with pytest.raises(StreamBroken):
        shell(plane.url).read(calls.read_logs("j", follow=True))


def test_a_control_plane_that_moved_is_found_at_its_new_address(plane, parts, shell):
    plane.on("GET", "/v1/plane", parts.plane())
    moved = shell("http://127.0.0.1:9", token="old", relocate=lambda: plane.location)
    assert moved.send(calls.get_plane())["version"] == "0.1.0"


def test_who_waits_for_an_answer_is_told_after_a_second_that_none_comes():
    now, told = [0.0], []
    with Transport(
        Location.of("http://127.0.0.1:9", "t"), retry_for_s=5.0, random01=lambda: 0.9, monotonic=lambda: now[0],
        sleep=lambda seconds: now.__setitem__(0, now[0] + seconds),
    ) as transport:  # fmt: skip
        transport.waiting = lambda error: told.append((now[0], error.message))
        with pytest.raises(Unreachable):
            transport.send(calls.get_plane())
    assert 1.0 <= told[0][0] < 2.0
    assert told[0][1] == "no control plane answers at http://127.0.0.1:9: connection refused"


@pytest.fixture
def mute():
    """Takes connections, as the system does for a program that was stopped, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def test_who_waits_for_one_that_takes_connections_and_answers_nothing_is_told_for_how_long(mute, monkeypatch):
    monkeypatch.setattr(transports, "_SLOW_AFTER_S", 0.05)
    said = []
    limits = replace(LIMITS, answer_s=0.3)
    with connect.telling(Transport(Location.of(mute, "t"), retry_for_s=0.0, limits=limits), said.append) as transport:
        slow, told = transport.slow, []
        transport.slow = lambda url, left_s: (told.append((url, left_s)), slow(url, left_s))
        with pytest.raises(Unreachable, match="no answer in time"):
            transport.send(calls.get_plane())
    assert told == [(mute, pytest.approx(0.25))]
    assert said == [f"the control plane at {mute} has not answered yet; waiting for it, 1 s more at most"]


def test_nobody_is_told_of_an_answer_that_comes_or_that_is_held_back_as_asked(plane, parts, monkeypatch):
    monkeypatch.setattr(transports, "_SLOW_AFTER_S", 0.0)
    told = []

    def hold(asked):
        threading.Event().wait(0.1)
        return parts.job(state="running", ended_at=None)

    plane.on("GET", "/v1/jobs/{ref}", hold)
    with Transport(plane.location) as transport:
        transport.slow = lambda *late: told.append(late)
        transport.send(calls.get_job("j", wait_s=30.0))
        assert told == []
        transport.send(calls.get_job("j"))
        assert len(told) == 1


def test_a_control_plane_of_this_machine_that_ended_in_order_is_waited_for_a_moment_only(tmp_path, monkeypatch):
    settings = Settings(Local(tmp_path), {}, "0.1.0", "test")
    relocate = connect._relocation(settings)
    assert connect.has_ended(settings)
    assert relocate() is Awaited.STARTS, "`gpulayer up` ends a background one and starts its own"
    monkeypatch.setattr(connect, "COMES_BACK_S", -1.0)
    with pytest.raises(Unreachable, match="the control plane of this machine has ended") as ended:
        relocate()
    assert ended.value.details == {"has_ended": True}
    (tmp_path / "endpoint.json").write_text("{}")
    assert not connect.has_ended(settings)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://box.example:8470", "plain http would show your token"),
        ("ftp://127.0.0.1", "not a control plane's address"),
        ("127.0.0.1:8470", "not a control plane's address"),
        ("http://127.0.0.1:notaport", "is not a URL"),
        ("http://127.0.0.1:1/?a=b", "not a control plane's address"),
        ("https://name:word@box.example", "holds a name or a password"),
        ("", "no control plane's address was given"),
    ],
)
def test_an_address_that_can_not_be_used_is_refused_before_anything_is_sent(url, words):
    with pytest.raises(GpulayerError, match=words):
        Location.of(url, "t")


def test_more_jobs_than_a_page_holds_are_asked_for_a_page_at_a_time():
    assert "limit=500" in calls.list_jobs(limit=1000).target
