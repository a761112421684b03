"""The table of jobs on disk: one file of lines, only ever added to, so that a tiny job costs three small writes.

A line tells of a job that is about to start, of its PID, or that it is forgotten; later lines add to earlier ones of
their key. What has been forgotten is left out when the file is written anew, which is when most of it is such. Files
are not synced: the table serves to outlive a process. One process writes; others may read at any time.
"""

import errno
import json
import os
from typing import Any, Final

from gpulayer.faults import here

__all__ = ["Table"]

_RENEW_BYTES: Final = 1 << 20
_GONE: Final = "gone"


class Table:
    """The file at ``path``; nothing is opened before the first write."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1
        self._size = 0
        self._renew_at = _RENEW_BYTES
        self._lines: dict[str, bytes] = {}  # of each job that is not forgotten
        self._unsaid: list[str] = []  # forgotten while the disk was full

    def put(self, key: str, values: dict[str, Any]) -> None:  # Any: JSON
        """Add to what is known of ``key``, whole or not at all; an ``OSError`` says that it is not written."""
        line = _line({"key": key, **values})
        self._open()
        self._say_unsaid()
        self._append(line)
        self._lines[key] = self._lines.get(key, b"") + line
        if self._size >= self._renew_at:
            self._renew()

    def drop(self, key: str) -> None:
        """Forget it. On a full disk that is told later: a reader then finds an old job too many."""
        try:
            self._open()
            if self._lines.pop(key, None) is None:
                return
            self._unsaid.append(key)
            self._say_unsaid()
        except OSError:
            return

    def read(self) -> dict[str, dict[str, Any]]:
        """What is known, by key. A line torn by a crash counts for nothing: nothing ran by it."""
        found: dict[str, dict[str, Any]] = {}
        for key, values, _ in self._read():
            if values is None:
                found.pop(key, None)
            else:
                found.setdefault(key, {}).update(values)
        return found

    def close(self) -> None:
        """May be repeated; the next write opens it again."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _read(self) -> list[tuple[str, dict[str, Any] | None, bytes]]:
        try:
            with open(self._path, "rb") as file:
                lines = file.read().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        found: list[tuple[str, dict[str, Any] | None, bytes]] = []
        for line in lines:
            try:
                values = json.loads(line)
                found.append((str(values["key"]), None if _GONE in values else values, line))
            except (ValueError, KeyError, TypeError):
                continue
        return found

    def _open(self) -> None:
        if self._fd >= 0:
            return
        self._fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._fd).st_size
        if self._size and os.pread(self._fd, 1, self._size - 1) != b"\n":
            self._append(b"\n")  # else the torn line of a dead writer would spoil the next
        self._lines.clear()
        for key, values, line in self._read():
            if values is None:
                self._lines.pop(key, None)
            else:
                self._lines[key] = self._lines.get(key, b"") + line

    def _say_unsaid(self) -> None:
        if self._unsaid:
            here("spawner.in_removal")
            self._append(b"".join(_line({"key": key, _GONE: True}) for key in self._unsaid))
            self._unsaid.clear()

    def _append(self, content: bytes) -> None:
        written = os.write(self._fd, content)
        if written != len(content):
            os.ftruncate(self._fd, self._size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)
        self._size += written

    def _renew(self) -> None:
        """In place of the file at once; where that fails the old one goes on."""
        content = b"".join(self._lines.values())
        self._renew_at = max(_RENEW_BYTES, 2 * max(len(content), self._size))
        temporary = f"{self._path}.part"
        try:
            fd = os.open(temporary, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        except OSError:
            return
        try:
            if content and os.write(fd, content) != len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), temporary)
            os.rename(temporary, self._path)
        except OSError:
            os.close(fd)
            return
        os.close(self._fd)
        self._fd, self._size = fd, len(content)
        self._renew_at = max(_RENEW_BYTES, 2 * len(content))


def _line(values: dict[str, Any]) -> bytes:
    return json.dumps(values).encode() + b"\n"
