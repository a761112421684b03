"""On which devices framework checks compute, beside jobs and others who have them."""

import asyncio
import sys
from dataclasses import replace

import pytest

from gpulayer.placement.eligibility import can_compute_now, why_ineligible, why_not_now
from gpulayer.plugins.builtin.system import SystemEnvironment
from gpulayer.spec.machine import DeviceState
from gpulayer.spec.request import FrameworkNeed, Request
from gpulayer.worker.check_devices import seen_devices
from gpulayer.worker.frameworks import FrameworkChecks
from tests.framework_checks import CPU, CUDA, FACTS, GPU, SECOND, WITH_GPU, Check, checks_of, watched


@pytest.fixture
def checks(host_of, tmp_path):
    return checks_of(host_of, tmp_path)


@pytest.mark.parametrize("mode", ["exclusive_process", "default"])
def test_on_devices_for_one_process_checks_come_one_after_the_other(checks, tmp_path, mode):
    wait_s = 30 if mode == "default" else 0.1
    source = f"""
import os, time
place, met = {str(tmp_path / "device")!r}, {str(tmp_path / "met")!r}
try:
    os.mkdir(place)
except FileExistsError:
    os.makedirs(met, exist_ok=True)
    print('{{"version": "1", "devices": {{"cuda": "held", "cpu": ""}}}}')
else:
    ends = time.monotonic() + {wait_s}
    while time.monotonic() < ends and not os.path.exists(met):
        time.sleep(0.01)
    os.rmdir(place)
    print('{{"version": "1", "devices": {{"cuda": "", "cpu": ""}}}}')
"""
    ran = checks(*(Check(source, name) for name in ("torch", "jax", "cupy")))
    asyncio.run(ran.run(replace(FACTS, devices=(replace(GPU, compute_mode=mode),))))
    held = [one for one in ran.found if one.reason == "held"]
    assert bool(held) == (mode == "default")


def test_a_check_sees_what_the_worker_offers():
    other = replace(GPU, uuid="GPU-2", state=DeviceState.UNHEALTHY)
    busy = replace(GPU, uuid="GPU-3", state=DeviceState.BUSY)
    owners = {"CUDA_VISIBLE_DEVICES": "3", "PATH": "/bin"}
    facts = replace(FACTS, devices=(GPU, other, busy))
    assert seen_devices(facts, owners)["CUDA_VISIBLE_DEVICES"] == "GPU-1,GPU-3"
    assert seen_devices(FACTS, owners) == {"CUDA_VISIBLE_DEVICES": "3"}
    assert seen_devices(FACTS, {}) == {}


SEES = """
import json, os
seen = os.environ["CUDA_VISIBLE_DEVICES"]
open({runs!r}, "a").write(seen + "\\n")
print(json.dumps({{"version": "1", "devices": {{"cuda": "" if seen else "no device is seen", "cpu": ""}}}}))
"""


@pytest.fixture
def sees(host_of, tmp_path):
    """A check that notes which devices it saw; ``seen()``: in each of its runs so far."""
    runs = tmp_path / "runs"
    host = host_of(environments=[SystemEnvironment()], framework_checks=[Check(SEES.format(runs=str(runs)))])
    checks = FrameworkChecks(host, tmp_path, environment={}, python=sys.executable, again_s=(0.01,))
    return checks, lambda: runs.read_text().split("\n")[:-1] if runs.exists() else []


def test_no_check_computes_on_a_device_that_a_job_or_somebody_else_has(sees):
    checks, seen = sees
    facts = replace(FACTS, devices=(GPU, SECOND, replace(GPU, uuid="GPU-3", state=DeviceState.BUSY)))
    asyncio.run(checks.run(facts, taken={"GPU-1"}))
    assert seen() == ["GPU-2"]
    assert all(one.usable for one in checks.found)


def test_what_is_known_of_a_kind_stands_while_jobs_have_all_of_its_devices(sees):
    checks, seen = sees
    asyncio.run(checks.run(WITH_GPU, taken={"GPU-1"}))
    assert {one.accelerator: (one.is_pending, one.reason) for one in checks.found} == {
        CUDA: (True, "somebody computes on every such device"),
        CPU: (False, ""),
    }
    asyncio.run(checks.run(WITH_GPU))
    assert all(one.usable for one in checks.found)
    asyncio.run(checks.run(WITH_GPU, taken={"GPU-1"}))
    assert all(one.usable for one in checks.found)
    assert seen() == ["", "GPU-1", ""]


def test_a_device_is_tried_once_it_is_free_and_nothing_is_run_until_then(sees):
    checks, seen = sees
    taken, asked = {"GPU-1"}, 0

    def who():
        nonlocal asked
        asked += 1
        if asked == 20:
            assert seen() == [""]
            taken.clear()
        return taken

    async def main():
        watching = asyncio.create_task(checks.watch(lambda: WITH_GPU, tell=lambda: None, taken=who))
        async with asyncio.timeout(30):
            while not checks.is_fresh:
                await asyncio.sleep(0.01)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)

    asyncio.run(main())
    assert seen() == ["", "GPU-1"]
    assert all(one.usable for one in checks.found)


ALONE = """
import json, os, time
seen = [one for one in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if one]
open({runs!r}, "a").write(" ".join(seen) + "\\n")
while {hangs!r} in seen:
    time.sleep(0.01)
failed = {{str(number): "no code for it" for number, one in enumerate(seen) if one in {bad!r}}}
why = "" if len(failed) < len(seen) else "no code for any" if seen else "no device is seen"
print(json.dumps({{"version": "1", "devices": {{"cuda": why, "cpu": ""}}, "failed": {{"cuda": failed}}}}))
"""


@pytest.fixture
def alone(host_of, tmp_path):
    """``alone(*bad, hangs=…)``: checks of a framework that computes on devices one by one, but not on these; and a
    function that says which devices it saw in each of its runs."""
    runs = tmp_path / "runs"

    def make(*bad, hangs=""):
        source = ALONE.format(runs=str(runs), bad=bad, hangs=hangs)
        host = host_of(environments=[SystemEnvironment()], framework_checks=[Check(source)])
        checks = FrameworkChecks(host, tmp_path, environment={}, python=sys.executable, again_s=(0.01,))
        return checks, lambda: runs.read_text().split("\n")[:-1] if runs.exists() else []

    return make


def on_cuda(checks):
    return next(one for one in checks.found if one.accelerator is CUDA)


TWO = replace(FACTS, devices=(GPU, SECOND))
FAILED = (("GPU-2", "no code for it"),)


def test_devices_on_which_it_fails_are_known_by_uuid_also_while_jobs_have_them(alone):
    checks, _ = alone("GPU-2")
    asyncio.run(checks.run(TWO))
    assert (on_cuda(checks).usable, on_cuda(checks).failed_on) == (True, FAILED)
    asyncio.run(checks.run(TWO, taken={"GPU-2"}))
    assert on_cuda(checks).failed_on == FAILED
    asyncio.run(checks.run(TWO, taken={"GPU-1"}))
    assert (on_cuda(checks).is_pending, on_cuda(checks).failed_on) == (False, FAILED), "what was known stands"


def test_a_device_that_a_job_has_is_not_checked_yet_where_all_others_fail(alone):
    checks, _ = alone("GPU-2")
    asyncio.run(checks.run(TWO, taken={"GPU-1"}))
    assert on_cuda(checks).is_pending
    asyncio.run(checks.run(TWO))
    assert (on_cuda(checks).usable, on_cuda(checks).failed_on) == (True, FAILED)


def test_what_was_known_of_single_devices_is_kept_for_the_next_life_and_tried_again(alone):
    first, seen = alone("GPU-2")
    asyncio.run(first.run(TWO))
    second, _ = alone("GPU-2")
    assert on_cuda(second) == replace(on_cuda(first), failed_on=(("GPU-2", ""),)), "it may compute there by now"
    asyncio.run(second.run(TWO))
    assert on_cuda(second) == on_cuda(first)
    assert seen() == ["GPU-1 GPU-2"] * 2


def test_what_an_earlier_life_found_of_single_devices_refuses_nobody_and_is_found_to_be_over(alone):
    first, _ = alone("GPU-2")
    asyncio.run(first.run(TWO))
    both = Request((CUDA,), devices=2, frameworks=(FrameworkNeed("torch"),))
    assert why_ineligible(both, replace(TWO, frameworks=first.found))
    second, seen = alone()
    asyncio.run(second.begin(TWO))
    told = replace(TWO, frameworks=second.found)
    assert why_ineligible(both, told) == ()
    assert [reason.message for reason in why_not_now(both, told)] == ["torch 1 is not checked yet on device 1"]
    assert can_compute_now(replace(both, devices=1), told), "on the other one it did compute"
    asyncio.run(second.run(TWO, taken={"GPU-2"}))
    assert on_cuda(second).failed_on == (("GPU-2", ""),), "while a job has it, it can't be tried"
    watched(second, until=lambda: not on_cuda(second).failed_on, facts=TWO)
    assert seen()[-2:] == ["GPU-1", "GPU-1 GPU-2"]


def test_where_a_device_has_come_the_broken_ones_among_the_old_are_in_doubt_too(alone):
    checks, _ = alone("GPU-2")
    asyncio.run(checks.run(TWO))
    three = replace(TWO, devices=(*TWO.devices, replace(SECOND, uuid="GPU-3", index=2)))
    checks.renew(TWO, three)
    assert on_cuda(checks).failed_on == (("GPU-2", ""),)
    asyncio.run(checks.run(three))
    assert on_cuda(checks).failed_on == FAILED


@pytest.mark.parametrize("narrow", [{"compute_mode": "exclusive_process"}, {"memory_bytes": 4 * 2**30}])
def test_a_check_makes_way_for_a_job_on_a_device_for_one_or_with_little_memory(alone, narrow):
    checks, seen = alone(hangs="GPU-1")
    narrow_one = replace(GPU, **narrow)
    facts = replace(FACTS, devices=(narrow_one, SECOND))

    async def main():
        running = asyncio.create_task(checks.run(facts))
        async with asyncio.timeout(30):
            while not seen():
                await asyncio.sleep(0.01)
            await checks.make_way([SECOND])
            assert not running.done(), "on one that has room both may be"
            await checks.make_way([narrow_one])
            await running

    asyncio.run(main())
    assert seen() == ["GPU-1 GPU-2", "GPU-2"]
    assert on_cuda(checks).usable
    assert not checks.is_fresh, "the other one is still to be tried"


def test_a_check_that_has_not_begun_sees_no_device_on_which_a_job_has_started_meanwhile(alone):
    checks, seen = alone(hangs="GPU-1")
    facts = replace(FACTS, devices=(replace(GPU, compute_mode="exclusive_process"),))

    async def main():
        running = asyncio.create_task(checks.run(facts))
        await asyncio.sleep(0)
        await checks.make_way(facts.devices)
        async with asyncio.timeout(30):
            await running

    asyncio.run(main())
    assert seen() == [""]
    assert (on_cuda(checks).is_pending, on_cuda(checks).reason) == (True, "somebody computes on every such device")


def test_what_a_job_has_left_is_tried_at_once(alone):
    checks, seen = alone()
    checks._again_s = (600.0,)
    taken = {"GPU-1"}

    async def main():
        told = asyncio.Event()
        watching = asyncio.create_task(checks.watch(lambda: WITH_GPU, tell=told.set, taken=lambda: taken))
        async with asyncio.timeout(30):
            while not seen():
                await asyncio.sleep(0.01)
            while not any(one.waiting for one in checks._of):
                await asyncio.sleep(0.01)
            taken.clear()
            while not on_cuda(checks).usable:
                checks.freed()
                await asyncio.sleep(0.01)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)

    asyncio.run(main())
    assert seen() == ["", "GPU-1"]


BROKEN = replace(FACTS, devices=(replace(GPU, state=DeviceState.UNHEALTHY, reason="GPU is lost"),))


@pytest.mark.parametrize("is_known", [True, False])
def test_while_every_device_of_a_kind_is_broken_nothing_is_said_of_that_kind(alone, is_known):
    if is_known:
        before, _ = alone()
        asyncio.run(before.run(WITH_GPU))
    checks, seen = alone()
    asyncio.run(checks.begin(BROKEN))
    asyncio.run(checks.run(BROKEN))
    told = on_cuda(checks)
    assert told.usable if is_known else (told.is_pending, told.reason) == (True, "no such device works now")
    assert seen()[-1] == "", "nor is it touched"
    request = Request((CUDA,), devices=1, frameworks=(FrameworkNeed("torch"),))
    assert why_ineligible(request, replace(BROKEN, frameworks=checks.found)) == ()
    checks.renew(BROKEN, WITH_GPU)
    watched(checks, until=lambda: on_cuda(checks).usable)


def test_what_failed_is_not_checked_yet_when_a_device_has_come(alone):
    checks, _ = alone("GPU-1")
    asyncio.run(checks.run(WITH_GPU))
    assert (on_cuda(checks).usable, on_cuda(checks).is_pending) == (False, False)
    checks.renew(WITH_GPU, TWO)
    assert on_cuda(checks).is_pending
    asyncio.run(checks.run(TWO))
    assert on_cuda(checks).usable


def test_a_device_that_is_left_while_checks_run_is_tried_right_after_them(alone):
    checks, seen = alone(hangs="GPU-2")
    checks._again_s = (600.0,)
    taken = {"GPU-1"}
    facts = replace(FACTS, devices=(GPU, replace(SECOND, compute_mode="exclusive_process")))

    async def main():
        watching = asyncio.create_task(checks.watch(lambda: facts, tell=lambda: None, taken=lambda: taken))
        async with asyncio.timeout(30):
            while not seen():
                await asyncio.sleep(0.01)
            taken.clear()
            checks.freed()  # while nothing waits yet
            await checks.make_way(facts.devices)
            while len(seen()) < 3:
                await asyncio.sleep(0.01)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)

    asyncio.run(main())
    assert seen()[:2] == ["GPU-2", ""]
    assert "GPU-1" in seen()[2]


def test_where_nothing_can_be_asked_a_free_device_is_no_reason_to_try_without_a_pause(host_of, tmp_path):
    class Fails(SystemEnvironment):
        builds, fails = 0, False

        def build(self, plan, site):
            type(self).builds += 1
            if self.fails:
                raise OSError("not now")
            return super().build(plan, site)

    host = host_of(environments=[Fails()], framework_checks=[Check(SEES.format(runs=str(tmp_path / "runs")))])
    checks = FrameworkChecks(host, tmp_path, environment={}, python=sys.executable, again_s=(600.0,))
    asyncio.run(checks.run(WITH_GPU, taken={"GPU-1"}))
    assert not checks.is_fresh
    Fails.fails = True
    before = Fails.builds

    async def main():
        watching = asyncio.create_task(checks.watch(lambda: WITH_GPU, tell=lambda: None))
        async with asyncio.timeout(30):
            while Fails.builds == before:
                await asyncio.sleep(0.01)
        for _ in range(50):
            await asyncio.sleep(0.005)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)

    asyncio.run(main())
    assert Fails.builds == before + 1
    checks._again_s = (0.01,)
    Fails.fails = False
    watched(checks, until=lambda: checks.is_fresh)
