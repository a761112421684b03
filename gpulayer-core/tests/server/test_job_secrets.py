"""Secrets in the control plane: kept sealed, shown by name, released to the worker that holds the job."""

import hashlib
import json

import pytest

from gpulayer.clock import ManualClock
from gpulayer.server.retention import sweep
from gpulayer.server.store import reads
from gpulayer.server.tokens import TokenKind

VALUE = "abc123xyz"
DAY_MS = 86_400_000


def sealed_of(plane, job_id):
    return plane.call(lambda: plane.plane.query(reads.read_secrets, job_id))


def lend(plane, worker, **fields):
    job = plane.submit("true", **fields)
    worker.report()
    (command,) = plane.until(lambda: worker.commands(hold_s=1))
    return job, command


def credentials(plane, worker, epoch, token=None):
    return plane.bare.get(
        f"{plane.url}/v1/workers/{worker.id}/attempts/{epoch}/credentials",
        headers={"Authorization": f"Bearer {token or worker.token}"},
    )


def files_with(folder, needle):
    return [str(path) for path in folder.rglob("*") if path.is_file() and needle in path.read_bytes()]


def test_the_worker_that_holds_the_job_gets_the_values_and_nothing_else_shows_them(plane):
    worker = plane.worker()
    job, command = lend(plane, worker, secrets={"HF_TOKEN": VALUE, "B": "two2"})
    assert command["has_credentials"] is True
    assert VALUE not in json.dumps(command)
    answer = credentials(plane, worker, command["epoch"])
    assert answer.json() == {"secrets": {"HF_TOKEN": VALUE, "B": "two2"}, "token": None}
    assert answer.headers["cache-control"] == "no-store"
    told = [plane.http.get(path).text for path in (f"/v1/jobs/{job['id']}", "/v1/jobs", f"/v1/jobs/{job['id']}/events")]
    assert not any(VALUE in text for text in told)
    assert plane.job(job["id"])["secrets"] == ["B", "HF_TOKEN"]
    assert files_with(plane.settings.state_dir, VALUE.encode()) == []
    assert set(sealed_of(plane, job["id"])) == {"HF_TOKEN", "B"}
    kept = plane.call(lambda: plane.plane.submissions([job["id"]]))
    assert VALUE not in repr(kept)


def test_a_job_without_secrets_has_no_row_no_key_and_nothing_to_fetch(plane):
    job, command = lend(plane, plane.worker(), secrets={})
    assert command["has_credentials"] is False
    assert job["secrets"] == []
    assert not plane.settings.layout.secrets_key.exists()


def test_they_are_released_while_the_lease_lasts_and_to_its_worker_alone(plane):
    worker = plane.worker()
    _, command = lend(plane, worker, secrets={"HF_TOKEN": VALUE})
    other = plane.worker("other")
    refused = credentials(plane, other, command["epoch"])
    assert (refused.status_code, plane.check_envelope(refused)["code"]) == (409, "stale_attempt")
    assert credentials(plane, worker, command["epoch"] + 1).status_code == 409
    assert credentials(plane, worker, command["epoch"], token=other.token).status_code == 403
    assert credentials(plane, worker, command["epoch"], token=plane.token).status_code in (401, 403)
    assert credentials(plane, worker, command["epoch"]).status_code == 200
    worker.report(worker.running(command["epoch"]))
    assert credentials(plane, worker, command["epoch"]).status_code == 200  # an agent that started again
    worker.report(worker.ended(command["epoch"]))
    assert credentials(plane, worker, command["epoch"]).status_code == 409


@pytest.mark.parametrize(
    "fields",
    [
        {"secrets": {"A": "q1w"}},
        {"secrets": {"A": ""}},
        {"secrets": {"A": VALUE + "\0"}},
        {"secrets": {"A": VALUE + "x" * 70_000}},
        {"secrets": {"A": VALUE + "\n" * 2000}},
        {"secrets": {"A": [VALUE]}},
        {"secrets": {"A": {"value": VALUE}}},
        {"secrets": {"A": None}},
        {"secrets": [VALUE]},
        {"secrets": VALUE},
        {"secrets": {f"S{n}": VALUE for n in range(65)}},
        {"secrets": {f"A={VALUE}": VALUE}},
        {"secrets": {"GPULAYER_JOB_ID": VALUE}},
        {"secrets": {"A": VALUE}, "env": {"A": "1"}},
        {"secret": {"A": VALUE}},
        {"secrets": {"A": VALUE}, "priority": "high"},
        {"secrets": {"A": VALUE}, "grant": "everything"},
        {"secrets": {"A": VALUE}, "secret_names": ["A"]},
        {"secret_names": ["A"]},
        {"grant": "everything"},
    ],
)
@pytest.mark.parametrize("in_batch", [False, True])
def test_what_can_be_no_secret_is_refused_and_the_refusal_tells_no_value(plane, fields, in_batch):
    job = {"schema": 1, "command": ["true"], **fields}
    body = {"schema": 1, "jobs": [{"schema": 1, "command": ["true"]}, job]} if in_batch else job
    answer = plane.http.post("/v1/jobs:batch" if in_batch else "/v1/jobs", json=body)
    assert answer.status_code == 400, answer.text
    plane.check_envelope(answer)
    assert VALUE not in answer.text
    assert "q1w" not in answer.text
    assert plane.http.get("/v1/jobs").json()["jobs"] == []


@pytest.mark.parametrize(
    "body", [b'{"secrets": {"A": "abc123xyz', b'{"secrets": {"A": "abc123xyz\xff"}}', b"abc123xyz"]
)
def test_a_body_that_is_no_json_is_not_quoted(plane, body):
    answer = plane.http.post("/v1/jobs", content=body)
    assert answer.status_code == 400
    assert VALUE not in answer.text


def test_a_batch_with_secrets_is_kept_whole_or_not_at_all(plane):
    jobs = [
        {"schema": 1, "command": ["true"], "secrets": {"A": f"{VALUE}{n}"}}
        if n % 2
        else {"schema": 1, "command": ["true"]}
        for n in range(6)
    ]
    plane.settings.layout.secrets_key.write_bytes(b"damaged")
    answer = plane.http.post("/v1/jobs:batch", json={"schema": 1, "jobs": jobs})
    assert answer.status_code == 409
    assert "damaged" in plane.check_envelope(answer)["message"]
    assert plane.http.get("/v1/jobs").json()["jobs"] == []
    plane.settings.layout.secrets_key.unlink()
    answer = plane.http.post("/v1/jobs:batch", json={"schema": 1, "jobs": jobs})
    assert answer.status_code == 201
    assert [set(sealed_of(plane, id_)) for id_ in answer.json()["ids"]] == [set(), {"A"}] * 3


def test_the_same_key_and_body_are_the_same_job_and_its_digest_tells_nothing(plane):
    body = json.dumps({"schema": 1, "command": ["true"], "secrets": {"A": VALUE}}).encode()
    first = plane.http.post("/v1/jobs", content=body, headers={"Idempotency-Key": "k"})
    plane.restart()
    again = plane.http.post("/v1/jobs", content=body, headers={"Idempotency-Key": "k"})
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    other = plane.http.post("/v1/jobs", content=body.replace(b"xyz", b"xyy"), headers={"Idempotency-Key": "k"})
    assert other.status_code == 422
    assert VALUE not in other.text
    assert files_with(plane.settings.state_dir, hashlib.sha256(body).hexdigest().encode()) == []


def test_a_retry_gets_the_same_values_sealed_anew(plane):
    worker = plane.worker()
    job, command = lend(plane, worker, secrets={"HF_TOKEN": VALUE}, retries=0)
    worker.report(worker.ended(command["epoch"], exit_code=1))
    answer = plane.http.post(f"/v1/jobs/{job['id']}:retry", headers={"Idempotency-Key": "again"})
    assert answer.status_code == 201, answer.text
    new = answer.json()
    assert new["secrets"] == ["HF_TOKEN"]
    (command,) = plane.until(lambda: worker.commands(hold_s=1))
    assert credentials(plane, worker, command["epoch"]).json()["secrets"] == {"HF_TOKEN": VALUE}
    assert sealed_of(plane, new["id"])["HF_TOKEN"] != sealed_of(plane, job["id"])["HF_TOKEN"]
    plane.settings.layout.secrets_key.unlink()
    again = plane.http.post(f"/v1/jobs/{job['id']}:retry", headers={"Idempotency-Key": "again"})
    assert (again.status_code, again.json()["id"]) == (200, new["id"])
    refused = plane.http.post(f"/v1/jobs/{job['id']}:retry")
    assert refused.status_code == 409
    assert "secrets.key is missing" in plane.check_envelope(refused)["message"]


def test_a_lost_key_is_told_to_the_worker_and_all_else_goes_on(plane):
    worker = plane.worker()
    _, command = lend(plane, worker, secrets={"HF_TOKEN": VALUE})
    plane.settings.layout.secrets_key.unlink()
    refused = credentials(plane, worker, command["epoch"])
    assert refused.status_code == 409
    error = plane.check_envelope(refused)
    assert (error["code"], "secrets.key is missing" in error["message"]) == ("conflict", True)
    worker.report(worker.ended(command["epoch"]))
    _, command = lend(plane, worker, secrets={"HF_TOKEN": VALUE})
    assert credentials(plane, worker, command["epoch"]).json()["secrets"] == {"HF_TOKEN": VALUE}


def test_they_go_with_the_logs_and_a_retry_then_says_so(make_plane):
    clock = ManualClock(wall_offset_ms=1_795_000_000_000)
    plane = make_plane(clock=clock).start()
    plane.http.headers["Authorization"] = f"Bearer {plane.new_token(TokenKind.CLIENT, life_s=None)}"
    worker = plane.worker()
    job, command = lend(plane, worker, secrets={"HF_TOKEN": VALUE})
    worker.report(worker.ended(command["epoch"]))
    waiting = plane.submit("true", secrets={"HF_TOKEN": VALUE}, request={"cpus": 1000})

    def later(days):
        clock.advance(int(days * DAY_MS))
        plane.call(lambda: plane.plane.driver.read(lambda state: None))
        plane.call(lambda: sweep(plane.plane))

    later(29.9)
    assert sealed_of(plane, job["id"])
    later(0.2)
    assert sealed_of(plane, job["id"]) == {}
    assert waiting["state"] == "rejected" or sealed_of(plane, waiting["id"])
    refused = plane.http.post(f"/v1/jobs/{job['id']}:retry")
    assert refused.status_code == 409
    assert "not kept any more" in plane.check_envelope(refused)["message"]
    assert plane.job(job["id"])["secrets"] == ["HF_TOKEN"]


def test_a_grant_alone_is_a_reason_to_ask(plane):
    worker = plane.worker()
    job, command = lend(plane, worker, grant="own")
    assert command["has_credentials"] is True
    assert job["options"]["grant"] == "own"
    assert credentials(plane, worker, command["epoch"]).json()["secrets"] == {}
    assert not plane.settings.layout.secrets_key.exists()
