"""JSON that was made to hurt a parser: refused by name on every route that reads any, or harmless; on both ways of
parsing."""

import json

import pytest

from gpulayer.server.web import check_json
from gpulayer.wire.tokens import TokenBody

_VALUES = {
    "10,000 lists in each other": "[" * 10_000 + "]" * 10_000,
    "2,000,000 lists that never close": "[" * 2_000_000,
    "300 objects in each other": '{"a":' * 300 + "1" + "}" * 300,
    "100,000 objects in each other": '{"a":' * 100_000 + "1" + "}" * 100_000,
    "a number of 5,000 digits": "1" * 5_000,
    "a number of 4,000,000 digits": "9" * 4_000_000,
    "a number of 4,000,000 decimals": "0." + "9" * 4_000_000,
    "1e400": "1e400",
    "-1e400": "-1e400",
    "an exponent of 1,000 digits": "1e" + "9" * 1_000,
    "2**63": str(2**63),
    "2**64": str(2**64),
    "-2**63-1": str(-(2**63) - 1),
    "1.5": "1.5",
    "-0": "-0.0",
    "NaN": "NaN",
    "Infinity": "Infinity",
    "-Infinity": "-Infinity",
    "true": "true",
    "a lone high surrogate": '"\\ud800"',
    "a lone low surrogate": '"\\udc00"',
    "surrogates the wrong way round": '"\\udc00\\ud800"',
    "a raw control character": '"a\x01b"',
    "a raw line end": '"a\nb"',
    "an escape that is none": '"\\x41"',
    "a half escape": '"\\u00"',
    "a text that never ends": '"' + "a" * 100_000,
    "an octal number": "0123",
    "a hexadecimal number": "0x10",
    "a comment": "/* 1 */ 1",
    "a trailing comma": "[1,]",
    "a single quote": "'a'",
    "two values": "1 2",
    "nothing": "",
    "a list where a text belongs": "[]",
    "an object where a text belongs": "{}",
    "null": "null",
}

_PLACES = {
    "a job": ("/v1/jobs", '{"schema": 1, "command": ["true"], "priority": %s}'),
    "a job's name": ("/v1/jobs", '{"schema": 1, "command": ["true"], "name": %s}'),
    "a batch": ("/v1/jobs:batch", '{"schema": 1, "jobs": [{"schema": 1, "command": ["true"], "retries": %s}]}'),
    "a version": ("/v1/jobs", '{"schema": %s, "command": ["true"]}'),
    "an unknown field": ("/v1/jobs", '{"schema": 1, "command": ["true"], "x": %s}'),
    "a request": ("/v1/explain", '{"request": {"cpus": %s}}'),
    "a digest": ("/v1/sources:missing", '{"digests": [%s]}'),
    "a whole body": ("/v1/jobs", "%s"),
    "a whole other body": ("/v1/explain", "%s"),
    "an ignored field": ("/v1/explain", '{"request": {}, "x": %s}'),
}


@pytest.mark.parametrize("place", _PLACES.values(), ids=_PLACES.keys())
def test_json_made_to_hurt_is_answered_and_never_by_a_fault(plane, place) -> None:
    path, form = place
    for name, value in _VALUES.items():
        body = (form % value).encode()
        answer = plane.http.post(path, content=body)
        assert answer.status_code in (200, 201, 400), (name, answer.text[:200])
        if answer.status_code == 400:
            error = plane.check_envelope(answer)
            assert len(error["message"]) < 500, name
        elif path != "/v1/explain":
            # Accepted: then it means what any other reader of JSON takes it for.
            assert json.loads(body) is not None, name
    assert plane.http.get("/v1/plane").status_code == 200


@pytest.mark.parametrize("size", [10, 300_000], ids=["small", "parsed in a thread"])
def test_both_ways_of_parsing_take_the_last_of_equal_keys(plane, size) -> None:
    filler = "a" * size
    job = f'{{"schema": 1, "name": "first", "command": ["true", "{filler}"], "name": "last", "schema": 1}}'
    answer = plane.http.post("/v1/jobs", content=job)
    assert (answer.status_code, answer.json()["name"]) == (201, "last")
    batch = f'{{"schema": 1, "jobs": [{job}], "jobs": [{job.replace("last", "other")}]}}'
    ids = plane.http.post("/v1/jobs:batch", content=batch).json()["ids"]
    assert [plane.job(each)["name"] for each in ids] == ["other"]


@pytest.mark.parametrize(
    "encoded", [b"\xff\xfe{\x00}\x00", b"\xef\xbb\xbf{}", b'{"a": "\xff"}', b'{"a": "\xed\xa0\x80"}']
)
@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/jobs:batch", "/v1/explain", "/v1/plane:shutdown"])
def test_bytes_that_are_no_utf_8_are_refused(plane, path, encoded) -> None:
    answer = plane.http.post(path, content=encoded)
    assert answer.status_code == 400
    assert plane.check_envelope(answer)["code"] == "bad_request"
    assert not plane.plane.shutdown_asked.is_set()


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "a\0b"},
        {"tags": {"a\0": "b"}},
        {"tags": {"a": "\0"}},
        {"command": ["true", "\0"]},
        {"env": {"A": "\0"}},
        {"env": {"A\0": "b"}},
        {"outputs": ["a\0b"]},
        {"request": {"worker": "a\0"}},
        {"request": {"labels": {"a": "\0"}}},
        {"request": {"zone": "\0"}},
        {"request": {"device_models": ["\0"], "devices": 1}},
    ],
    ids=str,
)
def test_nul_stands_in_no_text_of_a_job(plane, changes) -> None:
    answer = plane.http.post("/v1/jobs", json={"schema": 1, "command": ["true"], **changes})
    assert answer.status_code == 400, answer.text
    assert "NUL" in plane.check_envelope(answer)["message"] or "can't name" in answer.text
    assert plane.http.get("/v1/jobs").json()["jobs"] == []


def test_counts_over_their_limits_are_named(plane) -> None:
    for field, value in {
        "command": ["a"] * 10_001,
        "tags": {str(number): "" for number in range(65)},
        "env": {f"A{number}": "" for number in range(10_001)},
        "outputs": ["a"] * 257,
        "name": "a" * 201,
        "kind": "k" * 65,
        "retry_on": "k" * 65,
    }.items():
        answer = plane.http.post("/v1/jobs", json={"schema": 1, "command": ["true"], field: value})
        assert answer.status_code == 400, field
        assert plane.check_envelope(answer)["message"].startswith(field)
    assert plane.http.post("/v1/sources:missing", json={"digests": ["0" * 64] * 200_001}).status_code == 400
    jobs = [{"schema": 1, "command": ["true"]}] * 20_001
    assert plane.http.post("/v1/jobs:batch", json={"schema": 1, "jobs": jobs}).status_code == 400


def test_a_worker_that_sends_numbers_beyond_64_bits_is_refused(plane) -> None:
    worker = plane.worker()
    for field in ("boot", "seq", "sent_ms"):
        for number in (2**63, 2**64, 10**30, -1):
            assert worker.try_report(**{field: number}).status_code == 400
    outcome = {"ended_by": "program", "exit_code": 2**70, "signal": None, "evidence": "", "blame": "user"}
    assert worker.try_report({"epoch": 1, "node": 0, "state": "ended", "outcome": outcome}).status_code == 400
    for changes in ({"cpus": 2**70}, {"memory_bytes": 2**70}, {"disk_bytes": 2**70}, {"disk_bytes": -1}):
        assert worker.try_report(facts={**worker.facts, **changes}).status_code == 400
    assert worker.report()["seq"] == worker.seq


def test_the_reader_keeps_no_text_of_a_body() -> None:
    """One that remembers short texts, to save making them, keeps thousands of keys and secrets that came once."""
    raw = json.dumps({"role": "reader", "name": "a name that is sent twice"}).encode()
    first, second = (check_json(TokenBody, raw) for _ in range(2))
    assert first == second
    assert first["name"] is not second["name"]
