"""Who this worker is: a key pair and a counter in one file (mode 0600), written whole or not at all, and synced.

The counter grows before every signature and the boot with every start, both durably, so that neither a signature
nor a boot number is ever used twice, whatever dies when. The one exception is a folder whose agent was refused
because another runs with its key: its boot stands still, so that no start, however often something tries it, takes the
other's place.
"""

import json
import secrets
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gpulayer.errors import ProtocolError
from gpulayer.staging.blobs import storage_error
from gpulayer.whole import write_whole
from gpulayer.wire.sessions import session_text
from gpulayer.worker.disk import Reserve

__all__ = ["Identity", "IdentityStore"]

_SCHEMA: Final = 1
_KEY_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Identity:
    """``worker_id`` is empty until the key is enrolled. ``private_key``: 64 hex characters. ``is_superseded``: the last
    that was heard of the control plane is that another agent has this worker's place."""

    private_key: str = field(repr=False)
    worker_id: str = ""
    name: str = ""
    counter: int = 0
    boot: int = 0
    is_superseded: bool = False

    @property
    def public_key(self) -> str:
        """Ed25519, 64 hex characters."""
        return self._key().public_key().public_bytes_raw().hex()

    def sign(self, counter: int, *, instance: str) -> str:
        """As ``wire.workers.SessionBody`` says, for the present boot."""
        text = session_text(self.worker_id, counter, boot=self.boot, instance=instance)
        return self._key().sign(text.encode()).hex()

    def sign_enrolment(self, token_id: str, name: str) -> str:
        """Over ``gpulayer-enrol:<join token id>:<name>``, as ``wire.workers.EnrolBody`` says."""
        return self._key().sign(f"gpulayer-enrol:{token_id}:{name}".encode("utf-8", "surrogatepass")).hex()

    def _key(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(self.private_key))


class IdentityStore:
    """The file ``identity.json``. It appears with enrolment; before, the key waits beside it, because a control plane
    takes the file's being there for "has joined". Blocks for a few syncs. Raises DiskFull and StorageUnavailable.

    ``instance`` is this object's alone and on no disk: it tells two agents apart that run in copies of one folder.
    """

    def __init__(self, folder: Path, *, reserve: Reserve) -> None:
        self.instance: Final = secrets.token_hex(16)
        self._reserve = reserve
        self._path = folder / "identity.json"
        self._unused = folder / "identity.new.json"
        self.identity = self._load()

    @property
    def is_enrolled(self) -> bool:
        return bool(self.identity.worker_id)

    def enrolled(self, worker_id: str, name: str) -> None:
        """Kept durably before it returns. A new worker id counts its signatures from nothing."""
        # A new worker id counts from nothing; the same one must count on.
        counter = self.identity.counter if worker_id == self.identity.worker_id else 0
        self._keep(replace(self.identity, worker_id=worker_id, name=name, counter=counter, is_superseded=False))
        self._unused.unlink(missing_ok=True)

    def forget_enrolment(self) -> None:
        """As before it joined, with the same key: for a worker that was removed and may be joined again."""
        self._keep(replace(self.identity, worker_id="", name="", counter=0))
        self._path.unlink(missing_ok=True)

    def next_boot(self) -> int:
        """Larger than ever before, and kept before it is returned; the same where another has this worker's place."""
        if not self.identity.is_superseded:
            self._keep(replace(self.identity, boot=self.identity.boot + 1))
        return self.identity.boot

    def follow(self, boot: int) -> None:
        """The place of the start of this number is free: this one comes after it."""
        self._keep(replace(self.identity, boot=max(self.identity.boot, boot) + 1, is_superseded=False))

    def set_superseded(self, is_superseded: bool) -> None:
        """Kept durably where that is new."""
        if is_superseded is not self.identity.is_superseded:
            self._keep(replace(self.identity, is_superseded=is_superseded))

    def count_from(self, counter: int) -> None:
        """The next signature has a higher counter than this one, which the control plane has seen."""
        if counter > self.identity.counter:
            self._keep(replace(self.identity, counter=counter))

    def next_signature(self) -> tuple[int, str]:
        """A counter that was never used before, and the signature over it, this boot and ``instance``."""
        counter = self.identity.counter + 1
        self._keep(replace(self.identity, counter=counter))
        return counter, self.identity.sign(counter, instance=self.instance)

    def _keep(self, identity: Identity) -> None:
        document = {
            "schema": _SCHEMA,
            "worker_id": identity.worker_id,
            "name": identity.name,
            "private_key": identity.private_key,
            "counter": identity.counter,
            "boot": identity.boot,
            "is_superseded": identity.is_superseded,
        }
        path = self._path if identity.worker_id else self._unused
        content = json.dumps(document).encode()
        try:
            self._reserve.write(lambda: write_whole(path, content, point="agent.identity", is_synced=True))
        except OSError as error:
            raise storage_error(error, path) from error
        self.identity = identity

    def _load(self) -> Identity:
        for path in (self._path, self._unused):
            try:
                document = json.loads(path.read_bytes())
                if document["schema"] != _SCHEMA:
                    raise ValueError(f"schema {document['schema']!r}")
                identity = Identity(
                    private_key=str(document["private_key"]),
                    worker_id=str(document["worker_id"]),
                    name=str(document["name"]),
                    counter=int(document["counter"]),
                    boot=int(document["boot"]),
                    is_superseded=bool(document.get("is_superseded", False)),
                )
                if len(bytes.fromhex(identity.private_key)) != _KEY_BYTES:
                    raise ValueError("private_key is not 64 hex characters")
            except FileNotFoundError:
                continue
            except (ValueError, KeyError, TypeError) as error:
                raise ProtocolError(
                    f"{path} can't be read: {error}", hint="move it away and join again with a new token"
                ) from None
            else:
                return identity
        identity = Identity(Ed25519PrivateKey.generate().private_bytes_raw().hex())
        self._keep(identity)
        return identity
