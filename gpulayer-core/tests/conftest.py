"""A scripted control plane on a real socket, for everything that is a client of one.

It keeps no promises of its own: a test says what each route answers, and reads what was asked.
"""

import datetime as dt
import ipaddress
import json
import re
import socket
import ssl
import threading
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gpulayer.client.location import Location

TOKEN = "glc_" + "a" * 12 + "_secret"
JOB_ID = "7f3a000000000001"


@dataclass
class Asked:
    method: str
    path: str
    query: dict
    headers: dict
    body: bytes
    groups: tuple = ()

    @property
    def json(self):
        return json.loads(self.body)


@dataclass
class Answer:
    """cut: send the head and that many bytes of the body, then reset the connection. drop: send nothing at all."""

    status: int = 200
    json: object = None
    body: bytes | None = None
    headers: dict = field(default_factory=dict)
    pieces: object = None
    cut: bool = False
    drop: bool = False


def error_answer(status, code, message, hint="", details=None, headers=None):
    body = {"code": code, "message": message, "hint": hint, "blame": "user", "details": details or {}}
    return Answer(status, json={"error": body}, headers=headers or {})


class ScriptedPlane:
    """certificate: speaks TLS with it. ``broken``: connections that ended in a failed handshake."""

    def __init__(self, certificate=None):
        self.certificate = certificate
        self.broken = []
        self.asked = []
        self.routes = []
        self.drops = Counter()
        self.token = TOKEN
        plane = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def handle_any(self):
                plane._answer(self)

            do_GET = do_POST = do_PUT = handle_any  # noqa: N815 - the names that http.server calls

            def log_message(self, *args):
                pass

            def handle(self):
                try:
                    super().handle()
                except (ConnectionError, ValueError):
                    pass

        class Server(ThreadingHTTPServer):
            daemon_threads = False
            block_on_close = True

            def __init__(self, *args):
                self.connections = set()
                super().__init__(*args)

            def process_request(self, request, client_address):
                self.connections.add(request)
                super().process_request(request, client_address)

            def finish_request(self, request, client_address):
                if plane.certificate is None:
                    super().finish_request(request, client_address)
                    return
                try:
                    secured = plane.certificate.context.wrap_socket(request, server_side=True)
                except OSError as error:
                    plane.broken.append(error)
                    return
                self.connections.add(secured)
                with secured:
                    super().finish_request(secured, client_address)

        self.server = Server(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    @property
    def port(self):
        return self.server.server_address[1]

    @property
    def url(self):
        return f"{'https' if self.certificate else 'http'}://127.0.0.1:{self.port}"

    @property
    def location(self):
        return Location.of(self.url, self.token, fingerprint=self.certificate.pin if self.certificate else "")

    @property
    def environment(self):
        return {"GPULAYER_URL": self.url, "GPULAYER_TOKEN": self.token}

    def on(self, method, path, answer):
        """``answer``: an Answer, a JSON document, a list of those (one a request, the last for ever), or a function."""
        pattern = re.compile(re.sub(r"\{\w+\}", "([^/:]+)", path) + r"\Z")
        self.routes.insert(0, (method, pattern, answer))

    def drop(self, method, path, times):
        """Carry the request out and close the connection without an answer, that many times."""
        self.drops[method, path] = times

    def of(self, method, path):
        return [asked for asked in self.asked if (asked.method, asked.path) == (method, path)]

    def close(self):
        self.server.shutdown()
        for connection in self.server.connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        self.server.server_close()
        self.thread.join()

    def _answer(self, handler):
        parts = urlsplit(handler.path)
        body = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        headers = {name.lower(): value for name, value in handler.headers.items()}
        asked = Asked(handler.command, unquote(parts.path), query, headers, body)
        self.asked.append(asked)
        answer = self._find(asked)
        key = (asked.method, asked.path)
        if self.drops[key] > 0:
            self.drops[key] -= 1
            answer = Answer(drop=True)
        self._send(handler, answer)

    def _find(self, asked):
        if asked.headers.get("authorization") != f"Bearer {self.token}":
            return error_answer(401, "unauthenticated", "the token is unknown", "set GPULAYER_TOKEN")
        for method, pattern, answer in self.routes:
            match = pattern.match(asked.path)
            if method == asked.method and match:
                asked.groups = match.groups()
                found = answer(asked) if callable(answer) else answer
                if isinstance(found, list):
                    found = found.pop(0) if len(found) > 1 else found[0]
                return found if isinstance(found, Answer) else Answer(json=found)
        return error_answer(404, "not_found", f"no route {asked.method} {asked.path}")

    def _send(self, handler, answer):
        if answer.drop:
            _reset(handler)
            return
        handler.send_response(answer.status)
        for name, value in answer.headers.items():
            handler.send_header(name, str(value))
        if answer.pieces is not None:
            handler.send_header("Transfer-Encoding", "chunked")
            handler.end_headers()
            for piece in answer.pieces:
                handler.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            if answer.cut:
                _reset(handler)
            else:
                handler.wfile.write(b"0\r\n\r\n")
            return
        body = answer.body if answer.body is not None else json.dumps(answer.json).encode()
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body[: len(body) // 2] if answer.cut else body)
        if answer.cut:
            _reset(handler)


def _reset(handler):
    handler.close_connection = True
    handler.wfile.flush()
    handler.connection.shutdown(socket.SHUT_RDWR)


def job_record(**changes):
    record = {
        "id": JOB_ID,
        "name": "",
        "kind": "command",
        "state": "succeeded",
        "reason": None,
        "command": ["true"],
        "request": {},
        "source": None,
        "tags": {},
        "priority": 0,
        "submitted_by": {"token_id": "a" * 12, "name": "owner", "client": "gpulayer/0.1.0"},
        "submitted_at": "2026-11-30T05:00:00.000Z",
        "started_at": "2026-11-30T05:00:01.000Z",
        "ended_at": "2026-11-30T05:00:03.400Z",
        "attempts": [attempt_record()],
        "exit_code": 0,
        "signal": None,
        "ended_by": "program",
        "outputs": [],
        "output_tree": None,
        "placement": None,
        "split_streams": False,
        "verdicts": [],
    }
    return {**record, **changes}


def attempt_record(**changes):
    record = {
        "number": 1,
        "epoch": 1,
        "state": "ended",
        "nodes": [{"worker": "laptop", "devices": [], "exit_code": 0, "signal": None}],
        "started_at": "2026-11-30T05:00:01.000Z",
        "ended_at": "2026-11-30T05:00:03.400Z",
        "ended_by": "program",
        "blame": None,
        "evidence": "",
    }
    return {**record, **changes}


def plane_record(**changes):
    record = {
        "version": "0.1.0",
        "incarnation": "1",
        "mode": "embedded",
        "url": "http://127.0.0.1:1",
        "pid": 1,
        "state_dir": "/state",
        "started_at": "2026-11-30T05:00:00.000Z",
        "now": "2026-11-30T05:10:00.000Z",
        "read_only": False,
        "urls": [],
        "fingerprints": [],
        "disk_free_bytes": 1_000_000_000_000,
        "you": {"token_id": "a" * 12, "name": "local", "role": "admin", "expires_at": None},
        "workers": {"ready": 1},
        "jobs": {},
    }
    return {**record, **changes}


def worker_record(**changes):
    record = {
        "id": "b" * 16,
        "name": "laptop",
        "state": "ready",
        "last_seen_at": "2026-11-30T05:00:00.000Z",
        "version": "0.1.0",
        "platform": "Linux",
        "labels": {},
        "locality": {"zone": "", "region": "", "network_group": ""},
        "cpus": 8,
        "cpus_free": 7,
        "memory_bytes": 16_000_000_000,
        "disk_bytes": None,
        "devices": [],
        "frameworks": [],
        "leases": [],
    }
    return {**record, **changes}


def script_job(plane):
    plane.record = job_record()
    plane.log = b""
    by_key = {}
    plane.created = []

    def submit(asked):
        key = asked.headers.get("idempotency-key")
        if key in by_key:
            return Answer(200, json=by_key[key])
        record = {**plane.record, "command": asked.json["command"], "request": asked.json.get("request", {})}
        plane.created.append(record)
        by_key[key] = record
        return Answer(201, json=record)

    def logs(asked):
        offset = int(asked.query.get("offset", 0))
        if "tail_bytes" in asked.query:
            offset = max(0, len(plane.log) - int(asked.query["tail_bytes"]))
        return Answer(body=plane.log[offset:], headers={"X-Gpulayer-Log-Start": offset, "X-Gpulayer-Attempt": 1})

    plane.on("POST", "/v1/jobs", submit)
    plane.on("GET", "/v1/jobs/{ref}", lambda asked: plane.record)
    plane.on("GET", "/v1/jobs/{ref}/logs", logs)
    return plane


@dataclass
class Certificate:
    """pem: certificate and key. context: a server's."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    pem: object
    pin: str

    @property
    def context(self):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.pem)
        return context


@pytest.fixture
def certify(tmp_path):
    """``certify(name, hosts=…, signer=…, days=(from, until))``: a certificate, self-signed without a signer."""
    made = []

    def make(name="plane", *, hosts=("127.0.0.1", "localhost"), signer=None, days=(-1, 30), is_ca=False):
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = dt.datetime.now(dt.UTC)
        numeric = [host for host in hosts if host[0].isdigit() or ":" in host]
        names = [
            x509.IPAddress(ipaddress.ip_address(host)) if host in numeric else x509.DNSName(host) for host in hosts
        ]
        ours = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        theirs = (key if signer is None else signer.key).public_key()
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject if signer is None else signer.certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + dt.timedelta(days=days[0]))
            .not_valid_after(now + dt.timedelta(days=days[1]))
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(ours, critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(theirs), critical=False)
            .sign(key if signer is None else signer.key, hashes.SHA256())
        )
        made.append(name)
        pem = tmp_path / f"{name}-{len(made)}.pem"
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        pem.write_bytes(certificate.public_bytes(serialization.Encoding.PEM) + private)
        pin = f"sha256:{certificate.fingerprint(hashes.SHA256()).hex()}"
        return Certificate(certificate, key, pem, pin)

    return make


class Parts:
    """What tests build answers from; a fixture, so that no test module has to be importable."""

    Answer = Answer
    JOB_ID = JOB_ID
    TOKEN = TOKEN
    error = staticmethod(error_answer)
    job = staticmethod(job_record)
    attempt = staticmethod(attempt_record)
    plane = staticmethod(plane_record)
    worker = staticmethod(worker_record)
    script_job = staticmethod(script_job)


@pytest.fixture
def parts():
    return Parts


@pytest.fixture
def plane():
    scripted = ScriptedPlane()
    yield scripted
    scripted.close()


@pytest.fixture
def tls_plane():
    """``tls_plane(certificate)``: a scripted plane that speaks TLS."""
    opened = []

    def start(certificate):
        opened.append(ScriptedPlane(certificate))
        opened[-1].on("GET", "/v1/plane", plane_record())
        return opened[-1]

    yield start
    for one in opened:
        one.close()


@pytest.fixture
def job_plane(plane):
    """Answers for one job: what ``plane.record`` and ``plane.log`` say."""
    return script_job(plane)
