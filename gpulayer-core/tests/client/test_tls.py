"""Both shells against real TLS servers and whoever stands between: no byte of a request to one that is not trusted."""

import os
import socket
import ssl
import subprocess
import sys
import threading

import pytest

from gpulayer.client import calls
from gpulayer.client.following import FollowEvents, LogCursor, follow_logs
from gpulayer.client.limits import Limits
from gpulayer.client.location import Location
from gpulayer.client.transport import StreamQuiet, Transport
from gpulayer.errors import ProtocolError, Unreachable, UntrustedServer, UsageError

OTHER_PIN = f"sha256:{'00' * 32}"


@pytest.fixture
def spy(listen):
    """``spy(certificate)``: a man in the middle, and all that he could read."""

    def start(certificate):
        read = []

        def serve(connection):
            with certificate.context.wrap_socket(connection, server_side=True) as secured:
                while piece := secured.recv(65536):
                    read.append(piece)
                    secured.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

        listener = listen(serve)
        listener.read, listener.url = read, f"https://127.0.0.1:{listener.port}"
        return listener

    return start


@pytest.fixture
def authority(certify, monkeypatch):
    """A CA that this machine trusts."""
    made = certify("authority", is_ca=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(made.pem))
    return made


@pytest.mark.parametrize("is_signed", [False, True], ids=["self-signed", "signed by a CA that is trusted here"])
@pytest.mark.parametrize("is_tunnelled", [False, True], ids=["direct", "tunnel"])
def test_a_man_in_the_middle_reads_not_one_byte_where_a_pin_is_held(
    spy, certify, authority, middle, shell, is_signed, is_tunnelled
):
    spying = spy(certify("plane", signer=authority if is_signed else None))
    pinned = certify("plane")
    proxy = middle().url if is_tunnelled else ""
    client = shell(spying.url, fingerprint=pinned.pin, retry_for_s=30, proxy=proxy)
    with pytest.raises(UntrustedServer, match="is not the pinned one: it shows sha256:") as caught:
        client.send(calls.submit_job({"schema": 1, "command": ["true"]}, key="k"))
    with pytest.raises(UntrustedServer):
        client.read(calls.read_logs("j", follow=True))
    assert "somebody may be in the middle: nothing was sent" in caught.value.hint
    assert len(spying.opened) == 2  # one a call: never tried again
    assert spying.read == []


def test_a_man_in_the_middle_reads_nothing_where_a_public_ca_is_trusted(spy, certify, authority, shell):
    spying = spy(certify("plane"))
    with pytest.raises(UntrustedServer, match="is not trusted here: self-signed certificate") as caught:
        shell(spying.url, retry_for_s=30).send(calls.get_plane())
    assert "--fingerprint" in caught.value.hint
    assert (spying.read, len(spying.opened)) == ([], 1)


@pytest.mark.parametrize("days", [(-30, -1), (1, 30), (-1, 30)], ids=["expired", "not yet valid", "valid"])
def test_a_pinned_certificate_is_good_whatever_its_dates_and_names(tls_plane, certify, shell, days):
    plane = tls_plane(certify(days=days, hosts=["somewhere.else"]))
    assert shell(plane.url, fingerprint=plane.certificate.pin).send(calls.get_plane())["version"] == "0.1.0"


def test_two_pins_stand_while_a_certificate_is_replaced(tls_plane, certify, shell):
    old, new = tls_plane(certify("old")), tls_plane(certify("new"))
    both = f"{old.certificate.pin},{new.certificate.pin}"
    for plane in (old, new):
        assert shell(plane.url, fingerprint=both).send(calls.get_plane())["version"] == "0.1.0"
    with pytest.raises(UntrustedServer):
        shell(new.url, fingerprint=old.certificate.pin).send(calls.get_plane())


@pytest.mark.parametrize("pin", ["sha256:abc", "00" * 32, f"sha1:{'00' * 32}", OTHER_PIN + "0", f"{OTHER_PIN},x"])
def test_a_malformed_pin_ends_all_before_anything_is_opened(spy, certify, shell, pin):
    spying = spy(certify())
    with pytest.raises(UsageError, match="is not a fingerprint"):
        shell(spying.url, fingerprint=pin)
    assert spying.opened == []


def test_a_server_that_a_ca_vouches_for_needs_no_pin(tls_plane, certify, authority, shell):
    plane = tls_plane(certify(signer=authority))
    assert shell(plane.url).send(calls.get_plane())["version"] == "0.1.0"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"hosts": ["somewhere.else"]}, "IP address mismatch"),
        ({"days": (-30, -1)}, r"certificate has expired \(is this machine's clock right\?\)"),
        ({"days": (1, 30)}, r"certificate is not yet valid \(is this machine's clock right\?\)"),
    ],
)
def test_what_a_ca_vouches_for_must_have_the_name_and_the_dates(spy, certify, authority, shell, options, words):
    spying = spy(certify(signer=authority, **options))
    with pytest.raises(UntrustedServer, match=words):
        shell(spying.url, retry_for_s=30).send(calls.get_plane())
    assert (spying.read, len(spying.opened)) == ([], 1)


def test_the_authorities_of_this_machine_are_those_that_openssl_knows(tls_plane, certify):
    authority = certify("authority", is_ca=True)
    plane = tls_plane(certify(signer=authority))
    program = (
        "import sys; from gpulayer.client import calls; from gpulayer.client.location import Location\n"
        "from gpulayer.client.transport import Transport\n"
        "print(Transport(Location.of(*sys.argv[1:])).send(calls.get_plane())['version'])"
    )
    argv = [sys.executable, "-c", program, plane.url, plane.token]
    good = subprocess.run(
        argv, env={**os.environ, "SSL_CERT_FILE": str(authority.pem)}, check=False, capture_output=True
    )
    bad = subprocess.run(argv, env={**os.environ, "SSL_CERT_FILE": os.devnull}, check=False, capture_output=True)
    assert (good.stdout, good.returncode) == (b"0.1.0\n", 0)
    assert b"UntrustedServer" in bad.stderr


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed_and_its_target_sees_no_token(tls_plane, certify, listen, parts, shell, status):
    heard = []
    elsewhere = listen(lambda connection: heard.append(connection.recv(65536)))
    target = f"http://127.0.0.1:{elsewhere.port}/v1/plane"
    plane = tls_plane(certify())
    plane.on("GET", "/v1/plane", parts.Answer(status, body=b"", headers={"Location": target}))
    plane.on("GET", "/v1/jobs/{ref}/logs", parts.Answer(status, body=b"", headers={"Location": target}))
    client = shell(plane.url, fingerprint=plane.certificate.pin)
    for ask in (lambda: client.send(calls.get_plane()), lambda: client.read(calls.read_logs("j"))):
        with pytest.raises(ProtocolError, match=rf"answered {status}, which points to {target}: not followed"):
            ask()
    assert heard == []
    assert elsewhere.opened == []


def test_a_redirect_that_names_no_place_is_an_error_too(plane, parts, shell):
    plane.on("GET", "/v1/plane", parts.Answer(302, body=b""))
    with pytest.raises(ProtocolError, match="points to nowhere: not followed"):
        shell(plane.url).send(calls.get_plane())


VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")


@pytest.mark.parametrize("is_secure", [False, True])
def test_proxy_variables_of_the_environment_are_not_looked_at(
    plane, tls_plane, certify, parts, middle, shell, monkeypatch, is_secure
):
    proxy = middle()
    for name in VARIABLES:
        monkeypatch.setenv(name, proxy.url)
    if is_secure:
        plane = tls_plane(certify())
    plane.on("GET", "/v1/plane", parts.plane())
    client = shell(plane.url, fingerprint=plane.certificate.pin if is_secure else "")
    assert client.send(calls.get_plane())["version"] == "0.1.0"
    assert proxy.opened == []


def test_a_proxy_that_was_asked_for_sees_an_address_and_no_more(tls_plane, certify, middle, shell):
    plane, proxy = tls_plane(certify()), middle()
    client = shell(plane.url, fingerprint=plane.certificate.pin, proxy=proxy.url)
    assert [client.send(calls.get_plane())["version"] for _ in range(2)] == ["0.1.0"] * 2
    assert proxy.heads == [f"CONNECT 127.0.0.1:{plane.port} HTTP/1.1\r\nHost: 127.0.0.1:{plane.port}\r\n\r\n".encode()]


def test_no_proxy_stands_between_a_machine_and_itself(plane, parts, middle, shell):
    proxy = middle()
    plane.on("GET", "/v1/plane", parts.plane())
    assert shell(plane.url, proxy=proxy.url).send(calls.get_plane())["version"] == "0.1.0"
    assert proxy.opened == []


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "wants a name and a password"),
        (b"HTTP/1.1 403 Forbidden\r\n\r\nno", r"opens no tunnel to 127\.0\.0\.1:\d+: it answered 403 Forbidden"),
        (b"HTTP/1.0 502 Bad Gateway\r\nX: y\r\n\r\n", "it answered 502 Bad Gateway"),
        (b"HTTP/1.1 200 OK\r\n\r\n<html>", "went on with something that is no tunnel"),
        (b"220 mail.example ESMTP\r\n", "answered with something that is no HTTP: '220 mail.example"),
        (b"HTTP/1.1 200 OK\r\n", "answered with something that is no HTTP"),
        (b"", "closed the connection without an answer"),
    ],
)
def test_a_proxy_that_opens_no_tunnel_is_named_with_what_it_said(tls_plane, certify, middle, shell, answer, words):
    plane, proxy = tls_plane(certify()), middle(refuse=answer)
    client = shell(plane.url, fingerprint=plane.certificate.pin, proxy=proxy.url, retry_for_s=0.0)
    with pytest.raises(Unreachable, match=words) as caught:
        client.send(calls.get_plane())
    assert proxy.url in caught.value.message
    assert plane.asked == []


def test_a_proxy_that_is_not_there_is_named(shell):
    with pytest.raises(Unreachable, match=r"https://127\.0\.0\.1:1: the proxy http://127\.0\.0\.1:9"):
        shell("https://127.0.0.1:1", proxy="http://127.0.0.1:9", retry_for_s=0.0).send(calls.get_plane())


@pytest.mark.parametrize("way", ["relay", "tunnel"])
def test_a_proxy_that_drops_the_answer_of_a_submit_makes_no_second_job(tls_plane, certify, middle, parts, shell, way):
    plane = parts.script_job(tls_plane(certify()))
    cuts = []

    def cut():
        is_cut = len(cuts) < len(plane.of("POST", "/v1/jobs")) <= 2
        cuts.extend([1] if is_cut else [])
        return is_cut

    between = middle(None if way == "tunnel" else plane.port, cut=cut)
    url = plane.url if way == "tunnel" else f"https://127.0.0.1:{between.port}"
    proxy = between.url if way == "tunnel" else ""
    client = shell(url, fingerprint=plane.certificate.pin, proxy=proxy, retry_for_s=30)
    record = client.send(calls.submit_job({"schema": 1, "command": ["true"]}, key="once"))
    assert record == plane.created[0]
    assert len(plane.created) == 1
    assert [asked.headers["idempotency-key"] for asked in plane.of("POST", "/v1/jobs")] == ["once"] * 3
    assert len(cuts) == 2


def test_a_server_that_accepts_and_never_answers_is_given_up(listen, shell, monkeypatch):
    monkeypatch.setattr("gpulayer.client.reach._CONNECT_S", 0.2)
    silent = listen(lambda connection: connection.recv(65536) and connection.recv(65536))
    client = shell(f"https://127.0.0.1:{silent.port}", fingerprint=OTHER_PIN, retry_for_s=0.0)
    with pytest.raises(Unreachable, match="no answer in time"):
        client.send(calls.get_plane())


def test_a_proxy_that_accepts_and_never_answers_is_given_up(listen, shell, monkeypatch):
    monkeypatch.setattr("gpulayer.client.reach._CONNECT_S", 0.2)
    silent = listen(lambda connection: connection.recv(65536) and connection.recv(65536))
    client = shell("https://127.0.0.1:1", fingerprint=OTHER_PIN, proxy=f"http://127.0.0.1:{silent.port}", retry_for_s=0)
    with pytest.raises(Unreachable, match=rf"the proxy http://127\.0\.0\.1:{silent.port} opened no tunnel in time"):
        client.send(calls.get_plane())


def test_a_control_plane_that_takes_a_request_and_never_answers_is_given_up(listen, certify, shell):
    certificate = certify()

    def serve(connection):
        with certificate.context.wrap_socket(connection, server_side=True) as secured:
            while secured.recv(65536):
                pass

    silent = listen(serve)
    limits = Limits(answer_s=0.2)
    client = shell(f"https://127.0.0.1:{silent.port}", fingerprint=certificate.pin, retry_for_s=0.0, limits=limits)
    with pytest.raises(Unreachable, match="no answer in time"):
        client.send(calls.get_plane())


def test_a_tls_server_that_speaks_rubbish_is_told_apart_from_one_that_is_not_there(listen, certify, shell):
    certificate = certify()

    def serve(connection):
        with certificate.context.wrap_socket(connection, server_side=True) as secured:
            secured.recv(65536)
            secured.sendall(b"\x00\xffrubbish\r\n\r\n" * 10)

    server = listen(serve)
    client = shell(f"https://127.0.0.1:{server.port}", fingerprint=certificate.pin, retry_for_s=0.0)
    with pytest.raises(Unreachable, match="what listens there does not speak HTTP"):
        client.send(calls.get_plane())


def test_a_server_that_does_not_speak_tls_sees_no_token(listen, shell):
    read = []

    def serve(connection):
        read.append(connection.recv(65536))
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    server = listen(serve)
    client = shell(f"https://127.0.0.1:{server.port}", fingerprint=OTHER_PIN, retry_for_s=0.0)
    with pytest.raises(Unreachable, match="does not speak TLS"):
        client.send(calls.get_plane())
    assert b"glc_" not in b"".join(read)


def test_an_http_url_of_a_tls_server_is_answered_with_what_to_try(tls_plane, certify, shell):
    plane = tls_plane(certify())
    with pytest.raises(Unreachable, match=r"closed before the answer|does not speak HTTP; is it https"):
        shell(f"http://127.0.0.1:{plane.port}", retry_for_s=0.0).send(calls.get_plane())
    assert plane.asked == []


def test_each_address_is_tried_in_turn_and_the_one_that_answered_is_kept(plane, parts, shell):
    plane.on("GET", "/v1/plane", parts.plane())
    waited = []
    client = shell(f"http://127.0.0.1:9,http://127.0.0.1:1,{plane.url}", sleep=waited.append, retry_for_s=0.0)
    for _ in range(2):
        assert client.send(calls.get_plane())["version"] == "0.1.0"
    assert client.url == plane.url
    assert waited == [0.0, 0.0]


def test_a_standby_sends_a_client_on_to_the_next_address(plane, tls_plane, certify, parts, shell):
    standby = tls_plane(certify("standby"))
    standby.on("GET", "/v1/plane", parts.error(503, "not_leader", "another one leads"))
    leader = tls_plane(certify("leader"))
    pins = f"{standby.certificate.pin},{leader.certificate.pin}"
    client = shell(f"{standby.url} {leader.url}", fingerprint=pins, retry_for_s=0.0)
    for _ in range(2):
        assert client.send(calls.get_plane())["version"] == "0.1.0"
    assert (len(standby.asked), len(leader.asked)) == (1, 2)


@pytest.mark.parametrize("status", [429, 503])
def test_who_is_told_to_come_later_waits_longer_each_time(plane, parts, shell, status):
    later = parts.error(status, "storage_unavailable", "not now")
    plane.on("GET", "/v1/plane", [later, later, later, parts.plane()])
    waited = []
    assert shell(plane.url, sleep=waited.append).send(calls.get_plane())["version"] == "0.1.0"
    assert waited == [0.05, 0.1, 0.2]


def test_where_no_address_answers_the_last_failure_is_told(shell):
    waited = []
    client = shell("http://127.0.0.1:9 http://127.0.0.1:1", sleep=waited.append, retry_for_s=0.2)
    with pytest.raises(Unreachable, match=r"no control plane answers at http://127\.0\.0\.1:[19]: connection refused"):
        client.send(calls.get_plane())
    assert 0.0 in waited


def test_an_untrusted_address_ends_the_call_although_another_would_answer(spy, plane, parts, certify, shell):
    spying = spy(certify())
    plane.on("GET", "/v1/plane", parts.plane())
    with pytest.raises(UntrustedServer):
        shell(f"{spying.url},{plane.url}", fingerprint=OTHER_PIN, retry_for_s=30).send(calls.get_plane())
    assert (plane.asked, spying.read) == ([], [])


def test_what_stands_before_the_path_of_a_url_stands_before_every_route(plane, parts, shell):
    plane.on("GET", "/team/a/v1/plane", parts.plane())
    assert shell(f"{plane.url}/team/a/").send(calls.get_plane())["version"] == "0.1.0"


def test_a_control_plane_that_moved_gets_the_new_token_and_the_old_address_gets_none(tls_plane, certify, parts, shell):
    old, new = tls_plane(certify("old")), tls_plane(certify("new"))
    new.token = "glc_new"
    client = shell(old.url, fingerprint=old.certificate.pin, relocate=lambda: new.location, retry_for_s=30)
    assert client.send(calls.get_plane())["version"] == "0.1.0"
    old.drop("GET", "/v1/plane", 100)
    assert client.send(calls.get_plane())["version"] == "0.1.0"
    assert {asked.headers["authorization"] for asked in new.asked} == {"Bearer glc_new"}
    assert all(asked.headers["authorization"] != "Bearer glc_new" for asked in old.asked)


def test_a_token_that_was_replaced_where_it_came_from_is_taken_up(plane, parts, shell):
    plane.on("GET", "/v1/plane", parts.plane())
    plane.token = "glc_new"
    client = shell(plane.url, token="glc_old", relocate=lambda: plane.location, retry_for_s=0.0)
    assert client.send(calls.get_plane())["version"] == "0.1.0"
    assert [asked.headers["authorization"] for asked in plane.asked] == ["Bearer glc_old", "Bearer glc_new"]


def test_a_connection_is_not_used_again_for_another_trust(tls_plane, certify):
    plane = tls_plane(certify())
    here = Location.of(plane.url, plane.token, fingerprint=plane.certificate.pin)
    pins = f"{plane.certificate.pin},{OTHER_PIN}"
    with Transport(here, relocate=lambda: Location.of(plane.url, plane.token, fingerprint=pins)) as client:
        client.send(calls.get_plane())
        plane.drop("GET", "/v1/plane", 1)
        client.send(calls.get_plane())
        assert {one.route.pins for one in client._idle} == {(plane.certificate.pin, OTHER_PIN)}


def test_the_kernel_is_told_to_notice_a_peer_that_is_gone(plane, parts):
    plane.on("GET", "/v1/plane", parts.plane())
    with Transport(plane.location) as client:
        client.send(calls.get_plane())
        sock = client._idle[0].sock
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 20_000


@pytest.mark.parametrize("is_secure", [False, True])
def test_a_followed_log_that_is_silent_is_asked_for_anew(
    plane, tls_plane, certify, parts, shell, monkeypatch, is_secure
):
    plane = tls_plane(certify()) if is_secure else plane
    silence = threading.Event()

    def pieces():
        yield b"one\n"
        silence.wait(30)

    plane.on("GET", "/v1/jobs/{ref}/logs", parts.Answer(pieces=pieces(), headers={"X-Gpulayer-Log-Start": 0}))
    client = shell(plane.url, fingerprint=plane.certificate.pin if is_secure else "", limits=Limits(quiet_s=0.1))
    try:
        with pytest.raises(StreamQuiet):
            client.read(calls.read_logs("j", follow=True))
    finally:
        silence.set()


def test_following_outlives_any_number_of_silences_and_loses_nothing(job_plane, parts, monkeypatch):
    silent, release = [0], threading.Event()
    job_plane.log, lost = b"one\ntwo\n", []

    def pieces(rest):
        yield rest
        release.wait(30)

    def logs(asked):
        silent[0] += 1
        offset = int(asked.query.get("offset", 0))
        headers = {"X-Gpulayer-Log-Start": offset, "X-Gpulayer-Attempt": 1}
        if silent[0] > 40:
            return parts.Answer(body=job_plane.log[offset:], headers=headers)
        rest = job_plane.log[:4][offset:]
        return parts.Answer(pieces=pieces(rest) if rest else Silence(release), headers=headers)

    job_plane.on("GET", "/v1/jobs/{ref}/logs", logs)
    with Transport(job_plane.location, sleep=lambda _: None, limits=Limits(quiet_s=0.02)) as client:
        events = FollowEvents(lost=lost.append)
        try:
            said = list(follow_logs(client, "j", cursor=LogCursor(), events=events))
        finally:
            release.set()
    assert b"".join(piece for piece in said if isinstance(piece, bytes)) == job_plane.log
    assert silent[0] == 41
    assert lost == []


class Silence:
    """Pieces of a body that never come."""

    def __init__(self, release):
        self._release = release

    def __iter__(self):
        self._release.wait(30)
        return iter(())


def test_the_version_of_tls_is_at_least_1_2(certify, listen, shell):
    certificate = certify()

    def serve(connection):
        context = certificate.context
        context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        context.maximum_version = ssl.TLSVersion.TLSv1_1
        context.wrap_socket(connection, server_side=True)

    server = listen(serve)
    with pytest.warns(DeprecationWarning, match="TLS"), pytest.raises(Unreachable, match="TLS failed"):
        shell(f"https://127.0.0.1:{server.port}", fingerprint=certificate.pin, retry_for_s=0.0).send(calls.get_plane())


@pytest.mark.parametrize("is_pinned", [True, False], ids=["pinned", "of a CA"])
def test_an_address_with_a_zone_is_named_without_it_to_the_server(
    listen, certify, authority, shell, monkeypatch, is_pinned
):
    certificate, heads = certify(hosts=["fe80::1"], signer=None if is_pinned else authority), []

    def serve(connection):
        with certificate.context.wrap_socket(connection, server_side=True) as secured:
            heads.append(secured.recv(65536).decode().lower())
            secured.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")

    listener, look_up = listen(serve), socket.getaddrinfo

    def here(host, *args, **options):  # no machine is sure to have an interface with such an address
        return look_up("127.0.0.1" if "%" in str(host) else host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", here)
    url = f"https://[fe80::1%no0]:{listener.port}"
    assert shell(url, fingerprint=certificate.pin if is_pinned else "").send(calls.get_plane()) == {}
    (head,) = heads
    assert f"\r\nhost: [fe80::1]:{listener.port}\r\n" in head
    assert "%" not in head
    assert url in shell(url).url
