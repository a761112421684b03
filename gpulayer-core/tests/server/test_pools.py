"""Join tokens that several workers share, and what they say of those workers."""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gpulayer.ids import WorkerId
from gpulayer.server.pools import offered
from gpulayer.server.store import IdentityRow
from gpulayer.server.tokens import TokenKind
from gpulayer.spec.machine import Device, WorkerFacts
from gpulayer.spec.request import Accelerator


def _device(index: int) -> dict[str, object]:
    links = {f"GPU-{peer}": "nvlink" for peer in range(3) if peer != index}
    return {
        "uuid": f"GPU-{index}",
        "index": index,
        "kind": "cuda",
        "model": "A100",
        "memory_bytes": 2**35,
        "memory_free_bytes": None,
        "compute_capability": "8.0",
        "state": "usable",
        "reason": "",
        "links": links,
    }


def test_a_pool_token_joins_as_many_workers_as_it_says_and_each_may_come_again(plane) -> None:
    token = plane.new_token(TokenKind.JOIN, max_uses=2)
    one = plane.worker("one", join_token=token)
    assert one.enrol().status_code == 200  # costs no use
    two = plane.worker("two", join_token=token)
    plane.restart()
    for worker in (one, two):
        assert worker.enrol().status_code == 200
        assert worker.enrol().json()["worker_id"] == worker.id
    two.key = Ed25519PrivateKey.generate()
    refused = two.enrol(name="three")
    assert refused.status_code == 401
    error = plane.check_envelope(refused)
    assert "used by the 2 workers it was made for" in error["message"]
    assert "gpulayer token create --role join" in error["hint"]


def test_a_worker_that_was_removed_joins_again_with_a_new_token_and_not_with_the_one_it_had(plane) -> None:
    token = plane.new_token(TokenKind.JOIN, max_uses=5)
    one, two = (plane.worker(name, join_token=token) for name in ("one", "two"))
    one.report()
    assert plane.http.post("/v1/workers/one:remove?force=1").status_code == 200
    for _ in range(2):
        refused = one.enrol(name="another")
        assert refused.status_code == 401
        error = plane.check_envelope(refused)
        assert "this worker was removed" in error["message"]
        assert "gpulayer token create --role join" in error["hint"]
        plane.restart()
    assert two.enrol().status_code == 200  # its own key was not removed
    assert plane.worker("three", join_token=token).id
    one.join_token = plane.new_token(TokenKind.JOIN)
    assert one.enrol().status_code == 201
    assert [worker["name"] for worker in plane.http.get("/v1/workers").json()["workers"]] == ["one", "three", "two"]


def test_labels_and_devices_are_as_the_token_says_whatever_the_worker_says(plane) -> None:
    labels = (("pool", "shared"), ("room", "north"))
    token = plane.new_token(TokenKind.JOIN, labels=labels, max_devices=1)
    facts = {"labels": {"pool": "mine", "disk": "fast"}, "devices": [_device(2), _device(0), _device(1)]}
    worker = plane.worker("one", join_token=token, **facts)

    def check() -> None:
        record = plane.http.get("/v1/workers/one").json()
        assert record["labels"] == {"disk": "fast", "pool": "shared", "room": "north"}
        assert [device["uuid"] for device in record["devices"]] == ["GPU-0"]
        assert record["devices"][0]["links"] == {}

    check()
    worker.report(facts={**worker.facts, "labels": {"pool": "mine", "room": "south", "disk": "fast"}})
    check()
    plane.restart()  # the identity remembers it
    worker.open_session()
    worker.report(recovered=[], facts=worker.facts)
    check()
    assert plane.submit("true", request={"accelerators": ["cuda"], "devices": 2})["state"] == "rejected"


def test_where_a_worker_stands_is_as_the_token_says_whatever_the_worker_says(plane) -> None:
    token = plane.new_token(TokenKind.JOIN, labels=(("gpulayer.dev/network-group", "cellar"),))
    locality = {"zone": "us-east-1a", "region": "us-east-1", "network_group": "mine"}
    plane.worker("one", join_token=token, labels={"gpulayer.dev/network-group": "mine"}, locality=locality)
    record = plane.http.get("/v1/workers/one").json()
    assert record["locality"] == {**locality, "network_group": "cellar"}
    assert record["labels"] == {"gpulayer.dev/network-group": "cellar"}
    assert plane.submit("true", request={"network_group": "mine"})["state"] == "rejected"
    assert plane.submit("true", request={"network_group": "cellar", "zone": "us-east-1a"})["state"] != "rejected"


def test_another_token_says_anew_what_the_worker_offers(plane) -> None:
    token = plane.new_token(TokenKind.JOIN, max_devices=0)
    worker = plane.worker("one", join_token=token, devices=[_device(0)])
    assert plane.http.get("/v1/workers/one").json()["devices"] == []
    worker.join_token = plane.new_token(TokenKind.JOIN)
    assert worker.enrol().status_code == 200
    assert len(plane.http.get("/v1/workers/one").json()["devices"]) == 1


def test_revoking_a_pool_token_lets_nobody_else_in_and_the_joined_go_on(plane) -> None:
    token = plane.new_token(TokenKind.JOIN, max_uses=5)
    worker = plane.worker("one", join_token=token)
    plane.revoke(token)
    assert worker.enrol().status_code == 401
    worker.report()
    worker.open_session()


@pytest.mark.parametrize("limit", [None, 2, 5])
def test_facts_that_need_no_change_stay_the_same_object(limit) -> None:
    devices = tuple(Device(f"GPU-{index}", index, Accelerator.CUDA, "A100") for index in range(2))
    facts = WorkerFacts("linux-x86_64", "0.1.0", 4, 2**34, devices=devices, labels=(("a", "b"),))
    identity = IdentityRow(WorkerId("w"), "k", 0, is_local=False, labels=(("a", "b"),), max_devices=limit)
    assert offered(facts, identity) is facts
