"""A control plane and workers as a service manager keeps them: real processes, started again whenever they die.

What is armed (``gpulayer.faults``) is a queue of lives: a program that dies is started again with the next of them.
What became of the jobs is asked of the API alone, and of the kernel: which processes are left.

A ``Scene`` is no fixture: ``with scenes(folder) as make: make(lease="3s")`` ends all of them, wherever it is used.
"""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from gpulayer.client import calls
from gpulayer.client.connect import Settings
from gpulayer.client.embedded import find_plane
from gpulayer.client.location import Configured
from gpulayer.errors import GpulayerError
from gpulayer.sdk.client import Client
from gpulayer.spawner.state import StateDir
from tests.together import kill_together

Result = TypeVar("Result")
DEADLINE_S = 90.0
EXIT_CODE = 7
PASSING = ("unreachable", "unauthenticated", "storage_unavailable", "disk_full", "timed_out")

# What it says, makes and leaves behind is known; what it leaves behind (a daemon in a session of its own) must go.
JOB = """#!/bin/sh
[ -z "$WRECK" ] || { rm ../log && mkdir ../log; }
echo "$GPULAYER_ATTEMPT" >> "$STARTS"
setsid sleep 600 &
i=0
while [ $i -lt $LINES ]; do i=$((i+1)); echo "line $i of $MARK"; sleep $PAUSE; done
echo "changed by $MARK" > data/kept.txt
yes "$MARK" | head -c 1500000 > big.bin
mkdir made && printf '%s' "$MARK" > made/small.txt
exit 7
"""


@dataclass(frozen=True)
class Sent:
    """A job and what must come of it."""

    id: str
    mark: str
    starts: Path
    lines: int

    @property
    def log(self) -> bytes:
        return b"".join(b"line %d of %s\n" % (number + 1, self.mark.encode()) for number in range(self.lines))

    @property
    def outputs(self) -> dict[str, str]:
        big = (self.mark.encode() + b"\n") * (1_500_000 // (len(self.mark) + 1) + 1)
        content = {
            "big.bin": big[:1_500_000],
            "data/kept.txt": f"changed by {self.mark}\n".encode(),
            "made/small.txt": self.mark.encode(),
        }
        return {path: hashlib.sha256(data).hexdigest() for path, data in content.items()}


class Kept:
    """One program of ours under a service manager. ``lives``: what each of its starts is armed with."""

    def __init__(
        self, argv: Iterable[str], *, environment: dict[str, str], log: Path, lives: Iterable[str] = ()
    ) -> None:
        self.argv = [sys.executable, "-m", "gpulayer.cli.background", *argv]
        self.environment = environment
        self.log = log
        self.lives = deque(lives)
        self.deaths: list[int] = []
        self.armed = ""
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        faults = self.armed = self.lives.popleft() if self.lives else ""
        environment = {**self.environment, **({"GPULAYER_FAULTS": faults} if faults else {})}
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self.argv, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def mend(self) -> None:
        """What a service manager does: start it again if it has died."""
        if self.process is not None and (code := self.process.poll()) is not None:
            self.deaths.append(code)
            self.start()

    def kill(self, number: int = signal.SIGKILL) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def die(self) -> None:
        """With -9, and it is not started again before ``start`` is called."""
        process, self.process = self.process, None
        assert process is not None
        process.kill()
        process.wait()

    def end(self) -> None:
        """In good order; not started again."""
        process, self.process = self.process, None
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            try:
                process.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    @property
    def fired(self) -> list[str]:
        """The points at which it died, in order."""
        return fired(self.log)

    @property
    def failed(self) -> list[str]:
        """What was written in vain, in order: the points with their action."""
        return failed(self.log)


def failed(log: Path) -> list[str]:
    return [f"{name}:{action}" for name, action in _fired(log) if action != "kill"]


def fired(log: Path) -> list[str]:
    return [name for name, action in _fired(log) if action == "kill"]


def _fired(log: Path) -> list[tuple[str, str]]:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    words = [line.split() for line in lines if line.startswith("fault point ")]
    return [(word[2].rstrip(":"), word[3]) for word in words]


class KeptWorker(Kept):
    """An agent, and the spawner and watchdog of its folder."""

    def __init__(self, name: str, folder: Path, *, log: Path | None = None, **options: Any) -> None:
        super().__init__(log=log or folder / "worker.log", **options)
        self.name = name
        self.folder = folder
        self.spawner = StateDir(str(folder / "spawner"))

    def floor(self, *names: str) -> list[int]:
        """Of spawner and watchdog those that are named, found by their lock file."""
        pids = self.spawner.read_pids()
        return [pids[name] for name in names if is_command(pids.get(name, 0), self.spawner.path)]

    def kill_floor(self, *, spawner: bool = False, watchdog: bool = False) -> None:
        """With -9, both at one moment."""
        kill_together(
            self.floor(*(name for name, is_meant in (("watchdog", watchdog), ("spawner", spawner)) if is_meant))
        )

    def is_running_jobs(self) -> bool:
        """All three processes live, and it holds attempts."""
        is_up = self.process is not None and self.process.poll() is None
        return is_up and len(self.floor("watchdog", "spawner")) == 2 and any((self.folder / "attempts").glob("*"))

    @property
    def fired_below(self) -> list[str]:
        """Points of the spawner and the watchdog."""
        return fired(Path(self.spawner.log_path))

    @property
    def failed_below(self) -> list[str]:
        """What these two wrote in vain."""
        return failed(Path(self.spawner.log_path))

    def known(self) -> list[str]:
        """Nodes that it still knows of, in its own journal or in its spawner's table."""
        return [path.name for path in (self.folder / "attempts").glob("*")] + [job.key for job in self.spawner.load()]


@dataclass
class Scene:
    """One control plane and its workers in a folder. ``rng``: of the test, from a seed that is in its output.

    options: of the control plane's command line. variables: beside the usual ones, for everybody. disk: where the
    control plane's state lies, if not in ``folder``.
    """

    folder: Path
    lease: str = ""
    options: Sequence[str] = ("--no-worker",)
    variables: dict[str, str] = field(default_factory=dict)
    disk: Path | None = None
    plane: Kept = field(init=False)
    workers: list[KeptWorker] = field(default_factory=list)
    rng: random.Random = field(default_factory=lambda: random.Random(0))

    def __post_init__(self) -> None:
        self.state = (self.disk or self.folder) / "state"
        self.state.mkdir(parents=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.source = self.folder / "source"
        (self.source / "data").mkdir(parents=True)
        (self.source / "data" / "kept.txt").write_text("as it was shipped\n")
        (self.source / "job.sh").write_text(JOB)
        (self.source / "job.sh").chmod(0o755)
        inherited = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
        (self.folder / "tmp").mkdir()  # what a killed client leaves in it goes with the test
        own = {"HOME": self.folder, "TMPDIR": self.folder / "tmp", "GPULAYER_STATE_DIR": self.state}
        self.environment = {**inherited, **{name: str(path) for name, path in own.items()}}
        self.environment.update(self.variables)
        if self.lease:
            self.environment["GPULAYER_LEASE_TTL"] = self.lease
        argv = ["plane", "--state", str(self.state), "--mode", "standing", *self.options]
        self.plane = Kept(argv, environment=self.environment, log=self.folder / "plane.log")

    # The world outside ------------------------------------------------------------------------------------------------

    def add_worker(self, name: str, *lives: str, disk: Path | None = None, starts: bool = True) -> KeptWorker:
        """disk: where its folder lies, if not in the scene's. starts: at once."""
        folder = (disk or self.folder) / name
        folder.mkdir()
        (folder / "token").write_text(self.ask(lambda client: client.transport.send(calls.create_token()))["token"])
        # By the endpoint file, as a control plane's own worker: it looks for a new start four times a second.
        argv = ["worker", "--work-dir", str(folder), "--endpoint-file", str(self.state / "endpoint.json")]
        argv += ["--name", name, "--token-file", str(folder / "token")]
        log = None if disk is None else self.folder / f"{name}.log"  # what is written of a full disk is not on it
        worker = KeptWorker(name, folder, log=log, argv=argv, environment=self.environment, lives=lives)
        if starts:
            worker.start()
        self.workers.append(worker)
        return worker

    def mend(self) -> None:
        for kept in (self.plane, *self.workers):
            kept.mend()

    def until(self, condition: Callable[[], Result], what: str, *, deadline_s: float = DEADLINE_S) -> Result:
        """Poll, with everything that died being started again."""
        ends = time.monotonic() + deadline_s
        while not (found := condition()):
            assert time.monotonic() < ends, f"not within {deadline_s} s: {what}\n{self.story()}"
            self.mend()
            time.sleep(0.02)
        return found

    def ask(self, question: Callable[[Client], Result]) -> Result:
        """Of the control plane that is there now; while there is none, or it dies over it, again."""
        ends = time.monotonic() + DEADLINE_S
        while True:
            self.mend()
            found = find_plane(self.state)
            try:
                if found is not None:
                    where = Configured(found.location)
                    with Client(settings=Settings(where, {}, "0", "kills", retry_for_s=0.1)) as client:
                        return question(client)
                why = "nobody serves the state folder"
            except GpulayerError as error:
                if error.code not in (
                    "unreachable",
                    "unauthenticated",
                    "storage_unavailable",
                    "disk_full",
                    "timed_out",
                ):
                    raise
                why = error.message
            assert time.monotonic() < ends, f"the control plane does not answer: {why}\n{self.story()}"
            time.sleep(0.02)

    def plan(self, *, lines: int = 4, pause_s: float = 0.05) -> tuple[Sent, dict[str, str]]:
        """A job that has no id yet, and the environment that makes it print ``lines`` lines."""
        mark = f"{self.rng.getrandbits(64):016x}"
        starts = self.folder / f"starts-{mark}"
        env = {"MARK": mark, "STARTS": str(starts), "LINES": str(lines), "PAUSE": f"{pause_s:g}"}
        return Sent("", mark, starts, lines), env

    def submit(self, *, lines: int = 4, pause_s: float = 0.05, **options: Any) -> Sent:
        """A lost answer is asked for again under the same key."""
        sent, env = self.plan(lines=lines, pause_s=pause_s)
        settings = {"source": str(self.source), "env": env, "cpus": 1, "retries": 3, "idempotency_key": sent.mark}
        job = self.ask(lambda client: client.submit(["./job.sh"], **{**settings, **options}))
        return replace(sent, id=job.id)

    def record(self, job_id: str) -> Any:
        return self.ask(lambda client: client.job(job_id).record())

    def ended(self, sent: Sent) -> Any:
        def look() -> Any:
            record = self.record(sent.id)
            return record if record["ended_at"] is not None else None

        return self.until(look, f"job {sent.id} has ended")

    def jobs_to_come(self, sent: list[Sent], *, width: int = 2, lines: int = 4, **options: Any) -> None:
        """Submit what is missing of ``width`` jobs in flight."""
        live = [job for job in sent[-width:] if self.record(job.id)["ended_at"] is None]
        if len(live) < width:
            sent.append(self.submit(lines=lines, **options))

    def traffic(
        self,
        is_done: Callable[[], bool],
        *,
        width: int = 2,
        lines: int = 4,
        deadline_s: float = 3 * DEADLINE_S,
        **options: Any,
    ) -> list[Sent]:
        """Keep ``width`` jobs in flight until ``is_done``; returns them all, ended."""
        sent: list[Sent] = []
        ends = time.monotonic() + deadline_s
        while not is_done():
            assert time.monotonic() < ends, f"the last fault never came\n{self.story()}"
            self.jobs_to_come(sent, width=width, lines=lines, **options)
            time.sleep(0.03)
        for job in sent:
            self.ended(job)
        return sent

    # What must hold ---------------------------------------------------------------------------------------------------

    def check(self, sent: Sent, *, attempts: Iterable[int] = (1,), excused: frozenset[str] = frozenset()) -> Any:
        """The job ended as its program did, once, and nothing of it is left. ``attempts``: how many it may have had.

        excused: how attempts before the last may have ended.
        """
        record = self.ended(sent)
        story = f"{json.dumps(record, indent=1)}\n{self.story()}"
        assert (record["state"], record["ended_by"], record["exit_code"]) == ("failed", "program", EXIT_CODE), story
        assert len(record["attempts"]) in set(attempts), story
        assert {attempt["ended_by"] for attempt in record["attempts"][:-1]} <= excused, story
        events = Counter(event["event"] for event in self.ask(lambda client: client.job(sent.id).events()))
        assert events["job_failed"] == 1, story
        assert sum(events[f"job_{state}"] for state in ("succeeded", "cancelled", "lost", "timed_out")) == 0, story
        assert events["attempt_ended"] == len(record["attempts"]), story
        starts = sent.starts.read_text().split()
        assert Counter(starts).most_common(1)[0][1] == 1, f"an attempt ran twice: {starts}\n{story}"
        assert starts[-1] == str(len(record["attempts"])), story
        for number in range(1, len(record["attempts"]) + 1):
            log = self.log(sent, number)
            is_last = number == len(record["attempts"])
            assert log == sent.log if is_last else sent.log.startswith(log), f"{log!r}\n{story}"
        assert {output["path"]: output["digest"] for output in record["outputs"]} == sent.outputs, story
        self.until(lambda: not self.left_of(sent), f"the tree of {sent.id} is gone: {self.left_of(sent)}")
        return record

    @staticmethod
    def left_of(sent: Sent) -> list[int]:
        """Processes that have the job's mark in their environment."""
        return [pid for pid in pids() if f"MARK={sent.mark}".encode() in read(pid, "environ")]

    def log(self, sent: Sent, attempt: int) -> bytes:
        return self.ask(lambda client: b"".join(client.job(sent.id).logs(attempt=attempt)))

    def check_workers(self) -> None:
        """Each takes the next job, and in the end remembers none."""
        for worker in self.workers:
            self.check(self.submit(lines=1, worker=worker.name))
        for worker in self.workers:
            self.until(lambda worker=worker: not worker.known(), f"{worker.name} forgets: {worker.known()}")

    def story(self) -> str:
        """Who died where and the ends of all logs, for an assertion that fails."""
        deaths = [f"plane: {self.plane.fired}, {len(self.plane.lives)} lives left"]
        deaths += [f"{one.name}: {one.fired}, {len(one.lives)} lives left; {one.fired_below}" for one in self.workers]
        logs = [self.plane.log]
        for worker in self.workers:
            logs += [worker.log, Path(worker.spawner.log_path)]
        tails = [f"--- {log}\n{log.read_text(errors='replace')[-6000:]}" for log in logs if log.exists()]
        return "\n".join([*tails, *deaths])

    def close(self) -> None:
        for worker in self.workers:
            worker.end()
        self.plane.end()
        ends = time.monotonic() + DEADLINE_S
        while left := processes_of(self.folder):
            assert time.monotonic() < ends, f"left behind: {left}\n{self.story()}"
            time.sleep(0.02)

    def destroy(self) -> None:
        """With -9, whatever it is at: something went wrong, and waiting for a good end would hide what."""
        ends = time.monotonic() + DEADLINE_S
        while (left := processes_of(self.folder)) and time.monotonic() < ends:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for kept in (self.plane, *self.workers):
                if kept.process is not None:
                    kept.process.poll()
            time.sleep(0.02)


@contextmanager
def scenes(folder: Path) -> Iterator[Callable[..., Scene]]:
    """Scenes, each in a folder of its own below this one; at the end every process of them must be gone."""
    made: list[Scene] = []

    def make(**options: Any) -> Scene:
        scene = Scene(folder / f"scene{len(made)}", **options)
        made.append(scene)
        return scene

    try:
        yield make
    except BaseException:
        for scene in made:
            scene.destroy()
        raise
    for scene in made:
        scene.close()


def processes_of(folder: Path) -> list[int]:
    """Processes with the folder in their command line or environment, zombies left out."""
    mark = os.fsencode(folder)
    return [pid for pid in pids() if mark in read(pid, "cmdline") or mark in read(pid, "environ")]


def is_command(pid: int, text: str) -> bool:
    return pid > 0 and text.encode() in read(pid, "cmdline")


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]


def read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
