"""Framework checks and jobs on one device, in a real worker."""

import pytest

from gpulayer.testing.distribution import install_plugin

# A machine with one device, and a check that does not end while it sees that.
PLUGIN = """
import pathlib
from gpulayer.plugins import CheckScript, Findings, hookimpl
from gpulayer.spec.machine import Device
from gpulayer.spec.request import Accelerator

GPULAYER_API = "1.0"
HERE = pathlib.Path(__file__).parent

class Driver:
    name = "driver"
    def look(self, site):
        return Findings(devices=(Device("GPU-0", 0, Accelerator.CUDA, "NVIDIA L40S", compute_mode=MODE),))

class Hangs:
    name = "hangs"
    accelerators = (Accelerator.CUDA, Accelerator.CPU)
    def script(self):
        return CheckScript(f'''
import os, pathlib, time
new = pathlib.Path({str(HERE / "new")!r})
new.write_text(str(os.getpid()))
if os.environ["CUDA_VISIBLE_DEVICES"]:
    new.rename({str(HERE / "pid")!r})
    time.sleep(600)
print('{{"version": "1", "devices": {{"cuda": "no device is seen", "cpu": ""}}}}')
''')

@hookimpl
def gpulayer_register_probes(ctx):
    return [Driver()]

@hookimpl
def gpulayer_register_framework_checks(ctx):
    return [Hangs()]
"""


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """``machine(mode)``: its device is in this compute mode. Returns the file with the process of the check."""

    def make(mode):
        folder = tmp_path / "plugins"
        install_plugin(folder, "machine", PLUGIN.replace("MODE", repr(mode)))
        monkeypatch.syspath_prepend(folder)
        return folder / "pid"

    return make


def told(plane):
    reports = [report for report in plane.reports if report.get("facts")]
    return {one["accelerator"]: one for one in reports[-1]["facts"]["frameworks"]} if reports else {}


@pytest.mark.parametrize(("mode", "stays"), [("exclusive_process", False), ("default", True)])
def test_a_check_has_left_a_device_for_one_process_when_a_job_starts_there(scene, machine, tmp_path, mode, stays):
    pid = machine(mode)

    async def main(plane, worker):
        worker.start(lock_folders=[str(tmp_path / "locks")])
        await plane.until(pid.exists)
        plane.assign(1, "sh", "-c", f"kill -0 {pid.read_text()}", devices=["GPU-0"])
        outcome = (await plane.end_of(1))["outcome"]
        assert outcome["ended_by"] == "program"
        assert (outcome["exit_code"] == 0) is stays
        if not stays:
            await plane.until(lambda: told(plane)["cpu"]["usable"])
            assert told(plane)["cuda"]["pending"], "it has not failed"
        await worker.stop()

    scene(main)
