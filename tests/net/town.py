"""A small town with the program on its machines: a server, a worker behind a home router, a laptop on a long line.

::

    server ──┐                    ┌── router ── desk       desk has a private address; nobody outside can call it
             ├── the net (switch) ┤
    others ──┘                    └── exchange ~~~ laptop  50 ms each way, masqueraded too

Each ``Place`` is a user with a home of their own on a machine that has the place's name. ``close`` ends all in good
order; what is left of it then is an error.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpulayer import Client
from tests.net.lab import Lab, Machine

__all__ = [
    "DEADLINE_S",
    "SERVER",
    "SERVER_6",
    "Counting",
    "Ended",
    "Invitation",
    "Place",
    "Town",
    "read_invitation",
    "until",
]

DEADLINE_S: Final = 90.0
SERVER: Final = "203.0.113.10"
SERVER_6: Final = "2001:db8::10"
_CABLES: Final = {4: "203.0.113.{}/24", 6: "2001:db8::{}/64"}


@dataclass(frozen=True)
class Ended:
    code: int
    out: bytes
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass(frozen=True)
class Invitation:
    """What ``gpulayer up`` printed: the words of the join line, and the variables of the client line."""

    join: tuple[str, ...]
    client: Mapping[str, str]

    def value(self, option: str) -> str:
        """The value of an option of the join line."""
        return self.join[self.join.index(option) + 1]

    @property
    def urls(self) -> list[str]:
        return [word for word in self.join if word.startswith("https://")]

    @property
    def rest(self) -> tuple[str, ...]:
        """The join line without the URLs."""
        return self.join[len(self.urls) :]

    @property
    def trust(self) -> tuple[str, str]:
        return "--fingerprint", self.value("--fingerprint")


class Place:
    """A user on a machine. ``here``: the folder they stand in; ``variables``: as after their ``export``."""

    def __init__(self, machine: Machine, home: Path, *, hosts: Path | None = None) -> None:
        self.machine = machine
        self.name = machine.name
        self.home = home
        self.here = home / "here"
        self.here.mkdir(parents=True)
        self.hosts = hosts
        self.variables: dict[str, str] = {}
        self.workers: list[subprocess.Popen[bytes]] = []

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(self.home),
            **{name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ},  # the code under test
            **self.variables,
        }

    def popen(self, *argv: str, variables: Mapping[str, str] | None = None, **options: Any) -> subprocess.Popen[bytes]:
        """variables: more of them, for this program alone."""
        defaults = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(
            self.machine.argv(*argv, hosts=self.hosts, hostname=self.name),
            cwd=self.here,
            env={**self.environment, **(variables or {})},
            **{**defaults, **options},
        )

    def shell(self, line: str, **options: Any) -> subprocess.Popen[bytes]:
        """What they type at their prompt."""
        return self.popen("bash", "-c", line, **options)

    def start(self, *argv: str, **options: Any) -> subprocess.Popen[bytes]:
        """``gpulayer …`` in the background."""
        return self.popen(sys.executable, "-m", "gpulayer.cli", *argv, **options)

    def end(self, process: subprocess.Popen[bytes]) -> Ended:
        out, err = process.communicate(timeout=DEADLINE_S)
        return Ended(process.returncode, out or b"", (err or b"").decode())

    def run(self, *argv: str, **options: Any) -> Ended:
        return self.end(self.start(*argv, **options))

    def did(self, *argv: str, **options: Any) -> Ended:
        """Run what must succeed."""
        ended = self.run(*argv, **options)
        assert ended.code == 0, f"{self.name}$ gpulayer {shlex.join(argv)}\nexit {ended.code}\n{ended.err}"
        return ended

    def came_home(self) -> dict[str, bytes]:
        """Path and content of all files that jobs brought to the folder they stand in."""
        folders = [path for path in (self.here / "gpulayer_runs").iterdir() if path.is_dir()]
        return {
            str(file.relative_to(folder)): file.read_bytes()
            for folder in folders
            for file in folder.rglob("*")
            if file.is_file()
        }

    # A worker ---------------------------------------------------------------------------------------------------------

    @property
    def log(self) -> Path:
        return self.home / "join.log"

    def says(self, words: str) -> bool:
        """Whether the worker has said that, in its log."""
        return self.log.exists() and words in self.log.read_text()

    def join(self, *argv: str) -> subprocess.Popen[bytes]:
        """``gpulayer join …`` in the background; what it says goes to ``log``."""
        with open(self.log, "ab") as log:
            process = self.start("join", *argv, stdout=log, stderr=log)
        self.workers.append(process)
        return process

    def leave(self) -> None:
        """In good order, as after Ctrl-C."""
        while self.workers:
            process = self.workers.pop()
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            process.wait(DEADLINE_S)

    def signal_all(self, number: int) -> None:
        """To every process of this machine: agent, spawner, watchdog, jobs."""
        for pid in self.machine.processes():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass


class Town:
    """Built when asked for; ``close`` it."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self._lab = lab
        self._folder = folder
        self._net = lab.machine("net")
        self._net.bridge("br0")
        self._net.add("br0", "203.0.113.1/24", "2001:db8::1/64")
        self._places: list[Place] = []
        self._hosts = 0
        self.server = self.place(self.public("server", 10))

    def public(self, name: str, number: int, *, versions: tuple[int, ...] = (4, 6)) -> Machine:
        """A machine on the net itself: 203.0.113.<number> and 2001:db8::<number>."""
        machine = self._lab.machine(name)
        self.plug_in(machine, "eth0", number, versions=versions)
        for version in versions:
            machine.via({4: "203.0.113.1", 6: "2001:db8::1"}[version])
        return machine

    def plug_in(self, machine: Machine, device: str, number: int, *, versions: tuple[int, ...] = (4, 6)) -> None:
        port = f"p{number}"
        self._lab.cable(machine, device, self._net, port)
        self._net.ip("link", "set", port, "master", "br0")
        machine.add(device, *(_CABLES[version].format(number) for version in versions))

    def place(self, machine: Machine, *, hosts: Path | None = None) -> Place:
        place = Place(machine, self._folder / machine.name, hosts=hosts)
        self._places.append(place)
        return place

    def desk(self) -> tuple[Place, Machine]:
        """(a worker's machine with a private address, the home router that it is behind)."""
        router, machine = self._lab.machine("router"), self._lab.machine("desk")
        self.plug_in(router, "wan0", 20, versions=(4,))
        router.via("203.0.113.1")
        self._lab.cable(machine, "eth0", router, "lan0")
        router.add("lan0", "192.168.7.1/24")
        machine.add("eth0", "192.168.7.2/24")
        machine.via("192.168.7.1")
        router.masquerades("wan0")
        return self.place(machine), router

    def laptop(self, *, delay_ms: int = 50) -> tuple[Place, Machine]:
        """(somebody's laptop, the exchange that its line ends in)."""
        exchange, machine = self._lab.machine("exchange"), self._lab.machine("laptop")
        self.plug_in(exchange, "wan0", 30, versions=(4,))
        exchange.via("203.0.113.1")
        self._lab.long_cable(machine, "line0", exchange, "line0", delay_ms=delay_ms)
        exchange.add("line0", "192.168.9.1/24")
        machine.add("line0", "192.168.9.2/24")
        machine.via("192.168.9.1")
        exchange.masquerades("wan0")
        return self.place(machine), exchange

    def up(self, *argv: str, lease: str = "") -> Invitation:
        """``gpulayer up`` on the server, which does no work itself."""
        if lease:
            self.server.variables["GPULAYER_LEASE_TTL"] = lease
        return read_invitation(self.server.did("up", "--no-worker", "--detach", *argv).out.decode())

    def plane_dies(self) -> None:
        """With -9. The next command on the server starts it again, as it was."""
        pid = int(self._endpoint()["pid"])
        os.kill(pid, signal.SIGKILL)
        until(lambda: pid not in self.server.machine.processes(), "the control plane is dead")

    def _endpoint(self) -> Any:
        return json.loads((self.server.home / ".local/state/gpulayer/endpoint.json").read_text())

    @contextmanager
    def api(self) -> Iterator[Client]:
        """The control plane, asked on its own machine: what happened is looked up there, whatever the net is doing.
        Start no processes in it."""
        endpoint = self._endpoint()
        with self.server.machine.inside(), Client(url=endpoint["url"], token=endpoint["token"]) as client:
            yield client

    def job(self, job_id: str) -> Any:
        with self.api() as client:
            return client.job(job_id).record()

    def jobs(self, state: str = "") -> list[Any]:
        with self.api() as client:
            return list(client.jobs(state=state))

    def worker(self, name: str) -> Any:
        """None where there is none of that name."""
        with self.api() as client:
            return next((one for one in client.workers() if one["name"] == name), None)

    def ready(self, place: Place) -> Any:
        """Wait until the worker that is called like its place is ready for jobs. Returns its record."""

        def found() -> Any:
            record = self.worker(place.name)
            return record if record is not None and record["state"] == "ready" else None

        return until(found, lambda: f"{place.name} joins: {place.log.read_text()}")

    def joined(self, place: Place, *argv: str) -> subprocess.Popen[bytes]:
        """``gpulayer join …`` there. Returns once it is ready for jobs."""
        process = place.join(*argv)
        self.ready(place)
        return process

    def close(self) -> None:
        for place in self._places:
            place.signal_all(signal.SIGCONT)
            place.leave()
        down = self.server.run("down")
        assert down.code == 0, down.err
        until(lambda: not self.left(), lambda: f"nothing is left running: {self.left()}")

    def left(self) -> list[str]:
        """Command lines of what still runs on the places."""
        found = []
        for place in self._places:
            for pid in place.machine.processes():
                try:
                    words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                except OSError:
                    continue
                found.append(f"{place.name}: {pid} {words}")
        return found


def until(condition: Callable[[], Any], what: str | Callable[[], str], *, within_s: float = DEADLINE_S) -> Any:
    """Wait for it. Returns what it found. what: is asked for only after the deadline, where it is a function."""
    ends = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < ends, f"not within {within_s:g} s: {what if isinstance(what, str) else what()}"
        time.sleep(0.05)
    return found


def read_invitation(printed: str) -> Invitation:
    """From what ``gpulayer up`` prints."""
    lines = [line.strip() for line in printed.splitlines()]
    (join,) = (shlex.split(line)[2:] for line in lines if line.startswith("gpulayer join "))
    (client,) = (shlex.split(line)[1:] for line in lines if line.startswith("export "))
    return Invitation(tuple(join), dict(word.split("=", 1) for word in client))


class Counting:
    """A job that counts up to ``lines`` or, once it is told ``enough``, stops early; and its log as it comes in."""

    def __init__(self, town: Town, worker: Place, submitter: Place, *options: str) -> None:
        self._stop = worker.home / "enough"
        self._stop.unlink(missing_ok=True)
        self.out = submitter.here / "followed.log"
        self._town = town
        self._submitter = submitter
        script = 'n=0; until [ -e "$0" ]; do n=$((n+1)); echo "line $n"; sleep 0.02; done; echo "all $n"; exit 7'
        with open(self.out, "wb") as out:
            self.process = submitter.start("submit", *options, "--", "sh", "-c", script, str(self._stop), stdout=out)
        until(lambda: self.count() or self.process.poll() is not None, "the job counts")
        assert self.process.poll() is None, submitter.end(self.process).err
        (job,) = town.jobs(state="running")
        self.id: str = job["id"]

    def count(self) -> int:
        """How many lines have come to who follows it."""
        return self.out.read_bytes().count(b"\n")

    def is_whole(self) -> bool:
        """Let it end: it ran once, and the log is right to the byte."""
        record = self.end()
        assert (record["state"], record["exit_code"], len(record["attempts"])) == ("failed", 7, 1), record
        return True

    def state(self) -> str:
        state: str = self._town.job(self.id)["state"]
        return state

    def goes_on(self) -> bool:
        """Another line comes within the deadline; not one that was on its way when this was asked."""
        before = self.count()
        until(lambda: self.count() > before + 5, f"{before} lines are followed by more")
        return True

    def end(self) -> Any:
        """Let it end. Returns its record, once who followed it has the program's exit code and every line once."""
        self._stop.touch()
        ended = self._submitter.end(self.process)
        assert ended.code == 7, ended.err
        *lines, last = self.out.read_text().splitlines()
        assert last == f"all {len(lines)}"
        assert lines == [f"line {number}" for number in range(1, len(lines) + 1)]
        kept = self._submitter.did("job", "logs", self.id).out
        assert kept == self.out.read_bytes()
        return self._town.job(self.id)
