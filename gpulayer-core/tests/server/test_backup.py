"""A backup of a control plane that runs, and what becomes of it: the same plane, and no lease, number or signature of
the time that was lost means anything any more."""

import errno
import io
import os
import shutil
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

import pytest

from gpulayer.clock import ManualClock, SystemClock
from gpulayer.errors import (
    Conflict,
    DigestMismatch,
    DiskFull,
    StorageUnavailable,
)
from gpulayer.ids import Digest, JobId
from gpulayer.server import archive
from gpulayer.server.backup import open_backup
from gpulayer.server.folder import held_still, locked, sweep_copies
from gpulayer.server.kept_time import KeptTime
from gpulayer.server.restoring import restore
from gpulayer.server.retention import sweep
from gpulayer.server.settings import Layout
from gpulayer.server.store import Batch, EventRow, SecretRow, Side, Store
from gpulayer.server.store.health import examine
from gpulayer.spec.tree import digest_of
from gpulayer.staging.blobs import BlobFolder

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
    job = JobId(plane.submit()["id"])
    sealed = b"what was sealed, and is forgotten"
    plane.call(lambda: plane.plane.driver.submit(side=Side(secrets=(SecretRow(job, "A", sealed),))))
    assert sealed in kept(plane, tmp_path / "before").read_bytes()
    with closing(sqlite3.connect(plane.settings.layout.store)) as connection:
        connection.execute("PRAGMA secure_delete=OFF")  # as SQLite is built in some places
        connection.execute("DELETE FROM secrets")
        connection.commit()
    plane.plane.store.settle()
    assert sealed in plane.settings.layout.store.read_bytes(), "in a page that is free now"
    assert sealed not in kept(plane, tmp_path / "kept").read_bytes()


def test_what_is_old_is_taken_away_before_a_backup_and_after_it_and_not_meanwhile(plane, tmp_path) -> None:
    worker = plane.worker()
    worker.report()
    plane.submit()
    (command,) = worker.commands(hold_s=5)
    worker.put_log(command["epoch"], 0, b"hello\n")
    damaged = plane.plane.blobs.path(Digest(plane.put_blob(b"content")))
    damaged.write_bytes(b"CONTENT")
    large = plane.plane.blobs.path(Digest("0" * 64))
    large.parent.mkdir(exist_ok=True)
    large.touch()
    os.truncate(large, 128 * 2**20)  # more than is on its way at once
    with plane.http.stream("POST", "/v1/plane:backup", json={}) as answer:
        pieces = answer.iter_bytes()
        content = next(pieces)
        again = plane.http.post("/v1/plane:backup", json={})
        assert (again.status_code, plane.check_envelope(again)["code"]) == (409, "conflict")
        worker.report(worker.ended(command["epoch"]))
        assert _swept(plane) == 0
        with pytest.raises(DigestMismatch):
            plane.plane.blobs.read(Digest(damaged.parent.name + damaged.name))
        content += b"".join(pieces)
    assert int(answer.headers["Content-Length"]) == len(content)
    head = archive.check(io.BytesIO(content), what="it")
    assert head.holds == ("blobs", "logs")
    plane.until(lambda: not plane.plane.is_backed_up)
    assert _swept(plane) == 1
    with pytest.raises(DigestMismatch):
        plane.plane.blobs.read(Digest(damaged.parent.name + damaged.name))
    assert not damaged.exists()


def _swept(plane) -> int:
    """By a clock of long after."""
    real, kept_time = plane.plane.clock, plane.plane.kept_time
    later = plane.plane.clock = ManualClock(now_ms=real.monotonic_ms(), wall_offset_ms=real.wall_ms() + YEAR_MS)
    plane.plane.kept_time = KeptTime(plane.settings.state_dir / "none", clock=later, newest_ms=None)
    try:
        return plane.call(lambda: sweep(plane.plane))
    finally:
        plane.plane.clock, plane.plane.kept_time = real, kept_time


def test_there_are_as_many_members_the_second_time_whatever_has_come_meanwhile(tmp_path) -> None:
    layout = Layout(tmp_path)
    Store(str(layout.store)).close()
    layout.pepper.write_bytes(b"p" * 32)
    blobs = BlobFolder(layout.blobs, durable=False)
    held = [digest_of(bytes([number])) for number in range(200)]
    for number, digest in enumerate(held):
        blobs.put_bytes(digest, bytes([number]))
    with open_backup(layout, made_wall_ms=NOW_MS) as made:
        blobs.put_bytes(digest_of(b"late"), b"late")
        content = b"".join(made.pieces())
        assert len(content) == made.size
    archive.check(io.BytesIO(content), what="it")
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        found = {name.removeprefix("blobs").replace("/", "") for name in tar.getnames() if name.startswith("blobs/")}
    assert found == set(held)


def test_a_copy_that_finds_no_room_is_not_begun(disk_of, tmp_path) -> None:
    layout = Layout(disk_of(4_000))
    Store(str(layout.store)).close()
    with pytest.raises(DiskFull, match="no room for a copy"), open_backup(layout, made_wall_ms=NOW_MS, elsewhere=()):
        pass
    assert list(layout.root.glob("backup-*")) == []


def test_a_backup_sweeps_the_copies_of_others_that_were_killed_and_nothing_else(tmp_path) -> None:
    layout = Layout(tmp_path)
    Store(str(layout.store)).close()
    layout.pepper.write_bytes(b"p" * 32)
    mine, left = tmp_path / "backup-monday.db", tmp_path / f"backup-{'0' * 16}.db"
    for path in (mine, left):
        path.write_bytes(b"x")
        os.utime(path, (1, 1))
    with open_backup(layout, made_wall_ms=NOW_MS):
        pass
    assert (mine.exists(), left.exists()) == (True, False)


def _lose_log(layout: Layout) -> None:
    """It was in use, and its newest part is gone."""
    Path(f"{layout.store}-open").touch()


def _lose_counters(layout: Layout) -> None:
    with closing(sqlite3.connect(layout.store)) as connection:
        connection.execute("DELETE FROM counters")
        connection.commit()


def _lose_table(layout: Layout) -> None:
    with closing(sqlite3.connect(layout.store)) as connection:
        connection.execute("DROP TABLE sink_cursors")
        connection.commit()


def _lose_store(layout: Layout) -> None:
    layout.store.unlink()


@pytest.mark.parametrize("lose", [_lose_log, _lose_counters, _lose_table, _lose_store])
def test_what_a_start_refuses_is_not_backed_up_and_a_doctor_says_it(tmp_path, lose) -> None:
    layout = Layout(tmp_path)
    Store(str(layout.store)).close()
    layout.pepper.write_bytes(b"p" * 32)
    lose(layout)
    with pytest.raises(StorageUnavailable), open_backup(layout, made_wall_ms=NOW_MS):
        pass
    with pytest.raises(StorageUnavailable):
        examine(layout.store, made_after=layout.pepper)


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


@pytest.fixture
def at_rest(tmp_path) -> Layout:
    """A small folder that nobody uses."""
    layout = Layout(tmp_path / "state")
    layout.root.mkdir()
    Store(str(layout.store)).close()
    layout.pepper.write_bytes(b"p" * 32)
    return layout


def _content(layout: Layout, **options) -> bytes:
    with open_backup(layout, made_wall_ms=NOW_MS, **options) as made:
        return b"".join(made.pieces())


def test_where_the_folder_has_no_room_the_copy_is_made_elsewhere_and_is_gone_then(
    at_rest, tmp_path, monkeypatch
) -> None:
    away, real = tmp_path / "away", shutil.disk_usage
    away.mkdir()
    full = {at_rest.root}
    monkeypatch.setattr(shutil, "disk_usage", lambda path: real(path)._replace(free=0 if path in full else 2**40))
    with open_backup(at_rest, made_wall_ms=NOW_MS, elsewhere=(away,)) as made:
        assert [path.stat().st_mode & 0o777 for path in away.iterdir()] == [0o600]
        assert len(b"".join(made.pieces())) == made.size
    assert list(away.iterdir()) == []
    full.add(away)
    with pytest.raises(DiskFull, match=f"in {at_rest.root}, nor in {away}") as caught:
        _content(at_rest, elsewhere=(away,))
    assert "copy its state folder whole" in caught.value.hint


def test_a_disk_that_became_read_only_under_a_plane_that_died_is_backed_up_with_its_log(
    at_rest, tmp_path, monkeypatch
) -> None:
    store = Store(str(at_rest.store))
    store.commit(Batch(events=[EventRow(1, 1, "job_submitted", "{}")]))
    crashed, away = Layout(tmp_path / "crashed"), tmp_path / "away"
    shutil.copytree(at_rest.root, crashed.root)
    store.close()
    away.mkdir()
    before = {path.name: path.read_bytes() for path in crashed.root.iterdir()}
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != crashed.root and real(path, mode))
    made = _content(crashed, elsewhere=(away,))
    assert {path.name: path.read_bytes() for path in crashed.root.iterdir()} == before
    assert list(away.iterdir()) == []
    (tmp_path / "kept").write_bytes(made)
    restore(tmp_path / "kept", tmp_path / "again", clock=SystemClock())
    with closing(sqlite3.connect(tmp_path / "again" / "store.db")) as connection:
        assert connection.execute("SELECT count(*) FROM events WHERE kind = 'job_submitted'").fetchone() == (1,)


def test_the_lock_of_a_folder_that_can_not_be_written_is_held_all_the_same(at_rest, monkeypatch) -> None:
    real = os.open

    def on_read_only_disk(path, flags, *rest):
        if flags & os.O_RDWR:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return real(path, flags, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", on_read_only_disk)
        with held_still(at_rest, doing="it"):
            pass  # nobody ever locked it
    with locked(at_rest), monkeypatch.context() as patched:
        patched.setattr(os, "open", on_read_only_disk)
        with pytest.raises(Conflict, match="is in use"), held_still(at_rest, doing="it"):
            pass


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("pepper", b"", "pepper is damaged: 0 bytes instead of 32"),
        ("pepper", None, "pepper is gone"),
        ("secrets.key", b"x", "secrets.key in the control plane's state is damaged: 1 bytes"),
        ("tls/cert.pem", b"no certificate", "tls/key.pem"),
    ],
)
def test_keys_that_no_plane_starts_with_are_neither_kept_nor_restored(
    at_rest, tmp_path, monkeypatch, name, content, said
) -> None:
    path = at_rest.root / name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(Conflict, match=said):
        _content(at_rest)
    if content is None:
        return
    with monkeypatch.context() as patched:  # an older version did keep them
        patched.setattr("gpulayer.server.backup.check_keys", lambda *_, **__: None)
        made = _content(at_rest)
    (tmp_path / "kept").write_bytes(made)
    with pytest.raises(Conflict, match=f"what {tmp_path}/kept holds can't be used: .*{said}"):
        restore(tmp_path / "kept", tmp_path / "again", clock=SystemClock())
    assert not (tmp_path / "again").exists()


def test_a_blob_that_was_damaged_is_left_out_of_a_restore_and_counted(at_rest, tmp_path) -> None:
    blobs = BlobFolder(at_rest.blobs, durable=False)
    good, bad = (digest_of(each) for each in (b"good", b"bad"))
    blobs.put_many([(good, b"good"), (bad, b"bad")])
    blobs.path(bad).write_bytes(b"sad")
    (tmp_path / "kept").write_bytes(_content(at_rest))
    made = restore(tmp_path / "kept", tmp_path / "again", clock=SystemClock())
    again = BlobFolder(tmp_path / "again" / "blobs", durable=False)
    assert (made.damaged_blobs, again.has(good), again.has(bad)) == (1, True, False)


def test_copies_that_a_killed_backup_left_are_gone_at_the_next_start_and_nothing_else_is(at_rest) -> None:
    left = [at_rest.root / f"backup-0123456789abcdef.db{end}" for end in ("", "-journal", "-wal", "-shm")]
    others = [at_rest.root / name for name in ("backup-mine.db", "backup-0123456789abcdef.db.old", "xbackup-1.db")]
    for path in (*left, *others):
        path.write_bytes(b"x")
    sweep_copies(at_rest)
    assert [path for path in (*left, *others) if path.exists()] == others
