"""What passes by itself is waited for, through the real program: checks that go on, and a device that is broken."""

import pytest

from gpulayer.testing.distribution import install_plugin

# Two devices, of which a file says whether the second works, and frameworks whose checks end when a file is there.
MACHINE = """
import pathlib
from gpulayer.plugins import CheckScript, Findings, hookimpl
from gpulayer.spec.machine import Device, DeviceState
from gpulayer.spec.request import Accelerator

GPULAYER_API = "1.0"
HERE = pathlib.Path(__file__).parent

class Driver:
    name = "driver"
    def look(self, site):
        reason = (HERE / "broken").read_text()
        state = DeviceState.UNHEALTHY if reason else DeviceState.USABLE
        first = Device("GPU-0", 0, Accelerator.CUDA, "NVIDIA L40S", 48 * 2**30)
        second = Device("GPU-1", 1, Accelerator.CUDA, "NVIDIA L40S", 48 * 2**30, state=state, reason=reason)
        return Findings(devices=(first, second), processes=())

class Slow:
    accelerators = (Accelerator.CUDA, Accelerator.CPU)
    def __init__(self, name, devices, fails_on=""):
        self.name, self.devices, self.fails_on = name, devices, fails_on
    def script(self):
        return CheckScript(f'''
import json, os, pathlib, time
while not pathlib.Path({str(HERE / "end")!r}).exists():
    time.sleep(0.01)
seen = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
failed = {{str(number): "no code for this device" for number, one in enumerate(seen) if one == {self.fails_on!r}}}
print(json.dumps({{"version": "2.0", "devices": {self.devices}, "failed": {{"cuda": failed}}}}))
''')

@hookimpl
def gpulayer_register_probes(ctx):
    return [Driver()]

@hookimpl
def gpulayer_register_framework_checks(ctx):
    return [
        Slow("slowtorch", {"cuda": "", "cpu": ""}),
        Slow("badtorch", {"cuda": "a CPU-only build", "cpu": ""}),
        Slow("newtorch", {"cuda": "", "cpu": ""}, fails_on="GPU-1"),
    ]
"""


@pytest.fixture(scope="module")
def machine(shared, tmp_path_factory):
    folder = tmp_path_factory.mktemp("machine")
    install_plugin(folder, "machine", MACHINE)
    (folder / "broken").write_text("Xid 79: GPU has fallen off the bus")
    shared.environment["PYTHONPATH"] = f"{folder}:{shared.environment.get('PYTHONPATH', '')}"
    shared.folder = folder
    return shared


def waiting(story, *argv):
    """A foreground submission, once it says what it waits for; and that."""
    process = story.start("submit", *argv)
    line = process.stderr.readline().decode()
    while "not checked yet" not in line and "unhealthy" not in line:
        assert line, "it ended without waiting"
        line = process.stderr.readline().decode()
    return process, line


def test_a_first_start_waits_for_no_check_and_what_needs_a_framework_starts_when_it_is_known(machine):
    ended = machine.run("submit", "--", "echo", "at once")
    assert (ended.code, ended.out) == (0, b"at once\n"), ended.err
    assert "slowtorch, badtorch, newtorch: the checks are under way" in machine.run("resources").out.decode()
    on_cpu, said = waiting(machine, "--framework", "slowtorch", "--", "echo", "cpu")
    assert "slowtorch is not checked yet" in said
    on_cuda, _ = waiting(machine, "--framework", "slowtorch", "--accelerator", "cuda", "--", "echo", "cuda")
    doomed, _ = waiting(machine, "--framework", "badtorch", "--accelerator", "cuda", "--", "true")
    explained = machine.run("explain", "--framework", "slowtorch")
    assert explained.code == 0
    assert "would wait, a framework is not checked yet" in explained.out.decode()
    refused = machine.run("submit", "--framework", "nothing", "--", "true")
    assert (refused.code, "nothing is not installed" in refused.err) == (3, True)
    (machine.folder / "end").touch()
    for process, out in ((on_cpu, b"cpu\n"), (on_cuda, b"cuda\n")):
        ended = machine.end(process)
        assert (ended.code, ended.out) == (0, out), ended.err
    refused = machine.end(doomed)
    assert refused.code == 3
    assert "badtorch 2.0: a CPU-only build" in refused.err, "as if it came when that is known"
    machine.until(lambda: b"not checked yet" not in machine.run("resources").out, "all checks have ended")


def test_a_job_waits_for_a_broken_device_and_starts_when_it_is_back(machine):
    process, said = waiting(machine, "--accelerator", "cuda", "--devices", "2", "--", "echo", "both")
    assert "device 1 (NVIDIA L40S) is unhealthy: Xid 79: GPU has fallen off the bus" in said
    refused = machine.run("submit", "--accelerator", "cuda", "--devices", "3", "--", "true")
    assert (refused.code, "has 2 devices" in refused.err) == (3, True)
    refused = machine.run("submit", "--accelerator", "cuda", "--devices", "2", "--no-wait", "--", "true")
    assert (refused.code, "fits with --devices 1" in refused.err) == (3, True), refused.err
    (machine.folder / "broken").write_text("")
    assert machine.run("submit", "--accelerator", "cuda", "--", "true").code == 0, "before a start it is looked"
    ended = machine.end(process)
    assert (ended.code, ended.out) == (0, b"both\n"), ended.err


def test_a_framework_that_fails_on_one_device_gets_the_other(machine):
    machine.until(
        lambda: b"newtorch on device 1: no code for this device" in machine.run("resources").out, "it is known"
    )
    on_cuda = ("--framework", "newtorch", "--accelerator", "cuda")
    refused = machine.run("submit", *on_cuda, "--devices", "2", "--", "true")
    assert refused.code == 3
    assert "1 of 2 devices can be used; newtorch 2.0 on device 1 (NVIDIA L40S): no code for this device" in refused.err
    ended = machine.run("submit", *on_cuda, "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    assert (ended.code, ended.out) == (0, b"GPU-0\n"), ended.err
