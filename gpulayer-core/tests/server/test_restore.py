"""What a restore takes and what it refuses, and what it leaves where it fails: nothing, or what the next one sweeps."""

import errno
import io
import os
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulayer.clock import SystemClock
from gpulayer.errors import (
    Conflict,
    DiskFull,
    GpulayerError,
    NotSupported,
    StorageUnavailable,
    UsageError,
)
from gpulayer.server import archive, restoring
from gpulayer.server.backup import open_backup
from gpulayer.server.folder import locked
from gpulayer.server.generations import HIGHEST, first_of_generation
from gpulayer.server.restoring import restore
from gpulayer.server.settings import Layout
from gpulayer.server.store import Store
from gpulayer.server.store.tables import SCHEMA_VERSION
from gpulayer.syncing import Syncs

YEAR_MS = 31_536_000_000
NOW_MS = 1_795_000_000_000
RESTORED = {"store.db", "pepper", "plane.lock", "restored"}


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


def _head(ms: bytes) -> bytes:
    said = b'{"format": 1, "gpulayer": "0", "store_schema": "0004", "made_wall_ms": %s, "incarnation": "", "holds": []}'
    return said % ms


def _forged(name: str, kind: bytes = tarfile.REGTYPE, *, head: bytes = b"", link: str = "") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        said = head or _head(b"1")
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


@pytest.mark.parametrize(
    "head",
    [
        *(b"[" * 60_000, b'{"format": ' + b"[" * 10_000, b"9" * 5_000),
        *(_head(ms) for ms in (b"-1", b"1e30", b"1" + b"0" * 30, b"253402300799001", b"null", b"[]")),
    ],
)
def test_a_head_that_makes_no_sense_is_damage(tmp_path, head) -> None:
    assert isinstance(_refused(_forged("pepper", head=head), tmp_path), Conflict)


def test_what_a_newer_backup_says_of_itself_is_shown_without_what_a_terminal_would_obey(tmp_path) -> None:
    error = _refused(_forged("pepper", head=b'{"format": 2, "gpulayer": "9\\n\\u001b[31mevil"}'), tmp_path)
    assert error.hint.isprintable()


@pytest.mark.parametrize("change", [lambda whole: whole + b"x", lambda whole: whole[:-1024], lambda whole: whole[:-1]])
def test_nothing_is_missing_after_the_end_and_nothing_follows(whole, tmp_path, change) -> None:
    assert isinstance(_refused(change(whole), tmp_path), Conflict)


def test_what_is_no_file_is_refused_at_once(tmp_path) -> None:
    pipe, root = tmp_path / "pipe", tmp_path / "root"
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match="is no plain file"):
        restore(pipe, root, clock=SystemClock())
    assert not root.exists()


def test_a_damaged_store_in_a_backup_is_the_backups_fault(whole, tmp_path) -> None:
    store, backup = tmp_path / "store.db", tmp_path / "kept"
    with tarfile.open(fileobj=io.BytesIO(whole)) as tar:
        held = tar.extractfile("store.db")
        assert held is not None
        store.write_bytes(held.read())
    with closing(sqlite3.connect(store)) as connection:
        connection.execute("DELETE FROM counters")
        connection.commit()
    head = archive.Head("0", SCHEMA_VERSION, NOW_MS)
    pepper = tmp_path / "pepper"
    pepper.write_bytes(b"p" * 32)
    members = [archive.Member(path.name, path, path.stat().st_size) for path in (store, pepper)]
    backup.write_bytes(b"".join(archive.pieces_of(head, members)))
    with pytest.raises(Conflict) as refused:
        restore(backup, tmp_path / "root", clock=SystemClock())
    assert str(backup) in refused.value.message
    assert "nothing was restored" in refused.value.hint
    assert ".restore-" not in refused.value.message
    assert not (tmp_path / "root").exists()


def test_it_is_restored_through_a_link_and_onto_another_disk_and_where_only_the_folder_may_be_written(
    whole, tmp_path, disk_of
) -> None:
    backup, target, link = tmp_path / "kept", tmp_path / "target", tmp_path / "link"
    backup.write_bytes(whole)
    target.mkdir()
    link.symlink_to(target)
    disk = disk_of(4_000)
    (disk / "lost+found").mkdir()
    for root in (link, disk):
        restore(backup, root, clock=SystemClock())
        assert {path.name for path in root.iterdir()} - {"lost+found"} == {
            "store.db",
            "pepper",
            "plane.lock",
            "restored",
        }
        Store(str(Layout(root).store)).close()
    assert {path.name for path in tmp_path.iterdir()} == {"kept", "target", "link", "disk0"}


def test_what_a_start_that_did_not_come_up_has_left_is_no_control_plane(whole, tmp_path) -> None:
    backup, root = tmp_path / "kept", tmp_path / "root"
    backup.write_bytes(whole)
    root.mkdir()
    for name in ("plane.log", "plane.lock", "own-port"):
        (root / name).write_text("1\n")
    restore(backup, root, clock=SystemClock())
    assert Layout(root).store.exists()


def test_a_place_that_is_no_folder_is_refused_with_what_to_do(whole, tmp_path) -> None:
    backup = tmp_path / "kept"
    backup.write_bytes(whole)
    with pytest.raises(UsageError, match="can't be used: Not a directory") as refused:
        restore(backup, backup, clock=SystemClock())
    assert "--state DIR" in refused.value.hint


def test_a_disk_without_room_for_the_lock_leaves_no_folder(whole, tmp_path, monkeypatch) -> None:
    backup, root = tmp_path / "kept", tmp_path / "root"
    backup.write_bytes(whole)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(DiskFull):
        restore(backup, root, clock=SystemClock())
    assert not root.exists()


@pytest.mark.parametrize("step", ["_unpack", "_begin", "_sync_all", "_give_names"])
def test_what_a_killed_restore_has_left_goes_with_the_next(whole, tmp_path, step) -> None:
    backup, root = tmp_path / "kept", tmp_path / "root"
    backup.write_bytes(whole)
    with mock.patch.object(restoring, step, side_effect=_Killed), mock.patch.object(restoring, "_sweep"):
        with pytest.raises(_Killed):
            restore(backup, root, clock=SystemClock())
    assert [path for path in root.iterdir() if path.name.startswith(".restore-")]
    restore(backup, root, clock=SystemClock())
    assert {path.name for path in root.iterdir()} == RESTORED


def test_a_restore_that_was_killed_between_two_names_is_no_control_plane_and_goes_with_the_next(
    whole, tmp_path
) -> None:
    backup, root = tmp_path / "kept", tmp_path / "root"
    backup.write_bytes(whole)
    real = os.rename

    def rename(source, target):
        if Path(target).name == "store.db":
            raise _Killed
        real(source, target)

    with mock.patch.object(restoring.os, "rename", rename), mock.patch.object(restoring, "_sweep"):
        with pytest.raises(_Killed):
            restore(backup, root, clock=SystemClock())
    assert (root / "pepper").exists()
    restore(backup, root, clock=SystemClock())
    assert {path.name for path in root.iterdir()} == RESTORED


def test_a_last_sync_that_fails_leaves_nothing_and_says_so(whole, tmp_path) -> None:
    backup, root = tmp_path / "kept", tmp_path / "root"
    backup.write_bytes(whole)
    real, synced = Syncs.path, []

    def path(self, where):
        synced.append(where)
        if len([each for each in synced if Path(each) == root]) == 2:
            raise OSError(errno.EIO, "I/O error", str(where))
        real(self, where)

    with mock.patch.object(Syncs, "path", path), pytest.raises(StorageUnavailable) as refused:
        restore(backup, root, clock=SystemClock())
    assert "is not empty" not in refused.value.message
    assert not root.exists()


def test_a_folder_that_a_control_plane_serves_is_not_restored_to(whole, tmp_path) -> None:
    backup, root = tmp_path / "kept", tmp_path / "root"
    backup.write_bytes(whole)
    root.mkdir()
    with locked(Layout(root)), pytest.raises(Conflict, match="already running"):
        restore(backup, root, clock=SystemClock())


class _Killed(BaseException):
    pass


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
    assert {path.name for path in root.iterdir()} == RESTORED
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
    highest=st.integers(1, HIGHEST - 2**34),
    wall_ms=st.integers(0, 2**50),
    made_ms=st.integers(0, 2**50),
    chance=st.integers(0),
)
def test_a_generation_begins_above_all_that_the_backup_gave_out_whatever_the_clock_says(
    highest, wall_ms, made_ms, chance
) -> None:
    first = first_of_generation(
        highest=highest, wall_ms=wall_ms, made_wall_ms=made_ms, below=lambda limit: chance % limit
    )
    assert highest < first <= HIGHEST


@pytest.mark.parametrize("highest", [HIGHEST - 1, HIGHEST, 2**63 - 1])
def test_where_no_numbers_are_left_nothing_is_restored(highest) -> None:
    with pytest.raises(Conflict, match="no numbers are left"):
        first_of_generation(highest=highest, wall_ms=NOW_MS, made_wall_ms=NOW_MS + 1, below=lambda limit: limit - 1)
