"""Devices that others compute on, in a real worker: never started upon, named, and free again when they have gone."""

import os
import signal

import pytest

from gpulayer.spawner.locks import DeviceLocks
from gpulayer.spawner.state import StateDir
from gpulayer.testing.distribution import install_plugin
from tests.together import end_one, is_alive

# A machine with two devices; a file says which processes compute on the first one, as a driver would.
PROBE = """
import pathlib
from gpulayer.plugins import Findings, ProcessOnDevice, hookimpl
from gpulayer.spec.machine import Device
from gpulayer.spec.request import Accelerator

GPULAYER_API = "1.0"
HERE = pathlib.Path(__file__).parent
DEVICES = tuple(Device(f"GPU-{number}", number, Accelerator.CUDA, "NVIDIA L40S", 48 * 2**30) for number in range(2))

class Driver:
    name = "driver"
    def look(self, site):
        pids = (HERE / "pids").read_text().split()
        return Findings(devices=DEVICES, processes=tuple(ProcessOnDevice("GPU-0", int(pid)) for pid in pids))

@hookimpl
def gpulayer_register_probes(ctx):
    return [Driver()]
"""


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """``driver(pid, …)``: these compute on the first device from now on."""
    folder = tmp_path / "plugins"
    install_plugin(folder, "driver", PROBE)
    monkeypatch.syspath_prepend(folder)

    def tell(*pids):
        (folder / "new").write_text(" ".join(map(str, pids)))
        os.replace(folder / "new", folder / "pids")

    tell()
    tell.folder = folder
    return tell


def devices_told(plane, report=None):
    """State and reason of each device, as told by this report, or last."""
    told = [report] if report else [report for report in plane.reports if report.get("facts")]
    return [(device["state"], device["reason"]) for device in told[-1]["facts"]["devices"]]


FREE = [("usable", ""), ("usable", "")]


def test_a_device_that_turned_busy_after_it_was_lent_is_not_started_upon_and_free_when_the_other_has_gone(
    scene, driver, stranger, tmp_path
):
    async def main(plane, worker):
        worker.start(lock_folders=[str(tmp_path / "locks")])
        await plane.until(lambda: plane.reports and devices_told(plane) == FREE)
        driver(stranger)
        plane.assign(1, "touch", str(tmp_path / "ran"), devices=["GPU-0"])
        outcome = (await plane.end_of(1))["outcome"]
        assert (outcome["ended_by"], outcome["blame"], outcome["exit_code"]) == ("drift", "infrastructure", None)
        assert outcome["evidence"].startswith(f"device 0 (GPU-0) is busy: sleep (pid {stranger}, user ")
        assert not (tmp_path / "ran").exists()
        assert devices_told(plane)[0][0] == "busy", "before, or together with, the end: it is not lent again at once"
        assert devices_told(plane)[1] == ("usable", "")
        plane.assign(2, "true", devices=["GPU-1"])
        assert (await plane.end_of(2))["outcome"]["exit_code"] == 0, "another device of the machine works"
        end_one(stranger)
        await plane.until(lambda: devices_told(plane) == FREE)
        plane.assign(3, "touch", str(tmp_path / "ran"), devices=["GPU-0"])
        assert (await plane.end_of(3))["outcome"]["exit_code"] == 0
        await worker.stop()

    scene(main)


def test_on_a_device_whose_driver_does_not_answer_nothing_starts(scene, driver, tmp_path):
    async def main(plane, worker):
        worker.start(lock_folders=[str(tmp_path / "locks")])
        await plane.until(lambda: plane.reports and devices_told(plane) == FREE)
        driver("no", "number")  # it raises
        plane.assign(1, "touch", str(tmp_path / "ran"), devices=["GPU-0"])
        outcome = (await plane.end_of(1))["outcome"]
        assert (outcome["ended_by"], outcome["blame"]) == ("drift", "infrastructure")
        assert outcome["evidence"] == "device 0 (GPU-0) is unhealthy: its driver does not answer"
        assert not (tmp_path / "ran").exists()
        assert devices_told(plane) == [("unhealthy", "its driver does not answer")] * 2
        plane.assign(2, "true")
        assert (await plane.end_of(2))["outcome"]["exit_code"] == 0, "what wants no device starts"
        await worker.stop()

    scene(main)


def test_what_jobs_of_this_worker_compute_is_no_strangers_also_after_a_restart_of_the_agent(scene, driver, tmp_path):
    note = f"echo $$ $! > {driver.folder}/new; mv {driver.folder}/new {driver.folder}/pids"
    program = f"(setsid sleep 600 & {note}; wait)"

    async def main(plane, worker):
        options = {"lock_folders": [str(tmp_path / "locks")]}
        worker.start(**options)
        plane.assign(1, "sh", "-c", program, devices=["GPU-0"])
        await plane.until(lambda: len((driver.folder / "pids").read_text().split()) == 2)
        plane.assign(2, "true", devices=["GPU-1"])  # a look at the same driver
        assert (await plane.end_of(2))["outcome"]["exit_code"] == 0
        worker.kill()
        worker.start(**options)
        plane.assign(3, "true", devices=["GPU-1"])
        assert (await plane.end_of(3))["outcome"]["exit_code"] == 0
        assert all(devices_told(plane, report) == FREE for report in plane.reports if report.get("facts"))
        plane.stop(1, grace_ms=100)
        await plane.end_of(1)
        plane.assign(4, "true", devices=["GPU-0"])  # the driver still tells of the two: it is slow to see them die
        assert (await plane.end_of(4))["outcome"]["exit_code"] == 0
        await worker.stop()

    scene(main)


def test_what_an_earlier_life_left_on_a_device_is_ended_before_anything_starts_upon_it(scene, driver, tmp_path):
    """Agent, spawner and watchdog were killed at once: its orphans compute on, and nobody is their parent."""

    async def main(plane, worker):
        options = {"lock_folders": [str(tmp_path / "locks")]}
        worker.start(**options)
        note = f"echo $$ > {driver.folder}/new; mv {driver.folder}/new {driver.folder}/pids"
        plane.assign(1, "sh", "-c", f"(setsid sh -c '{note}; exec sleep 600' &); sleep 600", devices=["GPU-0"])
        await plane.until(lambda: (driver.folder / "pids").read_text().strip())
        left = int((driver.folder / "pids").read_text())
        holders = StateDir(str(worker.folder / "spawner")).read_pids()
        worker.process.send_signal(signal.SIGSTOP)
        for name in ("watchdog", "spawner"):
            os.kill(holders[name], signal.SIGSTOP)
        for pid in (*(holders[name] for name in ("watchdog", "spawner")), worker.process.pid):
            os.kill(pid, signal.SIGKILL)
        worker.process.wait()
        assert is_alive(left)
        worker.start(**options)
        is_left = f"grep -q '^State:.[RSDT]' /proc/{left}/status"  # a zombie is not
        plane.assign(2, "sh", "-c", f"{is_left} && exit 9; exit 0", devices=["GPU-0"])
        assert (await plane.end_of(2))["outcome"]["exit_code"] == 0
        assert (await plane.end_of(1))["outcome"]["ended_by"] == "worker_lost"
        assert not is_alive(left)
        await worker.stop()

    scene(main)


def test_two_workers_of_a_host_lend_a_device_once_and_say_who_has_it(scene, driver, tmp_path):
    async def main(plane, worker):
        options = {"lock_folders": [str(tmp_path / "locks")]}
        worker.start(**options)
        await plane.until(lambda: plane.reports and devices_told(plane) == FREE)
        other = DeviceLocks(options["lock_folders"])
        other.take(["GPU-0"], key="9.0", marker=None)
        plane.assign(1, "true", devices=["GPU-0"])
        outcome = (await plane.end_of(1))["outcome"]
        assert outcome["ended_by"] == "drift"
        assert f"another worker on this host has it, process {os.getpid()}" in outcome["evidence"]
        assert devices_told(plane)[0][0] == "busy"
        other.close()
        await plane.until(lambda: devices_told(plane) == FREE)
        await worker.stop()

    scene(main)
