"""A real spawner on a folder of its own, and the check that nothing of it outlives the test."""

import itertools
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpulayer.spawner import ALL_GROUPS, spawner_command, tree
from gpulayer.spawner import messages as m
from gpulayer.spawner.state import StateDir
from tests.together import is_alive

DEADLINE_S = 20.0


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {DEADLINE_S} s: {what}"
        time.sleep(0.005)


class Client:
    """A plain blocking agent."""

    def __init__(self, harness: "Harness", role: str = "agent", protocol: int = m.PROTOCOL_VERSION) -> None:
        self.harness = harness
        self.socket = harness.state.connect(timeout_s=DEADLINE_S)
        self.lines = self.socket.makefile("rb")
        self.events: list[m.Message] = []
        self.send(m.Hello(protocol, role))
        self.greeting = self.receive()

    def send(self, message: m.Message) -> None:
        self.socket.sendall(m.encode(message))

    def receive(self) -> m.Message:
        line = self.lines.readline()
        if not line:
            raise EOFError
        return m.decode(line)

    def ask(self, make: Callable[[int], m.Message]) -> m.Message:
        number = next(self.harness.ids)
        self.send(make(number))
        while getattr(reply := self.receive(), "id", None) != number:
            self.events.append(reply)
        return reply

    def spawn(self, key: str, *argv: str, **options: object) -> m.Message:
        return self.ask(lambda number: self.harness.order(number, key, argv, **options))

    def exited(self, key: str) -> m.ExitRecord:
        for event in self.events:
            if isinstance(event, m.Exited) and event.record.key == key:
                return event.record
        while not (isinstance(event := self.receive(), m.Exited) and event.record.key == key):
            self.events.append(event)
        self.events.append(event)
        return event.record

    def run(self, key: str, *argv: str, **options: object) -> m.ExitRecord:
        reply = self.spawn(key, *argv, **options)
        assert isinstance(reply, m.Spawned), reply
        return self.exited(key)

    def rows(self) -> dict[str, m.Row]:
        table = self.ask(m.ListJobs)
        assert isinstance(table, m.Table)
        return {row.key: row for row in table.rows}

    def close(self) -> None:
        self.lines.close()
        self.socket.close()


class Harness:
    """groups, locks: what the spawner may use of the host."""

    def __init__(self, folder: Path, groups: tuple[str, ...] = ALL_GROUPS, locks: Path | None = None) -> None:
        self.folder = folder
        self.groups = groups
        self.locks = locks or folder / "locks"
        self.work = folder / "work"
        self.work.mkdir()
        self.state = StateDir(str(folder / "spawner"))
        self.ids = itertools.count(1)
        self.markers: set[int] = set()
        self.clients: list[Client] = []
        self.pids: set[int] = set()

    def start(self, before: str = "") -> int:
        """Run the start command; ``before`` is a line of Python for it to run first."""
        self.state.prepare()
        with open(self.state.log_path, "ab") as log:
            command = spawner_command(
                self.state.path, python=sys.executable, groups=self.groups, lock_folders=[str(self.locks)]
            )
            command[-1] = command[-1].replace("from gpulayer", f"{before}; from gpulayer", 1) if before else command[-1]
            code = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={}, check=False, timeout=DEADLINE_S
            ).returncode
        self.pids.update(self.state.read_pids().values())
        return code

    @property
    def spawner_pid(self) -> int:
        return self.state.read_pids()["spawner"]

    @property
    def watchdog_pid(self) -> int:
        return self.state.read_pids()["watchdog"]

    def client(self, role: str = "agent", protocol: int = m.PROTOCOL_VERSION) -> Client:
        client = Client(self, role, protocol)
        self.clients.append(client)
        return client

    def order(
        self,
        number: int,
        key: str,
        argv: tuple[str, ...],
        *,
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
        log: Path | None = None,
        nice: int = 0,
        kill_by_ms: int | None = None,
        devices: tuple[str, ...] = (),
        err: Path | None = None,
        limits: m.SpawnLimits | None = None,
    ) -> m.Spawn:
        marker = secrets.randbits(58)
        self.markers.add(marker)
        return m.Spawn(
            id=number,
            key=key,
            argv=argv,
            cwd=str(cwd or self.work),
            env={"PATH": "/usr/local/bin:/usr/bin:/bin"} if env is None else env,
            log_path=str(log or self.log(key)),
            exit_path=str(self.exit_path(key)),
            marker=marker,
            nice=nice,
            kill_by_ms=kill_by_ms,
            devices=devices,
            err_path=None if err is None else str(err),
            limits=limits or m.SpawnLimits(),
        )

    def log(self, key: str) -> Path:
        return self.folder / f"{key}.log"

    def exit_path(self, key: str) -> Path:
        return self.folder / f"{key}.exit"

    def is_listening(self) -> bool:
        try:
            self.state.connect().close()
        except OSError:
            return False
        return True

    def running(self) -> set[int]:
        """Every process that carries the marker of a job of this test."""
        seen = tree.processes()
        return tree.members(seen, roots=(), markers=self.markers, spare=())

    def stop(self) -> None:
        for client in self.clients:
            client.close()
        try:
            client = Client(self)
        except OSError:
            pass
        else:
            assert isinstance(client.ask(lambda number: m.Shutdown(number, force=True)), m.Done)
            client.close()
        try:
            wait_until(lambda: not any(map(is_alive, self.pids)), "spawner and watchdog gone")
            wait_until(lambda: not self.running(), "all jobs gone")
            wait_until(lambda: not any(map(os.path.exists, self.state.read_groups())), "all control groups gone")
        finally:
            for pid in {pid for pid in self.pids if is_alive(pid)} | self.running():
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def groups() -> tuple[str, ...]:
    """What spawners may use; modules whose tests end trees run with the groups of the host, and with none."""
    return ALL_GROUPS


@pytest.fixture
def stopped_spawner(tmp_path: Path, groups: tuple[str, ...]) -> Iterator[Harness]:
    """A folder with no spawner yet."""
    harness = Harness(tmp_path, groups=groups)
    yield harness
    harness.stop()


@pytest.fixture
def another(tmp_path: Path) -> Iterator[Callable[..., Harness]]:
    """More spawners on this host, made by name."""
    made: list[Harness] = []

    def make(name: str, **options: object) -> Harness:
        (tmp_path / name).mkdir()
        made.append(Harness(tmp_path / name, **{"locks": tmp_path / "locks", **options}))
        assert made[-1].start() == 0, Path(made[-1].state.log_path).read_text()
        return made[-1]

    yield make
    for harness in made:
        harness.stop()


@pytest.fixture
def spawner(stopped_spawner: Harness) -> Harness:
    assert stopped_spawner.start() == 0, Path(stopped_spawner.state.log_path).read_text()
    return stopped_spawner


@pytest.fixture
def agent(spawner: Harness) -> Client:
    return spawner.client()


@pytest.fixture
def until() -> Callable[[Callable[[], object], str], None]:
    return wait_until


@pytest.fixture
def plain_socket(spawner: Harness) -> Iterator[socket.socket]:
    with spawner.state.connect(timeout_s=DEADLINE_S) as stream:
        yield stream
