"""A served plane as a process of its own."""

import json
import subprocess
import sys
import time
from pathlib import Path

import httpx

__all__ = ["PROGRAM", "WORKER", "Served", "until_it_is"]

PROGRAM = """
import sys
from pathlib import Path
from gpulayer.errors import GpulayerError
from gpulayer.faults import arm
from gpulayer.server import ServeSettings, serve
from gpulayer.server.settings import CertificateFiles
options = eval(sys.argv[2])
arm(options.pop("faults", ""))
try:
    sys.exit(serve(ServeSettings(Path(sys.argv[1]), **{"port": 0, **options})))
except GpulayerError as error:
    sys.exit(str(error))
"""


# Holds the lock as an agent does, and says when it is told to end.
WORKER = """
import fcntl, os, signal, sys, time
lock = open("agent.lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
lock.write(f"{os.getpid()}\\n"); lock.flush()
token = open("join-token").read()
while not os.path.exists("../endpoint.json"):
    time.sleep(0.01)
open("started", "a").write(token + "\\n")
signal.signal(signal.SIGTERM, lambda *_: (open("told", "w").close(), sys.exit(0)))
while True:
    signal.pause()
"""


class Served:
    def __init__(self, state: Path, **options: object) -> None:
        self.state = state
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", PROGRAM, str(state), repr(options)], stderr=subprocess.PIPE
        )

    def ready(self) -> "Served":
        ends = time.monotonic() + 30
        while not (self.state / "endpoint.json").exists() or self.endpoint()["pid"] != self.process.pid:
            assert self.process.poll() is None, self.process.stderr.read()
            assert time.monotonic() < ends
            time.sleep(0.01)
        found = self.endpoint()
        self.http = httpx.Client(
            base_url=found["url"],
            headers={"Authorization": f"Bearer {found['token']}"},
            trust_env=False,
            verify=False,
            timeout=20,
        )
        return self

    def endpoint(self) -> dict:
        return json.loads((self.state / "endpoint.json").read_bytes())

    def wait(self) -> tuple[int, str]:
        _, stderr = self.process.communicate(timeout=30)
        return self.process.returncode, stderr.decode()

    def end(self) -> None:
        if hasattr(self, "http"):
            self.http.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


def until_it_is(check) -> None:
    ends = time.monotonic() + 20
    while not check():
        assert time.monotonic() < ends
        time.sleep(0.01)
