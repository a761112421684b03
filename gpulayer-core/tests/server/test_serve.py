"""A served plane as a process: it starts, refuses what it must, ends in good order, and survives kill -9."""

import asyncio
import errno
import json
import os
import signal
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from gpulayer.client.embedded import is_stale
from gpulayer.errors import Conflict, DiskFull, StorageUnavailable, UsageError
from gpulayer.net import parse_pins, pin_of, tls_context
from gpulayer.server import ServeSettings, serve
from gpulayer.server.auth import load_pepper
from gpulayer.server.certificates import own_certificate
from gpulayer.server.folder import EndpointKeeper, keep_port, kept_port, unusable
from gpulayer.server.settings import Layout
from gpulayer.server.store import Store

_PROGRAM = """
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


EVERYWHERE = {"host": "0.0.0.0"}


def secure(served: Served, host: str = "127.0.0.1", *, pins: list | None = None, **options) -> httpx.Client:
    """A client of the port for others, as on another machine."""
    found = served.endpoint()
    port = found["urls"][0].rpartition(":")[2]
    return httpx.Client(
        base_url=f"https://{host}:{port}",
        headers={"Authorization": f"Bearer {found['token']}"},
        trust_env=False,
        verify=tls_context(parse_pins(found["fingerprints"] if pins is None else pins)),
        timeout=30,
        **options,
    )


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_others_are_served_with_tls_by_either_family_and_the_pin_is_the_certificates(serving, host) -> None:
    served = serving(**EVERYWHERE).ready()
    found = served.endpoint()
    assert found["url"].startswith("http://127.0.0.1:")
    assert found["urls"]
    assert all(url.startswith("https://") for url in found["urls"])
    (pin,) = found["fingerprints"]
    certificate = (served.state / "tls" / "cert.pem").read_text()
    assert pin == pin_of(ssl.PEM_cert_to_DER_cert(certificate))
    with secure(served, host) as https:
        job = https.post("/v1/jobs", json={"schema": 1, "command": ["true"]}).json()
        record = https.get("/v1/plane").json()
    assert served.http.get(f"/v1/jobs/{job['id']}").json()["id"] == job["id"]
    assert (record["url"], record["urls"], record["fingerprints"]) == (found["url"], found["urls"], [pin])
    assert record["public_urls"] == []  # the machine's own addresses: nobody named them
    assert stat.S_IMODE((served.state / "tls" / "key.pem").stat().st_mode) == 0o600
    served.process.send_signal(signal.SIGTERM)
    assert served.wait() == (0, "")


def test_a_client_with_another_pin_sends_nothing(serving) -> None:
    served = serving(**EVERYWHERE).ready()
    other = "sha256:" + "0" * 64
    with secure(served, pins=[other]) as https, pytest.raises(httpx.ConnectError, match="PIN"):
        https.get("/v1/plane")
    with secure(served, pins=[other, *served.endpoint()["fingerprints"]]) as https:
        assert https.get("/v1/plane").status_code == 200


def test_neither_plain_http_nor_old_tls_is_spoken_to_others(serving) -> None:
    served = serving(**EVERYWHERE).ready()
    port = int(served.endpoint()["urls"][0].rpartition(":")[2])
    with pytest.raises(httpx.TransportError), httpx.Client(trust_env=False, verify=False) as plain:
        plain.get(f"http://127.0.0.1:{port}/healthz")
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    with (
        socket.create_connection(("127.0.0.1", port), timeout=20) as connection,
        pytest.raises(OSError, match=r"(?i)ssl|reset"),
    ):
        old.wrap_socket(connection)
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        with old.wrap_socket(connection) as wrapped:
            assert wrapped.version() == "TLSv1.2"


def test_held_requests_of_both_listeners_end_together_and_a_silent_handshake_holds_nothing_up(serving) -> None:
    served = serving(**EVERYWHERE).ready()
    job = served.http.post("/v1/jobs", json={"schema": 1, "command": ["true"]}).json()["id"]
    port = int(served.endpoint()["urls"][0].rpartition(":")[2])
    answers: list[int] = []

    def hold(client: httpx.Client) -> None:
        answers.append(client.get(f"/v1/jobs/{job}", params={"wait_s": 50}).status_code)

    with secure(served) as https, socket.create_connection(("127.0.0.1", port)):
        https.get("/healthz")
        threads = [threading.Thread(target=hold, args=(client,)) for client in (https, served.http)]
        for thread in threads:
            thread.start()
        _until(lambda: _connections(served.process.pid) >= 3)
        served.process.send_signal(signal.SIGTERM)
        assert served.wait() == (0, "")
        for thread in threads:
            thread.join(20)
    assert answers == [200, 200]


def test_the_certificate_and_the_port_outlive_a_crash(serving) -> None:
    first = serving(**EVERYWHERE).ready()
    before = first.endpoint()
    first.process.kill()
    first.process.wait()
    port = int(before["urls"][0].rpartition(":")[2])
    again = serving(**EVERYWHERE, port=port).ready()
    assert (again.endpoint()["fingerprints"], again.endpoint()["urls"]) == (before["fingerprints"], before["urls"])
    with secure(again, pins=before["fingerprints"]) as https:
        assert https.get("/readyz").status_code == 200


@pytest.mark.parametrize("others", [{}, {"host": "0.0.0.0"}, {"mode": "embedded"}], ids=["here", "others", "embedded"])
def test_what_this_machines_programs_were_told_is_good_after_a_restart(serving, others) -> None:
    first = serving(**others).ready()
    url = first.endpoint()["url"]
    first.process.kill()
    first.process.wait()
    again = serving(**others).ready()
    assert again.endpoint()["url"] == url


@pytest.mark.parametrize("kept", ["", "x", "0", "99999", "-1"])
def test_a_port_that_was_kept_badly_is_none(tmp_path, kept) -> None:
    layout = Layout(tmp_path)
    layout.own_port.write_text(kept)
    assert kept_port(layout) == 0
    keep_port(layout, 8470)
    assert kept_port(layout) == 8470
    assert kept_port(Layout(tmp_path / "not there")) == 0
    keep_port(Layout(tmp_path / "not there"), 8470)  # that costs nobody more than the port


def test_two_that_start_at_once_make_one_certificate(serving) -> None:
    both = [serving(**EVERYWHERE) for _ in range(2)]
    _until(lambda: any(each.process.poll() is not None for each in both))
    (left,) = [each for each in both if each.process.poll() is None]
    left.ready()
    pin = pin_of(ssl.PEM_cert_to_DER_cert((left.state / "tls" / "cert.pem").read_text()))
    assert left.endpoint()["fingerprints"] == [pin]
    assert not (left.state / "tls.new").exists()


def test_ones_own_certificate_is_shown_and_a_renewed_one_without_a_restart(serving, tmp_path) -> None:
    for name in ("a", "b"):
        own_certificate(tmp_path / name, names=[name], addresses=[], now_ms=int(time.time() * 1000))
    pins = {name: pin_of(ssl.PEM_cert_to_DER_cert((tmp_path / name / "cert.pem").read_text())) for name in ("a", "b")}
    served = serving(
        **EVERYWHERE, tls=_certificate(tmp_path / "a"), public_urls=("https://GPU.example.org/x/",), idle_exit_s=0.04
    ).ready()
    assert served.endpoint()["urls"] == ["https://gpu.example.org:443/x"]
    assert served.endpoint()["fingerprints"] == [pins["a"]]
    for path, status in (("gpu.example.org", 200), ("a", 200), (socket.gethostname(), 200), ("b", 400)):
        assert served.http.get("/healthz", headers={"Host": path}).status_code == status
    for name in ("key.pem", "cert.pem"):
        os.replace(tmp_path / "b" / name, tmp_path / "a" / name)
    _until(lambda: served.endpoint()["fingerprints"] == [pins["b"]])
    assert served.http.get("/v1/plane").json()["fingerprints"] == [pins["b"]]
    assert served.http.get("/healthz", headers={"Host": "b"}).status_code == 200
    served.process.send_signal(signal.SIGTERM)
    code, said = served.wait()
    assert code == 0
    assert f"need its fingerprint {pins['b']}" in said


def test_an_endpoint_file_that_can_not_be_written_waits_for_room_and_ends_nothing(serving, tmp_path) -> None:
    pins = []
    for name in ("a", "b"):
        own_certificate(tmp_path / name, names=[name], addresses=[], now_ms=int(time.time() * 1000))
        pins.append(pin_of(ssl.PEM_cert_to_DER_cert((tmp_path / name / "cert.pem").read_text())))
    served = serving(**EVERYWHERE, tls=_certificate(tmp_path / "a"), idle_exit_s=0.04).ready()
    (served.state / "endpoint.json.part").mkdir()  # in the way, for root too, as a full disk would be
    for name in ("key.pem", "cert.pem"):
        os.replace(tmp_path / "b" / name, tmp_path / "a" / name)
    _until(lambda: served.http.get("/v1/plane").json()["fingerprints"] == [pins[1]])
    assert served.endpoint()["fingerprints"] == [pins[0]]
    (served.state / "endpoint.json.part").rmdir()
    _until(lambda: served.endpoint()["fingerprints"] == [pins[1]])
    served.process.send_signal(signal.SIGTERM)
    code, said = served.wait()
    assert code == 0
    assert said.count("endpoint.json can't be written") == 1


def test_a_certificate_that_can_not_be_used_is_said_in_one_line(serving, tmp_path) -> None:
    own_certificate(tmp_path / "a", names=[], addresses=[], now_ms=0)
    (tmp_path / "a" / "key.pem").unlink()
    code, said = serving(**EVERYWHERE, tls=_certificate(tmp_path / "a")).wait()
    assert (code, said) == (1, f"{tmp_path / 'a' / 'key.pem'} can't be read: no such file or directory\n")


def test_without_tls_there_is_a_warning_and_others_have_what_they_are_told(serving) -> None:
    served = serving(**EVERYWHERE, tls="off", public_urls=("https://gpu.example.org",)).ready()
    found = served.endpoint()
    assert (found["urls"], found["fingerprints"]) == (["https://gpu.example.org:443"], [])
    assert served.http.get("/v1/plane").json()["public_urls"] == found["urls"]
    assert served.http.get("/healthz", headers={"Host": "gpu.example.org"}).status_code == 200
    assert not (served.state / "tls").exists()
    served.process.send_signal(signal.SIGTERM)
    code, said = served.wait()
    assert code == 0
    assert "put a proxy with TLS before it" in said


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


def test_a_damaged_pepper_is_refused_in_one_line_and_not_replaced(serving, tmp_path) -> None:
    pepper = tmp_path / "state" / "pepper"
    pepper.parent.mkdir(mode=0o700)
    Store(str(pepper.with_name("store.db"))).close()
    pepper.write_bytes(b"p" * 31)
    command = (sys.executable, "-c", _WORKER)
    code, said = serving(worker_command=command).wait()
    assert code == 1
    assert said.startswith(f"{pepper} is damaged: 31 bytes instead of 32 (put it back from a backup")
    assert said.count("\n") == 1
    assert pepper.read_bytes() == b"p" * 31


def test_a_state_folder_that_can_not_be_used_is_said_in_one_line(tmp_path) -> None:
    (tmp_path / "file").write_text("x")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError, match="can't be used"):
            serve(ServeSettings(folder, port=0))


@pytest.mark.parametrize("name", ["plane.lock", "endpoint.json", "logs", "blobs"])
def test_something_else_in_the_place_of_its_files_is_named_with_what_to_do(serving, tmp_path, name) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    path = state / name
    path.touch() if name in ("logs", "blobs") else path.mkdir()
    code, said = serving().wait()
    assert code == 1, said
    assert str(path) in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EACCES, "mode and owner"),
        (errno.EPERM, "mode and owner"),
        (errno.EISDIR, "move it away"),
        (errno.EIO, "disk"),
    ],
)
def test_a_file_that_can_not_be_used_comes_with_what_to_do(tmp_path, number, advice) -> None:
    error = unusable(tmp_path / "plane.lock", OSError(number, os.strerror(number)))
    assert error.message == f"{tmp_path}/plane.lock can't be used: {os.strerror(number)}"
    assert advice in error.hint


def test_a_pepper_that_can_not_be_read_comes_with_what_to_do(tmp_path) -> None:
    (tmp_path / "pepper").mkdir()
    with pytest.raises(StorageUnavailable, match="pepper can't be used: Is a directory") as caught:
        load_pepper(Layout(tmp_path))
    assert "move it away" in caught.value.hint


def test_a_lock_of_another_user_is_told_in_words(tmp_path, monkeypatch) -> None:
    def refuse(layout):
        raise PermissionError(errno.EACCES, "Permission denied", str(layout.lock))

    monkeypatch.setattr(sys.modules["gpulayer.server.serve"], "locked", refuse)
    with pytest.raises(StorageUnavailable, match=r"plane\.lock can't be used: Permission denied") as caught:
        serve(ServeSettings(tmp_path, port=0))
    assert "sudo" in caught.value.hint


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


LEFT = {"schema": 1, "url": "http://127.0.0.1:9", "token": "t", "version": "0.1.0", "embedded": False}


@pytest.fixture
def left(tmp_path) -> bytes:
    """What a plane of ``gpulayer up`` left that was killed; how it was started stands in it alone."""
    process = subprocess.Popen(["true"])
    process.wait()
    content = json.dumps({**LEFT, "pid": process.pid, "restart": ["plane", "--state", "s", "--mode", "standing"]})
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state" / "endpoint.json").write_text(content)
    return content.encode()


def fail(*_args: object, **_options: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


async def fail_later(*_args: object) -> None:
    raise DiskFull("database or disk is full")


@pytest.mark.parametrize(
    "step", ["set_aside", "reach_of", "raise_file_limit", "_start_worker", "_first_commit", "write"]
)
def test_a_start_that_fails_leaves_the_endpoint_file_of_the_plane_that_was_killed(
    tmp_path, left, monkeypatch, step
) -> None:
    where = EndpointKeeper if step in ("set_aside", "write") else sys.modules["gpulayer.server.serve"]
    monkeypatch.setattr(where, step, fail_later if step == "_first_commit" else fail)
    with pytest.raises(DiskFull):
        serve(ServeSettings(tmp_path / "state", port=0))
    assert (tmp_path / "state" / "endpoint.json").read_bytes() == left
    assert not (tmp_path / "state" / "endpoint.json.former").exists()
    assert is_stale(tmp_path / "state")


def test_so_does_one_that_is_refused_for_what_lies_in_the_folder(serving, tmp_path, left) -> None:
    state = tmp_path / "state"
    Store(str(state / "store.db")).close()
    (state / "pepper").write_bytes(b"p" * 31)
    assert serving().wait()[0] == 1
    assert (state / "endpoint.json").read_bytes() == left
    (state / "pepper").unlink()
    (state / "endpoint.json.part").mkdir()
    assert serving(worker_command=("/not/there",)).wait()[0] == 1
    assert (state / "endpoint.json").read_bytes() == left


@pytest.mark.parametrize("point", ["after_lock", "before_pepper", "before_endpoint", "in_endpoint"])
def test_after_kill_9_in_the_middle_of_a_start_it_is_known_how_the_one_before_was_started(
    serving, tmp_path, left, point
) -> None:
    state = tmp_path / "state"
    assert serving(faults=f"plane.{point}").wait()[0] == -signal.SIGKILL
    assert is_stale(state)
    found = [each for each in (state / "endpoint.json", state / "endpoint.json.former") if each.exists()]
    assert [each.read_bytes() for each in found] == [left]
    assert serving(faults=f"plane.{point}").wait()[0] == -signal.SIGKILL, "nor does a second one lose it"
    served = serving().ready()
    assert not (state / "endpoint.json.former").exists()
    served.process.send_signal(signal.SIGTERM)
    assert served.wait()[0] == 0
    assert not is_stale(state)


def test_a_start_that_is_called_off_before_it_serves_leaves_what_it_found(serving, tmp_path, left) -> None:
    state = tmp_path / "state"
    served = serving(faults="plane.before_commit:1:stop")
    _until((state / "store.db").exists)
    _until(lambda: psutil.Process(served.process.pid).status() == psutil.STATUS_STOPPED)
    served.process.send_signal(signal.SIGTERM)
    served.process.send_signal(signal.SIGCONT)
    assert served.wait()[0] == 0
    assert (state / "endpoint.json").read_bytes() == left


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
        "heavy = {'sqlalchemy', 'uvicorn', 'pydantic', 'cryptography', 'psutil'} & set(sys.modules); "
        "sys.exit(str(heavy) if heavy else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def _certificate(folder: Path) -> object:
    class Files:
        def __repr__(self) -> str:
            cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
            return f"CertificateFiles(Path({cert!r}), Path({key!r}))"

    return Files()


def _connections(pid: int) -> int:
    return sum(each.status == psutil.CONN_ESTABLISHED for each in psutil.Process(pid).net_connections("tcp"))


def _until(check) -> None:
    ends = time.monotonic() + 20
    while not check():
        assert time.monotonic() < ends
        time.sleep(0.01)
