"""The webhook sinks against a real HTTP server: what is sent, how it is signed, and what becomes of each answer.

The signature is verified by the few lines of docs/plugins/webhook.md, which know nothing of how it was made.
"""

import base64
import ipaddress
import json
import os
import re
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gpulayer.clock import ManualClock
from gpulayer.errors import UsageError
from gpulayer.plugins import Context, EventKind, EventRefused, EventSink, JobSummary, PlaneEvent, Where
from gpulayer.plugins.builtin.webhook import Webhook, WebhookFailed, gpulayer_register_event_sinks, signatures
from gpulayer.plugins.host import Host, load_plugins
from gpulayer.plugins.record import PluginRecord, PluginStatus
from gpulayer.plugins.settings import PluginSettings
from gpulayer.testing.distribution import install_plugin

PAGE = Path(__file__).parents[3] / "docs" / "plugins" / "webhook.md"
KEY = bytes(range(32))
SECRET = "whsec_" + base64.b64encode(KEY).decode()
JOB = JobSummary("0123456789abcdef", "trän", "ada", MappingProxyType({"team": "a"}), "failed", 3, None, "program")
EVENT = PlaneEvent("abcd-7-ff", 7, 1_700_000_000_123, EventKind.JOB_ENDED, job=JOB, details={"attempt": 1})


class Receiver:
    """Keeps each request; answers with what is next in ``answers``, else 204."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.answers: list[int | threading.Event] = []
        self.headers: dict[str, str] = {}
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver.requests.append((self.path, headers, body))
                answer = receiver.answers.pop(0) if receiver.answers else 204
                if isinstance(answer, threading.Event):
                    answer.wait(20)
                    return
                self.send_response(answer)
                for name, value in receiver.headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", "0")
                self.end_headers()

            do_GET = do_POST  # noqa: N815 - http.server's name

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.handle_error = lambda *_: None  # type: ignore[method-assign] # a client that goes is no error here
        if context is not None:
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.thread = threading.Thread(target=lambda: self.server.serve_forever(poll_interval=0.01))
        self.thread.start()

    def url(self, path: str = "/hook", *, scheme: str = "http") -> str:
        return f"{scheme}://127.0.0.1:{self.server.server_port}{path}"

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@pytest.fixture(scope="session")
def verify() -> Callable[..., object]:
    """``verify`` as the documentation shows it."""
    found: dict[str, Callable[..., object]] = {}
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    exec(code, found)
    return found["verify"]


def sinks(**options: str) -> list[EventSink]:
    return gpulayer_register_event_sinks(Context(Where.PLANE, "webhook", "0", options))


def sink(url: str, **options: str) -> EventSink:
    (made,) = sinks(url=url, **{"secret": SECRET, **options})
    return made


class Dripper:
    """Answers with these bytes, one after the other, and all over again; without end unless it is closed."""

    def __init__(self, first: bytes, again: bytes) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._is_closed = threading.Event()
        self._drops = (first, again)
        self._thread = threading.Thread(target=self._drip)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}/hook"

    def _drip(self) -> None:
        connection, _ = self._listener.accept()
        first, again = self._drops
        with connection:
            try:
                connection.sendall(first)
                for number in range(2_000):  # 20 s, and then an answer
                    if self._is_closed.wait(0.01):
                        return
                    connection.sendall(again[number % len(again) :][:1])
                connection.sendall(b"\r\n\r\nHTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n")
            except OSError:
                pass  # whoever was answered has gone

    def close(self) -> None:
        self._is_closed.set()
        self._thread.join()
        self._listener.close()


@pytest.mark.parametrize(
    ("first", "again"),
    [
        (b"HTTP/1.1 200 O", b"k"),
        (b"HTTP/1.1 204 No Content\r\nx-drip: ", b"x"),
        (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
    ],
    ids=["its first line", "a header", "hints that the answer comes"],
)
def test_an_answer_that_comes_byte_by_byte_is_not_waited_for_longer_than_one_that_does_not_come(first, again) -> None:
    dripper = Dripper(first, again)
    try:
        with pytest.raises(WebhookFailed, match=r"127\.0\.0\.1: no answer within 0\.2 s"):
            sink(dripper.url, timeout="0.2").tell(EVENT)
    finally:
        dripper.close()


def test_an_event_is_sent_as_json_signed_as_the_documentation_verifies_it(receiver, verify) -> None:
    sink(receiver.url()).tell(EVENT)
    ((path, headers, body),) = receiver.requests
    assert (path, headers["webhook-id"], headers["content-type"]) == ("/hook", "abcd-7-ff", "application/json")
    document = verify(SECRET, headers, body)
    assert document == json.loads(body)
    assert document == {
        "type": "job.ended",
        "timestamp": "2023-11-14T22:13:20.123Z",
        "data": {
            "id": "abcd-7-ff",
            "seq": 7,
            "details": {"attempt": 1},
            "job": {
                "id": "0123456789abcdef",
                "name": "trän",
                "owner": "ada",
                "tags": {"team": "a"},
                "state": "failed",
                "exit_code": 3,
                "signal": None,
                "ended_by": "program",
            },
        },
    }


@pytest.mark.parametrize("change", ["body", "id", "timestamp", "secret", "late"])
def test_what_was_changed_on_the_way_or_is_old_does_not_verify(receiver, verify, change) -> None:
    clock = ManualClock(wall_offset_ms=1_700_000_000_000) if change == "late" else None
    Webhook(receiver.url(), (KEY,), clock=clock).tell(EVENT)
    ((_, headers, body),) = receiver.requests
    secret = SECRET
    match change:
        case "body":
            body += b" "
        case "id":
            headers["webhook-id"] += "0"
        case "timestamp":
            headers["webhook-timestamp"] = str(int(headers["webhook-timestamp"]) + 1)
        case "secret":
            secret = "whsec_" + base64.b64encode(bytes(32)).decode()
        case _:
            pass
    with pytest.raises(ValueError, match="not of our control plane, or too old"):
        verify(secret, headers, body)


def test_while_a_secret_is_replaced_both_verify(receiver, verify) -> None:
    other = "whsec_" + base64.b64encode(bytes(reversed(KEY))).decode()
    sink(receiver.url(), secret=f"{other} {SECRET}").tell(EVENT)
    ((_, headers, body),) = receiver.requests
    assert len(headers["webhook-signature"].split()) == 2
    assert verify(SECRET, headers, body) == verify(other, headers, body)


def test_the_signature_is_that_of_the_specification() -> None:
    """The example of https://github.com/standard-webhooks/standard-webhooks: its libraries are tested with it."""
    key = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    made = signatures((key,), "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert made == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_any_2xx_is_thanks(receiver, status) -> None:
    receiver.answers = [status]
    sink(receiver.url()).tell(EVENT)
    assert len(receiver.requests) == 1


@pytest.mark.parametrize("status", [401, 403, 404, 405, 408, 409, 425, 429, 500, 502, 503])
def test_what_may_change_is_a_failure_and_a_repetition_is_the_same_message(receiver, verify, status) -> None:
    receiver.answers = [status]
    made = sink(receiver.url())
    with pytest.raises(WebhookFailed, match=f"127.0.0.1 answered {status}"):
        made.tell(EVENT)
    made.tell(EVENT)
    (_, first, body), (_, second, again) = receiver.requests
    assert (first["webhook-id"], body) == (second["webhook-id"], again)
    verify(SECRET, second, again)


@pytest.mark.parametrize("status", [400, 410, 413, 415, 422])
def test_what_will_not_change_refuses_the_event(receiver, status) -> None:
    receiver.answers = [status]
    with pytest.raises(EventRefused, match=f"127.0.0.1 answered {status}"):
        sink(receiver.url()).tell(EVENT)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(receiver, status) -> None:
    receiver.answers, receiver.headers = [status], {"location": receiver.url("/elsewhere")}
    with pytest.raises(WebhookFailed, match="redirects are not followed"):
        sink(receiver.url()).tell(EVENT)
    assert [path for path, _, _ in receiver.requests] == ["/hook"]


def test_an_answer_that_does_not_come_is_given_up(receiver) -> None:
    released = threading.Event()
    receiver.answers = [released]
    try:
        with pytest.raises(WebhookFailed, match=r"no answer within 0\.05 s"):
            sink(receiver.url(), timeout="0.05").tell(EVENT)
    finally:
        released.set()


def test_nobody_listens_is_a_failure_that_does_not_show_the_url() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(WebhookFailed, match=r"127\.0\.0\.1: no connection") as failure:
        sink(f"http://127.0.0.1:{port}/s3cret-path").tell(EVENT)
    assert "s3cret" not in str(failure.value)


def test_the_environments_proxy_is_not_asked(receiver, monkeypatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    sink(receiver.url()).tell(EVENT)
    assert len(receiver.requests) == 1


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> Path:
    """PEM of a certificate for 127.0.0.1 that nobody knows, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "receiver")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(datetime.now(UTC) - timedelta(days=1))
        .not_valid_after(datetime.now(UTC) + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "cert.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM) + private)
    return path


def test_a_certificate_that_nobody_vouches_for_is_a_failure_and_nothing_is_sent(certificate) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    receiver = Receiver(context)
    try:
        url = receiver.url(scheme="https")
        with pytest.raises(WebhookFailed, match="CERTIFICATE_VERIFY_FAILED"):
            sink(url).tell(EVENT)
        assert receiver.requests == []
        sink(url, ca_file=str(certificate)).tell(EVENT)
        assert len(receiver.requests) == 1
    finally:
        receiver.close()


# Options --------------------------------------------------------------------------------------------------------------


def test_without_options_there_is_no_sink_and_no_http_client_is_loaded() -> None:
    assert sinks() == []
    code = (
        "import sys; from gpulayer.plugins import Context, Where; from gpulayer.plugins.builtin import webhook; "
        "made = webhook.gpulayer_register_event_sinks(Context(Where.PLANE, 'webhook', '0')); "
        "sys.exit(made != [] or 'httpx' in sys.modules or 'ssl' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_each_url_is_a_sink_of_its_own_whose_name_shows_no_path() -> None:
    urls = "https://a.example/x https://a.example/y http://[::1]:1/z"
    made = sinks(url=f"{urls} https://a.example/x", secret=SECRET)
    names = [one.name for one in made]
    assert len(set(names)) == len(names) == 3
    assert all(re.fullmatch(r"to-(a\.example|--1)-[0-9a-f]{8}", name) for name in names)
    assert names == [
        one.name for one in sinks(url="https://a.example/x https://a.example/y http://[::1]:1/z", secret=SECRET)
    ]


def test_events_are_those_of_the_option_else_all() -> None:
    url = "https://a.example/x"
    assert sink(url).kinds is None
    assert sink(url, events="").kinds is None
    assert sink(url, events=" job.ended, worker.silent ").kinds == {EventKind.JOB_ENDED, EventKind.WORKER_SILENT}


def test_the_secret_may_lie_in_a_file_that_nobody_else_may_read(receiver, verify, tmp_path) -> None:
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n", encoding="utf-8")
    file.chmod(0o600)
    sink(receiver.url(), secret="", secret_file=str(file)).tell(EVENT)
    ((_, headers, body),) = receiver.requests
    verify(SECRET, headers, body)


BAD = [
    ({"url": ""}, "no URL"),
    ({"secret": ""}, "no secret"),
    ({"secret": "too-short-to-be-guessed"}, "fewer than 24"),
    ({"secret": "whsec_aGVsbG8="}, "fewer than 24"),
    ({"secret": "whsec_ä not base64, but long enough for it"}, "not base64"),
    ({"secret_file": "/nowhere"}, "both"),
    ({"secret": "", "secret_file": "/nowhere/at/all"}, "SECRET_FILE can't be read: No such file"),
    ({"url": "http://a.example/x"}, "a.example would be told without encryption"),
    ({"url": "http://127.0.0.1.example/x"}, "without encryption"),
    ({"url": "https://me:s3cret@a.example/x"}, "name or password"),
    ({"url": "ftp://a.example/x"}, "not one of HTTP"),
    ({"url": "https://"}, "not one of HTTP"),
    ({"url": "https://[::1/x"}, "can't be read"),
    ({"url": "https://a.example:99999/x"}, "can't be read"),
    ({"events": "job.ended,job.dreamt"}, "there is no event 'job.dreamt'"),
    ({"timeout": "soon"}, "timeout 'soon'"),
    ({"timeout": "nan"}, "timeout 'nan'"),
    ({"timeout": "10"}, "timeout '10'"),
    ({"timeout": "0"}, "timeout '0'"),
    ({"ca_file": "/nowhere"}, "CA_FILE can't be used: No such file"),
    ({"ca_file": __file__}, "CA_FILE can't be used"),
    ({"urls": "https://a.example"}, "no option urls"),
]


@pytest.mark.parametrize(("changes", "wanted"), BAD)
def test_options_that_can_not_be_used_are_refused_without_showing_a_secret(changes, wanted) -> None:
    with pytest.raises(UsageError, match=re.escape(wanted)) as refusal:
        sinks(**{"url": "https://a.example/s3cret", "secret": SECRET, **changes})
    shown = f"{refusal.value} {refusal.value.hint}"
    assert "s3cret" not in shown
    assert SECRET not in shown
    assert not changes.get("secret") or changes["secret"][6:] not in shown


def test_a_secret_file_that_others_may_read_is_refused_with_the_remedy(tmp_path) -> None:
    file = tmp_path / "secret"
    file.write_text(SECRET, encoding="utf-8")
    file.chmod(0o640)
    with pytest.raises(UsageError) as refusal:
        sinks(url="https://a.example", secret_file=str(file))
    assert refusal.value.hint == "chmod 600 that file"
    os.chmod(file, 0o600)
    assert len(sinks(url="https://a.example", secret_file=str(file))) == 1


def test_a_sink_shows_neither_its_url_nor_its_secret() -> None:
    assert "s3cret" not in repr(sink("https://a.example/s3cret"))
    assert isinstance(sink("https://a.example/s3cret"), EventSink)


# As plugins are loaded ------------------------------------------------------------------------------------------------


def loaded(where: Where = Where.PLANE, **variables: str) -> Host:
    settings = PluginSettings.of({"GPULAYER_PLUGINS": "none", **variables})
    return load_plugins(where, settings, clock=ManualClock(), version="0")


def record_of(host: Host, name: str = "webhook") -> PluginRecord:
    return next(record for record in host.records() if record.name == name)


def test_the_record_names_the_sinks_and_a_worker_has_none() -> None:
    variables = {
        "GPULAYER_PLUGIN_WEBHOOK_URL": "https://a.example/s3cret",
        "GPULAYER_PLUGIN_WEBHOOK_SECRET": SECRET,
    }
    host = loaded(**variables)
    (made,) = host.registry.event_sinks
    assert (made.plugin, made.name) == ("webhook", made.thing.name)
    assert record_of(host).provides == (f"event sink {made.name}",)
    assert "s3cret" not in str(host.records())
    host.close()
    host = loaded(Where.WORKER, **variables)
    assert host.registry.event_sinks == ()
    host.close()


def test_what_is_set_up_wrongly_is_in_the_record_with_its_remedy_and_everything_else_is_loaded(tmp_path) -> None:
    file = tmp_path / "secret"
    file.write_text(SECRET, encoding="utf-8")
    file.chmod(0o644)
    host = loaded(GPULAYER_PLUGIN_WEBHOOK_URL="https://a.example/s3cret", GPULAYER_PLUGIN_WEBHOOK_SECRET_FILE=str(file))
    record = record_of(host)
    assert record.status is PluginStatus.BROKEN
    assert record.error == "webhook: others may read the file of GPULAYER_PLUGIN_WEBHOOK_SECRET_FILE"
    assert record.hint == "chmod 600 that file"
    assert host.registry.event_sinks == ()
    assert {one.status for one in host.records() if one.name != "webhook"} == {PluginStatus.OK}
    host.close()


def test_a_plugin_of_somebody_else_is_told_through_either_hook(tmp_path, monkeypatch) -> None:
    source = """
from gpulayer.plugins import hookimpl

GPULAYER_API = "1.0"
told = []

class Sink:
    name, kinds = "mine", None
    def tell(self, event):
        told.append((self.name, event.seq))

@hookimpl
def gpulayer_register_event_sinks(ctx):
    return [Sink()]

@hookimpl
def gpulayer_on_event(event):
    told.append(("hook", event.seq))
"""
    install_plugin(tmp_path, "ears", source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    host = loaded(GPULAYER_PLUGINS="ears")
    try:
        assert record_of(host, "ears").status is PluginStatus.OK
        assert [(one.plugin, one.name, one.thing.kinds) for one in host.registry.event_sinks] == [
            ("ears", "mine", None),
            ("ears", "hook", None),
        ]
        assert record_of(host, "ears").provides == ("event sink mine", "event sink hook")
        for one in host.registry.event_sinks:
            host.call(one, "tell", lambda thing: thing.tell(EVENT), deadline_s=20)
        assert sys.modules["gpulayer_ears"].told == [("mine", 7), ("hook", 7)]
    finally:
        host.close()
        sys.modules.pop("gpulayer_ears", None)


@pytest.mark.parametrize("kinds", ["['job.ended']", "frozenset({'job.ended'})", "'job.ended'", "1 / 0"])
def test_a_sink_whose_kinds_are_none_is_refused_at_once(tmp_path, monkeypatch, kinds) -> None:
    source = f"""
from gpulayer.plugins import hookimpl

GPULAYER_API = "1.0"

class Sink:
    name = "mine"
    kinds = property(lambda self: {kinds})
    def tell(self, event):
        pass

@hookimpl
def gpulayer_register_event_sinks(ctx):
    return [Sink()]
"""
    install_plugin(tmp_path, "kindless", source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    host = loaded(GPULAYER_PLUGINS="kindless")
    try:
        assert record_of(host, "kindless").status is PluginStatus.BROKEN
        assert host.registry.event_sinks == ()
    finally:
        host.close()
        sys.modules.pop("gpulayer_kindless", None)
