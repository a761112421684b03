"""Whether a store's file is one, and whole: looked at before anything is written to it.

A store is never made in the place of one that was there. It appears under its name only when it is whole (``schema``
and all), so a file that is empty, foreign or without its tables has been damaged since, and is refused and left as it
is. What SQLite itself can't tell is that its ``-wal`` file was taken away after a crash: it would go on from an older
state and give out epochs twice. So a store in use has a file ``-open`` beside it from the moment on that there is a
``-wal``, until just before that goes.

Functions here block; the quick check reads what a start reads.
"""

import os
import sqlite3
import stat
from collections.abc import Callable, Mapping, Set
from contextlib import closing, suppress
from glob import escape, glob
from pathlib import Path
from shlex import quote as quoted
from typing import Final
from urllib.parse import quote

from gpulayer.errors import DiskFull, StorageUnavailable
from gpulayer.staging.blobs import storage_error

__all__ = [
    "check_all",
    "check_contents",
    "check_file",
    "check_lost",
    "check_pages",
    "check_start",
    "copy_before_migration",
    "damaged",
    "examine",
    "how_to_use",
    "is_damage",
    "of_sqlite",
    "read_only",
    "restoring",
]

_BUSY_MS: Final = 5_000
_MAGIC: Final = b"SQLite format 3\0"
_HEADER: Final = 100
_SMALL: Final = ("counters", "workers", "facts", "tokens", "identities", "sink_cursors", "secrets", "alembic_version")
_WHOLE_BYTES: Final = 512 * 2**20  # which take a second or so to be looked at; 100,000 jobs are 150 MiB
_SAYS: Final = ("malformed", "not a database", "corrupt")

_SQLITES_OWN: Final = "*** in database main *** "  # it has no other


def restoring(folder: Path | str) -> str:
    """How a backup takes the place of what is in a state folder; said of any folder, so it names it."""
    return f"gpulayer restore FILE --state {quoted(str(folder))}"


def damaged(path: os.PathLike[str] | str, why: str) -> StorageUnavailable:
    """What a start, a backup or a doctor says."""
    folder = Path(path).parent
    hint = (
        f"nothing in it was changed. Move {folder} away and restore a backup: {restoring(folder)}"
        " (without one, a start with an empty folder begins anew)"
    )
    return StorageUnavailable(f"the control plane's store {os.fspath(path)} is damaged: {why}", hint=hint)


def how_to_use(copy: str, path: str) -> str:
    """Of a copy that was made when the store was taken away (``Store.check_place``)."""
    return f"remove {path}, {path}-wal, {path}-shm and {path}-open, as far as they are there, and rename it to {path}"


def _gone(path: str, why: str) -> StorageUnavailable:
    error = damaged(path, why)
    copies = sorted(glob(f"{escape(path)}.rescued-*"), key=os.path.getmtime)
    if not copies:
        return error
    hint = f"{copies[-1]} is a copy that was made when that was noticed. {how_to_use(copies[-1], path)}"
    return StorageUnavailable(error.message, hint=hint)


def is_damage(error: object) -> bool:
    """Whether what SQLite says means that the file itself is broken."""
    return any(word in str(error) for word in _SAYS)


def check_file(path: str) -> bool:
    """Whether there is a store, as far as can be told without SQLite. Raises StorageUnavailable for what is no store,
    can't be read, or has lost what belongs to it."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        if os.path.islink(path):
            raise damaged(path, "it is a link to nothing") from None
        for left in (f"{path}-open", f"{path}-wal"):
            if os.path.exists(left):
                raise _gone(path, f"it is gone, and {os.path.basename(left)} is there") from None
        return False
    except OSError as error:
        raise StorageUnavailable(f"{path} can't be used: {error.strerror}", hint="see its mode and owner") from None
    if stat.S_ISDIR(found.st_mode):
        raise damaged(path, "there is a folder in its place")
    if not stat.S_ISREG(found.st_mode):
        raise damaged(path, "it is no plain file")
    try:
        with open(path, "rb") as file:
            header = file.read(_HEADER)
    except OSError as error:
        raise StorageUnavailable(
            f"the control plane's store {path} can't be read: {error.strerror}",
            hint=f"see the mode and owner of {path}",
        ) from None
    if not header:
        raise damaged(path, "it is empty")
    if not header.startswith(_MAGIC):
        raise damaged(path, "it is no SQLite file")
    if len(header) < _HEADER or found.st_size < int.from_bytes(header[16:18], "big"):
        raise damaged(path, f"it is cut off after {found.st_size} bytes")
    if os.path.exists(f"{path}-open") and not os.path.exists(f"{path}-wal"):
        kept = restoring(Path(path).parent)
        raise StorageUnavailable(
            f"the control plane's store {path} lacks its newest part: it was in use, and {path}-wal is gone",
            hint=f"put that file back, or restore a backup ({kept}). Only if you opened the store with"
            f" another program since, remove {path}-open: then it is whole",
        )
    return True


def read_only(path: Path, *, is_still: bool | None = None, vfs: str = "") -> sqlite3.Connection:
    """A connection that changes nothing: neither does it take a ``-wal`` into the file at its end, nor leave an empty
    one. Without a ``-wal`` nobody may write to the store meanwhile: the caller holds its folder's lock. is_still: there
    is none; None: look. vfs: of SQLite, where it is not its usual one. Raises StorageUnavailable: SQLite reads the file
    as it opens it."""
    still = not os.path.exists(f"{path}-wal") if is_still is None else is_still
    options = f"mode=ro{'&immutable=1' if still else ''}{f'&vfs={vfs}' if vfs else ''}"
    try:
        return sqlite3.connect(f"file:{quote(str(path))}?{options}", uri=True, isolation_level=None)
    except sqlite3.Error as error:
        raise of_sqlite(error, path) from error


def check_lost(path: Path, *, made_after: Path) -> None:
    """Raises StorageUnavailable where the store is gone and a file is there that is only made after it."""
    if made_after.exists() and not os.path.lexists(path):
        raise _gone(str(path), f"it is gone, and {made_after.name}, which was made after it, is there")


def examine(path: Path, *, made_after: Path) -> str | None:
    """All that can be looked at, which takes some seconds for each gigabyte; its schema's version, None where there is
    no store. Beside a control plane that runs, too. Raises StorageUnavailable."""
    check_lost(path, made_after=made_after)
    if not check_file(str(path)):
        return None
    check_start(str(path))
    with closing(read_only(path)) as connection:
        return check_all(connection, path)


def check_all(connection: sqlite3.Connection, path: Path) -> str:
    """What a start refuses, and every page and index; its schema's version. What a backup and a doctor look at. Raises
    StorageUnavailable."""
    from gpulayer.server.store.schema import expected  # noqa: PLC0415 - SQLAlchemy, which not all who look here need
    from gpulayer.server.store.tables import SCHEMA_VERSION  # noqa: PLC0415

    check_pages(connection, path, is_full=True)
    try:
        found = connection.execute("SELECT version_num FROM alembic_version").fetchall()
        schema = str(found[0][0]) if len(found) == 1 else ""
        if not schema:
            raise damaged(path, "it does not say which schema it has")
        if schema < SCHEMA_VERSION:
            _check_counters(connection, str(path))  # its tables are those of an older version
    except sqlite3.DatabaseError as error:
        raise of_sqlite(error, path) from error
    except UnicodeDecodeError as error:  # also of the message of an error that tells of such a text
        raise damaged(str(path), f"a text can't be read: {error}") from error
    if schema >= SCHEMA_VERSION:
        check_contents(connection, str(path), tables=expected())
    return schema


def check_start(path: str, *, connect: Callable[[Path], sqlite3.Connection] = read_only) -> str:
    """Whether SQLite can read it as a store, and its pages are whole; its schema's version. Writes nothing, not even to
    a file that turns out to be somebody else's. Raises StorageUnavailable.

    Of a very large store only the small tables are looked at here; of the others a damaged page shows when it is read.
    """
    try:
        with closing(connect(Path(path))) as connection:
            connection.execute(f"PRAGMA busy_timeout={_BUSY_MS}")
            names = {str(row[0]) for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if "alembic_version" not in names:
                raise damaged(path, "it is another program's SQLite file" if names else "it has no tables")
            (pages,), (page_bytes,) = (
                connection.execute(f"PRAGMA {of}").fetchone() for of in ("page_count", "page_size")
            )
            if pages * page_bytes <= _WHOLE_BYTES:
                check_pages(connection, path, is_full=False)
            else:
                for table in names.intersection(_SMALL):
                    _check(connection, path, f"PRAGMA quick_check({table})")
            rows = connection.execute("SELECT version_num FROM alembic_version").fetchall()
    except sqlite3.DatabaseError as error:
        raise of_sqlite(error, path) from error
    except UnicodeDecodeError as error:  # also of the message of an error that tells of such a text
        raise damaged(str(path), f"a text can't be read: {error}") from error
    if len(rows) != 1 or not isinstance(rows[0][0], str):
        raise damaged(path, "it does not say which schema it has")
    return str(rows[0][0])


def copy_before_migration(path: str, *, schema: str) -> None:
    """A copy of a store of an older schema, ``store.db.schema-0003``, beside it: for who has to go back to the version
    that wrote it. One that is there stays. Raises DiskFull, StorageUnavailable: then nothing is migrated."""
    copy = f"{path}.schema-{schema}"
    if os.path.exists(copy):
        return
    making = f"{copy}.new"
    try:
        with suppress(FileNotFoundError):
            os.unlink(making)
        os.close(os.open(making, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        with closing(read_only(Path(path))) as connection:
            connection.execute("VACUUM INTO ?", (making,))
        os.replace(making, copy)
    except OSError as error:
        raise storage_error(error, copy) from error
    except sqlite3.Error as error:
        if "full" in str(error):
            raise DiskFull(
                f"there is no room for {copy}, a copy that is made before the store is brought up to date",
                hint="free space on that disk, then start again",
            ) from error
        raise of_sqlite(error, path) from error


def check_contents(connection: sqlite3.Connection, path: str, *, tables: Mapping[str, Set[str]]) -> None:
    """The tables of the newest schema are there with their columns, and the counters make sense. Raises
    StorageUnavailable."""
    try:
        found: dict[str, set[str]] = {}
        for table, column in connection.execute(
            "SELECT m.name, c.name FROM sqlite_master m, pragma_table_info(m.name) c WHERE m.type = 'table'"
        ):
            found.setdefault(table, set()).add(column)
        for table, columns in tables.items():
            if table not in found:
                raise damaged(path, f"its table {table} is missing")
            if lacking := columns - found[table]:
                raise damaged(path, f"its table {table} has no column {min(lacking)}")
        _check_counters(connection, path)
    except sqlite3.DatabaseError as error:
        raise of_sqlite(error, path) from error
    except UnicodeDecodeError as error:  # also of the message of an error that tells of such a text
        raise damaged(str(path), f"a text can't be read: {error}") from error


def _check_counters(connection: sqlite3.Connection, path: str) -> None:
    rows = connection.execute("SELECT next_epoch, next_seq, now_ms FROM counters").fetchall()
    if len(rows) != 1:
        raise damaged(path, f"it has {len(rows)} rows of counters instead of one")
    for name, value in zip(("next_epoch", "next_seq", "now_ms"), rows[0], strict=True):
        if not isinstance(value, int) or value < 0:
            raise damaged(path, f"its counter {name} is {str(value)[:40]!r}")
    next_epoch, next_seq, _ = rows[0]
    for what, highest, counter in (
        ("epochs", "SELECT max(epoch) FROM attempts", next_epoch),
        ("jobs", "SELECT max(seq) FROM jobs", next_seq),
    ):
        (last,) = connection.execute(highest).fetchone()
        if last is not None and (not isinstance(last, int) or last >= counter):
            raise damaged(path, f"its counter of {what} stands at {counter}, and it has number {str(last)[:40]}")


def check_pages(connection: sqlite3.Connection, path: os.PathLike[str] | str, *, is_full: bool) -> None:
    """Every page. is_full: also whether each index says what its table does, which takes several times as long. Raises
    StorageUnavailable."""
    try:
        _check(connection, path, "PRAGMA integrity_check(5)" if is_full else "PRAGMA quick_check(5)")
        wrong = connection.execute("PRAGMA foreign_key_check").fetchone() if is_full else None
    except sqlite3.DatabaseError as error:
        raise of_sqlite(error, path) from error
    except UnicodeDecodeError as error:  # also of the message of an error that tells of such a text
        raise damaged(str(path), f"a text can't be read: {error}") from error
    if wrong is not None:
        raise damaged(path, f"a row of {wrong[0]} refers to one of {wrong[2]} that is missing")


def of_sqlite(error: sqlite3.Error, path: os.PathLike[str] | str) -> StorageUnavailable:
    """What SQLite's error means."""
    if is_damage(error) or not isinstance(error, sqlite3.OperationalError):
        return damaged(path, str(error))
    return StorageUnavailable(f"{os.fspath(path)} can't be read: {error}", hint="see its mode and owner, and the disk")


def _check(connection: sqlite3.Connection, path: os.PathLike[str] | str, pragma: str) -> None:
    said = [str(row[0]) for row in connection.execute(pragma)]
    if said != ["ok"]:
        raise damaged(path, " ".join(" ".join(said).split()).removeprefix(_SQLITES_OWN)[:300])
