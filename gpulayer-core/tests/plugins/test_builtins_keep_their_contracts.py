"""Core's own plugins pass the classes that a stranger's pass."""

from importlib import import_module

import pytest

from gpulayer.plugins.builtin import BUILTINS
from gpulayer.plugins.builtin.file import FileStager
from gpulayer.plugins.builtin.host import HostProbe
from gpulayer.plugins.builtin.process import ProcessLauncher
from gpulayer.plugins.builtin.system import SystemEnvironment
from gpulayer.testing import (
    EnvironmentBuilderContract,
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
