"""Core's own plugins pass the classes that a stranger's pass."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import import_module

import pytest

from gpulayer.plugins.builtin import BUILTINS
from gpulayer.plugins.builtin.file import FileStager
from gpulayer.plugins.builtin.frameworks import CHECKS
from gpulayer.plugins.builtin.host import HostProbe
from gpulayer.plugins.builtin.process import ProcessLauncher
from gpulayer.plugins.builtin.system import SystemEnvironment
from gpulayer.plugins.builtin.webhook import Webhook
from gpulayer.testing import (
    EnvironmentBuilderContract,
    EventSinkContract,
    FrameworkCheckContract,
    LauncherContract,
    PluginContract,
    ProbeContract,
    StagerContract,
)


class TestBuiltins(PluginContract):
    @pytest.fixture(params=sorted(BUILTINS))
    def name(self, request):
        return request.param

    @pytest.fixture
    def plugin(self, name):
        return import_module(BUILTINS[name])


class TestHostProbe(ProbeContract):
    @pytest.fixture
    def probe(self):
        return HostProbe()


class TestFrameworkChecks(FrameworkCheckContract):
    @pytest.fixture(params=CHECKS, ids=[check.name for check in CHECKS])
    def check(self, request):
        return request.param


class TestProcessLauncher(LauncherContract):
    @pytest.fixture
    def launcher(self):
        return ProcessLauncher()


class TestSystemEnvironment(EnvironmentBuilderContract):
    @pytest.fixture
    def builder(self):
        return SystemEnvironment()


class TestFileStager(StagerContract):
    @pytest.fixture
    def stager(self):
        return FileStager()

    @pytest.fixture
    def uri(self, tmp_path):
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "part 1").write_bytes(b"\0\xff")
        return (tmp_path / "data").as_uri()

    @pytest.fixture
    def missing_uri(self, tmp_path):
        return (tmp_path / "nowhere").as_uri()


class Thankful(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def receiver():
    with HTTPServer(("127.0.0.1", 0), Thankful) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/events"
        server.shutdown()
        thread.join()


class TestWebhook(EventSinkContract):
    @pytest.fixture
    def sink(self, receiver):
        return Webhook(receiver, (b"x" * 24,))
