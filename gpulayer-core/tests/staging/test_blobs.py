"""A blob is whole or not there: damage, races, limits, a full disk."""

import errno
import os
import subprocess
import threading
from contextlib import contextmanager

import pytest

from gpulayer.errors import BadRequest, DigestMismatch, DiskFull, NotFound, StorageUnavailable, TooLarge
from gpulayer.ids import Digest
from gpulayer.spec.tree import digest_of
from gpulayer.staging import blobs as module
from gpulayer.staging.blobs import BlobFolder
from gpulayer.syncing import Syncs

HELLO = b"hello"
D = digest_of(HELLO)


@pytest.fixture
def folder(tmp_path):
    return BlobFolder(tmp_path / "blobs")


def temporaries(folder):
    return list((folder.root / "tmp").iterdir())


def test_what_was_put_is_read_and_lies_under_its_digest(folder):
    assert folder.missing([D, D]) == [D]
    assert folder.put_bytes(D, HELLO)
    assert not folder.put_bytes(D, HELLO), "the second time it is not new"
    assert folder.has(D)
    assert folder.missing([D]) == []
    assert folder.size(D) == 5
    assert folder.read(D) == HELLO
    assert (folder.root / D[:2] / D[2:]).read_bytes() == HELLO
    assert list(folder.digests()) == [D]
    assert temporaries(folder) == []


def test_a_batch_is_kept_whole_with_one_sync_of_data(folder, monkeypatch):
    calls = []
    monkeypatch.setattr(Syncs, "file_system", lambda self, path: calls.append(path) or True)
    batch = {digest_of(bytes([n])): bytes([n]) for n in range(200)}
    assert folder.put_many(batch.items()) == 200
    assert len(calls) == 1
    assert folder.put_many([*batch.items(), *batch.items()]) == 0
    assert all(folder.read(digest) == content for digest, content in batch.items())


def test_where_there_is_no_syncfs_each_file_is_synced(folder, monkeypatch):
    synced = []
    monkeypatch.setattr(Syncs, "file_system", lambda self, path: False)
    monkeypatch.setattr(Syncs, "path", lambda self, path: synced.append(path))
    folder.put_many([(digest_of(bytes([n])), bytes([n])) for n in range(3)])
    assert sum(path.parent.name == "tmp" for path in synced) == 3
    assert len({path for path in synced if path.parent == folder.root}) == 3, "and each folder that got a name"


def test_a_cache_syncs_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(Syncs, "file_system", lambda self, path: pytest.fail("synced"))
    monkeypatch.setattr(Syncs, "path", lambda self, path: pytest.fail("synced"))
    cache = BlobFolder(tmp_path, durable=False)
    cache.put_many([(D, HELLO), (digest_of(b""), b"")])
    assert cache.read(digest_of(b"")) == b""


def test_false_content_is_refused_and_leaves_nothing(folder):
    other = digest_of(b"other")
    with pytest.raises(DigestMismatch, match=other[:12]):
        folder.put_many([(D, HELLO), (other, b"not other")])
    assert not folder.has(other)
    assert temporaries(folder) == []


def test_a_writer_keeps_a_stream_only_when_it_is_committed_and_true(folder):
    with folder.writer(D, 100) as writer:
        writer.write(b"hel")
    assert not folder.has(D)
    with folder.writer(D, 100) as writer:
        writer.write(b"hel")
        with pytest.raises(DigestMismatch, match="3 bytes came"):
            writer.commit()
    with pytest.raises(TooLarge), folder.writer(D, 4) as writer:
        writer.write(HELLO)
    assert not folder.has(D)
    with folder.writer(D, 5) as writer:
        writer.write(b"hel")
        writer.write(b"lo")
        writer.commit()
    assert folder.read(D) == HELLO
    assert temporaries(folder) == []


@pytest.mark.parametrize("damage", [b"hellO", b"hell", b"hello!", b""])
def test_a_damaged_blob_is_never_handed_out_whole_and_is_asked_for_again(folder, damage):
    folder.put_bytes(D, HELLO)
    folder.path(D).write_bytes(damage)
    with pytest.raises(DigestMismatch, match="damaged on disk"):
        folder.read(D)
    assert folder.missing([D]) == [D]
    folder.put_bytes(D, HELLO)
    assert folder.read(D) == HELLO


def test_a_truncated_blob_is_mended_by_putting_it_again(folder):
    folder.put_bytes(D, HELLO)
    folder.path(D).write_bytes(b"hel")
    assert folder.put_bytes(D, HELLO)
    assert folder.read(D) == HELLO


def test_the_last_chunk_of_a_damaged_blob_is_held_back(folder):
    content = os.urandom(2 * module.CHUNK + 5)
    digest = digest_of(content)
    folder.put_bytes(digest, content)
    with open(folder.path(digest), "r+b") as file:
        file.write(b"x" * 10)
    got = []
    with pytest.raises(DigestMismatch):
        got.extend(folder.chunks(digest))
    assert sum(map(len, got)) < len(content)


@pytest.mark.parametrize(
    "name", ["", "../../etc/passwd", "a" * 63, "A" * 64, "a" * 65, "g" * 64, "/" * 64, "a" * 63 + "\n"]
)
def test_what_is_no_digest_never_becomes_a_path(folder, name):
    for call in (folder.has, folder.read, folder.size, folder.remove, lambda d: folder.put_bytes(d, b"")):
        with pytest.raises(BadRequest, match="is not a digest"):
            call(Digest(name))
    with pytest.raises(BadRequest):
        folder.writer(Digest(name), 10)


def test_an_absent_blob_is_not_found(folder):
    for call in (folder.read, folder.size, folder.open):
        with pytest.raises(NotFound, match=D):
            call(D)
    assert not folder.remove(D)


def test_many_threads_may_put_the_same_blobs(folder):
    batch = [(digest_of(bytes([n]) * 100), bytes([n]) * 100) for n in range(40)]
    errors = []
    start = threading.Barrier(6)

    def put(shift):
        try:
            start.wait(10)
            folder.put_many(batch[shift:] + batch[:shift])
            with folder.writer(D, 10) as writer:
                writer.write(HELLO)
                writer.commit()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=put, args=(n * 5,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert errors == []
    assert all(folder.read(digest) == content for digest, content in batch)
    assert temporaries(folder) == []


def test_a_sweep_removes_what_a_crash_left(folder):
    (folder.root / "tmp" / "half").write_bytes(b"x")
    folder.put_bytes(D, HELLO)
    assert folder.sweep_temporaries() == 1
    assert folder.read(D) == HELLO


@contextmanager
def small_disk(path, size):
    path.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path], check=False, capture_output=True
    ).returncode:
        pytest.skip("can't mount a small disk here")
    try:
        yield path
    finally:
        subprocess.run(["umount", path], check=True)


def test_a_full_disk_is_said_so_and_corrupts_nothing(tmp_path):
    with small_disk(tmp_path / "disk", "1m") as disk:
        folder = BlobFolder(disk / "blobs")
        folder.put_bytes(D, HELLO)
        large = os.urandom(2 * 2**20)
        with pytest.raises(DiskFull, match=str(disk)):
            folder.put_bytes(digest_of(large), large)
        small = [os.urandom(100_000) for _ in range(20)]
        with pytest.raises(DiskFull, match=str(disk)):
            folder.put_many([(digest_of(content), content) for content in small])
        with pytest.raises(DiskFull, match=str(disk)), folder.writer(digest_of(large), 2**30) as writer:
            writer.write(large)
        assert temporaries(folder) == []
        assert [digest for digest in folder.digests() if folder.read(digest)] == [D], "all that is there is whole"
        assert folder.put_bytes(digest_of(small[0]), small[0]), "and there is room again"


def stream_until_it_fails(folder):
    for n in range(10):
        content = bytes([n]) * 10
        with folder.writer(digest_of(content), 10) as writer:
            writer.write(content)
            writer.commit()


@pytest.mark.parametrize("call", ["open", "write", "fsync", "replace"])
@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, DiskFull), (errno.EDQUOT, DiskFull), (errno.EIO, StorageUnavailable)]
)
@pytest.mark.parametrize("nth", [1, 2, 5])
def test_a_failure_at_any_write_point_is_named_and_leaves_only_whole_blobs(
    folder, monkeypatch, call, number, kind, nth
):
    batch = {digest_of(bytes([n]) * 50): bytes([n]) * 50 for n in range(6)}
    calls = []
    real = getattr(os, call)

    def failing(*arguments, **options):
        calls.append(arguments)
        if len(calls) >= nth:
            raise OSError(number, os.strerror(number), str(folder.root))
        return real(*arguments, **options)

    monkeypatch.setattr(Syncs, "file_system", lambda self, path: False)
    monkeypatch.setattr(module.os, call, failing)
    with pytest.raises(kind, match=str(folder.root)):
        folder.put_many(batch.items())
    calls.clear()
    with pytest.raises(kind):
        stream_until_it_fails(folder)
    monkeypatch.undo()
    assert temporaries(folder) == []
    for digest in folder.digests():
        folder.read(digest)
    folder.put_many(batch.items())
    stream_until_it_fails(folder)
    assert folder.missing(batch) == []
