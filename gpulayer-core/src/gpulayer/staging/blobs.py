"""Blobs by content in a folder: ``ab/cdef…``, whole or not there at all.

A blob appears by temporary file → hash → sync → rename → sync of its folder, so a crash or a full disk leaves
either the whole blob or nothing under its name. Puts of one digest may race: equal content wins either way.
``read`` and ``chunks`` verify what they hand out; a damaged blob is taken away, so that ``missing`` asks for it again.

After a sync that failed ``syncs`` is told, and whoever is told decides (``gpulayer.syncing``).

``durable=False`` is for caches, which can be filled again: no syncs. Only the owner of the folder, at its start
and with nobody writing, may call ``sweep_temporaries``.
"""

import errno
import hashlib
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Protocol, Self

from gpulayer.errors import BadRequest, DigestMismatch, DiskFull, GpulayerError, NotFound, StorageUnavailable, TooLarge
from gpulayer.faults import here
from gpulayer.ids import Digest, is_digest
from gpulayer.spec.tree import digest_of
from gpulayer.spec.units import format_bytes
from gpulayer.syncing import Syncs

__all__ = ["BlobFolder", "BlobReader", "BlobWriter", "storage_error"]

CHUNK: Final = 1024 * 1024
_TEMPORARIES: Final = "tmp"
_BINARY: Final = getattr(os, "O_BINARY", 0)


class BlobReader(Protocol):
    """Where verified content comes from: a folder, or a server behind the wire."""

    def read(self, digest: Digest) -> bytes: ...

    def chunks(self, digest: Digest) -> Iterator[bytes]: ...


class BlobFolder:
    """See the module. All methods block and may be called from several threads and processes.

    is_kept: damaged blobs stay while this is set: somebody reads the folder as a whole.
    """

    def __init__(self, root: Path, *, durable: bool = True, syncs: Syncs | None = None) -> None:
        self.root = Path(root)
        self.durable = durable
        self._syncs = syncs or Syncs()
        self.is_kept = False
        self._temporaries = self.root / _TEMPORARIES
        try:
            self._temporaries.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise storage_error(error, self._temporaries) from error

    def path(self, digest: Digest) -> Path:
        """Where the blob lies or would lie. Raises BadRequest for what is no digest: it must never become a path."""
        if not is_digest(digest):
            raise BadRequest(f"{digest[:80]!r} is not a digest")
        return self.root / digest[:2] / digest[2:]

    def has(self, digest: Digest) -> bool:
        """By name alone; damage shows when it is read."""
        return os.path.lexists(self.path(digest))

    def missing(self, digests: Iterable[Digest]) -> list[Digest]:
        """Those that are not here, each once, in order."""
        return [digest for digest in dict.fromkeys(digests) if not self.has(digest)]

    def size(self, digest: Digest) -> int:
        """Bytes of the blob. Raises NotFound."""
        try:
            return os.stat(self.path(digest), follow_symlinks=False).st_size
        except FileNotFoundError:
            raise _not_found(digest) from None

    def open(self, digest: Digest) -> BinaryIO:
        """The blob for reading, unverified. Raises NotFound."""
        path = self.path(digest)
        try:
            return open(path, "rb", buffering=0)
        except FileNotFoundError:
            raise _not_found(digest) from None
        except OSError as error:
            raise storage_error(error, path) from error

    def read(self, digest: Digest) -> bytes:
        """The whole content, verified. Raises NotFound; DigestMismatch for a damaged blob, which is removed."""
        return b"".join(self.chunks(digest))

    def chunks(self, digest: Digest) -> Iterator[bytes]:
        """The content in pieces, verified: the last piece comes only when the whole has the right digest.

        Raises like ``read``; whoever counts bytes therefore never takes a damaged blob for whole.
        """
        with self.open(digest) as file:
            hasher = hashlib.sha256()
            held = b""
            while True:
                try:
                    piece = file.read(CHUNK)
                except OSError as error:
                    raise storage_error(error, self.path(digest)) from error
                if not piece:
                    break
                if held:
                    yield held
                hasher.update(piece)
                held = piece
            if hasher.hexdigest() != digest:
                self._remove_damaged(digest, file)
                raise DigestMismatch(
                    f"blob {digest[:12]}… is damaged on disk (its content has digest {hasher.hexdigest()[:12]}…)",
                    hint="it was removed; send it again",
                )
            if held:
                yield held

    def put_bytes(self, digest: Digest, content: bytes) -> bool:
        """Keep one blob; True when it is new. Raises DigestMismatch, DiskFull, StorageUnavailable."""
        return self.put_many([(digest, content)]) == 1

    def put_many(self, blobs: Iterable[tuple[Digest, bytes]]) -> int:
        """Keep a batch with one sync of data; returns how many are new.

        All or an error: after an error some may be kept, each of them whole, and the call may be repeated.
        """
        staged: dict[Digest, Path] = {}
        folders: set[Path] = set()
        try:
            for digest, content in blobs:
                target = self.path(digest)
                found = digest_of(content)
                if found != digest:
                    raise DigestMismatch(f"a blob sent as {digest[:12]}… has digest {found[:12]}…")
                folders.add(target.parent)
                if digest not in staged and not self._holds(target, len(content)):
                    staged[digest] = self._write_temporary(content)
            if self.durable and staged:
                here("blobs.before_sync")
                self._sync_files(list(staged.values()))
            for digest, temporary in staged.items():
                self._publish(temporary, self.path(digest))
            # Also the folders of blobs that were there already: another writer may not have synced its rename yet.
            self._sync_folders(folders)
        except OSError as error:
            raise storage_error(error, self.root) from error
        finally:
            for temporary in staged.values():
                with suppress(FileNotFoundError):
                    temporary.unlink()
        return len(staged)

    def writer(self, expected_digest: Digest, size_limit: int) -> "BlobWriter":
        """Stream one blob in: ``with folder.writer(d, limit) as w: w.write(piece)…; w.commit()``."""
        return BlobWriter(self, expected_digest, size_limit)

    def remove(self, digest: Digest) -> bool:
        """Forget a blob; True when it was there."""
        try:
            self.path(digest).unlink()
        except FileNotFoundError:
            return False
        return True

    def digests(self) -> Iterator[Digest]:
        """All blobs, in no order."""
        for folder in self.root.iterdir():
            if len(folder.name) == 2 and folder.is_dir():
                for file in folder.iterdir():
                    if is_digest(folder.name + file.name):
                        yield Digest(folder.name + file.name)

    def sync_names(self) -> None:
        """All names are durable: after an owner that died between giving a name and syncing its folder. Raises
        StorageUnavailable."""
        try:
            for folder in self.root.iterdir():
                if len(folder.name) == 2 and folder.is_dir():
                    self._syncs.path(folder)
            self._syncs.path(self.root)
        except OSError as error:
            raise storage_error(error, self.root) from error

    def sweep_temporaries(self) -> int:
        """Remove what a crash left half-written; returns how many files. Only with nobody writing."""
        count = 0
        for file in self._temporaries.iterdir():
            with suppress(FileNotFoundError):
                file.unlink()
                count += 1
        return count

    def _holds(self, target: Path, size: int) -> bool:
        try:
            return os.stat(target, follow_symlinks=False).st_size == size
        except FileNotFoundError:
            return False

    def _new_temporary(self) -> tuple[Path, int]:
        path = self._temporaries / secrets.token_hex(16)
        return path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | _BINARY, 0o600)

    def _write_temporary(self, content: bytes) -> Path:
        path, descriptor = self._new_temporary()
        try:
            try:
                here("blobs.before_write")
                _write_all(descriptor, content)
            finally:
                os.close(descriptor)
        except OSError as error:
            path.unlink()
            raise storage_error(error, path) from error
        return path

    def _sync_files(self, files: list[Path]) -> None:
        if len(files) > 1 and self._syncs.file_system(self._temporaries):
            return
        for file in files:
            self._syncs.path(file)

    def _sync_folders(self, folders: Iterable[Path]) -> None:
        if self.durable:
            for folder in folders:
                self._syncs.path(folder)
            here("blobs.after_sync")

    def _publish(self, temporary: Path, target: Path) -> None:
        here("blobs.before_rename")
        try:
            os.replace(temporary, target)
        except FileNotFoundError:
            target.parent.mkdir(mode=0o700, exist_ok=True)
            if self.durable:
                self._syncs.path(self.root)
            os.replace(temporary, target)
        here("blobs.after_rename")

    def _remove_damaged(self, digest: Digest, file: BinaryIO) -> None:
        """Unlink only the very file that was read: a whole one may have been put in its place since."""
        if self.is_kept:
            return
        path = self.path(digest)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), os.stat(path, follow_symlinks=False)):
                path.unlink()


class BlobWriter:
    """One blob on its way in. Leaving the context without ``commit`` leaves nothing behind."""

    def __init__(self, folder: BlobFolder, expected_digest: Digest, size_limit: int) -> None:
        self._folder = folder
        self._digest = expected_digest
        self._target = folder.path(expected_digest)
        self._limit = size_limit
        self._hasher = hashlib.sha256()
        self.size = 0
        try:
            self._path, self._descriptor = folder._new_temporary()  # noqa: SLF001 - the other half of one mechanism
        except OSError as error:
            raise storage_error(error, folder.root) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    def write(self, piece: bytes) -> None:
        """Raises TooLarge past the limit, DiskFull; after any error only ``abort`` makes sense."""
        self.size += len(piece)
        if self.size > self._limit:
            raise TooLarge(f"blob {self._digest[:12]}… is over the limit of {format_bytes(self._limit)}")
        self._hasher.update(piece)
        try:
            if self.size == len(piece):
                here("blobs.before_write")
            else:
                here("blobs.in_stream")
            _write_all(self._descriptor, piece)
        except OSError as error:
            raise storage_error(error, self._path) from error

    def commit(self) -> None:
        """Verify, sync and publish. Raises DigestMismatch, DiskFull, StorageUnavailable, and then keeps nothing."""
        found = self._hasher.hexdigest()
        if found != self._digest:
            self.abort()
            raise DigestMismatch(
                f"a blob sent as {self._digest[:12]}… has digest {found[:12]}… ({self.size} bytes came)",
                hint="the content changed or was cut short on its way; send it again",
            )
        try:
            if self._folder.durable:
                here("blobs.before_sync")
                self._folder._syncs.file(self._descriptor, self._path)  # noqa: SLF001
            os.close(self._descriptor)
            self._descriptor = -1
            self._folder._publish(self._path, self._target)  # noqa: SLF001
            self._folder._sync_folders([self._target.parent])  # noqa: SLF001
        except OSError as error:
            self.abort()
            raise storage_error(error, self._target) from error

    def abort(self) -> None:
        """Remove what was written. May be repeated, and does nothing after ``commit``."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        with suppress(FileNotFoundError):
            self._path.unlink()


def storage_error(error: OSError, path: os.PathLike[str] | str) -> GpulayerError:
    """The one mapping of a failed write or sync to an error of ours, naming the path."""
    where = error.filename if isinstance(error.filename, str) else os.fspath(path)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"no room left to write {where} ({error.strerror})", hint="free space on that disk, then retry")
    return StorageUnavailable(f"{where}: {error.strerror or error}", hint="check the disk and its permissions")


def _not_found(digest: Digest) -> NotFound:
    return NotFound(f"no blob {digest}")


def _write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
