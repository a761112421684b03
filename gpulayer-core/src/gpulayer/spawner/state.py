"""The spawner's folder: lock, socket, and the table of jobs that survives the spawner.

The folder is the spawner's own, mode 0700. The table has a line of each job that is written *before* the start (marker
and paths), so that no process can run unrecorded, and a line after it (PID). Whoever comes next, the
watchdog or another spawner, finds by it what to end and where to write what became of it. Files here are not synced:
they serve to outlive a process; a host that lost power has none of these jobs left.
"""

import fcntl
import json
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpulayer.faults import here
from gpulayer.spawner import tree
from gpulayer.spawner.messages import BadMessage, ExitRecord, decode_record, encode_record
from gpulayer.spawner.table import Table

__all__ = ["JobEntry", "StateDir", "is_key", "read_exit_record", "write_exit_record"]

_SOCKET: Final = "spawner.sock"
_LOCK: Final = "spawner.lock"
_LOG: Final = "spawner.log"
_WHY: Final = "why"
_TABLE: Final = "table"
_GROUPS: Final = "groups"
_KEY_CHARACTERS: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
_SUN_PATH_BYTES: Final = 100  # 108 on Linux, 104 on macOS, with the final NUL


@dataclass(frozen=True, slots=True)
class JobEntry:
    """A job as the table has it. pid and started_ticks are 0 where it was not known to have started.

    started_ticks: the kernel's start time of ``pid``; tells it from a later process of the same number.
    """

    key: str
    marker: int | None
    log_path: str
    exit_path: str
    started_at_wall_ms: int
    boot_id: str
    pid: int = 0
    started_ticks: int = 0
    err_path: str | None = None


def is_key(text: str) -> bool:
    """A key is also a file name, so it is held to characters that are safe in one."""
    return 0 < len(text) <= 120 and text[0] != "." and _KEY_CHARACTERS.issuperset(text)


class StateDir:
    """Paths and files of one spawner folder. Blocking, but all on the local disk."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self._table = Table(os.path.join(self.path, _TABLE))

    @property
    def log_path(self) -> str:
        """Where the spawner's own stdout and stderr go."""
        return os.path.join(self.path, _LOG)

    def prepare(self) -> None:
        """Make the folder, closed to other users."""
        os.makedirs(self.path, mode=0o700, exist_ok=True)
        os.chmod(self.path, 0o700)

    def lock(self) -> int | None:
        """The descriptor that holds the folder as long as any process has it open, or None: another holds it."""
        fd = os.open(os.path.join(self.path, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        return fd

    def is_still(self, lock_fd: int) -> bool:
        """Whether this is the folder that was locked: it may have been removed, and made anew by another spawner."""
        try:
            return os.path.samestat(os.stat(os.path.join(self.path, _LOCK)), os.fstat(lock_fd))
        except OSError:
            return False

    def is_held(self) -> bool:
        """Whether a spawner or a watchdog lives here; an instant's answer."""
        try:
            fd = os.open(os.path.join(self.path, _LOCK), os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False

    def write_pids(self, lock_fd: int, *, watchdog: int, spawner: int) -> None:
        """Say in the lock file who holds it, and since when these are who they are. Not said where the disk is full."""
        pids = {"watchdog": watchdog, "spawner": spawner}
        started = {name: seen.started_ticks for name, pid in pids.items() if (seen := tree.process(pid)) is not None}
        try:
            os.ftruncate(lock_fd, 0)
            os.pwrite(lock_fd, json.dumps({**pids, "started": started}).encode() + b"\n", 0)
        except OSError:
            return

    def name_on_host(self) -> str:
        """A name that no other folder of this host has while its lock is held; needs the lock file."""
        found = os.stat(os.path.join(self.path, _LOCK))
        return f"gpulayer-{found.st_dev:x}-{found.st_ino:x}"

    def write_groups(self, bases: Sequence[str]) -> None:
        """Remember the folders of the jobs' control groups, before the first is used."""
        with open(os.path.join(self.path, _GROUPS), "w", encoding="utf-8", errors="surrogateescape") as file:
            json.dump(list(bases), file)

    def open_groups(self) -> int:
        """A descriptor by which ``read_groups`` finds what was written last though the folder is gone."""
        return os.open(os.path.join(self.path, _GROUPS), os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def read_groups(self, fd: int | None = None) -> list[str]:
        """As last written; none where there were none. fd: of ``open_groups``; it is closed."""
        source = os.path.join(self.path, _GROUPS) if fd is None else fd
        try:
            with open(source, encoding="utf-8", errors="surrogateescape") as file:
                return [str(base) for base in json.load(file)]
        except (OSError, ValueError):
            return []

    def read_pids(self) -> dict[str, int]:
        """PIDs of ``watchdog`` and ``spawner`` as last written; empty where there were none. They may be dead."""
        return {name: pid for name, pid in self._read_lock().items() if isinstance(pid, int)}

    def holder(self, name: str) -> tree.Process | None:
        """The ``watchdog`` or the ``spawner`` if it lives: never another process that was given its number since."""
        written = self._read_lock()
        pid, started = written.get(name), written.get("started")
        if not isinstance(pid, int) or not isinstance(started, dict) or not self.is_held():
            return None
        seen = tree.process(pid)
        return seen if seen is not None and not seen.is_dead and seen.started_ticks == started.get(name) else None

    def say_why(self, text: str) -> None:
        """Leave word for whoever writes down what became of the jobs, before ending their spawner."""
        with open(os.path.join(self.path, _WHY), "w", encoding="utf-8") as file:
            file.write(text)

    def take_why(self) -> str:
        """The word that was left, which is then gone; empty where there is none."""
        path = os.path.join(self.path, _WHY)
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read()
            os.unlink(path)
        except (OSError, ValueError):
            return ""
        return text

    def _read_lock(self) -> dict[str, Any]:  # Any: JSON
        try:
            with open(os.path.join(self.path, _LOCK), "rb") as file:
                written = json.load(file)
        except (OSError, ValueError):
            return {}
        return written if isinstance(written, dict) else {}

    def listen(self) -> socket.socket:
        """Bind the socket; only for the holder of the lock, in a single-threaded process (it changes folder)."""
        self.remove_socket()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        back = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # A relative name: sun_path holds 108 bytes, and state folders can be deeper than that.
            os.chdir(self.path)
            listener.bind(_SOCKET)
            os.chmod(_SOCKET, 0o600)
        finally:
            os.fchdir(back)
            os.close(back)
        listener.listen(16)
        listener.setblocking(False)
        return listener

    def connect(self, *, timeout_s: float = 5.0) -> socket.socket:
        """A socket connected to the spawner; raises ``OSError`` where none listens. Thread-safe.

        timeout_s is also the socket's own from then on; with 0 nothing here waits: a full queue is an error too.
        """
        path = os.path.join(self.path, _SOCKET)
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        client.settimeout(timeout_s)
        try:
            if len(os.fsencode(path)) <= _SUN_PATH_BYTES:
                client.connect(path)
            else:
                self._connect_by_short_path(client)
        except BaseException:
            client.close()
            raise
        return client

    def remove_socket(self) -> None:
        """May be repeated."""
        try:
            os.unlink(os.path.join(self.path, _SOCKET))
        except FileNotFoundError:
            pass

    def add(self, entry: JobEntry) -> None:
        """Record a job that is about to start; an ``OSError`` here means it must not."""
        self._table.put(
            entry.key,
            {
                "marker": entry.marker,
                "log_path": entry.log_path,
                "exit_path": entry.exit_path,
                "started_at_wall_ms": entry.started_at_wall_ms,
                "boot_id": entry.boot_id,
                "err_path": entry.err_path,
            },
        )

    def add_pid(self, key: str, *, pid: int, started_ticks: int) -> None:
        """Added to the entry of the key, which a crash between the two leaves readable."""
        self._table.put(key, {"pid": pid, "started_ticks": started_ticks})

    def remove(self, key: str) -> None:
        """May be repeated; an unknown key is no error."""
        self._table.drop(key)

    def load(self) -> list[JobEntry]:
        """All entries, in order of start."""
        entries = []
        for values in self._table.read().values():
            try:
                entries.append(JobEntry(**values))
            except TypeError:  # only the PID of one that had no room for the rest: it was not started
                continue
        return sorted(entries, key=lambda entry: (entry.started_at_wall_ms, entry.key))

    def close(self) -> None:
        """Of the writer of the table. May be repeated."""
        self._table.close()

    def _connect_by_short_path(self, client: socket.socket) -> None:
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if os.path.isdir(f"/proc/self/fd/{folder}"):
                client.connect(f"/proc/self/fd/{folder}/{_SOCKET}")
                return
        finally:
            os.close(folder)
        import tempfile  # noqa: PLC0415 - costs memory, and only a deep folder without /proc needs it

        with tempfile.TemporaryDirectory(prefix="gpl-", dir="/tmp") as short:
            os.symlink(self.path, os.path.join(short, "s"))
            client.connect(os.path.join(short, "s", _SOCKET))


def write_exit_record(path: str, record: ExitRecord) -> None:
    """Whole or not at all; raises ``OSError``.

    Not synced, like all else here: a host that lost power has lost the attempt in any case (its agent says so to the
    control plane, which owns what was promised), and a sync in this single thread holds up every other job.
    """
    temporary = f"{path}.part"
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            content = encode_record(record)
            if os.write(fd, content) != len(content):
                raise OSError(28, "No space left on device", path)
        finally:
            os.close(fd)
        here("spawner.in_record")
        os.rename(temporary, path)
    except OSError:
        try:
            os.unlink(temporary)
        except OSError:
            pass
        raise


def read_exit_record(path: str) -> ExitRecord | None:
    """The record at ``path``; None where there is none that can be read."""
    try:
        with open(path, "rb") as file:
            return decode_record(file.read())
    except (OSError, BadMessage):
        return None
