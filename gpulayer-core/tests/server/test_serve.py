"""A served plane as a process: it starts, refuses what it must, ends in good order, and survives kill -9."""

import asyncio
import os
import signal
import socket
import stat
import subprocess
import sys

import pytest

from gpulayer.errors import Conflict, DiskFull, UsageError
from gpulayer.server import ServeSettings, serve
from tests.served import WORKER, until_it_is


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


def test_every_answer_says_how_browsers_are_to_take_it_and_none_what_serves_it(serving) -> None:
    served = serving().ready()
    wanted = {
        "x-content-type-options": "nosniff",
        "cache-control": "no-store",
        "content-security-policy": "default-src 'none'",
        "referrer-policy": "no-referrer",
    }
    answers = [
        served.http.get("/v1/plane"),
        served.http.get("/nothing"),
        served.http.post("/healthz"),
        served.http.get("/v1/plane", headers={"Authorization": "Bearer x"}),
        served.http.get("/healthz", headers={"Host": "evil.example"}),
        served.http.get("/healthz", headers={"Origin": "http://evil.example"}),
        served.http.post("/v1/jobs", content=b"{"),
    ]
    assert [answer.status_code for answer in answers] == [200, 404, 405, 401, 400, 403, 400]
    for answer in answers:
        assert {name: answer.headers.get_list(name) for name in wanted} == {
            name: [text] for name, text in wanted.items()
        }
        assert not {"server", "access-control-allow-origin", "set-cookie"} & set(answer.headers)


def test_a_port_in_use_is_said_in_one_line(tmp_path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} on 127.0.0.1 .* in use"):
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
    until_it_is(lambda: path.exists() and path.read_bytes() == before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    served.process.send_signal(signal.SIGTERM)
    assert served.wait() == (0, "")
    assert not path.exists()


def test_a_plane_whose_folder_was_taken_away_ends_and_leaves_the_next_one_alone(serving) -> None:
    command = (sys.executable, "-c", WORKER)
    first = serving(idle_exit_s=0.05, worker_command=command).ready()
    until_it_is((first.state / "worker" / "agent.lock").exists)
    job = first.http.post("/v1/jobs", json={"schema": 1, "command": ["true"]}).json()
    first.state.rename(first.state.with_name("away"))
    second = serving(worker_command=command).ready()
    until_it_is((second.state / "worker" / "agent.lock").exists)
    endpoint = second.endpoint()
    assert first.http.get(f"/v1/jobs/{job['id']}").json()["state"] == "queued"  # what it took in, it ends first
    first.http.post(f"/v1/jobs/{job['id']}:cancel")
    code, said = first.wait()
    assert code == 0
    assert "was removed or replaced" in said
    assert second.endpoint() == endpoint
    os.kill(int((second.state / "worker" / "agent.lock").read_text()), 0)
    assert second.http.post("/v1/plane:shutdown").json() == {}
    assert second.wait()[0] == 0


def test_a_plane_whose_store_was_taken_away_ends_also_where_nobody_asks_it_anything(serving) -> None:
    served = serving().ready()
    served.http.post("/v1/jobs", json={"schema": 1, "command": ["true"]})
    for each in served.state.glob("store.db*"):
        each.unlink()
    code, said = served.wait()
    assert code == 74
    assert "store.db: it was removed or replaced while it was in use; all that was answered is in the copy" in said
    (kept,) = served.state.glob("store.db.rescued-*")
    kept.rename(kept.with_name("store.db"))
    again = serving().ready()
    assert [job["state"] for job in again.http.get("/v1/jobs").json()["jobs"]] == ["queued"]
    again.process.send_signal(signal.SIGTERM)
    assert again.wait()[0] == 0


@pytest.mark.parametrize("makes_room", [True, False])
def test_a_start_whose_first_commit_made_room_goes_on(monkeypatch, makes_room) -> None:
    serving = sys.modules["gpulayer.server.serve"]
    looks, tries = iter([True, True, False]), []

    class Driver:
        @property
        def is_read_only(self) -> bool:
            return next(looks) if makes_room else True

    class Plane:
        driver = Driver()

    async def own_tokens(_plane, _served) -> str:
        tries.append(1)
        if len(tries) == 1:
            raise DiskFull("database or disk is full")
        return "token"

    monkeypatch.setattr(serving, "_own_tokens", own_tokens)
    monkeypatch.setattr(serving, "_ROOM_S", 60.0 if makes_room else 0.0)
    if makes_room:
        assert asyncio.run(serving._first_commit(Plane(), None)) == "token"
        return
    with pytest.raises(DiskFull):
        asyncio.run(serving._first_commit(Plane(), None))


def test_a_restored_folder_that_was_served_is_as_any_other(serving, tmp_path) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    mark = tmp_path / "state" / "restored"
    mark.touch()
    served = serving().ready()
    assert served.http.get("/readyz").status_code == 200
    assert not mark.exists()


def test_shutdown_ends_the_own_worker_first(serving) -> None:
    served = serving(worker_command=(sys.executable, "-c", WORKER)).ready()
    folder = served.state / "worker"
    until_it_is((folder / "started").exists)
    assert stat.S_IMODE(os.stat(folder / "join-token").st_mode) == 0o600
    assert served.http.post("/v1/plane:shutdown").json() == {}
    assert served.wait() == (0, "")
    assert (folder / "told").exists()


def test_a_plane_that_takes_over_keeps_the_worker_that_is_there(serving) -> None:
    command = (sys.executable, "-c", WORKER)
    first = serving(worker_command=command).ready()
    folder = first.state / "worker"
    until_it_is((folder / "started").exists)
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
        "heavy = {'sqlalchemy', 'uvicorn', 'pydantic', 'cryptography', 'psutil'} & set(sys.modules); "
        "sys.exit(str(heavy) if heavy else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
