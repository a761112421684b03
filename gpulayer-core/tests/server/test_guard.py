"""What a browser may be made to send is refused; what people and programs send is not."""

import asyncio
import json
import socket

import pytest

from gpulayer import __version__
from gpulayer.server.guard import Guard, is_own_host

NAMES = ("gpu-box", "gpu-box.example.org", "*.team.example.net")

OWN = [
    *("localhost", "LOCALHOST", "LocalHost:8470", "localhost.", "localhost.:8470", "localhost:0", "localhost:"),
    *("127.0.0.1", "127.0.0.1:8470", "127.0.0.1.", "127.8.9.10:65535", "10.0.0.5", "192.168.1.7:443", "203.0.113.9:1"),
    *("0.0.0.0:8470", "255.255.255.255", "8.8.8.8"),
    *("[::1]", "[::1]:8470", "[::]", "[fd00::5]:8470", "[2001:DB8::1]", "[::ffff:127.0.0.1]:80", "[fe80::1]:8470"),
    *("[0:0:0:0:0:0:0:1]", "[::1]:", "[2001:db8:0:0:0:0:2:1]:65535"),
    *("gpu-box", "gpu-box:8470", "GPU-Box.Example.ORG:8470", "gpu-box.", "gpu-box.example.org."),
    *("a.team.example.net", "A.Team.Example.Net.:443"),
]

FOREIGN = [
    # Names that a page's owner points at this machine: DNS rebinding.
    *("evil.example", "evil.example:8470", "evil.example.", "www.evil.example", "rebind.it:80", "x.local", "wpad"),
    *("127.0.0.1.evil.example", "127.0.0.1.nip.io", "127-0-0-1.sslip.io", "localhost.evil.example", "localtest.me"),
    *("gpu-box.evil.example", "evil-gpu-box", "gpu-boxx", "xgpu-box", "gpu_box", "gpu-box.example.org.evil.example"),
    *("agpu-box.example.org", "a.gpu-box.example.org", "example.org", "org", "team.example.net", "*.team.example.net"),
    *("a.b.team.example.net", ".team.example.net", "ateam.example.net", "localhost.localdomain", "foo.localhost"),
    *("router.lan", "box:8470", "gpu-box.local", "xn--lcalhost-d4a", "localhost.example", "gpu-box.example"),
    # Forms of an address that a resolver takes and a browser never sends as they stand.
    *("127.1", "127.0.1", "0x7f000001", "2130706433", "017700000001", "0177.0.0.1", "127.0.0.01", "0x7f.0.0.1"),
    *("127.0.0.1.1", "127.0.0", "256.0.0.1", "127.0.0.-1", "1.2.3.4.5:80", "0", "127。0。0。1", "１２７.0.0.1"),
    # What is no host at all.
    *("", " ", ":", ":8470", ".", "..", "localhost..", "127.0.0.1..", "-", "--", "_", "*", "%", "%6cocalhost"),
    *("localhost:80:80", "localhost:99999", "localhost:65536", "localhost:-1", "localhost:+1", "localhost:8x"),
    *("localhost:０", "localhost :80", " localhost", "localhost ", "localhost\t", "local host", "localhost:80 "),
    *("localhost/", "localhost/x", "http://localhost", "//localhost", "user@localhost", "localhost@evil.example"),
    *("evil.example@localhost", "localhost#evil.example", "localhost?x", "localhost\\x", "localhost,evil.example"),
    *("localhost;x", "localhost\x00", "localhost\x00.evil.example", "\xadlocalhost", "lo\u0107alhost", "localhost\xff"),
    # IPv6 without its brackets, or with something else in them.
    *("::1", "::", "::1:8470", "fd00::5", "[::1", "::1]", "[]", "[]:80", "[::1]x", "[::1]80", "x[::1]", "[::1]:x"),
    *("[::1]:99999", "[::1].", "[::1]:80:80", "[[::1]]", "[127.0.0.1]", "[localhost]", "[::1%25eth0]", "[::1%eth0]"),
    *("[fe80::1%25lo]:80", "[v1.x]", "[::g]", "[1:2:3]", "[:::1]", "[::1]evil.example", "[1:2:3:4:5:6:7:8:9]"),
]


@pytest.mark.parametrize("host", OWN)
def test_an_own_name_or_a_number_is_this_host(host):
    assert is_own_host(host, NAMES)


@pytest.mark.parametrize("host", FOREIGN)
def test_any_other_text_is_not(host):
    assert not is_own_host(host, NAMES)


def test_there_are_enough_of_them():
    assert len(set(FOREIGN)) == len(FOREIGN) >= 120


def ask(*headers, path="/v1/jobs", hosts=NAMES):
    """The status and the error's code of a request that came with these headers; 200 where the app was reached."""
    sent = []

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b'{"error": {"code": "", "message": "", "hint": ""}}'})

    async def receive():
        raise AssertionError("nothing of a refused request is read")

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers],
    }
    asyncio.run(Guard(app, hosts=lambda: hosts)(scope, receive, send))
    return sent[0]["status"], json.loads(sent[1]["body"])["error"]


HERE = ("host", "10.0.0.5:8470")


def code(*headers, **options):
    status, error = ask(*headers, **options)
    return status, error["code"]


def test_a_request_has_one_host_whatever_the_others_say():
    assert code(HERE) == (200, "")
    assert code() == (400, "bad_request")
    assert code(HERE, HERE) == (400, "bad_request")
    assert code(HERE, ("host", "evil.example")) == (400, "bad_request")
    assert code(("host", "evil.example"), ("x-forwarded-host", "localhost"), ("forwarded", "host=localhost"))[0] == 400


def test_names_come_and_go_with_the_certificate():
    hosts = ["one"]
    assert code(("host", "one"), hosts=hosts)[0] == 200
    hosts[:] = ["two"]
    assert code(("host", "one"), hosts=hosts)[0] == 400
    assert code(("host", "two"), hosts=hosts)[0] == 200


@pytest.mark.parametrize(
    ("site", "status"),
    [("none", 200), ("same-origin", 200), ("cross-site", 403), ("same-site", 403), ("Cross-Site", 403), ("", 403)],
)
def test_what_another_sites_page_sends_is_refused(site, status):
    assert ask(HERE, ("sec-fetch-site", site))[0] == status
    assert ask(HERE, ("sec-fetch-site", "none"), ("sec-fetch-site", site))[0] == status


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("https://10.0.0.5:8470", 200),
        ("http://evil.example", 403),
        ("https://10.0.0.5:8471", 403),
        ("https://10.0.0.5", 403),
        ("null", 403),
        ("", 403),
        ("https://10.0.0.5:8470.evil.example", 403),
    ],
)
def test_an_origin_must_be_the_host_that_is_asked(origin, status):
    assert ask(HERE, ("origin", origin))[0] == status


@pytest.mark.parametrize("target", ["http://evil.example/v1/jobs", "evil.example:443", "*", "", "v1/jobs"])
def test_a_target_that_is_no_path_is_refused(target):
    assert code(HERE, path=target) == (400, "bad_request")


MAJOR, MINOR = __version__.split(".")[:2]


@pytest.mark.parametrize(
    ("agent", "is_taken"),
    [
        (f"gpulayer/{__version__}", True),
        (f"gpulayer/{MAJOR}.{MINOR}.999", True),
        (f"gpulayer-worker/{MAJOR}.{MINOR}.0rc1", True),
        (f"gpulayer/{MAJOR}.{int(MINOR) + 1}.0", False),
        (f"gpulayer-worker/{int(MAJOR) + 1}.{MINOR}.0", False),
        (f"gpulayer/{MAJOR}.{MINOR}0.0 more words", False),
        ("curl/8.0.0", True),
        ("Mozilla/5.0 gpulayer/99.0.0", True),
        ("gpulayer", True),
        ("gpulayer/x", True),
    ],
)
def test_a_program_of_another_series_is_refused_and_told_both_versions(agent, is_taken):
    status, error = ask(HERE, ("user-agent", agent))
    if is_taken:
        assert status == 200
        return
    assert (status, error["code"]) == (400, "version_mismatch")
    assert __version__ in error["message"]
    assert agent.split("/")[1].split()[0] in error["message"]
    assert f"gpulayer=={MAJOR}.{MINOR}.*" in error["hint"]


@pytest.mark.parametrize("path", ["/v1/plane", "/v1/plane:shutdown", "/healthz", "/readyz"])
def test_another_version_may_still_look_at_a_control_plane_and_end_it(path):
    assert ask(HERE, ("user-agent", "gpulayer/99.0.0"), path=path)[0] == 200


def raw(plane, request):
    with socket.create_connection(("127.0.0.1", int(plane.url.rsplit(":", 1)[1])), timeout=20) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    return int(answer.split(b" ", 2)[1])


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 200),
        (b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.0\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost:\r\nConnection: close\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\nConnection: close\r\n\r\n", 400),
        (b"GET http://localhost/healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 400),
        (b"GET http://evil.example/healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 400),
        (b"CONNECT evil.example:443 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 400),
        (b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 400),
    ],
)
def test_on_a_real_socket_too(plane, request_, status):
    assert raw(plane, request_) == status
