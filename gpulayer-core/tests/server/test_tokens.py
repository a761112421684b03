"""Tokens of people and pools: made, used, listed, revoked and rotated, against a live control plane."""

import json
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gpulayer.clock import ManualClock
from gpulayer.errors import Conflict, StorageUnavailable
from gpulayer.server.auth import load_pepper
from gpulayer.server.settings import Layout
from gpulayer.server.tokens import TokenKind, parse_token
from gpulayer.wire.trail import ChainCheck

DAY_S = 86_400


@pytest.fixture
def clock():
    return ManualClock(wall_offset_ms=1_795_000_000_000)


@pytest.fixture
def people(make_plane, clock):
    """A control plane, and what people do with tokens on it."""
    plane = make_plane(clock=clock).start()
    token = plane.new_token(TokenKind.CLIENT, name="root", life_s=None)
    plane.http.headers["Authorization"] = f"Bearer {token}"

    def ask(token, method="GET", path="/v1/plane", **options):
        return plane.bare.request(method, plane.url + path, headers={"Authorization": f"Bearer {token}"}, **options)

    def create(role, **fields):
        answer = plane.http.post("/v1/tokens", json={"role": role, **fields})
        assert answer.status_code == 201, answer.text
        return SimpleNamespace(**answer.json())

    def refused(answer, status):
        assert answer.status_code == status, answer.text
        return plane.check_envelope(answer)

    def records():
        return {record["id"]: SimpleNamespace(**record) for record in plane.http.get("/v1/tokens").json()["tokens"]}

    def audit():
        return plane.http.get("/v1/audit").json()["entries"]

    return SimpleNamespace(
        plane=plane, clock=clock, ask=ask, create=create, refused=refused, records=records, audit=audit, root=token
    )


def test_a_token_of_each_role_lives_as_long_as_its_role_has_it(people):
    for role, days in (("admin", 30), ("submitter", 90), ("reader", 90)):
        made = people.create(role, name="alice")
        assert (made.role, made.name, made.expires_in_s) == (role, "alice", days * DAY_S)
        kind, id_, _ = parse_token(made.token)
        assert (kind, id_) == (TokenKind.CLIENT, made.token_id)
        you = people.ask(made.token).json()["you"]
        assert (you["token_id"], you["name"], you["role"]) == (made.token_id, "alice", role)
    assert people.create("join").expires_in_s == 900
    assert people.create("join", max_uses=3).expires_in_s == DAY_S
    assert people.create("reader", name="bob", expires_in_s=7).expires_in_s == 7


def test_a_token_without_a_name_is_called_by_its_id(people):
    made = people.create("submitter")
    assert made.name == made.token_id
    assert people.plane.plane.auth.token(made.token_id).owner == made.token_id


def test_only_the_role_allows_and_a_reader_makes_no_tokens(people):
    for role in ("reader", "submitter"):
        token = people.create(role, name="alice").token
        for method, path in (("POST", "/v1/tokens"), ("GET", "/v1/tokens"), ("GET", "/v1/audit")):
            error = people.refused(people.ask(token, method, path, json={"role": "admin", "name": "alice"}), 403)
            assert f"has the role {role}; this needs admin" in error["message"]
        people.refused(people.ask(token, "POST", "/v1/tokens/alice:revoke"), 403)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"role": "owner"}, "role: "),
        ({"name": "alice"}, "role: "),
        ({"role": "reader", "name": ""}, "name: "),
        ({"role": "reader", "name": "x" * 101}, "name: "),
        ({"role": "reader", "name": "local"}, "name: 'local' is whoever runs the control plane"),
        ({"role": "join", "name": "Local"}, "name: 'Local' is whoever runs the control plane"),
        (
            {"role": "admin", "name": "\uff4c\uff4f\uff43\uff41\uff4c"},
            "name: '\uff4c\uff4f\uff43\uff41\uff4c' is whoever runs the control plane",
        ),
        (
            {"role": "admin", "name": "\U0001d425\u24de\u1d9cAL"},
            "name: '\U0001d425\u24de\u1d9cAL' is whoever runs the control plane",
        ),
        ({"role": "admin", "name": "l\u00f3cal"}, "name: 'l\u00f3cal' is whoever runs the control plane"),
        ({"role": "admin", "name": "local\ufe0f"}, "name: 'local\ufe0f' is whoever runs the control plane"),
        ({"role": "reader", "name": "system"}, "name: 'system' is the control plane itself"),
        ({"role": "reader", "name": "\uff33ystem"}, "name: '\uff33ystem' is the control plane itself"),
        ({"role": "reader", "name": "."}, "name: '.' has characters or spaces"),
        ({"role": "join", "name": ".."}, "name: '..' has characters or spaces"),
        ({"role": "submitter", "name": "alice (job 1a2b)"}, "name: 'alice (job 1a2b)' looks like a job's"),
        ({"role": "submitter", "name": "alice \uff08JOB 1a2b)"}, "name: 'alice \uff08JOB 1a2b)' looks like a job's"),
        ({"role": "reader", "name": " alice"}, "name: ' alice' has characters or spaces"),
        ({"role": "join", "name": "rack/4"}, "name: 'rack/4' has characters or spaces"),
        ({"role": "reader", "name": "al\x1bice"}, "name: 'al\\x1bice' has characters or spaces"),
        ({"role": "reader", "name": "a", "expires_in_s": 0}, "expires_in_s: "),
        ({"role": "reader", "name": "a", "expires_in_s": 10 * 365 * DAY_S + 1}, "expires_in_s: "),
        ({"role": "reader", "name": "a", "expires_in_s": "1"}, "expires_in_s: "),
        ({"role": "reader", "name": "a", "max_uses": 1}, "max_uses: only tokens with the role join have it"),
        ({"role": "admin", "name": "a", "labels": {}}, "labels: only tokens with the role join"),
        ({"role": "submitter", "name": "a", "max_devices": 1}, "max_devices: only tokens with the role join"),
        ({"role": "join", "max_uses": 0}, "max_uses: "),
        ({"role": "join", "max_devices": -1}, "max_devices: "),
        ({"role": "join", "labels": {"": "x"}}, "labels: '' is not a label's name"),
        ({"role": "join", "labels": {"a=b": "x"}}, "labels: 'a=b' is not a label's name"),
    ],
)
def test_nonsense_is_refused_by_the_name_of_its_field_and_nothing_is_made(people, fields, said):
    before = people.records()
    error = people.refused(people.plane.http.post("/v1/tokens", json=fields), 400)
    assert error["message"].startswith(said)
    assert people.records() == before
    assert people.audit() == []


def test_no_answer_but_the_first_holds_a_token(people):
    made = [people.create("reader", name="alice"), people.create("join", max_uses=2)]
    made.append(SimpleNamespace(**people.ask(made[0].token, "POST", "/v1/tokens:rotate").json()))
    people.plane.http.post("/v1/tokens/alice:revoke", params={"all": 1})
    shown = people.plane.http.get("/v1/tokens").text + people.plane.http.get("/v1/audit").text
    people.plane.stop()
    folder = people.plane.settings.state_dir
    stored = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    for each in made:
        _, id_, secret = parse_token(each.token)
        assert id_ in shown
        assert secret not in shown
        assert id_.encode() in stored
        assert secret.encode() not in stored
    people.plane.start()


def test_the_list_tells_what_each_token_is_and_whether_it_is_good(people):
    alice = people.create("submitter", name="alice", expires_in_s=60)
    pool = people.create("join", name="rack", max_uses=2, labels={"room": "4"}, max_devices=1)
    gone = people.create("reader", name="bob")
    people.plane.http.post(f"/v1/tokens/{gone.token_id}:revoke")
    people.plane.worker("one", join_token=pool.token)
    found = people.records()
    assert (found[alice.token_id].state, found[gone.token_id].state) == ("valid", "revoked")
    record = found[pool.token_id]
    assert (record.kind, record.role, record.name, record.state) == ("join", "join", "rack", "valid")
    assert (record.max_uses, record.uses, record.labels, record.max_devices) == (2, 1, {"room": "4"}, 1)
    assert (found[alice.token_id].kind, found[alice.token_id].max_uses) == ("client", None)
    people.plane.worker("two", join_token=pool.token)
    people.clock.advance(60_000)
    found = people.records()
    assert (found[pool.token_id].state, found[alice.token_id].state) == ("used up", "expired")
    later = people.create("reader", name="carol")
    assert next(iter(people.records())) == later.token_id


def test_a_pool_token_joins_as_many_workers_as_it_says(people):
    pool = people.create("join", name="rack", max_uses=3)
    for name in ("one", "two", "three"):
        worker = people.plane.worker(name, join_token=pool.token)
        assert worker.report()
        again = worker.enrol()  # its answer got lost
        assert (again.status_code, again.json()["worker_id"]) == (200, worker.id)
    worker.key = Ed25519PrivateKey.generate()
    people.refused(worker.enrol(name="four"), 401)
    assert people.records()[pool.token_id].uses == 3
    told = [entry for entry in people.audit() if entry["action"] == "worker.enrol"]
    assert [json.loads(entry["details"])["name"] for entry in told] == ["one", "two", "three"]
    assert {entry["actor"] for entry in told} == {f"join token rack ({pool.token_id})"}
    people.plane.restart()
    people.refused(worker.enrol(name="four"), 401)


def test_a_join_token_is_no_good_twice_nor_late_nor_revoked(people):
    one, late, gone = (people.create("join") for _ in range(3))
    worker = people.plane.worker("one", join_token=one.token)
    assert people.plane.http.post(f"/v1/tokens/{gone.token_id}:revoke").status_code == 200
    people.clock.advance(900_000)
    worker.key = Ed25519PrivateKey.generate()
    for made in (one, late, gone):
        worker.join_token = made.token
        people.refused(worker.enrol(name="two"), 401)


def test_a_worker_stays_when_the_token_it_joined_with_is_revoked(people):
    made = people.create("join")
    worker = people.plane.worker("one", join_token=made.token)
    people.plane.http.post(f"/v1/tokens/{made.token_id}:revoke")
    assert worker.report()
    people.refused(worker.enrol(), 401)


def test_a_revoked_token_is_refused_at_the_next_request_and_after_a_restart(people):
    made = people.create("submitter", name="alice")
    assert people.ask(made.token).status_code == 200
    for _ in range(2):  # twice is fine
        answer = people.plane.http.post(f"/v1/tokens/{made.token_id}:revoke")
        assert (answer.status_code, answer.json()["tokens"][0]["state"]) == (200, "revoked")
        assert "was revoked" in people.refused(people.ask(made.token), 401)["message"]
    people.plane.stop()
    people.plane.token = people.root
    people.plane.start()
    assert "was revoked" in people.refused(people.ask(made.token), 401)["message"]
    assert [entry["action"] for entry in people.audit()].count("token.revoke") == 1


def test_an_expired_token_is_refused_and_says_so(people):
    made = people.create("reader", name="alice", expires_in_s=5)
    people.clock.advance(4_999)
    assert people.ask(made.token).status_code == 200
    people.clock.advance(1)
    assert "has expired" in people.refused(people.ask(made.token), 401)["message"]


def test_a_name_means_its_one_good_token_and_several_must_be_told_apart(people):
    old = people.create("submitter", name="alice", expires_in_s=5)
    people.clock.advance(5_000)
    first = people.create("submitter", name="alice")
    revoked = people.plane.http.post("/v1/tokens/alice:revoke").json()["tokens"]
    assert [(record["id"], record["state"]) for record in revoked] == [(first.token_id, "revoked")]
    again = people.plane.http.post("/v1/tokens/alice:revoke")
    assert (again.status_code, len(again.json()["tokens"])) == (200, 2)
    assert {record.state for record in people.records().values() if record.name == "alice"} == {"revoked"}
    second, third = (people.create(role, name="alice") for role in ("reader", "admin"))
    error = people.refused(people.plane.http.post("/v1/tokens/alice:revoke"), 409)
    assert {line.split()[0] for line in error["details"]["candidates"]} == {second.token_id, third.token_id}
    every = people.plane.http.post("/v1/tokens/alice:revoke", params={"all": 1}).json()["tokens"]
    assert {record["id"] for record in every} == {old.token_id, first.token_id, second.token_id, third.token_id}
    assert {record["state"] for record in every} == {"revoked"}
    people.refused(people.plane.http.post("/v1/tokens/nobody:revoke"), 404)
    people.refused(people.plane.http.post("/v1/tokens/alice:revoke", params={"all": "x"}), 400)


def test_the_token_of_the_machines_own_commands_is_neither_revoked_nor_rotated(people):
    local = people.plane.new_token(TokenKind.CLIENT, name="local", life_s=None, is_local=True)
    for path in (f"/v1/tokens/{parse_token(local)[1]}:revoke", "/v1/tokens/local:revoke", "/v1/tokens:rotate"):
        people.refused(people.ask(local, "POST", path), 409)
    assert people.ask(local).status_code == 200


def test_a_rotated_token_gives_way_to_one_of_the_same_owner_role_and_life(people):
    old = people.create("submitter", name="alice", expires_in_s=5 * DAY_S)
    people.clock.advance(4 * DAY_S * 1000)
    key = {"Authorization": f"Bearer {old.token}", "Idempotency-Key": "k"}
    body = {"schema": 1, "command": ["true"]}
    job = people.plane.bare.post(people.plane.url + "/v1/jobs", headers=key, json=body).json()
    answer = people.ask(old.token, "POST", "/v1/tokens:rotate")
    assert answer.status_code == 201
    new = SimpleNamespace(**answer.json())
    assert (new.role, new.name, new.expires_in_s) == ("submitter", "alice", 5 * DAY_S)
    same = people.plane.bare.post(
        people.plane.url + "/v1/jobs", headers={**key, "Authorization": f"Bearer {new.token}"}, json=body
    )
    assert (same.status_code, same.json()["id"]) == (200, job["id"])  # the same owner's key
    people.clock.advance(599_000)
    assert people.ask(old.token).status_code == 200
    people.clock.advance(1_000)
    assert "has expired" in people.refused(people.ask(old.token), 401)["message"]
    people.clock.advance(4 * DAY_S * 1000)
    assert people.ask(new.token).status_code == 200
    rotated = next(entry for entry in people.audit() if entry["action"] == "token.rotate")
    assert (rotated["actor"], rotated["subject"]) == (f"alice ({old.token_id})", old.token_id)
    assert json.loads(rotated["details"])["into"] == new.token_id


def test_a_token_about_to_end_is_not_prolonged_by_being_rotated(people):
    old = people.create("reader", name="alice", expires_in_s=60)
    assert people.ask(old.token, "POST", "/v1/tokens:rotate").status_code == 201
    people.clock.advance(60_000)
    people.refused(people.ask(old.token), 401)


def test_rotating_again_because_the_answer_was_lost_revokes_the_token_nobody_got(people):
    old = people.create("admin", name="alice")
    lost = people.ask(old.token, "POST", "/v1/tokens:rotate").json()
    people.plane.stop()
    people.plane.token = people.root
    people.plane.start()
    again = people.ask(old.token, "POST", "/v1/tokens:rotate").json()
    assert again["expires_in_s"] == 30 * DAY_S
    people.refused(people.ask(lost["token"]), 401)
    assert people.ask(again["token"]).status_code == 200


def test_a_token_whose_successor_is_in_use_makes_no_other(people):
    old = people.create("admin", name="alice")
    new = people.ask(old.token, "POST", "/v1/tokens:rotate").json()
    assert people.ask(new["token"]).status_code == 200
    error = people.refused(people.ask(old.token, "POST", "/v1/tokens:rotate"), 409)
    assert new["token_id"] in error["hint"]
    assert people.ask(new["token"]).status_code == 200


@pytest.mark.parametrize("ref", ["id", "name"])
def test_revoking_a_token_revokes_all_that_it_was_rotated_into_and_says_so(people, ref):
    first = people.create("submitter", name="alice")
    chain = [first]
    for _ in range(3):
        assert people.ask(chain[-1].token).status_code == 200
        made = people.ask(chain[-1].token, "POST", "/v1/tokens:rotate").json()
        chain.append(SimpleNamespace(**made))
    other = people.create("submitter", name="bob")
    answer = people.plane.http.post(f"/v1/tokens/{first.token_id if ref == 'id' else 'alice'}:revoke")
    records = answer.json()["tokens"]
    assert {(record["id"], record["state"]) for record in records} == {(one.token_id, "revoked") for one in chain}
    assert {record["id"]: record["replaces"] for record in records} == {
        one.token_id: before and before.token_id for before, one in zip([None, *chain], chain, strict=False)
    }
    for one in chain:
        people.refused(people.ask(one.token), 401)
    assert people.ask(other.token).status_code == 200
    told = [entry["subject"] for entry in people.audit() if entry["action"] == "token.revoke"]
    assert sorted(told) == sorted(one.token_id for one in chain)


def test_the_end_of_a_rotated_tokens_grace_does_not_spare_its_successor(people):
    first = people.create("submitter", name="alice")
    new = people.ask(first.token, "POST", "/v1/tokens:rotate").json()
    people.clock.advance(DAY_S * 1000)
    assert people.plane.http.post(f"/v1/tokens/{first.token_id}:revoke").status_code == 200
    people.refused(people.ask(new["token"]), 401)


def test_a_token_that_is_revoked_while_its_rotation_waits_makes_no_other(people):
    old = people.create("submitter", name="alice")
    plane = people.plane.plane
    people.plane.call(plane.enrolling.acquire)
    with ThreadPoolExecutor(2) as threads:
        revoking = threads.submit(people.plane.http.post, f"/v1/tokens/{old.token_id}:revoke")
        people.plane.until(lambda: len(plane.enrolling._waiters or ()) == 1)
        rotating = threads.submit(people.ask, old.token, "POST", "/v1/tokens:rotate")
        people.plane.until(lambda: len(plane.enrolling._waiters or ()) == 2)
        people.plane.loop.call_soon_threadsafe(plane.enrolling.release)
        assert revoking.result().status_code == 200
        assert "was revoked" in people.refused(rotating.result(), 401)["message"]
    assert [record.state for record in people.records().values() if record.name == "alice"] == ["revoked"]


def test_worker_and_join_tokens_are_not_rotated(people):
    made = people.create("join")
    assert people.ask(made.token, "POST", "/v1/tokens:rotate").status_code in (401, 403)
    worker = people.plane.worker("one", join_token=made.token)
    assert people.ask(worker.token, "POST", "/v1/tokens:rotate").status_code in (401, 403)


def test_a_revocation_among_workers_that_join_is_not_lost_and_uses_are_counted_right(people):
    pool = people.create("join", max_uses=50)
    people.plane.worker("first", join_token=pool.token)

    def join(number):
        body = people.plane.enrolment(Ed25519PrivateKey.generate(), pool.token, f"w{number}")
        return people.ask(pool.token, "POST", "/v1/workers:enrol", json=body).status_code

    with ThreadPoolExecutor(8) as pool_of_threads:
        joining = [pool_of_threads.submit(join, number) for number in range(8)]
        assert people.plane.http.post(f"/v1/tokens/{pool.token_id}:revoke").status_code == 200
        codes = [each.result() for each in joining]
    assert set(codes) <= {201, 401}
    assert join(9) == 401
    record = people.records()[pool.token_id]
    assert (record.state, record.uses) == ("revoked", 1 + codes.count(201))


def test_what_people_do_to_workers_and_the_control_plane_stands_in_the_trail(people):
    alice = people.create("admin", name="alice")
    worker = people.plane.worker("box")
    worker.report()
    for verb in ("drain", "resume"):
        assert people.ask(alice.token, "POST", f"/v1/workers/box:{verb}").status_code == 200
    assert people.ask(alice.token, "POST", "/v1/workers/box:remove", params={"force": 1}).status_code == 200
    assert people.ask(alice.token, "POST", "/v1/plane:shutdown").status_code == 200
    entries = people.audit()
    assert [(entry["action"], entry["subject"]) for entry in entries] == [
        ("token.create", alice.token_id),
        ("worker.enrol", worker.id),
        ("worker.drain", worker.id),
        ("worker.resume", worker.id),
        ("worker.remove", worker.id),
        ("plane.shutdown", ""),
    ]
    assert {entry["actor"] for entry in entries[2:]} == {f"alice ({alice.token_id})"}
    assert all(json.loads(entry["details"])["name"] == "box" for entry in entries[1:5])
    check = ChainCheck()
    assert all(check.take(entry) for entry in entries)


def test_a_change_that_could_not_be_written_is_no_change_and_no_entry(people):
    made = people.create("reader", name="alice")
    auth, driver = people.plane.plane.auth, people.plane.plane.driver

    async def refuse(*_, **__):
        raise sqlite3.OperationalError("no")

    before = people.audit()
    real, driver.submit = driver.submit, refuse
    try:
        assert people.plane.http.post(f"/v1/tokens/{made.token_id}:revoke").status_code == 500
        assert people.plane.http.post("/v1/tokens", json={"role": "reader"}).status_code == 500
        assert people.ask(made.token, "POST", "/v1/tokens:rotate").status_code == 500
    finally:
        driver.submit = real
    assert people.ask(made.token).status_code == 200
    assert (people.audit(), len([row for row in auth.tokens() if row.name == "alice"])) == (before, 1)


def test_the_trail_is_read_in_pages(people):
    for number in range(5):
        people.create("reader", name=f"n{number}")
    first = people.plane.http.get("/v1/audit", params={"limit": 2}).json()
    assert ([entry["seq"] for entry in first["entries"]], first["next"]) == ([1, 2], 2)
    rest = people.plane.http.get("/v1/audit", params={"after": 2, "limit": 1000}).json()
    assert ([entry["seq"] for entry in rest["entries"]], rest["next"]) == ([3, 4, 5], 5)
    assert people.plane.http.get("/v1/audit", params={"after": 5}).json() == {"entries": [], "next": 5}
    for query in ({"limit": 0}, {"limit": 1001}, {"after": "x"}):
        people.refused(people.plane.http.get("/v1/audit", params=query), 400)


def test_jobs_can_be_listed_by_whose_they_are_whatever_token_they_came_with(people):
    alice, again, bob = (people.create("submitter", name=name).token for name in ("alice", "alice", "bob"))
    body = {"schema": 1, "command": ["true"]}
    made = [people.ask(token, "POST", "/v1/jobs", json=body).json()["id"] for token in (alice, bob, again)]
    mine = people.ask(again, path="/v1/jobs", params={"mine": 1}).json()["jobs"]
    assert [job["id"] for job in mine] == [made[2], made[0]]
    assert {job["submitted_by"]["name"] for job in mine} == {"alice"}
    assert len({job["submitted_by"]["token_id"] for job in mine}) == 2
    assert [job["id"] for job in people.ask(again, path="/v1/jobs").json()["jobs"]] == made[::-1]
    first = people.ask(alice, path="/v1/jobs", params={"mine": 1, "limit": 1}).json()
    rest = people.ask(alice, path="/v1/jobs", params={"mine": 1, "limit": 1, "cursor": first["next"]}).json()
    assert ([job["id"] for job in first["jobs"] + rest["jobs"]], rest["next"]) == ([made[2], made[0]], None)


def test_the_pepper_is_made_once_and_one_that_is_no_pepper_is_never_replaced(tmp_path) -> None:
    layout = Layout(tmp_path)
    made = load_pepper(layout)
    assert (len(made), load_pepper(layout), layout.pepper.stat().st_mode & 0o777) == (32, made, 0o600)
    for damaged in (b"", made[:1], made[:31], made + b"\n"):
        layout.pepper.write_bytes(damaged)
        with pytest.raises(Conflict, match=f"is damaged: {len(damaged)} bytes instead of 32") as caught:
            load_pepper(layout)
        assert "put it back from a backup" in caught.value.hint
        assert layout.pepper.read_bytes() == damaged
    layout.pepper.unlink()
    layout.pepper.mkdir()
    with pytest.raises(StorageUnavailable, match="pepper can't be used: Is a directory"):
        load_pepper(layout)
    layout.pepper.rmdir()
    with pytest.raises(Conflict, match="pepper is gone, and the store holds tokens") as caught:
        load_pepper(layout, is_needed=True)
    assert "put it back from a backup" in caught.value.hint
    assert not layout.pepper.exists()
    assert load_pepper(layout) != made  # of a store that has no tokens


def test_a_plane_whose_pepper_was_lost_does_not_start_with_another(make_plane) -> None:
    plane = make_plane().start()
    token = plane.new_token(TokenKind.CLIENT, life_s=None)
    plane.stop()
    pepper = plane.settings.layout.pepper
    kept = pepper.read_bytes()
    pepper.unlink()
    with pytest.raises(Conflict, match="pepper is gone"):
        plane.start()
    assert not pepper.exists()
    pepper.write_bytes(kept)
    plane.start()
    plane.http.headers["Authorization"] = f"Bearer {token}"
    assert plane.http.get("/v1/jobs").status_code == 200
