"""Who is told of a sync that failed, and of what; and that nobody syncs anything behind its back."""

import errno
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

import gpulayer
from gpulayer.errors import StorageUnavailable
from gpulayer.ids import Epoch, JobId
from gpulayer.server.auth import load_pepper
from gpulayer.server.logs import LogFolder, LogKey
from gpulayer.server.sealing import open_sealer
from gpulayer.server.settings import Layout
from gpulayer.spec.tree import digest_of
from gpulayer.staging.blobs import BlobFolder
from gpulayer.syncing import Syncs
from gpulayer.whole import write_whole

# The client's own files are nobody's promise, and what ends there is one command.
ELSEWHERE = {"syncing.py", "client/contexts.py"}


@pytest.fixture
def told():
    return []


@pytest.fixture
def syncs(told, monkeypatch):
    def fails(_descriptor):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fails)
    return Syncs(failed=lambda path, error: told.append((Path(path), error.errno)))


def test_a_file_and_a_folder_that_do_not_sync_are_told_by_name(tmp_path, syncs, told):
    with open(tmp_path / "f", "wb") as file, pytest.raises(OSError, match="Input/output"):
        syncs.file(file.fileno(), tmp_path / "f")
    with pytest.raises(OSError, match="Input/output"):
        syncs.path(tmp_path)
    assert told == [(tmp_path / "f", errno.EIO), (tmp_path, errno.EIO)]


def test_a_file_system_that_has_become_read_only_has_lost_what_it_was_to_write(tmp_path, syncs, told, monkeypatch):
    def refuses(_descriptor):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "fsync", refuses)
    with pytest.raises(OSError, match="Read-only"):
        syncs.path(tmp_path)
    assert told == [(tmp_path, errno.EROFS)]


@pytest.mark.parametrize(
    ("release", "tells"),
    [
        ("5.8.0", True),
        ("6.1.0-13-amd64", True),
        ("10.0", True),
        ("5.7.19", False),
        ("4.18.0-553.el8", False),
        ("", False),
    ],
)
def test_a_whole_file_system_is_synced_at_once_only_where_linux_says_whether_that_worked(
    tmp_path, monkeypatch, release, tells
):
    real = os.uname()
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(sysname=real.sysname, release=release))
    monkeypatch.setattr("sys.platform", "linux")
    assert Syncs().file_system(tmp_path) is tells


def test_what_can_not_be_synced_at_all_is_an_error_and_no_loss(tmp_path, syncs, told, monkeypatch):
    def refuses(_descriptor):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "fsync", refuses)
    with pytest.raises(OSError, match="Invalid argument"):
        syncs.path(tmp_path)
    assert told == []


@pytest.mark.parametrize("kind", ["blob", "blobs", "stream", "log", "pepper", "key", "whole"])
def test_all_that_a_control_plane_keeps_beside_its_store_tells_of_a_failed_sync(tmp_path, syncs, told, kind):
    content = b"content"
    blobs = BlobFolder(tmp_path / "blobs", syncs=syncs)
    logs = LogFolder(tmp_path / "logs", syncs=syncs)

    def stream():
        with blobs.writer(digest_of(content), 100) as writer:
            writer.write(content)
            writer.commit()

    acts = {
        "blob": lambda: blobs.put_bytes(digest_of(content), content),
        "blobs": lambda: blobs.put_many([(digest_of(each), each) for each in (b"a", b"b")]),
        "stream": stream,
        "log": lambda: logs.append(LogKey(JobId("j"), Epoch(1)), 0, b"line\n", wall_ms=0, is_final=True),
        "pepper": lambda: load_pepper(Layout(tmp_path), os.urandom, syncs=syncs),
        "key": lambda: open_sealer(tmp_path / "key", may_make=True, syncs=syncs),
        "whole": lambda: write_whole(tmp_path / "whole", content, is_synced=True, syncs=syncs),
    }
    with pytest.raises((OSError, StorageUnavailable)):
        acts[kind]()
    assert len(told) == 1
    assert told[0][1] == errno.EIO
    assert told[0][0].is_relative_to(tmp_path)


def test_a_final_piece_makes_the_names_of_its_log_durable_too(tmp_path, monkeypatch):
    synced, real = [], os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda number: (synced.append(os.readlink(f"/proc/self/fd/{number}")), real(number))
    )
    logs = LogFolder(tmp_path / "logs")
    key = LogKey(JobId("j"), Epoch(1))
    logs.append(key, 0, b"line\n", wall_ms=0, is_final=True)
    assert synced == [str(logs.path(key)), str(tmp_path / "logs" / "j"), str(tmp_path / "logs")]


def test_nothing_is_synced_but_through_the_one_place():
    root = Path(gpulayer.__file__).parent
    call = re.compile(r"os\.(fsync|fdatasync|sync)\(|\bsyncfs\b")
    found = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if "testing" not in path.parts and call.search(path.read_text())
    }
    assert found <= ELSEWHERE
