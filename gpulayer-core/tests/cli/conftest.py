import os
import signal
import subprocess
import sys
from dataclasses import dataclass

import pytest

from gpulayer.cli import main


@dataclass
class Said:
    code: int
    out: bytes
    err: str


@pytest.fixture
def away(tmp_path, monkeypatch):
    """A working folder and state of the test's own, and no GPULAYER_* from outside."""
    for name in list(os.environ):
        if name.startswith("GPULAYER_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("GPULAYER_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("GPULAYER_CONFIG_DIR", str(tmp_path / "config"))
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    return tmp_path / "cwd"


@pytest.fixture
def cli(away, capfdbinary, monkeypatch):
    """Run a command in this process."""

    def run(*argv, plane=None):
        if plane is not None:
            for name, value in plane.environment.items():
                monkeypatch.setenv(name, value)
        code = main([str(word) for word in argv])
        said = capfdbinary.readouterr()
        return Said(int(code), said.out, said.err.decode())

    return run


@pytest.fixture
def program(away):
    """Start the program as a process; ended with the test."""
    started = []

    def start(*argv, plane=None, **options):
        env = {**os.environ, **(plane.environment if plane is not None else {})}
        process = subprocess.Popen([sys.executable, "-P", "-m", "gpulayer.cli", *argv], env=env, **options)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()
