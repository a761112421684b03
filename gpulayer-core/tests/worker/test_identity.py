"""Keys, counters and boots: nothing is ever used twice."""

import json
import stat

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from gpulayer.errors import ProtocolError
from gpulayer.worker.disk import Reserve
from gpulayer.worker.identity import IdentityStore


def test_the_key_is_kept_from_before_enrolment_on(tmp_path):
    first = IdentityStore(tmp_path, reserve=Reserve(tmp_path))
    key = first.identity.public_key
    assert not first.is_enrolled
    assert not (tmp_path / "identity.json").exists()
    again = IdentityStore(tmp_path, reserve=Reserve(tmp_path))
    assert again.identity.public_key == key
    again.enrolled("w1", "box")
    assert IdentityStore(tmp_path, reserve=Reserve(tmp_path)).identity.worker_id == "w1"
    assert IdentityStore(tmp_path, reserve=Reserve(tmp_path)).identity.public_key == key
    assert stat.S_IMODE((tmp_path / "identity.json").stat().st_mode) == 0o600
    assert not (tmp_path / "identity.new.json").exists()


def test_boots_and_counters_grow_over_restarts(tmp_path):
    boots, counters = [], []
    for _ in range(3):
        store = IdentityStore(tmp_path, reserve=Reserve(tmp_path))
        boots.append(store.next_boot())
        store.enrolled("w1", "box")
        counters += [store.next_signature()[0], store.next_signature()[0]]
    assert boots == [1, 2, 3]
    assert counters == [1, 2, 3, 4, 5, 6]


def test_the_signature_is_over_worker_counter_boot_and_instance(tmp_path):
    store = IdentityStore(tmp_path, reserve=Reserve(tmp_path))
    boot = store.next_boot()
    store.enrolled("w1", "box")
    counter, signature = store.next_signature()
    key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(store.identity.public_key))
    text = f"gpulayer-session:w1:{counter}:{boot}:{store.instance}"
    key.verify(bytes.fromhex(signature), text.encode())
    assert IdentityStore(tmp_path, reserve=Reserve(tmp_path)).instance != store.instance


_SHORT = {"schema": 1, "private_key": "ab", "worker_id": "w", "name": "box", "counter": 1, "boot": 1}


@pytest.mark.parametrize("content", ["", "{}", "[]", json.dumps({"schema": 9}), json.dumps(_SHORT)])
def test_a_file_that_cannot_be_read_is_told_not_replaced(tmp_path, content):
    (tmp_path / "identity.json").write_text(content)
    with pytest.raises(ProtocolError, match="join again"):
        IdentityStore(tmp_path, reserve=Reserve(tmp_path))
    assert (tmp_path / "identity.json").read_text() == content


def test_what_the_control_plane_has_seen_is_counted_on_from_and_never_back(tmp_path):
    store = IdentityStore(tmp_path, reserve=Reserve(tmp_path))
    store.enrolled("w1", "box")
    store.count_from(41)
    store.count_from(7)
    assert IdentityStore(tmp_path, reserve=Reserve(tmp_path)).next_signature()[0] == 42


def test_a_folder_whose_agent_was_refused_counts_no_start_until_it_is_served_or_joins_anew(tmp_path):
    store = IdentityStore(tmp_path, reserve=Reserve(tmp_path))
    store.enrolled("w1", "box")
    assert store.next_boot() == 1
    store.set_superseded(True)
    assert [IdentityStore(tmp_path, reserve=Reserve(tmp_path)).next_boot() for _ in range(3)] == [1, 1, 1]
    store.set_superseded(False)
    assert IdentityStore(tmp_path, reserve=Reserve(tmp_path)).next_boot() == 2
    store.set_superseded(True)
    store.enrolled("w2", "box")
    assert store.next_boot() == 2
