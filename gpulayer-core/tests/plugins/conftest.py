"""Plugins in a folder of this test alone, hosts that load them, and a guard over calls of what they are."""

import sys
import threading
from dataclasses import replace

import pytest

from gpulayer.clock import ManualClock
from gpulayer.plugins.contracts.context import Where
from gpulayer.plugins.guard import Guard
from gpulayer.plugins.hiding import SecretsHider
from gpulayer.plugins.host import load_plugins
from gpulayer.plugins.settings import PluginSettings
from gpulayer.testing.distribution import install_plugin

HEAD = 'from gpulayer.plugins import *\nGPULAYER_API = "1.0"\n'


@pytest.fixture
def site(tmp_path, monkeypatch):
    """An empty folder at the head of ``sys.path``; what was imported from it is forgotten in the end."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    yield folder
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]


@pytest.fixture
def plugin(site, monkeypatch):
    """``plugin(name, source)``: installed; the source after the usual head, unless ``bare``."""

    def install(name, source, *, bare=False, version="1.0"):
        monkeypatch.delitem(sys.modules, f"gpulayer_{name}", raising=False)  # one of another test's, from elsewhere
        return install_plugin(site, name, source if bare else HEAD + source, version=version)

    return install


@pytest.fixture
def load():
    """``load(…)``: a host of this process, closed in the end. By default of ``check``, with short deadlines."""
    hosts = []

    def start(where=Where.CHECK, settings=None, *, clock=None, import_deadline_s=3.0, register_deadline_s=2.0, **more):
        settings = replace(settings or PluginSettings(), import_s=import_deadline_s)
        host = load_plugins(
            where,
            settings,
            clock=clock or ManualClock(),
            version="0.1.0",
            register_deadline_s=register_deadline_s,
            **more,
        )
        hosts.append(host)
        return host

    yield start
    for host in hosts:
        host.close()


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def guard(clock):
    made = Guard(clock=clock, hide=SecretsHider({"p": {"token": "hunter22", "a": "b"}}))
    yield made
    made.close()


@pytest.fixture
def gate():
    """What hangs until the test is over."""
    gate = threading.Event()
    yield gate
    gate.set()
