"""Whoever stops a worker or a control plane in peace blames no plugin, whatever one was doing just then."""

import os
import signal
import subprocess
import sys
import time

import pytest

from gpulayer.testing.distribution import install_plugin

WORKER = """
import sys
from pathlib import Path
from gpulayer.worker import WorkerSettings, run
settings = WorkerSettings(Path(sys.argv[1]), urls=("http://127.0.0.1:9",), token="gle_000000000000_x")
sys.exit(run(settings))
"""
INTRODUCED = WORKER.replace("run(settings)", "introduce(settings)").replace("import WorkerSettings, run", "import *")
PLANE = """
import sys
from pathlib import Path
from gpulayer.server.serve import serve
from gpulayer.server.settings import ServeSettings
sys.exit(serve(ServeSettings(Path(sys.argv[1]), port=0)))
"""
# The child that tries imports is another process, and its import is none that marks are made for.
PLUGIN = """
import sys, time
from pathlib import Path
from gpulayer.plugins import Findings, hookimpl

GPULAYER_API = "1.0"
PLACE = {place!r}

def at(place):
    if place == PLACE and "preflight" not in " ".join(sys.orig_argv):
        Path({began!r}).touch()
        time.sleep(60)

class Probe:
    name = "slow"
    def look(self, site):
        at("look")
        return Findings()

@hookimpl
def gpulayer_register_probes(ctx):
    at("probes")
    return [Probe()]

@hookimpl
def gpulayer_register_scorers(ctx):
    at("scorers")
    return []

at("import")
"""


@pytest.mark.parametrize(
    ("program", "place", "number", "code"),
    [
        (WORKER, "import", signal.SIGTERM, 0),
        (WORKER, "probes", signal.SIGTERM, 0),
        (WORKER, "look", signal.SIGTERM, 0),
        (WORKER, "look", signal.SIGINT, 0),
        (INTRODUCED, "look", signal.SIGTERM, -signal.SIGINT),
        (PLANE, "import", signal.SIGTERM, 0),
        (PLANE, "scorers", signal.SIGINT, 0),
    ],
)
def test_an_orderly_end_leaves_no_mark(tmp_path, program, place, number, code):
    began, folder = tmp_path / "began", tmp_path / "state"
    install_plugin(tmp_path / "site", "slow", PLUGIN.format(place=place, began=str(began)))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), *sys.path])}
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen([sys.executable, "-P", "-c", program, folder], env=environment, stderr=log)
    try:
        deadline = time.monotonic() + 30
        while not began.exists():
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()
            assert process.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.01)
        [marks] = folder.glob("**/plugin-marks")
        assert b"slow" in marks.read_bytes(), "a process that is killed would leave it behind"
        process.send_signal(number)
        assert process.wait(20) == code, (tmp_path / "log").read_text()
    finally:
        process.kill()
        process.wait()
    assert list(folder.glob("**/plugin-marks*")) == []
