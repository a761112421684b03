"""The systems we measure ourselves against, run as their users would run them.

Ray and Dask live in an environment of their own; Slurm and task-spooler are used where the machine has them
(``apt-get install task-spooler slurmctld slurmd slurm-client munge``). What is missing is left out and said.
"""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

__all__ = ["PeerPython", "TaskSpooler", "private_slurm", "slurm_is_installed", "slurm_version"]

SLURM_PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "sinfo")
_ADMIN_PATH = f"{os.environ.get('PATH', os.defpath)}{os.pathsep}/usr/sbin{os.pathsep}/sbin"


class PeerPython:
    """A virtual environment with the Python peers in it; made on first use, kept for later runs."""

    def __init__(self, folder: Path, requirements: Path) -> None:
        self.python = folder / "bin/python"
        stamp = folder / ".complete"
        if stamp.exists() and stamp.stat().st_mtime >= requirements.stat().st_mtime:
            return
        print("bench: installing the peers", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        install = [self.python, "-m", "pip", "--disable-pip-version-check", "-qq", "install", "-r", requirements]
        subprocess.run(install, check=True)
        stamp.touch()

    def version(self, distribution: str) -> str:
        code = f"import importlib.metadata as m; print(m.version({distribution!r}))"
        return subprocess.run([self.python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


class TaskSpooler:
    """task-spooler with a queue of its own. Nothing it does is durable."""

    def __init__(self, folder: Path, *, slots: int) -> None:
        self.env = {**os.environ, "TS_SOCKET": str(folder / "tsp.sock"), "TMPDIR": str(folder), "TS_SLOTS": str(slots)}

    @staticmethod
    def is_installed() -> bool:
        return shutil.which("tsp") is not None

    @staticmethod
    def version() -> str:
        return subprocess.run(["tsp", "-V"], check=True, capture_output=True, text=True).stdout.split()[2]

    def __enter__(self) -> "TaskSpooler":
        subprocess.run(["tsp", "-f", "true"], env=self.env, check=True, stdout=subprocess.DEVNULL)
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["tsp", "-K"], env=self.env, check=False)


def slurm_is_installed() -> bool:
    return all(shutil.which(program, path=_ADMIN_PATH) for program in SLURM_PROGRAMS)


def slurm_version() -> str:
    # Of the daemon: srun wants a configuration before it answers even this.
    found = shutil.which("slurmctld", path=_ADMIN_PATH) or "slurmctld"
    return subprocess.run([found, "-V"], check=True, capture_output=True, text=True).stdout.split()[-1]


@contextmanager
def private_slurm(folder: Path, *, cpus: int) -> Iterator[Mapping[str, str]]:
    """A whole Slurm on loopback with one node, tuned for latency; yields the environment for its commands.

    Without any form of ``defer``: 22.05 reads ``defer_batch`` as ``defer``, and every srun waits for a tick of 1 s.
    """
    me = subprocess.run(["id", "-un"], check=True, capture_output=True, text=True).stdout.strip()
    for name in ("munge", "run", "state", "spool", "log"):
        (folder / name).mkdir(mode=0o711)
    folder.chmod(0o711)
    (folder / "munge").chmod(0o700)
    key = folder / "munge/key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    config = folder / "slurm.conf"
    config.write_text(_slurm_config(folder, user=me, cpus=cpus), "utf-8")
    env = {**os.environ, "PATH": _ADMIN_PATH, "SLURM_CONF": str(config)}
    munged = ["munged", "--force", f"--key-file={key}", f"--socket={folder / 'run/munge'}"]
    munged += [f"--pid-file={folder / 'munged.pid'}", f"--log-file={folder / 'munge/log'}"]
    munged += [f"--seed-file={folder / 'munge/seed'}"]
    try:
        for command in (munged, ["slurmctld", "-f", config, "-c"], ["slurmd", "-N", "n0", "-f", config]):
            subprocess.run(command, env=env, check=True, capture_output=True, timeout=30)
        _wait_until_idle(env)
        yield env
    finally:
        for daemon in ("slurmd", "slurmctld", "munged"):
            _end(folder / f"{daemon}.pid")


def _slurm_config(folder: Path, *, user: str, cpus: int) -> str:
    host = socket.gethostname().partition(".")[0]
    return f"""\
ClusterName=bench
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={_free_port()}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/run/munge
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmdSpoolDir={folder}/spool
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.log
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,bf_interval=1,sched_interval=1,sched_min_interval=0
AccountingStorageType=accounting_storage/none
InactiveLimit=0
KillWait=2
SlurmdParameters=config_overrides
NodeName=n0 NodeHostname={host} NodeAddr=127.0.0.1 Port={_free_port()} CPUs={cpus} RealMemory=1000 State=UNKNOWN
PartitionName=bench Nodes=n0 Default=YES MaxTime=INFINITE State=UP
"""


def _wait_until_idle(env: Mapping[str, str]) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        shown = subprocess.run(["sinfo", "-h", "-o", "%T"], env=dict(env), check=False, capture_output=True, text=True)
        if shown.stdout.strip() == "idle":
            return
        time.sleep(0.05)
    raise OSError("Slurm's node did not become idle within 30 s")


def _end(pid_file: Path) -> None:
    """SIGTERM to a daemon that this module started, and wait until it is gone."""
    try:
        pid = int(pid_file.read_text("utf-8"))
        os.kill(pid, 15)
    except (OSError, ValueError):
        return
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and Path(f"/proc/{pid}").exists():
        time.sleep(0.02)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
