"""Values at rest: sealed with ChaCha20-Poly1305 (RFC 8439) under a key that lies beside the store, not in it.

A copy of the store alone opens nothing. A sealed value is bound to its job and name: put elsewhere, it does not open.
Form: 12 random bytes (the nonce), then ciphertext and tag. The key is read anew for each use, so that one that was lost
or replaced is noticed by the next job, not after the next start. Functions here block, for a small file.
"""

import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpulayer.errors import Conflict
from gpulayer.faults import here
from gpulayer.ids import JobId, RandomBytes
from gpulayer.server.folder import unusable
from gpulayer.syncing import Syncs

__all__ = ["Sealer", "open_sealer"]

_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_RESTORE: Final = "put secrets.key back from a backup of the state folder, or submit the job again"


@dataclass(frozen=True, slots=True)
class Sealer:
    """One key, at work. It does not show itself."""

    key: bytes = field(repr=False)
    random_bytes: RandomBytes = secrets.token_bytes

    def seal(self, job_id: JobId, name: str, value: str) -> bytes:
        """Each time another text, also for the same value."""
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305  # noqa: PLC0415 - start-up time

        nonce = self.random_bytes(_NONCE_BYTES)
        return nonce + ChaCha20Poly1305(self.key).encrypt(nonce, value.encode(), _about(job_id, name))

    def open(self, job_id: JobId, name: str, sealed: bytes) -> str:
        """Raises Conflict where it was sealed under another key, or for another job or name."""
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - start-up time
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305  # noqa: PLC0415 - start-up time

        try:
            opened = ChaCha20Poly1305(self.key).decrypt(
                sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], _about(job_id, name)
            )
        except (InvalidTag, ValueError):
            raise Conflict(
                f"secret {name} of job {job_id} can't be opened: it was sealed under another key than secrets.key now",
                hint=_RESTORE,
            ) from None
        return opened.decode()


def open_sealer(
    path: Path, *, may_make: bool, random_bytes: RandomBytes = secrets.token_bytes, syncs: Syncs | None = None
) -> Sealer:
    """The key at ``path``; made (mode 0600, whole or not at all) where there is none and ``may_make``.

    Raises Conflict for a key that is missing or no key, StorageUnavailable where it can't be read or written.
    """
    try:
        try:
            key = path.read_bytes()
        except FileNotFoundError:
            if not may_make:
                raise Conflict(
                    f"{path.name} is missing in the control plane's state: what was sealed under it can't be opened",
                    hint=_RESTORE,
                ) from None
            key = _make(path, random_bytes, syncs or Syncs())
    except OSError as error:
        raise unusable(path, error) from error
    if len(key) != _KEY_BYTES:
        # Never replaced by a new one: jobs that wait may have been sealed under what it was.
        raise Conflict(
            f"{path.name} in the control plane's state is damaged: {len(key)} bytes instead of {_KEY_BYTES}",
            hint="put it back from a backup of the state folder, or move it away: then the next job makes another",
        )
    return Sealer(key, random_bytes)


def _make(path: Path, random_bytes: RandomBytes, syncs: Syncs) -> bytes:
    """Of several that make one at a time, the first wins and all use it."""
    key = random_bytes(_KEY_BYTES)
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            here("plane.before_key")
            os.write(descriptor, key)
            syncs.file(descriptor, temporary)
        finally:
            os.close(descriptor)
        here("plane.in_key")
        try:
            os.link(temporary, path)  # unlike a rename it takes nobody's place
        except FileExistsError:
            return path.read_bytes()
        here("plane.after_key")
        syncs.path(path.parent)  # before anything is sealed under it: a key that is lost takes all with it
        return key
    finally:
        os.unlink(temporary)


def _about(job_id: JobId, name: str) -> bytes:
    return f"gpulayer-secret:{job_id}:{name}".encode()
