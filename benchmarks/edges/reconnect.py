"""``python -m benchmarks.edges.reconnect [--workers N]``: a control plane dies, and all its workers come back at once.

The workers are the network side of real agents (identity, session, reports and held commands as ``protocol`` decides,
over TLS with a pin), many in a process; the control plane is the real one, killed with -9 and started again on the same
port. The figure is the time from the kill until every worker has had a report answered by the new one.
"""

import argparse
import asyncio
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.harness import Contestant, Row, compare
from gpulayer.clock import SystemClock
from gpulayer.errors import GpulayerError
from gpulayer.net import parse_pins
from gpulayer.protocol.agent import AgentState, next_wake_ms, step
from gpulayer.protocol.messages import (
    Input,
    Recovered,
    ReportAnswered,
    ReportFailed,
    ReportPlan,
    SendReport,
    SessionOpened,
    Ticked,
)
from gpulayer.protocol.reporting import answer_limit_ms
from gpulayer.spec.machine import WorkerFacts
from gpulayer.wire.facts import facts_to_wire
from gpulayer.wire.workers import SessionReply
from gpulayer.worker.disk import Reserve
from gpulayer.worker.http import HttpClient
from gpulayer.worker.identity import IdentityStore
from gpulayer.worker.session import Endpoints, Plane
from gpulayer.worker.translating import report_to_wire

GOAL_S = 15.0
WORKERS = 200
PROCESSES = 4
DEADLINE_S = 120.0
HOLD_S = 25
# Identities are synced to disk, of which each machine has its own: here they must not queue for one.
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None


class Agent:
    """One worker without anything that runs programs. ``since``: reports sent before that do not count."""

    def __init__(self, folder: Path, url: str, pin: str) -> None:
        folder.mkdir()
        self.identities = IdentityStore(folder, reserve=Reserve(folder))
        self.http = HttpClient(pins=parse_pins([pin]))
        self.clock = SystemClock()
        self.facts = WorkerFacts("linux-x86_64", "0.1.0", cpus=4, memory_bytes=8 << 30)
        self.plane = Plane(
            self.http,
            Endpoints(urls=(url,)),
            self.identities,
            clock=self.clock,
            random=random.random,
            on_session=self._opened,
        )
        self.state = AgentState()
        self.tries = 0
        self.since_ms = 0
        self.answered = asyncio.Event()
        self._wake = asyncio.Event()

    async def run(self, token: str, name: str) -> None:
        await self.plane.until_answered(
            lambda: self.plane.enrol(facts_to_wire(self.facts), token=token, name=name, default_name=name), what=name
        )
        await self.plane.until_answered(self.plane.open_session, what=name)
        async with asyncio.TaskGroup() as self.group:
            self.feed(Recovered(self.identities.next_boot(), (), None))
            self.group.create_task(self._commands())
            while True:
                wake_ms = next_wake_ms(self.state)
                wait_s = 60.0 if wake_ms is None else max(0, wake_ms - self.clock.monotonic_ms()) / 1000
                self._wake.clear()
                try:
                    await asyncio.wait_for(self._wake.wait(), wait_s)
                except TimeoutError:
                    self.feed(Ticked())

    def feed(self, event: Input) -> None:
        for action in step(self.state, event, now_ms=self.clock.monotonic_ms()):
            if isinstance(action, SendReport):
                self.group.create_task(self._report(action.plan))
        self._wake.set()

    def _opened(self, session: SessionReply) -> None:
        event = SessionOpened(session["heartbeat_ms"], session["lease_ttl_ms"])
        if self.state.boot:
            self.feed(event)
        else:
            step(self.state, event, now_ms=self.clock.monotonic_ms())

    async def _report(self, plan: ReportPlan) -> None:
        limit_s = answer_limit_ms(self.state, tries=self.tries) / 1000
        path = f"{self.plane.worker_path}/reports"
        try:
            await self.plane.call("POST", path, document=report_to_wire(plan, self.facts), timeout_s=limit_s)
        except GpulayerError:
            self.tries += 1
            self.feed(ReportFailed(plan.seq, int(self.plane.backoff_s(self.tries) * 1000)))
        else:
            self.tries = 0
            if plan.sent_ms >= self.since_ms:
                self.answered.set()
            self.feed(ReportAnswered(plan.seq, ()))

    async def _commands(self) -> None:
        tries, cursor = 0, ""
        while True:
            path = f"{self.plane.worker_path}/commands?hold_s={HOLD_S}" + (f"&after={cursor}" if cursor else "")
            try:
                cursor = (await self.plane.call("GET", path, timeout_s=HOLD_S + 5, asks_again=True))["cursor"]
                tries = 0
            except GpulayerError:
                tries += 1
                await asyncio.sleep(self.plane.backoff_s(tries))


def agents(url: str, pin: str, token: str, first: int, count: int) -> None:
    """A process of many. Says ``all`` when each has reported, and again after each line on stdin."""

    async def main() -> None:
        loop, asked = asyncio.get_running_loop(), asyncio.Event()

        def listen() -> None:
            for _ in sys.stdin:
                loop.call_soon_threadsafe(asked.set)
            os._exit(1)  # whoever measures is gone

        threading.Thread(target=listen, daemon=True).start()
        with tempfile.TemporaryDirectory(prefix="bench-", dir=MEMORY) as folder:
            parts = [Agent(Path(folder) / str(number), url, pin) for number in range(count)]
            running = [
                asyncio.create_task(part.run(token, f"bench-{first + number}")) for number, part in enumerate(parts)
            ]
            while True:
                await asyncio.gather(*(part.answered.wait() for part in parts))
                print("all", flush=True)
                await asked.wait()
                asked.clear()
                for part in parts:
                    part.since_ms = part.clock.monotonic_ms()
                    part.answered.clear()
                if any(task.done() for task in running):
                    raise SystemExit("an agent has ended")

    asyncio.run(main())


class Program:
    """The real program, with a state folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        kept: Mapping[str, str] = {k: v for k, v in os.environ.items() if not k.startswith("GPULAYER_")}
        self.env = {**kept, "HOME": str(folder), "GPULAYER_STATE_DIR": str(self.state), "NO_COLOR": "1"}

    def run(self, *arguments: str) -> str:
        command = [sys.executable, "-P", "-m", "gpulayer.cli", *arguments]
        return subprocess.run(command, env=self.env, check=True, capture_output=True, text=True, timeout=120).stdout

    def up(self, port: str) -> list[str]:
        return shlex.split(self.run("up", "--detach", "--no-worker", "--port", port).splitlines()[0])

    def kill(self) -> None:
        pid = int(json.loads((self.state / "endpoint.json").read_bytes())["pid"])
        os.kill(pid, signal.SIGKILL)


def row(rounds: int) -> Row:
    """All back after kill -9 of the control plane, which is started again at once."""
    what = f"{WORKERS} workers back after kill -9 of their control plane, over TLS"
    line = Row(what, "s", "lower", goal=f"≤ {GOAL_S:g} s", limit=GOAL_S)
    return compare(line, [Contestant("gpulayer", lambda: measure(WORKERS)[1])], rounds=rounds, warm_up=0)


def measure(workers: int) -> tuple[float, float]:
    """Seconds from the kill until it serves again, and until all are back."""
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as name:
        program = Program(Path(name))
        started: list[subprocess.Popen[bytes]] = []
        try:
            words = program.up("0")
            url, pin = words[2], words[words.index("--fingerprint") + 1]
            made = program.run("token", "create", "--role", "join", "--uses", str(workers), "--json")
            token, share = json.loads(made)["token"], -(-workers // PROCESSES)
            started += [
                _start(url, pin, token, first, min(share, workers - first)) for first in range(0, workers, share)
            ]
            _await_all(started)
            time.sleep(2)  # each is somewhere else in its heartbeat
            begun = time.monotonic()
            program.kill()
            for process in started:
                assert process.stdin is not None
                process.stdin.write(b"\n")
                process.stdin.flush()
            program.up(url.rsplit(":", 1)[1])
            serves_s = time.monotonic() - begun
            _await_all(started)
            return serves_s, time.monotonic() - begun
        finally:
            for process in started:
                process.kill()
                process.communicate()
            program.run("down", "--yes")


def _start(url: str, pin: str, token: str, first: int, count: int) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "benchmarks.edges.reconnect", "--agents", url, pin, str(first), str(count)]
    environment = {**os.environ, "BENCH_JOIN_TOKEN": token}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)


def _await_all(started: list["subprocess.Popen[bytes]"]) -> None:
    for process in started:
        assert process.stdout is not None
        if process.stdout.readline() != b"all\n":
            raise SystemExit("the agents of a process have ended")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.edges.reconnect", description=__doc__)
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--agents", nargs=4, metavar=("URL", "PIN", "FIRST", "COUNT"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.agents:
        url, pin, first, count = chosen.agents
        agents(url, pin, os.environ["BENCH_JOIN_TOKEN"], int(first), int(count))
        return 0
    serves_s, taken_s = measure(chosen.workers)
    goal = "met" if taken_s <= GOAL_S else "MISSED"
    what = f"{chosen.workers} workers back after kill -9 of their control plane"
    print(f"{what}: {taken_s:.1f} s, of which it was away {serves_s:.1f} s (goal {GOAL_S:g} s: {goal})")
    return 0 if taken_s <= GOAL_S else 1


if __name__ == "__main__":
    sys.exit(main())
