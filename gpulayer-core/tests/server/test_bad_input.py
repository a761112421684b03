"""What is sent wrong: a clear error, nothing lost, nothing kept."""

import hashlib
import os

import httpx
import pytest

from gpulayer.wire.packs import frame


def _raw(plane, method: str, path: str, content: object, **headers: str) -> httpx.Response:
    sent = {"Authorization": f"Bearer {plane.token}", **headers}
    return plane.bare.request(method, plane.url + path, content=content, headers=sent)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"retries": -1}, "retries"),
        ({"retries": True}, "retries"),
        ({"command": []}, "command"),
        ({"command": ["a", 3]}, "command.1"),
        ({"command": "true"}, "command"),
        ({"command": ["a\0b"]}, "command"),
        ({"command": [""]}, "command"),
        ({"env": {"A": 1}}, "env.A"),
        ({"env": {"A=B": "1"}}, "env"),
        ({"request": {"cpus": 0}}, "request.cpus"),
        ({"request": {"gpus": 1}}, "request.gpus"),
        ({"request": {"frameworks": ["torch >="]}}, "request.frameworks"),
        ({"colour": "red"}, "colour"),
        ({"timeout_ms": 0}, "timeout_ms"),
        ({"source": {"digest": "x", "files": 1, "size_bytes": 1}}, "source.digest"),
        ({"source": {"digest": "Z" * 64, "files": 1, "size_bytes": 1}}, "source.digest"),
        ({"kind": "service"}, "kind"),
        ({"retry_on": "never"}, "retry_on"),
    ],
)
def test_a_wrong_field_is_named(plane, changes, field) -> None:
    answer = plane.http.post("/v1/jobs", json={"schema": 1, "command": ["true"], **changes})
    assert answer.status_code == 400, answer.text
    assert plane.check_envelope(answer)["message"].startswith(field)
    assert plane.http.get("/v1/jobs").json()["jobs"] == []


@pytest.mark.parametrize(("path", "body"), [("/v1/jobs", {"command": ["true"]}), ("/v1/jobs:batch", {"jobs": []})])
def test_a_submission_without_a_schema_is_told_which_one_to_name(plane, path, body) -> None:
    answer = plane.http.post(path, json=body)
    assert answer.status_code == 400
    problem = plane.check_envelope(answer)
    assert problem["message"].endswith(": schema is missing")
    assert problem["hint"] == 'say in which form it is written: "schema": 1'


def test_an_unknown_schema_version_is_named_before_anything_else(plane) -> None:
    answer = plane.http.post("/v1/jobs", json={"schema": 2, "new_field": 1})
    assert answer.status_code == 400
    assert "schema version 2" in plane.check_envelope(answer)["message"]
    answer = plane.http.post("/v1/jobs:batch", json={"schema": 7})
    assert "schema version 7" in plane.check_envelope(answer)["message"]
    worker = plane.worker()
    assert "schema version 3" in plane.check_envelope(worker.try_report(schema=3))["message"]


def test_a_body_over_the_limit_is_refused_by_its_real_size(plane) -> None:
    big = b'{"schema": 1, "command": ["' + b"x" * (17 * 2**20) + b'"]}'
    answer = _raw(plane, "POST", "/v1/jobs", big)
    assert answer.status_code == 413
    assert "16" in plane.check_envelope(answer)["message"]

    def chunks():  # no Content-Length: the bytes are counted
        for _ in range(17):
            yield b"x" * 2**20

    answer = _raw(plane, "POST", "/v1/jobs", chunks())
    assert answer.status_code == 413
    assert plane.check_envelope(answer)["details"]["limit"] == 16 * 2**20
    assert plane.submit()["id"]


@pytest.mark.parametrize("query", ["limit=0", "limit=501", "limit=x", "cursor=-1", "cursor=1_0", "state=gone"])
def test_a_wrong_query_parameter_is_named(plane, query) -> None:
    answer = plane.http.get(f"/v1/jobs?{query}")
    assert answer.status_code == 400
    assert plane.check_envelope(answer)["message"].startswith(query.split("=")[0])


def test_a_blob_must_have_its_digest_and_nothing_else_is_kept(plane) -> None:
    digest = hashlib.sha256(b"right").hexdigest()
    answer = _raw(plane, "PUT", f"/v1/blobs/{digest}", b"wrong")
    assert answer.status_code == 422
    assert plane.check_envelope(answer)["code"] == "digest_mismatch"
    assert plane.http.get(f"/v1/blobs/{digest}").status_code == 404
    assert plane.http.post("/v1/sources:missing", json={"digests": [digest]}).json() == {"missing": [digest]}
    assert list((plane.settings.layout.blobs / "tmp").iterdir()) == []
    for bad in ("..%2f..%2fetc", "A" * 64, "00", "0" * 63 + "g"):
        assert plane.http.get(f"/v1/blobs/{bad}").status_code in (400, 404)
    assert plane.http.post("/v1/sources:missing", json={"digests": ["../x"]}).status_code == 400


def test_blobs_and_packs_travel_whole(plane) -> None:
    big = os.urandom(20 * 2**20)  # more than one request body may hold: streamed
    digest = plane.put_blob(big)
    assert plane.http.get(f"/v1/blobs/{digest}").content == big
    small = [os.urandom(1000 + n) for n in range(50)]
    digests = [hashlib.sha256(content).hexdigest() for content in small]
    pack = b"".join(frame(d, c) for d, c in zip(digests, small, strict=True))
    assert _raw(plane, "POST", "/v1/blobs:pack", pack).json() == {"stored": 50}
    assert _raw(plane, "POST", "/v1/blobs:pack", pack).json() == {"stored": 0}
    assert plane.http.post("/v1/blobs:fetch", json={"digests": digests}).content == pack
    assert plane.http.post("/v1/blobs:fetch", json={"digests": [digest]}).status_code == 400
    missing = plane.http.post("/v1/blobs:fetch", json={"digests": [*digests, "0" * 64]})
    assert missing.status_code == 404
    assert "0" * 64 in plane.check_envelope(missing)["message"]


def test_a_pack_that_is_cut_short_or_lies_is_refused(plane) -> None:
    content = b"x" * 100
    whole = frame(hashlib.sha256(content).hexdigest(), content)
    assert _raw(plane, "POST", "/v1/blobs:pack", whole[:-1]).status_code == 400
    lying = bytes.fromhex("00" * 32) + whole[32:]
    assert _raw(plane, "POST", "/v1/blobs:pack", lying).status_code == 422


def test_a_damaged_blob_is_never_given_out_whole(plane) -> None:
    digest = plane.put_blob(b"a" * 3_000_000)
    path = plane.plane.blobs.path(digest)
    path.write_bytes(b"b" * 3_000_000)
    with pytest.raises(httpx.RemoteProtocolError):
        plane.http.get(f"/v1/blobs/{digest}")
    assert plane.http.post("/v1/sources:missing", json={"digests": [digest]}).json()["missing"] == [digest]


def test_a_key_that_is_too_long_is_refused(plane) -> None:
    headers = {"Idempotency-Key": "k" * 256}
    assert plane.http.post("/v1/jobs", json={"schema": 1, "command": ["true"]}, headers=headers).status_code == 400


def test_workers_with_unspeakable_names_or_keys_are_refused(plane) -> None:
    worker = plane.worker()
    for changes in ({"name": "a\nb"}, {"name": " a"}, {"name": ""}, {"public_key": "Z" * 64}, {"name": "a/b"}):
        assert worker.enrol(**changes).status_code == 400
    twice = [{"uuid": "u", "index": 0, "kind": "cuda", "model": "m", "memory_bytes": 1, "memory_free_bytes": 1}] * 2
    devices = [{**device, "compute_capability": "", "state": "usable", "reason": "", "links": {}} for device in twice]
    assert worker.enrol(facts={**worker.facts, "devices": devices}).status_code == 400
