"""A served plane as a process: it starts, refuses what it must, ends in good order, and survives kill -9."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from gpulayer.errors import Conflict, UsageError
from gpulayer.server import ServeSettings, serve

_PROGRAM = """
import sys
from pathlib import Path
from gpulayer.errors import GpulayerError
from gpulayer.server import ServeSettings, serve
options = eval(sys.argv[2])
try:
    sys.exit(serve(ServeSettings(Path(sys.argv[1]), **{"port": 0, **options})))
except GpulayerError as error:
    sys.exit(str(error))
"""

# Holds the lock as an agent does, and says when it is told to end.
_WORKER = """
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
            [sys.executable, "-W", "error", "-c", _PROGRAM, str(state), repr(options)], stderr=subprocess.PIPE
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


@pytest.fixture
def serving(tmp_path) -> Iterator:
    made: list[Served] = []

    def start(**options: object) -> Served:
        served = Served(tmp_path / "state", **options)
        made.append(served)
        return served

    yield start
    for served in made:
        served.end()


def test_it_serves_says_where_and_ends_clean_on_sigterm(serving) -> None:
    served = serving().ready()
    endpoint = served.endpoint()
    assert stat.S_IMODE(os.stat(served.state / "endpoint.json").st_mode) == 0o600
    assert stat.S_IMODE(os.stat(served.state / "pepper").st_mode) == 0o600
    assert stat.S_IMODE(os.stat(served.state).st_mode) == 0o700
    record = served.http.get("/v1/plane").json()
    assert (record["pid"], record["url"], record["mode"]) == (served.process.pid, endpoint["url"], "standing")
    assert endpoint["embedded"] is False
    assert endpoint["token"] not in (served.state / "store.db").read_bytes().decode("latin-1")
    served.process.send_signal(signal.SIGTERM)
    assert served.wait() == (0, "")
    assert not (served.state / "endpoint.json").exists()


def test_accepted_jobs_survive_kill_9_and_the_old_token_does_not(serving) -> None:
    first = serving().ready()
    body = {"schema": 1, "command": ["true"]}
    ids = [first.http.post("/v1/jobs", json=body).json()["id"] for _ in range(20)]
    keyed = first.http.post("/v1/jobs", json=body, headers={"Idempotency-Key": "k"}).json()["id"]
    batch = {"schema": 1, "jobs": [body] * 300}
    ids += first.http.post("/v1/jobs:batch", json=batch).json()["ids"]
    old = first.endpoint()["token"]
    first.process.kill()
    first.process.wait()
    assert (first.state / "endpoint.json").exists()  # stale; the next plane takes it away
    second = serving().ready()
    for job_id in (*ids[:3], *ids[-3:], keyed):
        assert second.http.get(f"/v1/jobs/{job_id}").json()["state"] == "queued"
    assert second.http.get("/v1/plane").json()["jobs"] == {"queued": len(ids) + 1}
    assert second.http.get("/v1/plane", headers={"Authorization": f"Bearer {old}"}).status_code == 401


def test_a_second_plane_on_one_state_folder_is_refused_and_names_the_first(serving) -> None:
    first = serving().ready()
    code, said = serving().wait()
    assert code == 1
    assert f"pid {first.process.pid}" in said
    assert "Traceback" not in said
    assert first.http.get("/healthz").status_code == 200
    with pytest.raises(Conflict, match="already running"):
        serve(ServeSettings(first.state, port=0))


def test_other_hosts_are_refused_until_there_is_tls(tmp_path) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.org", ""):
        with pytest.raises(UsageError, match="TLS"):
            serve(ServeSettings(tmp_path / "state", host=host))
    assert not (tmp_path / "state").exists()


def test_a_port_in_use_is_said_in_one_line(tmp_path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} .* in use"):
            serve(ServeSettings(tmp_path / "state", port=port))


def test_an_embedded_plane_ends_when_idle_but_not_with_a_live_job(serving) -> None:
    served = serving(mode="embedded", idle_exit_s=0.3).ready()
    job = served.http.post("/v1/jobs", json={"schema": 1, "command": ["true"]}).json()
    with pytest.raises(subprocess.TimeoutExpired):
        served.process.wait(0.8)
    served.http.post(f"/v1/jobs/{job['id']}:cancel")
    assert served.wait() == (0, "")


@pytest.mark.parametrize("damage", [b"", b"garbage", None], ids=["empty", "garbage", "deleted"])
def test_a_damaged_endpoint_file_is_mended_so_that_the_plane_is_found(serving, damage) -> None:
    served = serving(idle_exit_s=0.05).ready()
    path = served.state / "endpoint.json"
    before = path.read_bytes()
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage)
    _until(lambda: path.exists() and path.read_bytes() == before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    served.process.send_signal(signal.SIGTERM)
    assert served.wait() == (0, "")
    assert not path.exists()


def test_a_plane_whose_folder_was_taken_away_ends_and_leaves_the_next_one_alone(serving) -> None:
    command = (sys.executable, "-c", _WORKER)
    first = serving(idle_exit_s=0.05, worker_command=command).ready()
    _until((first.state / "worker" / "agent.lock").exists)
    job = first.http.post("/v1/jobs", json={"schema": 1, "command": ["true"]}).json()
    first.state.rename(first.state.with_name("away"))
    second = serving(worker_command=command).ready()
    _until((second.state / "worker" / "agent.lock").exists)
    endpoint = second.endpoint()
    assert first.http.get(f"/v1/jobs/{job['id']}").json()["state"] == "queued"  # what it took in, it ends first
    first.http.post(f"/v1/jobs/{job['id']}:cancel")
    code, said = first.wait()
    assert code == 0
    assert "was removed or replaced" in said
    assert second.endpoint() == endpoint
    os.kill(int((second.state / "worker" / "agent.lock").read_text()), 0)


def test_a_state_folder_that_can_not_be_used_is_said_in_one_line(tmp_path) -> None:
    (tmp_path / "file").write_text("x")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError, match="can't be used"):
            serve(ServeSettings(folder, port=0))


def test_shutdown_ends_the_own_worker_first(serving) -> None:
    served = serving(worker_command=(sys.executable, "-c", _WORKER)).ready()
    folder = served.state / "worker"
    _until((folder / "started").exists)
    assert stat.S_IMODE(os.stat(folder / "join-token").st_mode) == 0o600
    assert served.http.post("/v1/plane:shutdown").json() == {}
    assert served.wait() == (0, "")
    assert (folder / "told").exists()


def test_a_plane_that_takes_over_keeps_the_worker_that_is_there(serving) -> None:
    command = (sys.executable, "-c", _WORKER)
    first = serving(worker_command=command).ready()
    folder = first.state / "worker"
    _until((folder / "started").exists)
    pid = int((folder / "agent.lock").read_text())
    assert first.http.post("/v1/plane:shutdown", json={"keep_worker": True}).status_code == 200
    assert first.wait() == (0, "")
    assert not (folder / "told").exists()
    second = serving(worker_command=command).ready()
    assert int((folder / "agent.lock").read_text()) == pid
    second.process.send_signal(signal.SIGTERM)
    assert second.wait() == (0, "")
    assert (folder / "told").exists()


def test_starting_imports_nothing_that_is_not_needed(tmp_path) -> None:
    code = (
        "import sys; import gpulayer.server; "
        "heavy = {'sqlalchemy', 'uvicorn', 'pydantic'} & set(sys.modules); "
        "sys.exit(str(heavy) if heavy else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def _until(check) -> None:
    ends = time.monotonic() + 20
    while not check():
        assert time.monotonic() < ends
        time.sleep(0.01)
