"""A worker is one start of its agent: copies of its folder, restarts, and what the earlier start has under way."""

import asyncio
import json
import threading

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gpulayer.clock import ManualClock
from gpulayer.errors import Conflict, Unauthenticated
from gpulayer.ids import WorkerId
from gpulayer.server.auth import Auth
from gpulayer.server.starts import Incumbent, Start
from gpulayer.server.starts import superseded as superseded_by
from gpulayer.server.store import IdentityRow
from gpulayer.server.tokens import TokenKind
from gpulayer.wire.sessions import session_text

WORKER = WorkerId("w1")
FIRST, COPY = Start(1, "a"), Start(1, "b")


class Signer:
    """An ``Auth`` that knows one worker, and that worker's key."""

    def __init__(self, **known):
        self.key = Ed25519PrivateKey.generate()
        row = IdentityRow(WORKER, self.key.public_key().public_bytes_raw().hex(), 0, is_local=False, **known)
        clock = ManualClock(wall_offset_ms=1_795_000_000_000)
        self.auth = Auth(pepper=b"p" * 32, clock=clock, attempts=None, identities=[row])
        self.counter = 0

    def take(self, start, *, signed=None):
        self.counter += 1
        named = signed or start
        fields = {} if named is None else {"boot": named.boot, "instance": named.instance}
        signature = self.key.sign(session_text(WORKER, self.counter, **fields).encode()).hex()
        return self.auth.take_signature(WORKER, self.counter, signature, start=start)

    def session(self, start):
        self.take(start)
        return f"Bearer {self.auth.open_session(WORKER, 60, start=start)}"

    def is_good(self, header):
        try:
            asyncio.run(self.auth.authenticate(header))
        except Unauthenticated:
            return False
        return True

    def is_refused(self, start):
        with pytest.raises(Conflict) as caught:
            self.take(start)
        assert caught.value.details == {"superseded": True, "boot": self.auth.identity(WORKER).boot}
        assert "was its folder copied" in caught.value.message
        return True


def test_a_newer_start_ends_the_sessions_of_all_earlier_ones_and_of_agents_that_name_none():
    signer = Signer()
    old = [signer.session(None), signer.session(FIRST), signer.session(FIRST)]
    assert [signer.is_good(header) for header in old] == [False, True, True]
    new = signer.session(Start(2, "c"))
    assert [signer.is_good(header) for header in (*old, new)] == [False, False, False, True]


def test_sessions_of_one_start_live_beside_each_other():
    signer = Signer()
    first, second = signer.session(FIRST), signer.session(FIRST)
    assert signer.is_good(first)
    assert signer.is_good(second)


@pytest.mark.parametrize("newcomer", [COPY, Start(0, "a"), Start(0, "c")])
def test_an_earlier_start_and_another_one_of_the_same_number_are_refused_and_change_nothing(newcomer):
    signer = Signer()
    session = signer.session(FIRST)
    assert signer.is_refused(newcomer)
    assert signer.is_good(session)
    assert signer.take(FIRST) == ()


def test_the_start_that_was_replaced_is_refused_when_it_signs_again_and_told_since_when():
    signer = Signer()
    signer.session(FIRST)
    signer.session(Start(2, "c"))
    with pytest.raises(Conflict, match="since 2026-11-18 11:06:40 UTC"):
        signer.take(FIRST)


def test_a_start_that_was_replaced_while_its_counter_was_written_gets_no_session():
    signer = Signer()
    signer.take(FIRST)
    signer.take(Start(2, "c"))
    with pytest.raises(Conflict, match="another agent"):
        signer.auth.open_session(WORKER, 60, start=FIRST)
    assert signer.auth.open_session(WORKER, 60, start=Start(2, "c"))


def test_a_boot_of_which_no_instance_is_known_is_taken_by_the_first_that_comes():
    signer = Signer(boot=7)
    assert signer.is_refused(Start(6, "a"))
    signer.session(Start(7, "a"))
    assert signer.is_refused(Start(7, "b"))


def test_a_signature_is_good_for_the_start_that_it_names_alone():
    signer = Signer()
    for signed, told in ((FIRST, COPY), (FIRST, Start(2, "a")), (Start(2, "c"), None)):
        with pytest.raises(Unauthenticated, match="not this worker's"):
            signer.take(told, signed=signed)


def test_a_row_that_was_read_before_a_start_brings_no_earlier_one_back():
    signer = Signer()
    read = signer.auth.identity(WORKER)
    signer.session(FIRST)
    signer.auth.keep_identity(read)
    assert signer.is_refused(COPY)


def test_what_is_told_of_the_newest_start_is_what_is_known_of_it():
    row = IdentityRow(WORKER, "k", 0, is_local=False, boot=7, started_wall_ms=1_795_000_000_000)
    heard_ms = 1_795_000_600_000
    alive, kept, free = (superseded_by(row, Incumbent(heard_ms, *of)) for of in ((0, 0), (1, 0), (1, 1)))
    assert "another agent runs with this worker's identity since 2026-11-18 11:06:40 UTC: was" in alive.message
    assert (
        "ran with this worker's identity since 2026-11-18 11:06:40 UTC and was last heard of at 2026-11-18 11:16:40"
        in kept.message
    )
    assert "jobs that are kept for it stand" in kept.message
    assert "jobs that are kept" not in free.message
    assert [one.details.get("is_free") for one in (alive, kept, free)] == [None, 0, 1]
    assert "never heard" in superseded_by(row, Incumbent(0, is_silent=True, is_free=True)).message


# Over the wire -------------------------------------------------------------------------------------------------------


def superseded(plane, answer):
    assert answer.status_code == 409, answer.text
    error = plane.check_envelope(answer)
    assert error["code"] == "conflict"
    assert error["details"]["superseded"] is True
    return True


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_copy_of_the_same_start_is_refused_also_after_a_restart_of_the_control_plane(plane, is_restarted):
    worker = plane.worker()
    worker.open_session(start=(1, "a"))
    if is_restarted:
        plane.restart()
        superseded(plane, worker.session(start=(1, "b")))
        worker.open_session(start=(1, "a"))
    superseded(plane, worker.session(start=(1, "b")))
    superseded(plane, worker.session(start=(0, "a")))
    assert worker.try_report().status_code == 200


def test_what_the_earlier_start_asked_for_before_is_refused_or_ended_at_once(plane):
    worker = plane.worker()
    worker.open_session(start=(1, "a"))
    worker.report(recovered=[])
    job = plane.submit("true")
    (order,) = plane.until(lambda: worker.commands(hold_s=5))
    worker.holding = [order["epoch"]]
    worker.report(worker.running(order["epoch"]))
    assert worker.put_log(order["epoch"], 0, b"one\n").status_code == 200
    held = []
    path = f"{plane.url}/v1/workers/{worker.id}/commands"
    ask = {"params": {"after": worker.cursor, "hold_s": 60}, "headers": worker.headers, "timeout": 60}
    waiting = threading.Thread(target=lambda: held.append(plane.bare.get(path, **ask)))
    waiting.start()
    plane.until(lambda: plane.plane.hub.is_watched(("commands", worker.id)))
    assert worker.session(start=(2, "b")).status_code == 201
    waiting.join(30)
    assert [answer.status_code for answer in held] == [401]
    assert worker.put_log(order["epoch"], 4, b"two\n").status_code == 401
    assert worker.try_report(worker.ended(order["epoch"])).status_code == 401
    assert worker.put_outputs(order["epoch"], "0" * 64).status_code == 401
    assert plane.job(job["id"])["state"] == "running"
    assert plane.http.get(f"/v1/jobs/{job['id']}/logs").content == b"one\n"
    superseded(plane, worker.session(start=(1, "a")))


def test_an_older_boot_in_a_report_of_an_agent_that_names_no_start_is_refused(plane):
    worker = plane.worker()
    worker.open_session(start=(2, "a"))
    worker.open_session()
    worker.boot = 1
    superseded(plane, worker.try_report())
    worker.boot = 2
    assert worker.try_report().status_code == 200


@pytest.mark.parametrize("has_asked", [False, True])
@pytest.mark.parametrize("is_unsure", [False, True])
def test_what_a_start_was_told_that_said_no_more_is_begun_by_no_start_that_may_be_of_an_older_folder(
    plane, has_asked, is_unsure
):
    worker = plane.worker()
    worker.open_session(start=(1, "a"))
    worker.report(recovered=[])
    worker.commands()
    job = plane.submit("true", retries=0)
    plane.until(lambda: plane.job(job["id"])["state"] == "staging")
    if has_asked:
        plane.until(lambda: worker.commands(hold_s=5))
    worker.open_session(start=(2, "b"))
    worker.boot, worker.cursor = 2, ""
    worker.report(recovered=[], **({"unsure": True} if is_unsure else {}))
    orders = worker.commands()
    record = plane.job(job["id"])
    if has_asked and is_unsure:
        assert (record["state"], record["ended_by"], orders) == ("lost", "worker_lost", [])
    else:
        assert (record["state"], len(orders)) == ("staging", 1)


def test_what_was_lent_before_a_restart_of_the_control_plane_may_have_been_told(plane):
    worker = plane.worker()
    worker.open_session(start=(1, "a"))
    worker.report(recovered=[])
    job = plane.submit("true", retries=0)
    plane.until(lambda: plane.job(job["id"])["state"] == "staging")
    plane.restart()
    worker.open_session(start=(2, "b"))
    worker.boot, worker.cursor = 2, ""
    worker.report(recovered=[], unsure=True)
    assert plane.job(job["id"])["state"] == "lost"


def test_a_rolled_back_folder_has_its_worker_back_when_the_newest_start_is_silent_and_holds_nothing(plane):
    worker = plane.worker()
    worker.open_session(start=(2, "b"))
    worker.boot = 2
    worker.report(recovered=[])
    answer = worker.session(start=(1, "a"))
    assert "is_free" not in plane.check_envelope(answer)["details"]
    assert plane.http.get(f"/v1/workers/{worker.id}").json()["refused"]
    job = plane.submit("sleep 600", retries=0)
    plane.until(lambda: worker.commands(hold_s=5))
    plane.plane.driver._state.workers[worker.id].heard_ms -= 40_000
    plane.until(lambda: plane.job(job["id"])["state"] == "unreachable")
    assert plane.check_envelope(worker.session(start=(1, "a")))["details"]["is_free"] is False
    assert plane.http.post(f"/v1/jobs/{job['id']}:cancel", json={}).status_code in (200, 202)
    plane.until(lambda: plane.job(job["id"])["state"] == "cancelled")
    assert plane.check_envelope(worker.session(start=(1, "a")))["details"] == {
        "superseded": True,
        "boot": 2,
        "is_free": True,
    }
    worker.open_session(start=(3, "a"))
    assert "refused" not in plane.http.get(f"/v1/workers/{worker.id}").json()


def test_the_trail_tells_once_of_a_start_that_was_refused(plane):
    worker = plane.worker()
    worker.open_session(start=(1, "a"))
    worker.open_session(start=(2, "b"))
    for start in ((1, "a"), (1, "a"), (2, "c"), (2, "c")):
        superseded(plane, worker.session(start=start))
    entries = [one for one in plane.http.get("/v1/audit").json()["entries"] if one["action"] == "worker.superseded"]
    assert [(one["actor"], one["subject"]) for one in entries] == [("system", worker.id)] * 2
    told = [json.loads(one["details"]) for one in entries]
    assert told == [{"address": "127.0.0.1", "boot": boot, "newest": 2} for boot in (1, 2)]


def test_half_a_start_and_an_instance_that_is_none_are_no_request(plane):
    worker = plane.worker()
    path = f"{plane.url}/v1/workers/{worker.id}/sessions"
    body = {"schema": 1, "counter": 9, "signature": "0" * 128}
    for half in ({"boot": 1}, {"instance": "a"}, {"boot": 1, "instance": "a:b"}, {"boot": 1, "instance": ""}):
        assert plane.bare.post(path, json={**body, **half}).status_code == 400


def test_a_worker_that_was_removed_and_joins_with_the_same_key_starts_from_nothing(plane):
    worker = plane.worker()
    worker.open_session(start=(9, "a"))
    assert plane.http.post(f"/v1/workers/{worker.id}:remove", params={"force": 1}).status_code == 200
    worker.join_token = plane.new_token(TokenKind.JOIN)
    worker.id = worker.enrol().json()["worker_id"]
    worker.open_session(start=(1, "b"))
    assert worker.try_report().status_code == 200
