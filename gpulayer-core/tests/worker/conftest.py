"""A scripted control plane over HTTP, and real workers as processes of their own."""

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import ssl
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from gpulayer.clock import SystemClock
from gpulayer.net import pin_of
from gpulayer.plugins.guard import Guard
from gpulayer.plugins.hiding import SecretsHider
from gpulayer.plugins.host import Host
from gpulayer.plugins.registry import Registered, Registry
from gpulayer.spawner.cgroups import end_below, remove_below
from gpulayer.spawner.state import StateDir
from gpulayer.wire.packs import frame, read_frames
from gpulayer.wire.sessions import session_text
from tests.together import end_one, kill_together

DEADLINE_S = 30.0


@pytest.fixture
def stranger():
    """The number of a process that is not below this one, which stands for the agent; ended in the end."""
    pid = int(subprocess.check_output(["sh", "-c", "sleep 600 >/dev/null 2>&1 & echo $!"]))
    yield pid
    end_one(pid)


@pytest.fixture
def host_of():
    """``host_of(probes=[…], launchers=[…])``: a host of these things alone, each of a plugin of its own name. options:
    of plugins, which are secrets."""
    hosts = []

    def make(*, environments=(), launchers=(), stagers=(), clock=None, options=None, **others):
        def named(things, key="name"):
            return {getattr(thing, key): Registered(getattr(thing, key), thing) for thing in things}

        registry = Registry(
            environments=named(environments),
            launchers=named(launchers),
            stagers=named(stagers, "scheme"),
            **{kind: tuple(Registered(thing.name, thing) for thing in things) for kind, things in others.items()},
        )
        guard = Guard(clock=clock or SystemClock(), hide=SecretsHider(options))
        hosts.append(Host(registry, guard, lambda: ()))
        return hosts[-1]

    yield make
    for host in hosts:
        host.close()


WORKER = """
import sys, json, logging, pathlib
logging.basicConfig(level=logging.INFO)
from gpulayer.worker import WorkerSettings, run
given = json.loads(sys.argv[1])
for name in ("work_dir", "endpoint_file", "token_file"):
    if name in given:
        given[name] = pathlib.Path(given[name])
given["urls"] = tuple(given.get("urls", ()))
code = run(WorkerSettings(**given))
heavy = sorted({"pydantic", "sqlalchemy", "httpx", "uvicorn", "typer", "rich"} & set(sys.modules))
print("HEAVY", heavy, flush=True)
sys.exit(code)
"""


@dataclass(frozen=True)
class Certificate:
    """Self-signed, as files. pin: as ``gpulayer up`` prints it."""

    cert: Path
    key: Path
    pin: str

    def server_context(self):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert, self.key)
        return context


@pytest.fixture
def certify(tmp_path):
    """``certify()``: another certificate. days: until it ends; a negative number: it has ended."""

    def make(*, days=30):
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "gpulayer")])
        now = datetime.now(UTC)
        built = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=60))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
            .sign(key, hashes.SHA256())
        )
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        (folder / "cert.pem").write_bytes(built.public_bytes(serialization.Encoding.PEM))
        plain = serialization.NoEncryption()
        key_bytes = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
        (folder / "key.pem").write_bytes(key_bytes)
        pin = pin_of(built.public_bytes(serialization.Encoding.DER))
        return Certificate(folder / "cert.pem", folder / "key.pem", pin)

    return make


class ScriptedPlane:
    """What a test wants of a control plane: routes as CONTRACT has them, kept in dictionaries."""

    def __init__(self):
        self.jobs = {}  # epoch → assign command
        self.stops = {}  # epoch → stop command
        self.states = {}  # epoch → states in the order heard
        self.ended = {}  # epoch → item
        self.logs = {}  # by epoch; of stderr alone by (epoch, "stderr")
        self.final = set()
        self.blobs = {}
        self.trees = []
        self.void = set()
        self.credentials = {}  # epoch → (status, answer)
        self.reports = []
        self.requests = []
        self.enrolled = {}  # public key → (id, name)
        self.taken_names = set()
        self.counters = {}
        self.signed = []  # the counters of all requests for a session
        self.ahead = 0  # by how much somebody else who signs with the same key has been quicker, each time
        self.lost_sessions = 0  # so many more are answered by the end of the connection
        self.tokens = set()
        self.unacknowledged = set()
        self.refuse_commands = False
        self.swallows_next = False  # question for commands: it is on a connection that died without a word
        self.is_removed = False
        self.is_superseded = self.is_place_free = False
        self.starts = []
        self.changed = asyncio.Event()
        self.port = 0
        self.lease_ttl_ms = 30_000
        self.certificate = None
        self._server = None
        self._connections = set()

    async def up(self):
        context = None if self.certificate is None else self.certificate.server_context()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, limit=1 << 20, ssl=context)
        self.port = self._server.sockets[0].getsockname()[1]

    async def down(self):
        self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    @property
    def url(self):
        return f"{'http' if self.certificate is None else 'https'}://127.0.0.1:{self.port}"

    def assign(self, epoch, *command, **fields):
        self.jobs[epoch] = {
            "type": "assign",
            "epoch": epoch,
            "node": 0,
            "job_id": f"job{epoch}",
            "attempt": 1,
            "command": list(command),
            "env": {},
            "source": None,
            "devices": [],
            "cpus": 1,
            "memory_bytes": 0,
            "outputs": [],
            "keep_outputs": True,
            "timeout_ms": None,
            "grace_ms": 5000,
            "keep_for_ms": 3_600_000,
            "exclusive": False,
            **fields,
        }
        self.unacknowledged.add(epoch)
        self.changed.set()

    def stop(self, epoch, ended_by="cancel", grace_ms=5000):
        self.stops[epoch] = {"type": "stop", "epoch": epoch, "ended_by": ended_by, "grace_ms": grace_ms}
        self.changed.set()

    async def until(self, condition):
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                await asyncio.sleep(0.01)

    async def end_of(self, epoch):
        await self.until(lambda: epoch in self.ended)
        return self.ended[epoch]

    async def _serve(self, reader, writer):
        self._connections.add(asyncio.current_task())
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                first, *lines = head.split("\r\n")
                headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines if line)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                method, target, _ = first.split(" ")
                status, answer = await self._answer(method, target, headers, body)
                content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # cancelled by ``down``, which has no more to say
        finally:
            self._connections.discard(asyncio.current_task())
            writer.close()

    async def _answer(self, method, target, headers, body):
        url = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        token = headers.get("authorization", "").removeprefix("Bearer ")
        parts = url.path.split("/")[2:]
        self.requests.append((method, url.path))
        match method, parts:
            case "POST", ["workers:enrol"]:
                return self._enrol(token, json.loads(body))
            case "POST", ["workers", worker, "sessions"]:
                return self._session(worker, json.loads(body))
        if token not in self.tokens:
            return _error(401, "unauthenticated", "no such session")
        if self.is_removed and parts[2:] in (["reports"], ["commands"]):
            return _error(404, "not_found", "worker was removed")
        match method, parts:
            case "POST", ["workers", _, "reports"]:
                return self._report(json.loads(body))
            case "GET", ["workers", _, "commands"]:
                return await self._commands(float(query["hold_s"]))
            case "PUT", ["workers", _, "attempts", epoch, "logs"]:
                log = int(epoch) if query.get("stream", "stdout") == "stdout" else (int(epoch), query["stream"])
                return self._log(log, int(query["offset"]), "final" in query, body)
            case "GET", ["workers", _, "attempts", epoch, "credentials"]:
                return self.credentials[int(epoch)]
            case "POST", ["workers", _, "attempts", epoch, "outputs"]:
                self.trees.append((int(epoch), json.loads(body)["tree"]))
                return 200, {"files": 0, "size_bytes": 0}
            case "POST", ["sources:missing"]:
                return 200, {"missing": [d for d in json.loads(body)["digests"] if d not in self.blobs]}
            case "POST", ["blobs:pack"]:
                self.blobs |= dict(read_frames([body]))
                return 200, {"stored": 1}
            case "POST", ["blobs:fetch"]:
                digests = json.loads(body)["digests"]
                if any(len(self.blobs.get(digest, b"")) > 1 << 20 for digest in digests):
                    return _error(400, "bad_request", "too large for a pack")
                return 200, b"".join(frame(d, self.blobs[d]) for d in digests if d in self.blobs)
            case "GET", ["blobs", digest]:
                return (200, self.blobs[digest]) if digest in self.blobs else _error(404, "not_found", "no such blob")
            case "PUT", ["blobs", digest]:
                assert hashlib.sha256(body).hexdigest() == digest
                self.blobs[digest] = body
                return 200, {}
        return _error(404, "not_found", target)

    def _enrol(self, token, body):
        if token != "gle_good":
            return _error(401, "unauthenticated", "this join token is not good")
        message = f"gpulayer-enrol:good:{body['name']}".encode()
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(body["public_key"]))
        key.verify(bytes.fromhex(body["signature"]), message)
        if body["name"] in self.taken_names:
            return _error(409, "conflict", "another worker has that name")
        self.enrolled[body["public_key"]] = (f"w{len(self.enrolled)}", body["name"], body["facts"])
        worker, name, _ = self.enrolled[body["public_key"]]
        return 201, {"worker_id": worker, "name": name}

    def _session(self, worker, body):
        key = next((key for key, (known, *_) in self.enrolled.items() if known == worker), None)
        self.signed.append(body["counter"])
        if key is None:
            return _error(401, "unauthenticated", "no such worker")
        last = self.counters.get(worker, -1) + self.ahead
        if body["counter"] <= last:
            self.counters[worker] = last
            return _error(409, "conflict", "used before", {"counter": last})
        if self.is_superseded and not (self.is_place_free and body["boot"] > 99):
            details = {"superseded": True, "boot": 99, "is_free": self.is_place_free}
            return _error(409, "conflict", "another agent runs with this identity", details)
        self.starts.append((body["boot"], body["instance"]))
        message = session_text(worker, body["counter"], boot=body["boot"], instance=body["instance"]).encode()
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(bytes.fromhex(body["signature"]), message)
        self.counters[worker] = body["counter"]
        if self.lost_sessions > 0:
            self.lost_sessions -= 1
            raise ConnectionResetError
        token = f"glw_{worker}_{body['counter']}"
        self.tokens.add(token)
        terms = {"lease_ttl_ms": self.lease_ttl_ms, "heartbeat_ms": 500}
        return 201, {"token": token, "expires_in_s": 86400, "incarnation": "i", **terms}

    def _report(self, body):
        self.reports.append(body)
        for item in body["items"]:
            epoch = item["epoch"]
            if epoch in self.void:
                continue
            self.unacknowledged.discard(epoch)
            self.states.setdefault(epoch, []).append(item["state"])
            if item["state"] == "ended":
                self.ended.setdefault(epoch, item)
                self.stops.pop(epoch, None)
        return 200, {"seq": body["seq"], "void": sorted(self.void & set(body["holding"]))}

    async def _commands(self, hold_s):
        if self.refuse_commands:
            return _error(503, "storage_unavailable", "not now")
        if self.swallows_next:
            self.swallows_next = False
            await asyncio.Event().wait()
        self.changed.clear()
        if not self._outstanding():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.changed.wait(), min(hold_s, 5))
        return 200, {"cursor": "c", "commands": self._outstanding()}

    def _outstanding(self):
        # What is told is told again until it is acknowledged, so every command of these tests may come twice.
        return [self.jobs[epoch] for epoch in sorted(self.unacknowledged)] + list(self.stops.values())

    def _log(self, name, offset, is_final, body):
        if name in self.void:
            return _error(409, "stale_attempt", "not lent to you")
        log = self.logs.setdefault(name, bytearray())
        if offset > len(log):
            return _error(409, "conflict", "a gap", {"offset": len(log)})
        log += body[len(log) - offset :]
        if is_final:
            self.final.add(name)
        return 200, {"offset": len(log)}


def _error(status, code, message, details=None):
    blame = "user"
    return status, {"error": {"code": code, "message": message, "hint": "", "blame": blame, "details": details or {}}}


class Worker:
    """One worker folder; its agent may be started, killed and started again."""

    def __init__(self, folder: Path, plane: ScriptedPlane):
        self.folder = folder
        self.plane = plane
        self.process = None
        self.pids = set()
        self.output = folder.parent / f"{folder.name}.out"

    def start(self, **fields):
        given = {
            "work_dir": str(self.folder),
            "urls": [self.plane.url],
            "token": "gle_good",
            "environment": {"PATH": os.environ["PATH"], "HOME": "/nowhere", "GPULAYER_TOKEN": "glc_canary"},
            **fields,
        }
        with open(self.output, "ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-W", "error", "-c", WORKER, json.dumps(given)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)},
            )
        return self

    async def ended(self):
        async with asyncio.timeout(DEADLINE_S):
            while self.process.poll() is None:
                await asyncio.sleep(0.01)
        return self.process.returncode

    async def stop(self):
        self.process.send_signal(signal.SIGTERM)
        code = await self.ended()
        assert code == 0, self.said
        return code

    def kill(self):
        self.process.kill()
        self.process.wait()

    @property
    def said(self):
        return self.output.read_text()

    def attempts(self):
        folder = self.folder / "attempts"
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []

    async def clean_up(self):
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        folder = self.folder / "spawner"
        if folder.exists():
            kill_together(StateDir(str(folder)).read_pids().values())
            async with asyncio.timeout(DEADLINE_S):
                for base in StateDir(str(folder)).read_groups():
                    while not remove_below(base):
                        end_below(base, spare=())
                        await asyncio.sleep(0.01)


@pytest.fixture
def scene(tmp_path):
    """``run(main)`` with ``main(plane, worker)``: a control plane that is up and a worker that is not started yet."""

    def run(main):
        async def play():
            plane = ScriptedPlane()
            await plane.up()
            worker = Worker(tmp_path / "w", plane)
            try:
                async with asyncio.timeout(3 * DEADLINE_S):
                    await main(plane, worker)
            except BaseException:
                print(worker.said if worker.output.exists() else "")
                raise
            finally:
                await worker.clean_up()
                await plane.down()

        asyncio.run(play())

    return run
