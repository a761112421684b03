"""What a served plane is to other machines: TLS with a pinned certificate, and ports that stay."""

import os
import signal
import socket
import ssl
import stat
import threading
import time
import warnings
from pathlib import Path

import httpx
import psutil
import pytest

from gpulayer.net import parse_pins, pin_of, tls_context
from gpulayer.server.certificates import own_certificate
from gpulayer.server.folder import keep_port, kept_port
from gpulayer.server.settings import Layout
from tests.served import Served, until_it_is

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
        until_it_is(lambda: connections(served.process.pid) >= 3)
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
    until_it_is(lambda: any(each.process.poll() is not None for each in both))
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
        **EVERYWHERE, tls=certificate(tmp_path / "a"), public_urls=("https://GPU.example.org/x/",), idle_exit_s=0.04
    ).ready()
    assert served.endpoint()["urls"] == ["https://gpu.example.org:443/x"]
    assert served.endpoint()["fingerprints"] == [pins["a"]]
    for path, status in (("gpu.example.org", 200), ("a", 200), (socket.gethostname(), 200), ("b", 400)):
        assert served.http.get("/healthz", headers={"Host": path}).status_code == status
    for name in ("key.pem", "cert.pem"):
        os.replace(tmp_path / "b" / name, tmp_path / "a" / name)
    until_it_is(lambda: served.endpoint()["fingerprints"] == [pins["b"]])
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
    served = serving(**EVERYWHERE, tls=certificate(tmp_path / "a"), idle_exit_s=0.04).ready()
    (served.state / "endpoint.json.part").mkdir()  # in the way, for root too, as a full disk would be
    for name in ("key.pem", "cert.pem"):
        os.replace(tmp_path / "b" / name, tmp_path / "a" / name)
    until_it_is(lambda: served.http.get("/v1/plane").json()["fingerprints"] == [pins[1]])
    assert served.endpoint()["fingerprints"] == [pins[0]]
    (served.state / "endpoint.json.part").rmdir()
    until_it_is(lambda: served.endpoint()["fingerprints"] == [pins[1]])
    served.process.send_signal(signal.SIGTERM)
    code, said = served.wait()
    assert code == 0
    assert said.count("endpoint.json can't be written") == 1


def test_a_certificate_that_can_not_be_used_is_said_in_one_line(serving, tmp_path) -> None:
    own_certificate(tmp_path / "a", names=[], addresses=[], now_ms=0)
    (tmp_path / "a" / "key.pem").unlink()
    code, said = serving(**EVERYWHERE, tls=certificate(tmp_path / "a")).wait()
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


def certificate(folder: Path) -> object:
    class Files:
        def __repr__(self) -> str:
            cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
            return f"CertificateFiles(Path({cert!r}), Path({key!r}))"

    return Files()


def connections(pid: int) -> int:
    return sum(each.status == psutil.CONN_ESTABLISHED for each in psutil.Process(pid).net_connections("tcp"))
