"""A backup of a control plane that runs, and what becomes of it: the same plane, and no lease, number or signature of
the time that was lost means anything any more."""

import io
import os
import sqlite3
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulayer.clock import SystemClock
from gpulayer.errors import Conflict, GpulayerError, NotSupported, StorageUnavailable, UsageError
from gpulayer.server import archive
from gpulayer.server.backup import open_backup
from gpulayer.server.generations import HIGHEST, first_of_generation
from gpulayer.server.restoring import restore
from gpulayer.server.settings import Layout
from gpulayer.server.store import Store

YEAR_MS = 31_536_000_000
NOW_MS = 1_795_000_000_000


def kept(plane, path: Path, **body: bool) -> Path:
    """A backup by the API, as the command makes it."""
    answer = plane.http.post("/v1/plane:backup", json=body)
    assert answer.status_code == 200, answer.text
    path.write_bytes(answer.content)
    return path


def moved(worker, plane) -> None:
    """The worker goes on, and talks to another control plane now."""
    worker.live = plane


@pytest.fixture
def again(tmp_path, make_plane):
    """A control plane in a folder of its own that was made of a backup."""

    def started(backup: Path):
        plane = make_plane()
        made = restore(backup, plane.settings.state_dir, clock=SystemClock())
        return plane.start(), made

    return started


def test_a_restored_plane_is_the_same_to_workers_and_clients_and_takes_nothing_of_an_old_lease(
    plane, again, tmp_path
) -> None:
    worker = plane.worker()
    worker.report()
    source = plane.put_blob(b"content")
    jobs = {name: plane.submit(name=name, retries=retries)["id"] for name, retries in (("twice", 2), ("once", 0))}
    epochs = {command["job_id"]: command["epoch"] for command in worker.commands(hold_s=5)}
    worker.holding = list(epochs.values())
    worker.report(*(worker.running(epoch) for epoch in epochs.values()))
    worker.put_log(epochs[jobs["twice"]], 0, b"before\n")
    backup = kept(plane, tmp_path / "kept")
    worker.report(worker.ended(epochs[jobs["twice"]]), worker.ended(epochs[jobs["once"]]))
    worker.holding = []
    late = plane.submit(name="late")
    (command,) = worker.commands(hold_s=5)
    worker.holding = [command["epoch"]]
    worker.report(worker.running(command["epoch"]))
    newest = plane.http.get(f"/v1/jobs/{late['id']}/events").json()["next"]
    plane.stop()

    restored, made = again(backup)
    assert (made.lost, made.workers) == (2, 1)
    headers = {"Authorization": plane.http.headers["Authorization"]}
    restored.http.headers.update(headers)  # the same token is good
    moved(worker, restored)
    refused = worker.session()
    assert refused.status_code == 409  # the counters of the lost time open nothing
    worker.counter = refused.json()["error"]["details"]["counter"]
    worker.open_session()
    assert worker.put_log(command["epoch"], 0, b"late").status_code == 409
    assert worker.put_log(epochs[jobs["twice"]], 7, b"late").status_code == 409
    worker.holding = [*epochs.values(), command["epoch"]]
    reply = worker.report(*(worker.ended(epoch) for epoch in worker.holding))
    assert reply["void"] == sorted(worker.holding)
    worker.holding = []

    once, twice = restored.job(jobs["once"]), restored.job(jobs["twice"])
    assert once["state"] == "lost"
    assert "restored from a backup" in once["attempts"][-1]["evidence"]
    (fresh,) = worker.commands(hold_s=5)
    assert fresh["job_id"] == jobs["twice"]
    assert fresh["epoch"] > command["epoch"]
    assert twice["attempts"][0]["epoch"] == epochs[jobs["twice"]]
    worker.report(worker.running(fresh["epoch"]))
    worker.report(worker.ended(fresh["epoch"]))
    assert restored.job(jobs["twice"])["state"] == "succeeded"
    assert restored.http.get(f"/v1/jobs/{jobs['twice']}/logs", params={"attempt": 1}).content == b"before\n"
    assert restored.http.get(f"/v1/blobs/{source}").content == b"content"

    unknown = restored.check_envelope(restored.http.get(f"/v1/jobs/{late['id']}"))
    assert unknown["code"] == "not_found"
    assert "was restored on" in unknown["hint"]
    events = restored.http.get(f"/v1/jobs/{jobs['twice']}/events", params={"after": newest}).json()["events"]
    assert {"attempt_ended", "job_queued", "job_succeeded"} <= {event["event"] for event in events}
    trail = restored.http.get("/v1/audit").json()["entries"]
    assert [entry["action"] for entry in trail if entry["action"].startswith("plane.re")] == ["plane.restore"]


def test_a_backup_without_blobs_and_logs_holds_neither_and_says_so(plane, tmp_path, again) -> None:
    plane.put_blob(b"content")
    backup = kept(plane, tmp_path / "kept", blobs=False, logs=False)
    assert b"content" not in backup.read_bytes()
    with tarfile.open(backup) as tar:
        names = tar.getnames()
    assert names[0] == "gpulayer-backup.json"
    assert names[-1] == "end.json"
    assert {"store.db", "pepper"} <= set(names)
    _, made = again(backup)
    assert made.head.holds == ()


def test_what_is_deleted_from_a_store_is_in_no_backup(plane, tmp_path) -> None:
    with plane.plane.store.reading() as connection:
        before = connection.exec_driver_sql("SELECT secret_hash FROM tokens").scalars().all()
    backup = kept(plane, tmp_path / "kept")
    assert len(backup.read_bytes()) % 512 == 0
    assert before  # hashes, never tokens
    assert plane.token.encode() not in backup.read_bytes()


def test_a_backup_leaves_nothing_in_the_folder_also_where_nobody_takes_it(plane) -> None:
    with plane.http.stream("POST", "/v1/plane:backup", json={}) as answer:
        assert answer.status_code == 200
    plane.until(lambda: not list(plane.settings.state_dir.glob("backup-*")))


def test_a_damaged_store_is_not_backed_up(tmp_path) -> None:
    layout = Layout(tmp_path)
    Store(str(layout.store)).close()
    with sqlite3.connect(layout.store) as connection:
        connection.execute("PRAGMA writable_schema=ON")
        connection.execute("DELETE FROM sqlite_master WHERE name = 'ix_jobs_id'")
    connection.close()
    with pytest.raises(StorageUnavailable, match="is damaged"), open_backup(layout, made_wall_ms=NOW_MS):
        pass
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("backup")] == []


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> bytes:
    """A small backup."""
    layout = Layout(tmp_path_factory.mktemp("of"))
    Store(str(layout.store)).close()
    layout.pepper.write_bytes(b"p" * 32)
    with open_backup(layout, made_wall_ms=NOW_MS) as made:
        content = b"".join(made.pieces())
        assert len(content) == made.size
    return content


def _refused(content: bytes, tmp_path: Path) -> GpulayerError:
    path, root = tmp_path / "kept", tmp_path / "root"
    path.write_bytes(content)
    with pytest.raises(GpulayerError) as refused:
        restore(path, root, clock=SystemClock())
    assert sorted(each.name for each in tmp_path.iterdir()) == ["kept"]
    return refused.value


@pytest.mark.parametrize("length", [0, 1, 511, 512, 1024, 5000, -1, -1024, -1025, -2048])
def test_a_backup_that_was_cut_off_is_refused_and_leaves_nothing(whole, tmp_path, length) -> None:
    error = _refused(whole[:length] if length >= 0 else whole[: len(whole) + length - 1024], tmp_path)
    assert isinstance(error, Conflict | UsageError)


def test_a_backup_with_another_byte_is_refused(whole, tmp_path) -> None:
    for place in range(600, len(whole) - 2048, len(whole) // 40):
        changed = bytearray(whole)
        changed[place] ^= 0x40
        error = _refused(bytes(changed), tmp_path)
        assert isinstance(error, Conflict | UsageError | StorageUnavailable), place


def _forged(name: str, kind: bytes = tarfile.REGTYPE, *, head: bytes = b"", link: str = "") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        said = head or (
            b'{"format": 1, "gpulayer": "0", "store_schema": "0004", "made_wall_ms": 1, "incarnation": "", "holds": []}'
        )
        info = tarfile.TarInfo("gpulayer-backup.json")
        info.size = len(said)
        tar.addfile(info, io.BytesIO(said))
        info = tarfile.TarInfo(name)
        info.type, info.linkname, info.size = kind, link, 0
        tar.addfile(info)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "name",
    ["../escape", "/tmp/escape", "store.db/../../escape", "logs/../escape", "blobs/..", "endpoint.json", "tls/../../x",
     "worker/identity.json", "logs/0123456789abcdef/1.0.log/x", "blobs/ab/../../../x", "store.db\n", "x" * 99],
)  # fmt: skip
def test_a_name_that_no_backup_has_is_never_written(tmp_path, name) -> None:
    assert "which no backup does" in _refused(_forged(name), tmp_path).message


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_only_plain_files_are_unpacked(tmp_path, kind) -> None:
    assert "no plain file" in _refused(_forged("pepper", kind, link="/etc/passwd"), tmp_path).message


def test_a_backup_of_a_newer_format_is_refused_with_the_version_that_made_it(tmp_path) -> None:
    error = _refused(_forged("pepper", head=b'{"format": 2, "gpulayer": "9.9"}'), tmp_path)
    assert isinstance(error, NotSupported)
    assert "gpulayer 9.9" in error.hint


@given(st.binary(max_size=3_000))
def test_no_rubbish_makes_more_than_a_refusal(content) -> None:
    with pytest.raises((Conflict, UsageError, NotSupported)):
        archive.check(io.BytesIO(content), what="it")


def test_a_folder_with_anything_in_it_is_refused_and_left_alone(whole, tmp_path) -> None:
    backup, root = tmp_path / "kept", tmp_path / "root"
    backup.write_bytes(whole)
    root.mkdir()
    (root / "mine").write_bytes(b"x")
    with pytest.raises(Conflict, match="is not empty: mine") as refused:
        restore(backup, root, clock=SystemClock())
    assert f"mv {root} {root}.old" in refused.value.hint
    assert [path.name for path in root.iterdir()] == ["mine"]


def test_what_is_restored_is_closed_to_others(whole, tmp_path) -> None:
    backup, root = tmp_path / "kept", tmp_path / "root"
    backup.write_bytes(whole)
    restore(backup, root, clock=SystemClock())
    assert os.stat(root).st_mode & 0o077 == 0
    assert {path.name for path in root.iterdir()} == {"store.db", "pepper"}
    assert all(os.stat(path).st_mode & 0o077 == 0 for path in root.iterdir())


def test_two_restores_of_one_backup_count_above_each_other_by_the_clock() -> None:
    def none(_: int) -> int:
        raise AssertionError("no chance is needed")

    first = first_of_generation(highest=1000, wall_ms=NOW_MS, made_wall_ms=NOW_MS - 5, below=none)
    second = first_of_generation(highest=1000, wall_ms=NOW_MS + 1, made_wall_ms=NOW_MS - 5, below=none)
    assert second - first == 64
    assert first_of_generation(highest=first, wall_ms=NOW_MS + 1, made_wall_ms=NOW_MS, below=none) == second
    assert first_of_generation(highest=1, wall_ms=NOW_MS + 50 * YEAR_MS, made_wall_ms=NOW_MS, below=none) < HIGHEST


@given(
    highest=st.integers(1, 2**46), wall_ms=st.integers(0, 2**50), made_ms=st.integers(0, 2**50), chance=st.integers(0)
)
def test_a_generation_begins_above_all_that_the_backup_gave_out_whatever_the_clock_says(
    highest, wall_ms, made_ms, chance
) -> None:
    first = first_of_generation(
        highest=highest, wall_ms=wall_ms, made_wall_ms=made_ms, below=lambda limit: chance % limit
    )
    assert highest < first < 2**48
