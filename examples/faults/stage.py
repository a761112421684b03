"""What the scripts beside this file share: a throw-away control plane, its processes by number, and a verdict.

A process is only ever ended by its number, and only one that was started for the script's own state folder: the
number stands in that folder's lock files. Linux only, for ``/proc``.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpulayer as gl

WAIT_S = 60.0
_ALONE = ("--detach", "--no-worker", "--host", "127.0.0.1", "--port", "0")


class Stage:
    """Use it as a context. ``lease``: how long a silent worker keeps its jobs (30 s where it is not given)."""

    def __init__(self, *, lease: str = "") -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="gpulayer-faults-", ignore_cleanup_errors=True)
        self.folder = Path(self._scratch.name)
        self.state = self.folder / "state"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GPULAYER_")}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        self.env = {**kept, "PATH": path, "HOME": str(self.folder), "GPULAYER_STATE_DIR": str(self.state)}
        if lease:
            self.env["GPULAYER_LEASE_TTL"] = lease
        self._joined: list[subprocess.Popen[bytes]] = []
        self._token = ""
        self._is_good = True

    def __enter__(self) -> "Stage":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._joined:
            if worker.poll() is None:
                worker.terminate()
        for worker in self._joined:
            worker.wait(WAIT_S)
        subprocess.run(["gpulayer", "down", "--yes"], env=self.env, capture_output=True, check=False)
        self._scratch.cleanup()

    # Commands ---------------------------------------------------------------------------------------------------------

    def start(self, *argv: str, faults: str = "", **options: Any) -> "subprocess.Popen[bytes]":
        """Begin a command, and show it."""
        self.show(*argv, faults=faults)
        env = {**self.env, "GPULAYER_FAULTS": faults} if faults else self.env
        defaults = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        return subprocess.Popen(["gpulayer", *argv], cwd=self.folder, env=env, **{**defaults, **options})

    def run(self, *argv: str) -> str:
        """Run a command that must succeed, and show it; what it printed."""
        self.show(*argv)
        return self.ask(*argv)

    def ask(self, *argv: str) -> str:
        """As ``run``, quietly."""
        done = subprocess.run(["gpulayer", *argv], cwd=self.folder, env=self.env, capture_output=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"gpulayer {shlex.join(argv)} ended with {done.returncode}: {done.stderr.decode()}")
        return done.stdout.decode()

    def client(self) -> gl.Client:
        """For questions that are not worth a line."""
        endpoint = json.loads((self.state / "endpoint.json").read_text())
        return gl.Client(url=endpoint["url"], token=endpoint["token"])

    def job(self, job_id: str) -> Any:
        with self.client() as client:
            return client.job(job_id).record()

    def jobs(self) -> list[Any]:
        with self.client() as client:
            return list(client.jobs())

    def log(self, job_id: str) -> bytes:
        with self.client() as client:
            return b"".join(client.job(job_id).logs())

    def ended(self, job_id: str) -> Any:
        """Its record, once it has ended."""
        with self.client() as client:
            return client.job(job_id).wait(timeout=WAIT_S)

    def plane_alone(self) -> None:
        """A control plane that does no work itself."""
        self.show("up", *_ALONE, lease=self.env.get("GPULAYER_LEASE_TTL", ""))
        self._token = self._up()

    def join(self, name: str, *, faults: str = "") -> "subprocess.Popen[bytes]":
        """A worker with a folder of its own, as ``gpulayer up`` says to start one; ready when this returns."""
        folder = self.folder / name
        url = json.loads((self.state / "endpoint.json").read_text())["url"]
        token: list[str] = []
        if not folder.exists():
            token = ["--token", self._token or self._up()]
            self._token = ""  # it works once
        worker = self.start("join", url, *token, "--name", name, "--work-dir", str(folder), faults=faults)
        self._joined.append(worker)
        self.until(lambda: self.worker_state(name) == "ready", f"{name} is ready")
        return worker

    def _up(self) -> str:
        """Starts it, or finds it there; the join token of the line that it prints."""
        return self.ask("up", *_ALONE).split()[4]

    def worker_state(self, name: str) -> str:
        with self.client() as client:
            return next((worker["state"] for worker in client.workers() if worker["name"] == name), "")

    # Processes --------------------------------------------------------------------------------------------------------

    def plane(self) -> int:
        with self.client() as client:
            return client.plane()["pid"]

    def agent(self, work_dir: Path | None = None) -> int:
        """Of a worker's folder; of the control plane's own worker where none is given."""
        return int(((work_dir or self.state / "worker") / "agent.lock").read_text().split()[0])

    def floor(self, work_dir: Path | None = None) -> dict[str, int]:
        """``spawner`` and ``watchdog`` of that worker."""
        lock = json.loads(((work_dir or self.state / "worker") / "spawner" / "spawner.lock").read_text())
        return {name: lock[name] for name in ("spawner", "watchdog")}

    def kill(self, what: str, pid: int) -> None:
        self.kill_at_once({what: pid})

    def kill_at_once(self, pids: dict[str, int]) -> None:
        """Stopped first, so that none of them sees another one die and has time to act on it."""
        for pid in pids.values():
            os.kill(pid, signal.SIGSTOP)
        for what, pid in pids.items():
            os.kill(pid, signal.SIGKILL)
            print(f"kill -9 {pid}    # {what}", flush=True)

    # Words ------------------------------------------------------------------------------------------------------------

    def show(self, *argv: str, faults: str = "", lease: str = "") -> None:
        words = ["TOKEN" if before == "--token" else word for before, word in zip(("", *argv), argv, strict=False)]
        line = shlex.join(["gpulayer", *words]).replace(str(self.folder), "…")
        set_ = (f"GPULAYER_LEASE_TTL={lease} " if lease else "") + (f"GPULAYER_FAULTS={faults} " if faults else "")
        print(f"$ {set_}{line}", flush=True)

    def say(self, text: str) -> None:
        print(f"  {text}", flush=True)

    def check(self, sentence: str, is_true: object) -> None:
        """One sentence of what must hold."""
        self._is_good = self._is_good and bool(is_true)
        print(f"  {'yes' if is_true else 'NO '}  {sentence}", flush=True)

    def verdict(self) -> int:
        """The exit code."""
        print("OK" if self._is_good else "FAILED", flush=True)
        return 0 if self._is_good else 1

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        ends = time.monotonic() + WAIT_S
        while not (found := condition()):
            if time.monotonic() > ends:
                raise SystemExit(f"FAILED: not within {WAIT_S:g} s: {what}")
            time.sleep(0.02)
        return found


def is_alive(pid: int) -> bool:
    """A zombie is dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
