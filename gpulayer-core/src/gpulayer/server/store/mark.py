"""What was acknowledged last, noted beside a store in use, so that its next start can tell whether SQLite still has it.

SQLite drops its log from the first frame on that does not fit, which is right for one that a power cut tore, and says
nothing. So does it with a log that was emptied, cut off, put back from elsewhere, or in which a bit has changed; and
then commits are gone that somebody was told of, and epochs would be given out twice. So each commit is counted in the
store, within its own transaction, and the count is noted in ``store.db-open`` once the commit is synced, before it is
answered. A store that counts fewer than the note says has lost the difference.

The note is overwritten in its place, in one sector, and synced only when it is made: a killed process leaves the newest
one, a power cut that one or an older one. Any of them tells of commits that were synced before it was written, so no
sound store is refused; what is not noticed after a power cut is damage to the commits of the last moments before it.
"""

import os
import sqlite3
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

from gpulayer.errors import StorageUnavailable
from gpulayer.server.store.health import damaged, of_sqlite

__all__ = ["LOG_HEADER", "MARK_BYTES", "check_log", "check_newest", "count_of", "mark_text"]

LOG_HEADER: Final = 32
MARK_BYTES: Final = 32
_ORDERS: Final = {0x377F0682: "little", 0x377F0683: "big"}


def mark_text(count: int) -> bytes:
    """``MARK_BYTES`` that say so, and whether they are whole."""
    text = b"%022d" % count
    return b"%s %08x\n" % (text, zlib.crc32(text))


def count_of(content: bytes) -> int:
    """What a note says; 0 for none, for one of an older version, and for what a power cut made of it."""
    text = content[:22]
    return int(text) if text.isdigit() and content == mark_text(int(text)) else 0


def check_log(path: str, header: bytes) -> None:
    """``header``: the first bytes of the log of a store that is marked. There was a commit since SQLite made that log,
    so that its header is synced, and it is only ever replaced by another one, within a sector. Raises
    StorageUnavailable."""
    if len(header) < LOG_HEADER:
        raise _lost(path, "is empty" if not header else "is cut off")
    words = [header[at : at + 4] for at in range(0, LOG_HEADER, 4)]
    order = _ORDERS.get(int.from_bytes(words[0], "big"))
    if order is None:
        raise _lost(path, "is no log of SQLite's")
    one = two = 0
    for at in range(0, 6, 2):
        one = (one + int.from_bytes(words[at], order) + two) & 0xFFFFFFFF  # type: ignore[arg-type] # as above
        two = (two + int.from_bytes(words[at + 1], order) + one) & 0xFFFFFFFF  # type: ignore[arg-type]
    if words[6:] != [one.to_bytes(4, "big"), two.to_bytes(4, "big")]:
        raise _lost(path, "has a damaged header")


def check_newest(path: str, *, noted: int, connect: Callable[[Path], sqlite3.Connection]) -> None:
    """Raises StorageUnavailable where commits are missing that were acknowledged."""
    if not noted:
        return
    try:
        with closing(connect(Path(path))) as connection:
            (found,) = connection.execute("SELECT probed FROM counters").fetchone() or (0,)
    except sqlite3.DatabaseError as error:
        raise of_sqlite(error, path) from error
    if found < noted:
        raise _lost(path, f"is damaged or another one: the newest {noted - found:,} commits are not in it")


def _lost(path: str, why: str) -> StorageUnavailable:
    error = damaged(path, f"it was in use when its control plane ended, and {os.path.basename(path)}-wal {why}")
    # To go on from the older state would give out numbers twice that workers and people know.
    return StorageUnavailable(error.message, hint=f"put that file back as it was, if you have it; {error.hint}")
