"""Whose jobs, leases and blobs: what the table of routes can't say."""

import hashlib
import json
from typing import Any

import httpx
import pytest

from gpulayer.server.store import reads
from gpulayer.server.tokens import Role, TokenKind
from gpulayer.spec.tree import Entry, EntryKind, encode_tree

_BODY = {"schema": 1, "command": ["true"]}


def _ask(plane: Any, token: str, method: str, path: str, **sent: Any) -> httpx.Response:
    return plane.bare.request(method, plane.url + path, headers={"Authorization": f"Bearer {token}"}, **sent)


def _submit(plane: Any, token: str, **fields: Any) -> str:
    answer = _ask(plane, token, "POST", "/v1/jobs", json={**_BODY, **fields})
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


def _start(worker: Any) -> tuple[str, int]:
    """Take the next job: its id and its attempt's epoch."""
    (command,) = [each for each in worker.commands(hold_s=10) if each["type"] == "assign"]
    worker.holding.append(command["epoch"])
    worker.report(worker.running(command["epoch"]))
    return command["job_id"], command["epoch"]


def _granted(plane: Any, worker: Any, token: str, grant: str, **fields: Any) -> tuple[str, str]:
    """A running job, and its own token."""
    job = _submit(plane, token, grant=grant, **fields)
    started, epoch = _start(worker)
    assert started == job
    return job, plane.plane.auth.job_token(epoch, job)


def _tree(plane: Any, **files: bytes) -> tuple[dict[str, Any], list[str]]:
    """A source as a submission names it, and its digests: of the root, then of the files."""
    digests = [plane.put_blob(content) for content in files.values()]
    entries = [
        Entry(name, EntryKind.FILE, digest=digest, size=len(content))
        for (name, content), digest in zip(files.items(), digests, strict=True)
    ]
    root = plane.put_blob(encode_tree(entries))
    size = sum(map(len, files.values()))
    return {"digest": root, "files": len(files), "size_bytes": size}, [root, *digests]


def _audit(plane: Any) -> list[Any]:
    async def read() -> list[Any]:
        return [row.entry for row in await plane.plane.query(reads.read_audit, after=0, limit=100)]

    return plane.call(read)


def test_a_submitter_is_told_whose_the_job_is_that_is_not_its_own(plane) -> None:
    alice, bob = plane.client_token("alice", Role.SUBMITTER), plane.client_token("bob", Role.SUBMITTER)
    job = _submit(plane, alice)
    for action in ("cancel", "retry"):
        answer = _ask(plane, bob, "POST", f"/v1/jobs/{job}:{action}")
        assert answer.status_code == 403
        error = plane.check_envelope(answer)
        assert f"job {job} is alice's" in error["message"]
        assert "the jobs of bob" in error["message"]
        assert error["hint"] == "ask alice or an admin"
    assert _ask(plane, bob, "GET", f"/v1/jobs/{job}").json()["state"] == "queued"
    assert _audit(plane) == []


def test_a_new_token_of_the_same_name_manages_the_same_jobs_and_knows_the_same_keys(plane) -> None:
    first = plane.client_token("alice", Role.SUBMITTER)
    job = _submit(plane, first)
    key = {"Idempotency-Key": "once", "Authorization": f"Bearer {first}"}
    made = plane.bare.post(f"{plane.url}/v1/jobs", json=_BODY, headers=key)
    plane.revoke(first)
    second = plane.client_token("alice", Role.SUBMITTER)
    key["Authorization"] = f"Bearer {second}"
    again = plane.bare.post(f"{plane.url}/v1/jobs", json=_BODY, headers=key)
    assert (again.status_code, again.json()["id"]) == (200, made.json()["id"])
    assert _ask(plane, second, "POST", f"/v1/jobs/{job}:cancel").json()["state"] == "cancelled"


def test_keys_of_two_owners_are_apart(plane) -> None:
    found = set()
    for name in ("alice", "bob"):
        headers = {"Authorization": f"Bearer {plane.client_token(name, Role.SUBMITTER)}", "Idempotency-Key": "k"}
        answer = plane.bare.post(f"{plane.url}/v1/jobs", json=_BODY, headers=headers)
        assert answer.status_code == 201
        assert answer.json()["submitted_by"]["name"] == name
        found.add(answer.json()["id"])
    assert len(found) == 2


def test_an_admin_may_cancel_anybodys_job_and_the_audit_trail_tells_of_it(plane) -> None:
    alice, root = plane.client_token("alice", Role.SUBMITTER), plane.client_token("root", Role.ADMIN)
    theirs, own = _submit(plane, alice, name="train"), _submit(plane, root)
    assert _ask(plane, root, "POST", f"/v1/jobs/{own}:cancel").status_code == 200
    assert _audit(plane) == []
    for _ in range(2):  # the second finds it cancelled
        assert _ask(plane, root, "POST", f"/v1/jobs/{theirs}:cancel").json()["state"] == "cancelled"
    (entry,) = _audit(plane)
    assert (entry.action, entry.subject) == ("job.cancel_other", theirs)
    assert entry.actor == f"root ({root[4:16]})"
    assert "alice" in entry.details


def test_a_job_that_an_admin_runs_again_stays_its_owners(plane) -> None:
    alice, root = plane.client_token("alice", Role.SUBMITTER), plane.client_token("root", Role.ADMIN)
    job = _submit(plane, alice)
    assert _ask(plane, alice, "POST", f"/v1/jobs/{job}:cancel").status_code == 200
    again = _ask(plane, root, "POST", f"/v1/jobs/{job}:retry").json()
    assert again["submitted_by"] == {"token_id": root[4:16], "name": "root", "client": again["submitted_by"]["client"]}
    assert _ask(plane, alice, "POST", f"/v1/jobs/{again['id']}:cancel").json()["state"] == "cancelled"


def test_an_admin_that_runs_anothers_job_again_is_told_of_and_uses_up_none_of_the_owners_keys(plane) -> None:
    alice, root = plane.client_token("alice", Role.SUBMITTER), plane.client_token("root", Role.ADMIN)
    theirs, own = _submit(plane, alice, name="train"), _submit(plane, root)
    for job in (theirs, own):
        assert _ask(plane, root, "POST", f"/v1/jobs/{job}:cancel").status_code == 200
    before = len(_audit(plane))

    def retry(token: str, job: str, key: str) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": key}
        return plane.bare.post(f"{plane.url}/v1/jobs/{job}:retry", headers=headers)

    first, second = retry(root, theirs, "k"), retry(root, theirs, "k")  # the second repeats the first
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json()["id"] == second.json()["id"]
    (entry,) = _audit(plane)[before:]
    assert (entry.action, entry.subject, entry.actor) == ("job.retry_other", theirs, f"root ({root[4:16]})")
    assert json.loads(entry.details) == {"into": first.json()["id"], "name": "train", "owner": "alice"}
    # The same key is alice's to use, for this and for anything else.
    assert plane.bare.post(
        f"{plane.url}/v1/jobs", json=_BODY, headers={"Authorization": f"Bearer {alice}", "Idempotency-Key": "k"}
    ).json()["id"] not in (theirs, first.json()["id"])
    assert retry(root, own, "k").status_code == 422  # and root's is used up
    assert retry(root, own, "other").status_code == 201
    assert retry(alice, theirs, "mine").status_code == 201
    assert len(_audit(plane)) == before + 1


def test_revoking_acts_on_the_very_next_request(plane) -> None:
    token = plane.client_token("alice", Role.SUBMITTER)
    with httpx.Client(headers={"Authorization": f"Bearer {token}"}, trust_env=False) as client:
        assert client.get(f"{plane.url}/v1/jobs").status_code == 200
        plane.revoke(token)
        answer = client.get(f"{plane.url}/v1/jobs")
    assert answer.status_code == 401
    assert "was revoked" in plane.check_envelope(answer)["message"]
    assert "gpulayer token create" in plane.check_envelope(answer)["hint"]
    plane.restart()
    assert _ask(plane, token, "GET", "/v1/jobs").status_code == 401


@pytest.mark.parametrize(
    ("token", "message", "hint"),
    [
        ("glc_0123456789ab_cut", "begins with glc_ and is not whole", "copy it again"),
        ("gle_", "begins with gle_ and is not whole", "copy it again"),
        ("ghp_0123", "this is no token", "begins with glc_"),
        ("{gle}", "a join token does not open this route", "gpulayer join"),
    ],
)
def test_a_refused_token_is_answered_with_the_next_step(plane, token, message, hint) -> None:
    answer = _ask(plane, token.replace("{gle}", plane.new_token(TokenKind.JOIN)), "GET", "/v1/jobs")
    assert answer.status_code in (401, 403)
    error = plane.check_envelope(answer)
    assert message in error["message"]
    assert hint in error["hint"]


def test_a_job_with_the_grant_own_reads_what_is_its_own_and_learns_of_nothing_else(plane) -> None:
    alice = plane.client_token("alice", Role.SUBMITTER)
    worker = plane.worker(cpus=8)
    worker.report()
    other = _submit(plane, alice, name="other", request={"labels": {"no": "such"}})
    source, digests = _tree(plane, **{"a.py": b"print(1)"})
    _, (_, elsewhere) = _tree(plane, **{"b.py": b"print(2)"})
    job, token = _granted(plane, worker, alice, "own", source=source, name="mine")
    for path in ("", "/events", "/outputs", "/logs"):
        assert _ask(plane, token, "GET", f"/v1/jobs/{job}{path}").status_code == 200
        assert _ask(plane, token, "GET", f"/v1/jobs/mine{path}").status_code == 200
        refusals = [_ask(plane, token, "GET", f"/v1/jobs/{ref}{path}") for ref in (other, "other", "nothing", "f" * 16)]
        assert {answer.status_code for answer in refusals} == {403}
        assert len({answer.text for answer in refusals}) == 1
    assert _ask(plane, token, "GET", f"/v1/jobs/{job}", params={"wait_s": 0.01}).json()["state"] == "running"
    for digest in digests:
        assert _ask(plane, token, "GET", f"/v1/blobs/{digest}").status_code == 200
    refused = _ask(plane, token, "GET", f"/v1/blobs/{elsewhere}")
    unknown = _ask(plane, token, "GET", f"/v1/blobs/{'0' * 64}")
    assert (refused.status_code, unknown.status_code) == (403, 403)
    assert refused.text.replace(elsewhere, "") == unknown.text.replace("0" * 64, "")
    answer = _ask(plane, token, "POST", "/v1/jobs", json=_BODY)
    assert answer.status_code == 403
    assert "--grant submit" in plane.check_envelope(answer)["hint"]


@pytest.mark.parametrize("grant", ["own", "submit"])
def test_a_job_that_asks_for_more_than_its_own_is_told_what_its_token_is_good_for(plane, grant) -> None:
    worker = plane.worker()
    worker.report()
    job, token = _granted(plane, worker, plane.client_token("alice", Role.SUBMITTER), grant)
    for path in ("/v1/plane", "/v1/jobs", "/v1/workers"):
        answer = plane.bare.get(plane.url + path, headers={"Authorization": f"Bearer {token}"})
        assert answer.status_code == 403
        hint = plane.check_envelope(answer)["hint"]
        assert f"gpulayer job show, logs, events and result {job}" in hint
        assert ("gpulayer submit; job cancel and retry of those" in hint) == (grant == "submit")
        assert ("with --grant submit also" in hint) == (grant == "own")


def test_a_job_with_the_grant_submit_manages_what_it_submitted_in_any_of_its_attempts(plane) -> None:
    alice = plane.client_token("alice", Role.SUBMITTER)
    worker = plane.worker(cpus=8)
    worker.report()
    plane.worker("asleep")
    before = _submit(plane, alice, request={"worker": "asleep"})
    job, token = _granted(plane, worker, alice, "submit", retry_on="any", retries=2)
    child = _submit(plane, token, grant="own", request={"worker": "asleep"})
    made = _ask(plane, alice, "GET", f"/v1/jobs/{child}").json()["submitted_by"]
    assert (made["name"], made["token_id"]) == (f"alice (job {job})", token[4:16])
    for path in ("", "/events", "/outputs", "/logs"):
        assert _ask(plane, token, "GET", f"/v1/jobs/{child}{path}").status_code == 200
        assert _ask(plane, token, "GET", f"/v1/jobs/{before}{path}").status_code == 403
    for foreign in (job, before):  # its owner's other jobs are not its own, and it does not end itself
        assert _ask(plane, token, "POST", f"/v1/jobs/{foreign}:cancel").status_code == 403
    epoch = worker.holding.pop()
    worker.report(worker.ended(epoch, 1))
    again, epoch = _start(worker)
    assert again == job
    assert _ask(plane, token, "GET", f"/v1/jobs/{child}").status_code == 401  # of the attempt that has ended
    token = plane.plane.auth.job_token(epoch, job)
    assert _ask(plane, token, "POST", f"/v1/jobs/{child}:cancel").json()["state"] == "cancelled"
    retried = _ask(plane, token, "POST", f"/v1/jobs/{child}:retry")
    assert retried.status_code == 201
    assert _ask(plane, alice, "POST", f"/v1/jobs/{retried.json()['id']}:cancel").json()["state"] == "cancelled"


def test_a_job_reads_the_outputs_of_the_jobs_that_it_submitted(plane) -> None:
    alice = plane.client_token("alice", Role.SUBMITTER)
    worker = plane.worker(cpus=8)
    worker.report()
    _, parent = _granted(plane, worker, alice, "submit")
    _, stranger = _granted(plane, worker, alice, "submit")
    child = _submit(plane, parent)
    started, epoch = _start(worker)
    assert started == child
    _, (root, result) = _tree(plane, **{"result.bin": b"42"})
    assert worker.put_outputs(epoch, root).status_code == 200
    assert _ask(plane, parent, "GET", f"/v1/blobs/{result}").status_code == 403
    worker.holding.remove(epoch)
    worker.report(worker.ended(epoch, outputs=root))
    assert _ask(plane, parent, "GET", f"/v1/jobs/{child}/outputs").json()["tree"] == root
    assert _ask(plane, parent, "GET", f"/v1/blobs/{result}").content == b"42"
    assert _ask(plane, stranger, "GET", f"/v1/blobs/{result}").status_code == 403


def test_keys_of_a_job_are_not_its_owners(plane) -> None:
    alice = plane.client_token("alice", Role.SUBMITTER)
    worker = plane.worker(cpus=8)
    worker.report()
    _, token = _granted(plane, worker, alice, "submit")
    ids = []
    for holder in (alice, token, token):
        headers = {"Authorization": f"Bearer {holder}", "Idempotency-Key": "step 1"}
        ids.append(plane.bare.post(f"{plane.url}/v1/jobs", json=_BODY, headers=headers).json()["id"])
    assert ids[0] != ids[1] == ids[2]


def test_a_jobs_token_ends_with_its_attempt_and_is_good_for_no_other(plane) -> None:
    alice = plane.client_token("alice", Role.SUBMITTER)
    worker = plane.worker(cpus=8)
    worker.report()
    job, token = _granted(plane, worker, alice, "own")
    epoch = worker.holding[-1]
    auth = plane.plane.auth
    for wrong in (
        auth.job_token(epoch, "f" * 16),  # the same epoch of another job: of a store that was brought back
        auth.job_token(epoch + 1, job),
        auth.job_token(0, ""),
        auth.job_token(2**47, job),
    ):
        assert _ask(plane, wrong, "GET", f"/v1/jobs/{job}").status_code == 401
    plane.restart()
    assert _ask(plane, token, "GET", f"/v1/jobs/{job}").status_code == 200
    worker.open_session()
    worker.report(worker.ended(epoch))
    answer = _ask(plane, token, "GET", f"/v1/jobs/{job}")
    assert answer.status_code == 401
    assert "as long as the attempt" in plane.check_envelope(answer)["hint"]


def test_a_job_that_was_granted_nothing_has_no_token(plane) -> None:
    worker = plane.worker()
    worker.report()
    job, token = _granted(plane, worker, plane.token, "")
    assert _ask(plane, token, "GET", f"/v1/jobs/{job}").status_code == 401


def test_a_worker_reads_the_sources_of_what_it_holds_and_only_while_it_holds_it(plane) -> None:
    worker, idle = plane.worker("one"), plane.worker("two")
    for each in (worker, idle):
        each.report()
    source, digests = _tree(plane, **{"a.py": b"print(1)", "b.py": b"print(2)"})
    _, (other_root, other) = _tree(plane, **{"a.py": b"secret"})
    assert _ask(plane, worker.token, "GET", f"/v1/blobs/{digests[1]}").status_code == 403
    _submit(plane, plane.token, source=source, request={"worker": "one"})
    _, epoch = _start(worker)
    plane.restart()  # what it may read is worked out again
    worker.open_session()
    worker.report()
    idle.open_session()
    for digest in digests:
        assert _ask(plane, worker.token, "GET", f"/v1/blobs/{digest}").status_code == 200
        assert _ask(plane, idle.token, "GET", f"/v1/blobs/{digest}").status_code == 403
    fetched = _ask(plane, worker.token, "POST", "/v1/blobs:fetch", json={"digests": digests})
    assert fetched.status_code == 200
    assert b"print(2)" in fetched.content
    for foreign in (other, other_root, "0" * 64):
        answer = _ask(plane, worker.token, "POST", "/v1/blobs:fetch", json={"digests": [*digests, foreign]})
        assert answer.status_code == 403
        assert (
            plane.check_envelope(answer)["message"] == f"blob {foreign} is part of no job that is lent to this worker"
        )
    worker.holding.clear()
    worker.report(worker.ended(epoch))
    assert _ask(plane, worker.token, "GET", f"/v1/blobs/{digests[1]}").status_code == 403


def test_a_worker_uploads_what_it_may_not_read(plane) -> None:
    worker = plane.worker()
    digest = hashlib.sha256(b"result").hexdigest()
    missing = _ask(plane, worker.token, "POST", "/v1/sources:missing", json={"digests": [digest]})
    assert missing.json() == {"missing": [digest]}
    assert _ask(plane, worker.token, "PUT", f"/v1/blobs/{digest}", content=b"result").status_code == 201
    assert _ask(plane, worker.token, "GET", f"/v1/blobs/{digest}").status_code == 403
