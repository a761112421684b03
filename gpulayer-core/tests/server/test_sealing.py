"""What is sealed opens for its job and name alone; a lost, damaged or other key is said, and replaced by nobody."""

import os
import stat
import threading

import pytest

from gpulayer.errors import Conflict, StorageUnavailable
from gpulayer.ids import JobId
from gpulayer.server.sealing import open_sealer

JOB, OTHER = JobId("1a2b3c4d5e6f"), JobId("0a2b3c4d5e6f")
VALUE = "abc123xyz"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "secrets.key"


def test_a_value_opens_again_and_its_seal_tells_nothing(path):
    sealer = open_sealer(path, may_make=True)
    sealed = sealer.seal(JOB, "HF_TOKEN", VALUE)
    assert open_sealer(path, may_make=False).open(JOB, "HF_TOKEN", sealed) == VALUE
    assert VALUE.encode() not in sealed
    assert sealer.seal(JOB, "HF_TOKEN", VALUE) != sealed
    assert sealer.key.hex() not in repr(sealer)
    assert repr(sealer.key) not in repr(sealer)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["secrets.key"]


@pytest.mark.parametrize(("job", "name"), [(OTHER, "HF_TOKEN"), (JOB, "OTHER"), (JOB, "")])
def test_a_seal_opens_for_its_job_and_name_alone(path, job, name):
    sealer = open_sealer(path, may_make=True)
    sealed = sealer.seal(JOB, "HF_TOKEN", VALUE)
    with pytest.raises(Conflict, match="can't be opened"):
        sealer.open(job, name, sealed)


@pytest.mark.parametrize("cut", [0, 5, 12, 20])
def test_a_damaged_seal_is_refused(path, cut):
    sealer = open_sealer(path, may_make=True)
    with pytest.raises(Conflict, match="can't be opened"):
        sealer.open(JOB, "HF_TOKEN", sealer.seal(JOB, "HF_TOKEN", VALUE)[:cut])


def test_another_key_opens_nothing_and_says_which_file_to_restore(path):
    sealed = open_sealer(path, may_make=True).seal(JOB, "HF_TOKEN", VALUE)
    path.unlink()
    with pytest.raises(Conflict, match="is missing") as refused:
        open_sealer(path, may_make=False)
    assert "secrets.key" in refused.value.hint
    with pytest.raises(Conflict, match="another key"):
        open_sealer(path, may_make=True).open(JOB, "HF_TOKEN", sealed)


@pytest.mark.parametrize("content", [b"", b"x" * 31, b"x" * 33])
def test_a_damaged_key_is_never_replaced(path, content):
    path.write_bytes(content)
    for may_make in (False, True):
        with pytest.raises(Conflict, match=f"damaged: {len(content)} bytes"):
            open_sealer(path, may_make=may_make)
    assert path.read_bytes() == content


def test_a_key_that_can_not_be_written_is_a_matter_of_the_disk(tmp_path):
    with pytest.raises(StorageUnavailable):
        open_sealer(tmp_path / "nowhere" / "secrets.key", may_make=True)


def test_of_several_that_make_a_key_at_once_all_get_the_same(path):
    gate, keys = threading.Barrier(8), set()

    def make():
        gate.wait()
        keys.add(open_sealer(path, may_make=True).key)

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert keys == {path.read_bytes()}
    assert os.listdir(path.parent) == ["secrets.key"]
