"""A real worker for a proof: the program in processes of its own, joined to a control plane that is served."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpulayer.spawner.state import StateDir
from tests.soak.served import DEADLINE_S, Served, until


@contextmanager
def joined(plane: Served, name: str) -> Iterator[Path]:
    """Its folder, once it takes work; it leaves in good order when the context is left."""
    folder = plane.folder / name
    argv = [sys.executable, "-P", "-m", "gpulayer.cli", "join", plane.url, "--name", name, "--work-dir", str(folder)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GPULAYER_")}
    with open(plane.folder / f"{name}.log", "ab") as log:
        process = subprocess.Popen(
            [*argv, "--token", plane.join_token(1)],
            env={**kept, "HOME": str(plane.folder), "GPULAYER_PLUGINS": "none"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        with plane.client() as client:
            until(
                lambda: any(one["name"] == name and one["state"] == "ready" for one in client.workers()),
                f"worker {name} is ready",
            )
        yield folder
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            for pid in StateDir(str(folder / "spawner")).read_pids().values():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
