"""``doctor``'s steps against real sockets: each trouble is found at its own step, and named."""

import socket
import ssl
import threading
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from gpulayer.client.diagnosis import Mark, examine, examine_folder
from gpulayer.client.location import Location
from gpulayer.net import pin_of

NOW = 1_790_000_000.0
HEALTHY = {"status": "ok"}


def date(offset_s=0.0):
    return format_datetime(datetime.fromtimestamp(NOW + offset_s, UTC), usegmt=True)


def plane_record(**changes):
    expires = datetime.fromtimestamp(NOW, UTC) + timedelta(days=30, hours=1)
    record = {
        "version": "0.1.0",
        "read_only": False,
        "workers": {"ready": 2},
        "disk_free_bytes": 50 * 2**30,
        "you": {"token_id": "a" * 12, "name": "alice", "role": "submitter", "expires_at": expires.isoformat()},
    }
    return {**record, **changes}


def answer(status=200, document=None, body=b"", headers=()):
    import json  # noqa: PLC0415

    body = json.dumps(document).encode() if document is not None else body
    head = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", f"Date: {date()}", "Connection: close", *headers]
    return "\r\n".join([*head, "", ""]).encode() + body


@pytest.fixture
def serve():
    """A server on a real socket: path → bytes of the answer; what it was sent is kept."""
    listeners = []

    def start(answers, tls=None):
        listener = socket.create_server(("127.0.0.1", 0))
        got = []

        def handle(connection):
            try:
                with connection if tls is None else tls.wrap_socket(connection, server_side=True) as stream:
                    request = b""
                    while b"\r\n\r\n" not in request:
                        piece = stream.recv(65536)
                        if not piece:
                            return
                        request += piece
                    got.append(request)
                    stream.sendall(answers.get(request.split()[1].decode(), answer(404, body=b"nothing here")))
            except OSError:
                connection.close()

        def accept():
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                handle(connection)

        thread = threading.Thread(target=accept)
        thread.start()
        listeners.append((listener, thread))
        return listener.getsockname()[1], got

    yield start
    for listener, thread in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """(server context, pin) of a self-signed certificate that expired long ago."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "box")])
    start = datetime(2020, 1, 1, tzinfo=UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(start)
        .not_valid_after(start + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM) + private)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context, pin_of(made.public_bytes(serialization.Encoding.DER))


def look(url, token="glc_secret", fingerprint="", proxy="", version="0.1.0"):
    location = Location.of(url, token, fingerprint=fingerprint, proxy=proxy)
    found = list(examine(location, version=version, client="gpulayer/0.1.0", wall=lambda: NOW))
    return {finding.check: finding for finding in found}, found


def test_a_healthy_control_plane_passes_every_step_by_name_and_pin(serve, certificate):
    context, pin = certificate
    port, got = serve({"/healthz": answer(document=HEALTHY), "/v1/plane": answer(document=plane_record())}, tls=context)
    by_check, found = look(f"https://localhost:{port}", fingerprint=pin)
    assert {finding.mark for finding in found} == {Mark.OK}
    assert list(by_check) == ["name", "address", "tls", "answer", "clock", "version", "token", "workers", "disk"]
    assert "alice (submitter)" in by_check["token"].message
    assert "30 days" in by_check["token"].message
    assert b"glc_secret" not in got[0], "the token goes only to the step that needs it"
    assert b"Bearer glc_secret" in got[1]


def test_a_server_with_another_certificate_is_named_and_sees_no_request(serve, certificate):
    context, pin = certificate
    port, got = serve({"/healthz": answer(document=HEALTHY)}, tls=context)
    by_check, found = look(f"https://127.0.0.1:{port}", fingerprint="sha256:" + "0" * 64)
    assert [(finding.check, finding.mark) for finding in found] == [("address", Mark.OK), ("tls", Mark.FAIL)]
    assert pin in by_check["tls"].message
    assert got == []


def test_a_self_signed_certificate_without_a_pin_says_which_option_is_missing(serve, certificate):
    port, got = serve({}, tls=certificate[0])
    by_check, _ = look(f"https://127.0.0.1:{port}")
    assert "self-signed" in by_check["tls"].message
    assert "--fingerprint" in by_check["tls"].hint
    assert got == []


def test_a_port_that_speaks_no_tls_is_named(serve):
    port, _ = serve({})
    by_check, found = look(f"https://127.0.0.1:{port}", fingerprint="sha256:" + "0" * 64)
    assert found[-1].mark is Mark.FAIL
    assert found[-1].check in ("tls", "address"), found
    assert "token" not in by_check


@pytest.mark.parametrize(
    ("url", "check", "words"),
    [
        ("https://no-such-host.invalid:8470", "name", "has no address here"),
        ("http://127.0.0.1:1", "address", "refuses connections"),
    ],
)
def test_what_is_not_there_is_named(url, check, words):
    _, found = look(url)
    assert [(finding.check, finding.mark) for finding in found] == [(check, Mark.FAIL)]
    assert words in found[0].message
    assert found[0].hint


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (answer(200, body=b"<html>hello</html>"), "not as a control plane does: '<html>hello</html>'"),
        (answer(302, headers=["Location: https://elsewhere.example/"]), "points to https://elsewhere.example/"),
        (answer(502, body=b"Bad gateway"), "answers 502"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "gives no answer"),
    ],
)
def test_another_program_on_the_port_is_not_taken_for_a_control_plane(serve, sent, words):
    port, got = serve({"/healthz": sent})
    by_check, found = look(f"http://127.0.0.1:{port}")
    assert found[-1].check == "answer"
    assert found[-1].mark is Mark.FAIL
    assert words in by_check["answer"].message
    assert len(got) == 1, "no token went there"


@pytest.mark.parametrize(
    ("offset_s", "mark", "words"),
    [
        (3, Mark.OK, "agree"),
        (86_400, Mark.WARN, "1 day behind"),
        (-7300, Mark.WARN, "2 hours ahead of"),
    ],
)
def test_a_clock_that_is_off_is_told(serve, offset_s, mark, words):
    health = answer(document=HEALTHY).replace(date().encode(), date(offset_s).encode())
    port, _ = serve({"/healthz": health, "/v1/plane": answer(document=plane_record())})
    by_check, _ = look(f"http://127.0.0.1:{port}")
    assert by_check["clock"].mark is mark
    assert words in by_check["clock"].message


def test_a_refused_token_is_told_in_the_servers_words(serve):
    error = {"code": "unauthenticated", "message": "token 0123 has expired", "hint": "ask for a new one"}
    port, _ = serve({"/healthz": answer(document=HEALTHY), "/v1/plane": answer(401, document={"error": error})})
    by_check, found = look(f"http://127.0.0.1:{port}")
    assert found[-1].check == "token"
    assert (by_check["token"].mark, by_check["token"].message) == (Mark.FAIL, "token 0123 has expired")
    assert by_check["token"].hint == "ask for a new one"


@pytest.mark.parametrize(
    ("changes", "check", "mark", "words"),
    [
        ({"version": "0.9.3"}, "version", Mark.FAIL, "0.9.3 there"),
        ({"read_only": True}, "plane", Mark.FAIL, "takes no jobs"),
        ({"workers": {}}, "workers", Mark.WARN, "none has joined"),
        ({"workers": {"ready": 1, "silent": 2}}, "workers", Mark.WARN, "2 silent"),
        ({"disk_free_bytes": 10}, "disk", Mark.FAIL, "10 B free"),
        ({"disk_free_bytes": 500 * 2**20}, "disk", Mark.WARN, "free"),
        ({"you": {"token_id": "x", "name": "", "role": "admin", "expires_at": None}}, "token", Mark.OK, "(admin)"),
    ],
)
def test_the_planes_own_troubles_are_told(serve, changes, check, mark, words):
    port, _ = serve({"/healthz": answer(document=HEALTHY), "/v1/plane": answer(document=plane_record(**changes))})
    by_check, _ = look(f"http://127.0.0.1:{port}")
    assert by_check[check].mark is mark
    assert words in by_check[check].message


def test_a_token_that_ends_soon_is_told_before_it_does(serve):
    soon = datetime.fromtimestamp(NOW + 3 * 86_400 + 5, UTC).isoformat()
    you = {"token_id": "a" * 12, "name": "alice", "role": "submitter", "expires_at": soon}
    port, _ = serve({"/healthz": answer(document=HEALTHY), "/v1/plane": answer(document=plane_record(you=you))})
    by_check, _ = look(f"http://127.0.0.1:{port}")
    assert by_check["token"].mark is Mark.WARN
    assert "3 days" in by_check["token"].message
    assert "rotate" in by_check["token"].hint


def plugin_record(name="cheap", **changes):
    record = {"name": name, "distribution": f"gpulayer-{name}", "version": "1.2", "is_builtin": False, "status": "ok"}
    return {**record, "error": "", "hint": "", "faults": 0, "last_faults": [], "where": "plane", **changes}


BROKEN = {"status": "broken", "error": "no module foo", "hint": "install foo"}
FAULT = {"at": None, "hook": "Scorer.score", "message": "too late"}


@pytest.mark.parametrize(
    ("plugins", "mark", "message", "hint"),
    [
        ([plugin_record()], Mark.OK, "plugins: cheap", ""),
        (
            [plugin_record(**BROKEN)],
            Mark.WARN,
            "plane: plugin cheap (gpulayer-cheap 1.2) is broken: no module foo",
            "install foo",
        ),
        (
            [plugin_record(**BROKEN, where=f"worker w{number}") for number in range(40)],
            Mark.WARN,
            "worker w0 and 39 more: plugin cheap (gpulayer-cheap 1.2) is broken: no module foo",
            "install foo",
        ),
        (
            [plugin_record(status="suspended", last_faults=[FAULT])],
            Mark.WARN,
            "plane: plugin cheap (gpulayer-cheap 1.2) is suspended: Scorer.score: too late",
            "`gpulayer plugins` has its record",
        ),
        ("nonsense", Mark.WARN, "the control plane does not tell how its plugins are", None),
    ],
)
def test_plugins_that_do_not_work_are_told_once_with_their_places(serve, plugins, mark, message, hint):
    own = plugin_record("host", is_builtin=True)
    page = {"plugins": [own, *plugins] if isinstance(plugins, list) else plugins, "next": None}
    answers = {"/healthz": HEALTHY, "/v1/plane": plane_record(), "/v1/plugins": page}
    port, _ = serve({path: answer(document=document) for path, document in answers.items()})
    by_check, found = look(f"http://127.0.0.1:{port}")
    assert [finding.check for finding in found].count("plugins") == 1
    assert (by_check["plugins"].mark, by_check["plugins"].message) == (mark, message)
    if hint is not None:
        assert by_check["plugins"].hint == hint


def test_plugins_that_are_left_out_and_gpulayers_own_are_no_finding(serve):
    page = {"plugins": [plugin_record("host", is_builtin=True)], "next": None}
    answers = {"/healthz": HEALTHY, "/v1/plane": plane_record(), "/v1/plugins": page}
    port, _ = serve({path: answer(document=document) for path, document in answers.items()})
    assert "plugins" not in look(f"http://127.0.0.1:{port}")[0]


def test_without_a_token_everything_else_is_looked_at(serve):
    port, got = serve({"/healthz": answer(document=HEALTHY)})
    by_check, _ = look(f"http://127.0.0.1:{port}", token="")
    assert by_check["answer"].mark is Mark.OK
    assert by_check["token"].mark is Mark.SKIPPED
    assert len(got) == 1


def test_the_second_address_is_looked_at_where_the_first_fails(serve):
    port, _ = serve({"/healthz": answer(document=HEALTHY), "/v1/plane": answer(document=plane_record())})
    by_check, found = look(f"http://127.0.0.1:1, http://127.0.0.1:{port}")
    assert found[0].mark is Mark.FAIL
    assert by_check["token"].mark is Mark.OK


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_plain_http_goes_past_a_proxy_which_would_see_the_token(serve, host):
    port, got = serve({"/healthz": answer(document=HEALTHY), "/v1/plane": answer(document=plane_record())})
    proxy_port, overheard = serve({f"{host}:{port}": b"HTTP/1.1 200 Connection established\r\n\r\n"})
    by_check, found = look(f"http://{host}:{port}", proxy=f"http://127.0.0.1:{proxy_port}")
    assert {finding.mark for finding in found} == {Mark.OK}, found
    assert "through" not in by_check["address"].message
    assert overheard == []
    assert b"Bearer glc_secret" in got[1]


def test_https_is_looked_at_through_the_proxy_inside_whose_tunnel_the_token_is(certificate, serve, middle):
    context, pin = certificate
    port, _ = serve({"/healthz": answer(document=HEALTHY), "/v1/plane": answer(document=plane_record())}, tls=context)
    proxy = middle()
    by_check, found = look(f"https://127.0.0.1:{port}", fingerprint=pin, proxy=proxy.url)
    assert {finding.mark for finding in found} == {Mark.OK}, found
    assert f"is reached through {proxy.url}: connected in " in by_check["address"].message
    assert proxy.heads == [f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()] * 3


def test_what_keeps_no_connection_behind_a_proxy_is_told_of_the_proxy(serve):
    _, found = look("https://box.example:8470", proxy="http://no-such-proxy.invalid:3128")
    assert [(finding.check, finding.mark) for finding in found] == [("name", Mark.FAIL)]
    assert "no-such-proxy.invalid has no address here" in found[0].message
    assert "of the proxy" in found[0].hint
    _, found = look("https://box.example:8470", proxy="http://127.0.0.1:1")
    assert [(finding.check, finding.message) for finding in found] == [
        ("address", "http://127.0.0.1:1 refuses connections")
    ]


def test_a_proxy_that_refuses_is_told_apart_from_the_control_plane(serve):
    port, got = serve({"box.example:8470": b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"})
    _, found = look("https://box.example:8470", proxy=f"http://127.0.0.1:{port}")
    assert [finding.check for finding in found] == ["address"]
    assert "403" in found[0].message
    assert "proxy" in found[0].hint
    assert b"glc_secret" not in b"".join(got)


def test_a_state_folder_that_can_not_be_written_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)
    (finding,) = examine_folder(Path(tmp_path / "state"))
    assert (finding.check, finding.mark) == ("folder", Mark.FAIL)
    assert str(tmp_path / "state") in finding.message


def test_a_state_folder_that_is_not_there_yet_shows_the_room_of_its_disk(tmp_path):
    (finding,) = examine_folder(tmp_path / "not" / "yet")
    assert finding.check == "disk"
    assert not (tmp_path / "not").exists()
