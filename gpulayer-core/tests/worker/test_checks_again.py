"""Which framework checks are run again, and what stands until then: at the next start, and while a worker runs."""

import asyncio
import os
import sys
from dataclasses import replace

import pytest

from gpulayer.plugins.builtin.system import SystemEnvironment
from gpulayer.spec.machine import Device, DeviceState, Framework
from gpulayer.spec.request import Accelerator
from gpulayer.worker.frameworks import FrameworkChecks
from tests.framework_checks import (
    BOTH,
    COMPUTES,
    CPU,
    CUDA,
    FACTS,
    GOOD,
    GPU,
    SECOND,
    WITH_GPU,
    Check,
    Found,
    Site,
    checks_of,
    found,
    life_of,
    watched,
)


@pytest.fixture
def checks(host_of, tmp_path):
    return checks_of(host_of, tmp_path)


def test_what_could_not_be_asked_at_first_is_asked_again_and_known_then(host_of, tmp_path):
    """The variables of jobs came late once; or a check's script did."""

    class OnceLate(SystemEnvironment):
        tries = 0

        def build(self, plan, site):
            self.tries += 1
            if self.tries == 1:
                raise OSError("not now")
            return super().build(plan, site)

    class OnceBroken(Check):
        tries = 0

        def script(self):
            self.tries += 1
            if self.tries == 1:
                raise OSError("not now")
            return super().script()

    host = host_of(environments=[OnceLate()], framework_checks=[OnceBroken(GOOD)])
    checks = FrameworkChecks(host, tmp_path, environment={}, python=sys.executable, again_s=(0.01,))

    async def main():
        watching = asyncio.create_task(checks.watch(lambda: FACTS, tell=lambda: None))
        async with asyncio.timeout(30):
            while not checks.found:
                await asyncio.sleep(0.01)
        while not checks.is_fresh:
            await asyncio.sleep(0.01)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)

    asyncio.run(main())
    assert {framework.name for framework in checks.found} == {"torch"}
    assert host.registry.framework_checks[0].thing.tries == 2


def test_a_check_that_can_not_be_asked_for_once_takes_nothing_away_that_is_known(host_of, tmp_path):
    class Falters(Check):
        def script(self):
            if is_away:
                raise OSError("not now")
            return super().script()

    is_away = False
    known = (Framework("torch", "1", CPU, usable=True), Framework("jax", "1", CPU, usable=True))
    script = 'print(\'{"version": "1", "devices": {"cpu": ""}}\')'
    registered = [Falters(script, "torch", (CPU,)), Check(script, "jax", (CPU,))]

    def life():
        host = host_of(environments=[SystemEnvironment()], framework_checks=registered)
        return FrameworkChecks(host, tmp_path, environment={}, python=sys.executable)

    first = life()
    assert found(first) == known
    is_away = True
    assert set(found(first)) == set(known)
    assert not first.is_fresh
    for _ in range(2):  # what was kept is kept again
        assert set(found(life())) == set(known)


def test_a_first_start_that_could_not_ask_is_no_knowledge_of_the_next(checks):
    assert found(checks(Check(RuntimeError("not now")))) == ()
    assert checks(Check(GOOD)).found == ()


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


@pytest.fixture
def life(host_of, tmp_path, site):
    return life_of(host_of, tmp_path, site)


def test_what_computed_is_not_run_again_at_a_start_where_nothing_has_changed(life):
    assert life() == (BOTH, 2)  # what there is, and the check
    for _ in range(2):
        assert life() == (BOTH, 1)


def upgraded(site):
    (site.folder / "torch-2.5.0.dist-info").mkdir()


def rebuilt(site):
    os.utime(site.folder / "torch.py", (1, 1))


CHANGES = {
    "a package": (upgraded, {}),
    "a module": (rebuilt, {}),
    "the script": (None, {"check": Found(COMPUTES + " ")}),
    "what it may say": (None, {"check": Found(COMPUTES, accelerators=(CPU, CUDA))}),
    "the driver": (None, {"device": {"driver": "560.1"}}),
    "what the driver supports": (None, {"device": {"runtime": "12.6"}}),
    "the device": (None, {"device": {"uuid": "GPU-2"}}),
}


@pytest.mark.parametrize(("change", "given"), CHANGES.values(), ids=CHANGES)
def test_what_its_answer_depends_on_has_it_run_again(life, site, change, given):
    life()
    if change is not None:
        change(site)
    facts = replace(FACTS, devices=(replace(GPU, **given.get("device", {})),))
    for runs in (2, 1):
        told, count = life(given.get("check", Found(COMPUTES)), facts=facts)
        assert (set(told), count) == (set(BOTH), runs)


def test_what_flows_has_nothing_run_again(life):
    life()
    busier = replace(GPU, memory_free_bytes=5, use_percent=97, temperature_c=80)
    assert life(facts=replace(FACTS, devices=(busier,), disk_bytes=7)) == (BOTH, 1)


def test_what_failed_on_a_device_that_is_there_is_tried_at_each_start(life):
    check = Found(GOOD)
    assert [life(check)[1] for _ in range(2)] == [2, 2]
    assert [life(check, facts=FACTS)[1] for _ in range(2)] == [2, 1]  # no such device: nothing to be repaired


def test_on_a_mac_one_device_is_for_metal_and_mlx(life):
    """What failed there is tried again, of both."""
    mlx = Found('print(\'{"version": "1", "devices": {"mlx": "no Metal"}}\')', "mlx", (Accelerator.MLX,))
    mac = replace(FACTS, devices=(Device("MPS-0", 0, Accelerator.MPS, "Apple M3"),))
    assert [life(mlx, facts=mac)[1] for _ in range(2)] == [2, 2]


def test_a_check_that_names_no_modules_runs_at_each_start(life):
    assert [life(Check(COMPUTES))[1] for _ in range(2)] == [1, 1]


def test_devices_that_changed_have_checks_run_again_also_where_all_is_as_it_was(host_of, tmp_path, site):
    """A device that was reset, for example."""
    host = host_of(environments=[SystemEnvironment()], framework_checks=[Found(COMPUTES)])
    checks = FrameworkChecks(host, tmp_path, environment={}, python=str(site.python))
    counts = []

    async def main():
        for _ in range(2):
            await checks.run(WITH_GPU)
            counts.append(site.count())

    asyncio.run(main())
    assert counts == [2, 2]


@pytest.mark.parametrize(
    "text", ["", "[]", "[1]", '{"found": []}', '{"found": [["torch"]], "believed": {}}', "\0", "[" * 100_000]
)
def test_a_file_that_can_not_be_read_is_no_knowledge(checks, tmp_path, text):
    (tmp_path / "frameworks.json").write_text(text)
    assert checks(Check(GOOD)).found == ()


HELD = """
import json, os
is_held = not os.path.exists({free!r})
open({runs!r}, "a").write("x")
print(json.dumps({{"version": "1", "devices": {{"cuda": is_held * "held", "cpu": ""}}, "again": is_held * ["cuda"]}}))
"""


@pytest.fixture
def held(host_of, tmp_path):
    """A check of a device that somebody holds until ``free`` is there."""
    free, runs = tmp_path / "free", tmp_path / "runs"

    def life():
        check = Check(HELD.format(free=str(free), runs=str(runs)))
        host = host_of(environments=[SystemEnvironment()], framework_checks=[check])
        return FrameworkChecks(host, tmp_path, environment={}, python=sys.executable, again_s=(0.01,))

    life.free, life.runs = free, runs
    return life


def test_what_passes_by_itself_is_asked_again_until_it_has(held):
    checks = held()

    def until():
        if held.runs.exists() and len(held.runs.read_text()) == 3:
            assert {one.accelerator: one.reason for one in checks.found} == {CUDA: "held", CPU: ""}
            held.free.touch()
        return checks.is_fresh

    watched(checks, until=until)
    assert all(one.usable for one in checks.found)


def test_what_computed_before_stands_while_somebody_holds_the_device(held):
    held.free.touch()
    checks = held()
    assert found(checks)[0].usable
    held.free.unlink()
    again = held()
    assert found(again)[0].usable
    assert not again.is_fresh


def test_what_pip_did_while_the_worker_runs_is_seen(host_of, tmp_path, site):
    (site.folder / "torch.py").unlink()
    host = host_of(environments=[SystemEnvironment()], framework_checks=[Found(COMPUTES)])
    checks = FrameworkChecks(host, tmp_path, environment={}, python=str(site.python), look_every_s=0.01)
    asyncio.run(checks.run(WITH_GPU))
    assert checks.found == ()
    site.add("torch")
    watched(checks, until=lambda: checks.found == BOTH)


def test_a_device_that_only_went_has_nothing_run_again_and_one_that_came_has(host_of, tmp_path):
    host = host_of(environments=[SystemEnvironment()], framework_checks=[Check(COMPUTES)])
    checks = FrameworkChecks(host, tmp_path, environment={}, python=sys.executable)
    both = replace(FACTS, devices=(GPU, SECOND))
    lost = replace(FACTS, devices=(GPU, replace(SECOND, state=DeviceState.UNHEALTHY)))
    asyncio.run(checks.run(both))
    checks.renew(both, lost)
    assert checks.is_fresh
    checks.renew(lost, both)
    assert not checks.is_fresh
