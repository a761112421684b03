"""A control plane whose disk runs full takes in nothing new, and what there is comes to its end."""

import os

import pytest

from gpulayer.errors import DiskFull
from gpulayer.server.room import RESERVE_BYTES, Room
from gpulayer.server.store import Batch, Side, Store


@pytest.fixture
def disk(disk_of):
    return disk_of(20 * 1024)


def test_it_is_kept_back_where_there_is_plenty_and_made_again_when_there_is(disk, fill):
    room = Room(disk)
    room.renew()
    assert (disk / "reserve").stat().st_blocks * 512 >= RESERVE_BYTES
    assert not room.is_full
    fill(disk / "filler")
    assert room.is_full
    assert room.spend()
    assert not room.spend()
    assert room.is_full, "what was kept back is not for what is new"
    room.renew()
    assert not (disk / "reserve").exists()
    (disk / "filler").unlink()
    assert room.is_full, "first of all it is kept back again"
    room.renew()
    assert (disk / "reserve").exists()
    assert not room.is_full
    room.check()


def test_of_logs_small_pieces_are_taken_up_to_a_limit_and_last_words_always(disk, fill):
    room = Room(disk)
    room.check_log(2**20, is_final=False)
    fill(disk / "filler")
    room.check_log(0, is_final=False)
    with pytest.raises(DiskFull):
        room.check_log(2**20, is_final=True)
    for _ in range(32):
        room.check_log(2**16, is_final=False)
    with pytest.raises(DiskFull):
        room.check_log(1, is_final=False)
    room.check_log(2**16, is_final=True)


def test_a_commit_that_finds_no_room_is_made_with_what_is_kept_back(disk, fill):
    room = Room(disk)
    store = Store(str(disk / "store.db"), spend=room.spend)
    room.renew()
    fill(disk / "filler")
    for number in range(200):
        store.commit(Batch(sides=[Side(sink_cursors=((f"{number:01000}", number),))]))
    assert not (disk / "reserve").exists()
    with store.reading() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM sink_cursors").scalar_one() == 200
    store.close()


@pytest.fixture
def full(disk, fill, tmp_path, make_plane):
    """A control plane in a disk that is full, its worker and what the worker runs."""
    (disk / "state").mkdir()
    (tmp_path / "state0").symlink_to(disk / "state")
    plane = make_plane().start()
    worker = plane.worker(cpus=4)
    worker.report()
    jobs = [plane.submit() for _ in range(3)]
    epochs = {command["job_id"]: command["epoch"] for command in worker.commands(hold_s=5)}
    worker.holding = list(epochs.values())
    worker.report(*(worker.running(epoch) for epoch in worker.holding))
    plane.until((disk / "state" / "reserve").exists)
    fill(disk / "filler")
    return plane, worker, [(job["id"], epochs[job["id"]]) for job in jobs]


def test_while_it_is_full_nothing_new_is_taken_in_and_what_there_is_ends(full, disk):
    plane, worker, [(first, epoch), (second, _), _] = full
    for method, path, body in (
        ("POST", "/v1/jobs", {"schema": 1, "command": ["true"]}),
        ("POST", "/v1/sources:missing", {"digests": []}),
    ):
        answer = plane.http.request(method, path, json=body)
        assert (answer.status_code, plane.check_envelope(answer)["code"]) == (507, "disk_full")
    assert plane.http.get("/readyz").status_code == 503
    assert plane.http.get("/v1/plane").json()["read_only"] is True
    assert worker.put_log(epoch, 0, b"last words\n").status_code == 200
    assert worker.put_log(epoch, 11, b"x" * 2**17).status_code == 507
    worker.report(worker.ended(epoch))
    assert plane.job(first)["state"] == "succeeded"
    assert plane.http.post(f"/v1/jobs/{second}:cancel", json={}).status_code == 200
    assert plane.http.get(f"/v1/jobs/{first}/logs").content == b"last words\n"
    os.unlink(disk / "filler")
    plane.until(lambda: plane.http.get("/readyz").status_code == 200)
    assert plane.submit()["id"]
