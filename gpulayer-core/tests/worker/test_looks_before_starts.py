"""Looks right before jobs start: one at a time of each probe, and nothing starts where there is no answer."""

import asyncio
import threading

import pytest

from gpulayer.clock import SystemClock
from gpulayer.plugins.builtin.nvidia.probe import NvidiaProbe
from gpulayer.plugins.contracts.probe import Findings, ProbeSite
from gpulayer.plugins.record import PluginRecord
from gpulayer.spec.machine import Device, DeviceState
from gpulayer.spec.request import Accelerator
from gpulayer.worker.facts import KnownFacts, Probing
from tests.nvidia import FakeSmi, row

GPUS = tuple(Device(f"GPU-{index}", index, Accelerator.CUDA, "H100") for index in range(2))
SILENT = "device 0 (GPU-0) is unhealthy: its driver does not answer"


class Driver:
    """Answers when it is let; ``looks``: how many there were, ``most``: how many at once."""

    name = "driver"

    def __init__(self, devices=GPUS, processes=()):
        self.found = Findings(devices=devices, processes=processes)
        self.go = threading.Event()
        self.go.set()
        self.came = threading.Event()
        self.looks = self.inside = self.most = 0
        self.fails = False
        self._lock = threading.Lock()

    def look(self, site):
        with self._lock:
            self.looks += 1
            self.inside += 1
            self.most = max(self.most, self.inside)
        self.came.set()
        self.go.wait(30)
        with self._lock:
            self.inside -= 1
        if self.fails:
            raise OSError("no answer")
        return self.found


@pytest.fixture
def known_of(host_of, tmp_path):
    """``await known_of(probe)``: what is known after the first look; the host, too."""

    async def make(probe, *, is_builtin=False, deadline_s=10.0):
        host = host_of(probes=[probe])
        if is_builtin:
            host.records = lambda: [PluginRecord(probe.name, "gpulayer-core", is_builtin=True)]
        probing = Probing(
            host, ProbeSite(tmp_path, {}), version="1", labels=(), clock=SystemClock(), deadline_s=deadline_s
        )
        return KnownFacts(await probing.start(), probing), host

    return make


async def is_inside(driver):
    assert await asyncio.to_thread(driver.came.wait, 10)


def test_many_that_want_a_look_at_once_share_one(known_of):
    async def main():
        driver = Driver()
        known, _ = await known_of(driver)
        driver.go.clear()
        driver.came.clear()
        wanted = [asyncio.create_task(known.look_at(["GPU-0"])) for _ in range(8)]
        wanted.append(asyncio.create_task(known.look_again()))
        await is_inside(driver)
        wanted[0].cancel()  # the others have it all the same
        driver.go.set()
        assert (await asyncio.gather(*wanted, return_exceptions=True))[1:] == [False] * 8
        assert (driver.looks, driver.most) == (2, 1)
        assert known.why_unusable(["GPU-0"]) == ""
        await known.look_at(["GPU-0"])
        assert driver.looks == 3, "the next one asks anew"

    asyncio.run(main())


def test_where_the_driver_gives_no_answer_nothing_starts_until_it_does(known_of):
    async def main():
        driver = Driver()
        known, host = await known_of(driver)
        driver.fails = True
        assert not await known.look_again()
        assert known.why_unusable(["GPU-0"]) == "", "what it found last stands for as long as nothing depends on it"
        left = asyncio.create_task(known.until_left())
        await asyncio.gather(*(known.look_at(["GPU-0"]) for _ in range(8)))
        assert known.why_unusable(["GPU-0"]) == SILENT
        assert {device.state for device in known.facts.devices} == {DeviceState.UNHEALTHY}
        assert not host.is_resting(host.registry.probes[0]), "eight starts are one look"
        await left  # it is asked again soon
        driver.fails = False
        assert await known.look_again()
        assert known.facts.devices == GPUS

    asyncio.run(main())


def test_a_look_that_takes_its_time_is_waited_for_and_is_no_fault(known_of):
    async def main():
        driver = Driver()
        known, _ = await known_of(driver)
        driver.go.clear()
        driver.came.clear()
        starts = [asyncio.create_task(known.look_at(["GPU-0"])) for _ in range(3)]
        await is_inside(driver)
        driver.found = Findings(devices=(), processes=(), missing=(("cuda", "nvidia-smi does not answer"),))
        driver.go.set()
        await asyncio.gather(*starts)
        assert known.why_unusable(["GPU-0"]) == "device 0 (GPU-0) is unhealthy: nvidia-smi does not answer"
        assert known.retry_in_s is None

    asyncio.run(main())


@pytest.mark.parametrize("is_builtin", [True, False])
def test_one_of_ours_that_outlives_its_time_is_not_asked_again_before_it_has_ended(known_of, is_builtin):
    async def main():
        driver = Driver()
        known, _ = await known_of(driver, is_builtin=is_builtin, deadline_s=0.5)
        driver.go.clear()
        for _ in range(2):
            await known.look_at(["GPU-0"])
            assert known.why_unusable(["GPU-0"]) == SILENT
        assert driver.looks == (2 if is_builtin else 3), "somebody else's may hang for ever, and work when asked again"
        driver.go.set()
        while driver.inside:
            await asyncio.sleep(0.01)
        await known.look_at(["GPU-0"])
        assert known.why_unusable(["GPU-0"]) == ""

    asyncio.run(main())


@pytest.mark.parametrize("processes", [None, ()])
@pytest.mark.parametrize(
    ("uuid", "kind"),
    [
        ("GPU-1", Accelerator.CUDA),
        ("MIG-1", Accelerator.CUDA),
        ("GPU-c0ffee", Accelerator.ROCM),
        ("XPU-0000:03:00.0", Accelerator.XPU),
        ("MPS-0", Accelerator.MPS),
    ],
)
def test_each_of_ours_that_has_the_device_is_asked_before_a_start_whatever_else_it_knows(
    known_of, uuid, kind, processes
):
    async def main():
        driver = Driver((Device(uuid, 0, kind, "card"),), processes=processes)
        known, _ = await known_of(driver, is_builtin=True)
        driver.found = Findings(missing=((str(kind), "gone"),), processes=processes)
        await known.look_at(["GPU-of-another-probe"])
        assert driver.looks == 1
        await known.look_at([uuid])
        assert driver.looks == 2
        assert known.why_unusable([uuid]) == f"device 0 ({uuid}) is unhealthy: gone"

    asyncio.run(main())


@pytest.mark.parametrize("uuid", ["XPU-0000:03:00.0", "ROCM-0000:03:00.0", "GPU-c0ffee"])
def test_an_outside_probe_that_knows_no_processes_is_asked_before_a_start_where_devices_go_by_number(known_of, uuid):
    async def main():
        kind = Accelerator.XPU if uuid.startswith("XPU") else Accelerator.ROCM
        driver = Driver((Device(uuid, 0, kind, "card"),), processes=None)
        known, _ = await known_of(driver)
        await known.look_at([uuid])
        assert driver.looks == (1 if uuid == "GPU-c0ffee" else 2)

    asyncio.run(main())


def test_a_driver_that_is_silent_is_asked_again_soon_and_then_as_often_as_any(known_of):
    async def main():
        driver = Driver()
        known, _ = await known_of(driver, is_builtin=True)
        answers = driver.found
        driver.found = Findings(missing=(("cuda", "no answer"),), is_silent=True)
        await known.look_at(["GPU-0"])
        assert known.why_unusable(["GPU-0"]) == "device 0 (GPU-0) is unhealthy: no answer"
        async with asyncio.timeout(30):
            await known.until_left()  # a start has met it: it is asked again now
        waits = [known.retry_in_s]
        while known.retry_in_s is not None:
            await known.retry()
            waits.append(known.retry_in_s)
        assert waits == [2.0, 10.0, None]
        driver.found = answers
        await known.look_again()
        assert (known.why_unusable(["GPU-0"]), known.retry_in_s) == ("", None)

    asyncio.run(main())


def test_why_devices_are_unhealthy_is_told_once(known_of):
    async def main():
        driver = Driver()
        known, _ = await known_of(driver, is_builtin=True)
        driver.found = Findings(missing=(("cuda", "no answer"), ("rocm", "no answer")))
        await known.look_again()
        assert {device.reason for device in known.facts.devices} == {"no answer"}
        assert known.facts.missing == (("rocm", "no answer"),)

    asyncio.run(main())


def test_jobs_do_not_start_on_nvidias_devices_when_the_driver_hangs_just_before(known_of, tmp_path):
    rows = [row(index, f"GPU-{index}", "NVIDIA L40S", bus=f"0{index + 1}") for index in range(2)]
    fake = FakeSmi(tmp_path / "bin", rows=rows, apps="")

    class Nvidia:
        name = "nvidia"
        probe = NvidiaProbe(root=tmp_path / "root", with_nvml=False, budget_s=3.0)

        def look(self, site):
            return self.probe.look(ProbeSite(site.work_dir, fake.environment))

    async def main():
        known, _ = await known_of(Nvidia(), is_builtin=True)
        assert known.why_unusable(["GPU-0", "GPU-1"]) == ""
        fake.tell(rows=rows, hang="")
        await asyncio.gather(*(known.look_at([f"GPU-{index % 2}"]) for index in range(3)))
        for index in range(2):
            assert known.why_unusable([f"GPU-{index}"]).startswith(f"device {index} (GPU-{index}) is unhealthy: ")
        fake.tell(rows=rows)
        await known.look_again()
        assert known.why_unusable(["GPU-0", "GPU-1"]) == ""

    asyncio.run(main())
