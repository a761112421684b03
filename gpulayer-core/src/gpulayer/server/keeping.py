"""What a backup and a restore ask of a state folder and its disk: a copy of the store where there is room for one, and
keys that their readers take. Blocks.
"""

import os
import re
import shutil
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Final

from gpulayer.errors import Conflict, DiskFull, StorageUnavailable, UsageError
from gpulayer.ids import new_id
from gpulayer.server.auth import load_pepper, lost_pepper
from gpulayer.server.certificates import server_context
from gpulayer.server.sealing import open_sealer
from gpulayer.server.settings import CertificateFiles, Layout
from gpulayer.server.store.health import read_only
from gpulayer.spec.units import format_bytes

__all__ = ["ELSEWHERE", "ROOM_BYTES", "check_keys", "lacks_pepper", "place_for", "readable"]

ELSEWHERE: Final = (Path("/var/tmp"), Path("/tmp"))  # noqa: S108 - the copies have names that nobody knows, and are 0600
ROOM_BYTES: Final = 64 * 1024 * 1024  # left free by a copy: the control plane goes on beside it
_AWAY: Final = "gpulayer-backup-"
_AWAYS: Final = re.compile(r"gpulayer-backup-[0-9a-f]{16}(?:\.db(?:-journal)?|\.read)")
_LEFT_S: Final = 86_400


def place_for(root: Path, size: int, elsewhere: Sequence[Path] = ELSEWHERE) -> Path:
    """Where a copy of so many bytes can be made: in the state folder, or else in one of the others, since a disk that
    is full or has become read-only is when people want a backup. Raises DiskFull."""
    _sweep(elsewhere)
    for place in (root, *elsewhere):
        with suppress(OSError):
            if os.access(place, os.W_OK | os.X_OK) and shutil.disk_usage(place).free >= size + ROOM_BYTES:
                return place / (f"backup-{new_id()}.db" if place == root else f"{_AWAY}{new_id()}.db")
    places = ", nor in ".join(map(str, (root, *elsewhere)))
    raise DiskFull(
        f"there is no room for a copy of the store ({format_bytes(size)}) in {places}",
        hint=f"free space in one of them: {format_bytes(ROOM_BYTES)} more than the copy must be left. Or end the"
        " control plane, and copy its state folder whole to another disk",
    )


@contextmanager
def readable(store: Path, elsewhere: Sequence[Path] = ELSEWHERE) -> Iterator[sqlite3.Connection]:
    """The store, to read. SQLite needs to write beside a store that has a log: where that can't be, of a control plane
    that died on a disk that is read-only since, both are copied first."""
    log = store.with_name(f"{store.name}-wal")
    with ExitStack() as stack:
        if log.exists() and not os.access(store.parent, os.W_OK):
            copy = place_for(store.parent, store.stat().st_size + log.stat().st_size, elsewhere).with_suffix(".read")
            copy.mkdir(mode=0o700)
            stack.callback(shutil.rmtree, copy, ignore_errors=True)
            for each in (store, log):
                shutil.copyfile(each, copy / each.name)
            store = copy / store.name
        yield stack.enter_context(closing(read_only(store)))


def check_keys(layout: Layout, *, what: str, hint: str) -> None:
    """Pepper, sealing key and certificate are such that a control plane starts with them, as far as they are there. The
    pepper has to be. what: whose they are. Raises Conflict."""
    try:
        if not layout.pepper.exists():
            raise lost_pepper(layout)
        load_pepper(layout, is_needed=True)
        if layout.secrets_key.exists():
            open_sealer(layout.secrets_key, may_make=False)
        pair = CertificateFiles(layout.tls / "cert.pem", layout.tls / "key.pem")
        if pair.cert.exists() or pair.key.exists():
            server_context(pair)
    except (Conflict, UsageError, StorageUnavailable) as error:
        why = error.message.replace(f"{layout.root}{os.sep}", "")
        raise Conflict(f"{what} can't be used: {why}", hint=hint) from error


def lacks_pepper(layout: Layout) -> Conflict | None:
    """What a start says where the pepper is gone that the store's tokens need. For a store that is whole."""
    if layout.pepper.exists():
        return None
    with readable(layout.store) as connection:
        (has_tokens,) = connection.execute("SELECT EXISTS (SELECT 1 FROM tokens)").fetchone()
    return lost_pepper(layout) if has_tokens else None


def _sweep(folders: Sequence[Path]) -> None:
    """What a backup left elsewhere that was killed. A day is longer than any takes."""
    for folder in folders:
        for path in folder.glob(f"{_AWAY}*"):
            with suppress(OSError):
                found = path.lstat()
                if not _AWAYS.fullmatch(path.name) or found.st_uid != os.geteuid():
                    continue
                if found.st_mtime < time.time() - _LEFT_S:
                    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
