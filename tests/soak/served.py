"""A real control plane for a proof: the program in a process of its own, which is killed and started again.

It listens on one port for all its lives, so that whoever was told of it finds it again.
"""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from gpulayer.client import calls
from gpulayer.sdk import Client

T = TypeVar("T")

DEADLINE_S = 60.0


class Served:
    """``start`` it; ``client`` talks to it as its administrator. log: what it said, of all its lives. lease_ttl: how
    long a worker may be silent, as in ``3s``."""

    def __init__(self, folder: Path, *, lease_ttl: str = "") -> None:
        self.folder = folder
        self.state = folder / "state"
        self.log = folder / "plane.log"
        self.port = 0
        self.url = self.token = ""
        self._variables = {"GPULAYER_PLUGINS": "none"} | ({"GPULAYER_LEASE_TTL": lease_ttl} if lease_ttl else {})
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Returns when it answers."""
        argv = [sys.executable, "-P", "-m", "gpulayer.cli", "up", "--no-worker", "--state", str(self.state)]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GPULAYER_")}
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                [*argv, "--host", "127.0.0.1", "--port", str(self.port)],
                env={**kept, "HOME": str(self.folder), **self._variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        document = until(self._endpoint, "the control plane answers")
        self.url, self.token = document["url"], document["token"]
        self.port = int(self.url.rpartition(":")[2])

    def kill(self) -> None:
        """With -9."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """In good order, or else with -9. May be repeated."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.kill()

    @contextmanager
    def client(self) -> Iterator[Client]:
        with Client(url=self.url, token=self.token) as client:
            yield client

    def join_token(self, uses: int) -> str:
        with self.client() as client:
            call = calls.create_token(max_uses=uses, expires_in_s=86_400)
            return client.transport.send(call)["token"]

    def events(self, kind: str) -> int:
        """How many of this kind the log of the store has; asked of the file, so that nobody is kept from work."""
        with closing(sqlite3.connect(f"file:{self.state / 'store.db'}?mode=ro", uri=True)) as store:
            return int(store.execute("SELECT count(*) FROM events WHERE kind = ?", [kind]).fetchone()[0])

    def descriptors(self) -> int:
        """But those of the store: it keeps its connections, up to eight as they come to be needed at once."""
        count = 0
        for each in os.scandir(f"/proc/{self.pid}/fd"):
            with suppress(FileNotFoundError):  # closed meanwhile
                count += not os.path.basename(os.readlink(each.path)).startswith("store.db")
        return count

    def _endpoint(self) -> dict[str, str] | None:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"the control plane ended: {self.log.read_text(errors='replace')[-500:]}")
        with suppress(OSError, ValueError):
            document = json.loads((self.state / "endpoint.json").read_bytes())
            if document["pid"] == self._process.pid:
                return document
        return None


@contextmanager
def serving(folder: Path, *, lease_ttl: str = "") -> Iterator[Served]:
    """One that answers, until the context is left."""
    served = Served(folder, lease_ttl=lease_ttl)
    served.start()
    try:
        yield served
    finally:
        served.end()


def until(check: Callable[[], T], what: str, timeout_s: float = DEADLINE_S) -> T:
    """What ``check`` gives once that is something. Raises AssertionError that says ``what`` it waited for."""
    ends = time.monotonic() + timeout_s
    while not (found := check()):
        assert time.monotonic() < ends, f"waited {timeout_s:.0f} s until {what}"
        time.sleep(0.02)
    return found
