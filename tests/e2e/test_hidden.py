"""What a job finds of tokens and credentials in the processes around it: nothing (trusted mode: same user, no walls).

Everything runs as a user without rights, since root reads every process anyway. Whoever starts control plane and worker
does it with credentials in the environment, in the foreground, where the process is the one that was started with them.
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpulayer.spawner.state import StateDir

DEADLINE_S = 90.0
NOBODY = 65_534
CANARIES = {"AWS_SECRET_ACCESS_KEY": "canary-aws-4711", "GPULAYER_PROXY_LOGIN": "canary-login-4711"}

# It knows the canaries backwards, so that it does not find itself.
SCAN = r"""
import json, os, re, sys
given = json.load(open("given.json"))
canaries = [word[::-1].encode() for word in given["canaries"]]
tokens = re.compile(rb"gl[cewj]_[0-9A-Za-z]{12}_")

def hits(content):
    return bool(tokens.search(content)) or any(word in content for word in canaries)

def read(path):
    with open(path, "rb") as file:
        return file.read()

def memory(pid):
    found = b""
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as mem:
        for line in maps:
            span, rights = line.split()[:2]
            start, end = (int(text, 16) for text in span.split("-"))
            if "r" in rights and end - start < 1 << 28:
                try:
                    mem.seek(start)
                    found += mem.read(end - start)
                except (OSError, ValueError, OverflowError):
                    pass
    return found

def tried(look):
    try:
        return "hit" if hits(look()) else "clean"
    except OSError as error:
        return type(error).__name__

def parent(pid):
    try:
        return read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[1].decode()
    except (OSError, IndexError):
        return "0"

def is_ours(pid):
    "Of this test's planes, workers and jobs: another test beside it may well show a join token of its own."
    while pid not in ("0", "1"):
        if int(pid) in given["pids"].values():
            return True
        pid = parent(pid)
    return False

def shown(pid):
    try:
        argv = read(f"/proc/{pid}/cmdline")
    except OSError:
        return False  # it has ended
    return any(word in argv for word in canaries) or (bool(tokens.search(argv)) and is_ours(pid))

argv = [pid for pid in filter(str.isdigit, os.listdir("/proc")) if shown(pid)]
print(json.dumps({
    "own": tried(lambda: read("/proc/self/environ") + read("/proc/self/cmdline")),
    "argv": argv,
    "descriptors": sorted(int(fd) for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")),
    "others": {
        name: {
            "environ": tried(lambda: read(f"/proc/{pid}/environ")),
            "memory": tried(lambda: memory(pid)),
            "descriptors": tried(lambda: "".join(os.listdir(f"/proc/{pid}/fd")).encode()),
        }
        for name, pid in given["pids"].items()
    },
}))
"""


class Nobody:
    """A user without rights: how programs run as it, and a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.work = folder / "work"
        self.prefix, self.python = _unprivileged()
        self.environment = {
            "PATH": f"{Path(self.python).parent}:{os.environ['PATH']}",
            "HOME": str(folder),
            "GPULAYER_STATE_DIR": str(self.state),
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self.started: list[subprocess.Popen[bytes]] = []
        self.work.mkdir()
        for path in (folder, self.work):
            os.chmod(path, 0o755)
            if os.getuid() == 0:
                os.chown(path, NOBODY, NOBODY)

    def start(self, *argv: str, program: bool = False, **variables: str) -> subprocess.Popen[bytes]:
        ours = [] if program else [self.python, "-P", "-m", "gpulayer.cli"]
        with open(self.folder / f"{len(self.started)}.err", "wb") as said:
            process = subprocess.Popen(
                [*self.prefix, *ours, *argv],
                env={**self.environment, **variables},
                cwd=self.work,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=said,
            )
        self.started.append(process)
        return process

    def run(self, *argv: str, **variables: str) -> str:
        process = self.start(*argv, **variables)
        out, _ = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, self.said
        return out.decode()

    @property
    def said(self) -> str:
        return "".join(path.read_text() for path in sorted(self.folder.glob("*.err")))

    def pids_of_worker(self, folder: Path) -> dict[str, int]:
        agent = int((folder / "agent.lock").read_text().split()[0])
        return {"agent": agent, **StateDir(str(folder / "spawner")).read_pids()}

    def until(self, condition: Callable[[], Any]) -> Any:
        ends = time.monotonic() + DEADLINE_S
        while not (found := condition()):
            assert time.monotonic() < ends, self.said
            time.sleep(0.02)
        return found


def _unprivileged() -> tuple[list[str], str]:
    """As a plain user, ourselves. As root, as nobody, with a Python that it may run; where there is none, as root
    without the capabilities that would let it read others."""
    if os.getuid():
        return [], sys.executable
    # Through env: setpriv itself still has the right to execute what its user may not.
    prefix = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "env"]
    check = f"import sys, cryptography, sqlalchemy; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    for python in (sys.executable, "/usr/bin/python3"):
        if os.path.exists(python):
            done = subprocess.run([*prefix, python, "-c", check], env=environment, check=False, capture_output=True)
            if done.returncode == 0:
                return prefix, python
    return ["setpriv", "--bounding-set=-sys_ptrace,-dac_override,-dac_read_search"], sys.executable


@pytest.fixture
def nobody() -> Iterator[Nobody]:
    if sys.platform != "linux" or shutil.which("setpriv") is None:
        pytest.skip("only Linux hides processes")
    folder = Path(tempfile.mkdtemp(prefix="gpulayer-hidden-"))
    nobody = Nobody(folder)
    try:
        yield nobody
        nobody.run("down", "--yes")
    finally:
        for process in nobody.started:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            process.communicate(timeout=DEADLINE_S)
        shutil.rmtree(folder, ignore_errors=True)


def test_a_job_finds_no_token_and_no_credential_in_the_processes_around_it(nobody: Nobody) -> None:
    up = nobody.start("up", "--host", "127.0.0.1", "--port", "0", **CANARIES)
    assert up.stdout is not None
    words = shlex.split(up.stdout.readline().decode())
    assert words[:2] == ["gpulayer", "join"], nobody.said
    joined = nobody.start(*words[1:], "--name", "second", **CANARIES)
    control = nobody.start("sleep", "600", program=True, **CANARIES)
    nobody.until(lambda: nobody.run("worker", "list", "--json").count('"ready"') == 2)
    folders = {"own": nobody.state / "worker", "second": nobody.state / "joined" / "second"}
    pids = {
        "plane": int(json.loads((nobody.state / "endpoint.json").read_text())["pid"]),
        "control": control.pid,
        **{
            f"{name} {part}": pid
            for name, folder in folders.items()
            for part, pid in nobody.pids_of_worker(folder).items()
        },
    }
    assert len(pids) == 8
    assert pids["second agent"] == joined.pid
    (nobody.work / "scan.py").write_text(SCAN)
    secrets = [*CANARIES.values(), words[words.index("--token") + 1]]
    (nobody.work / "given.json").write_text(
        json.dumps({"canaries": [secret[::-1] for secret in secrets], "pids": pids})
    )
    workers = [worker["name"] for worker in json.loads(nobody.run("worker", "list", "--json"))["workers"]]
    for worker in workers:
        found = json.loads(nobody.run("submit", "--worker", worker, "--", nobody.python, "scan.py", **CANARIES))
        others = found.pop("others")
        # That it can find them where they are to be found.
        assert others.pop("control") == {"environ": "hit", "memory": "hit", "descriptors": "clean"}
        refused = dict.fromkeys(("environ", "memory", "descriptors"), "PermissionError")
        assert others == dict.fromkeys(others, refused), found
        assert found == {
            "own": "clean",
            "argv": [],
            "descriptors": [0, 1, 2],
        }
    control.send_signal(signal.SIGTERM)
    joined.send_signal(signal.SIGTERM)
    assert joined.wait(DEADLINE_S) == 0, nobody.said


def test_a_background_control_plane_inherits_no_credential_of_whoever_needed_it_first(nobody: Nobody) -> None:
    assert nobody.run("submit", "--", "echo", "x", **CANARIES) == "x\n"
    plane = int(json.loads((nobody.state / "endpoint.json").read_text())["pid"])
    pids = {"plane": plane, **nobody.pids_of_worker(nobody.state / "worker")}
    if os.getuid():
        for pid in pids.values():
            with pytest.raises(PermissionError):
                Path(f"/proc/{pid}/environ").read_bytes()
        return
    for name, pid in pids.items():  # root sees what they were started with
        environ = Path(f"/proc/{pid}/environ").read_bytes()
        assert environ, name
        assert b"canary" not in environ, name
