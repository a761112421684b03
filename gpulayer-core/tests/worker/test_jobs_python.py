"""The Python of jobs that framework checks are run by: which one it is, and whatever it does."""

import asyncio
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from gpulayer.placement.eligibility import why_ineligible, why_not_now
from gpulayer.plugins.builtin.frameworks import CHECKS
from gpulayer.plugins.builtin.system import SystemEnvironment
from gpulayer.plugins.contracts.framework import CheckScript
from gpulayer.spec.request import FrameworkNeed, Request
from gpulayer.worker.frameworks import FrameworkChecks, jobs_python
from tests.framework_checks import BOTH, COMPUTES, FACTS, GOOD, WITH_GPU, Check, Found, Site, found, is_alive, life_of


def test_a_python_that_is_not_there_is_the_reason(host_of, tmp_path):
    host = host_of(environments=[SystemEnvironment()], framework_checks=[Check(GOOD)])
    ran = FrameworkChecks(host, tmp_path, environment={}, python="/no/such/python")
    assert "can't be run by /no/such/python" in found(ran)[0].reason


def test_the_python_of_jobs_is_the_one_on_their_path(tmp_path):
    assert jobs_python({"PATH": str(tmp_path)}, otherwise="/mine") == "/mine"
    (tmp_path / "python3").write_text("#!/bin/sh\n")
    (tmp_path / "python3").chmod(0o755)
    assert jobs_python({"PATH": str(tmp_path)}, otherwise="/mine") == str(tmp_path / "python3")


def test_the_python_of_jobs_says_its_version_and_is_asked_once(host_of, tmp_path, site):
    host = host_of(environments=[SystemEnvironment()], framework_checks=[Found(COMPUTES)])
    checks = FrameworkChecks(host, tmp_path, environment={}, python=str(site.python))
    asyncio.run(checks.begin(FACTS))
    assert (checks.python, checks.python_version) == (str(site.python), "{}.{}.{}".format(*sys.version_info[:3]))
    assert site.count() == 1


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


@pytest.fixture
def life(host_of, tmp_path, site):
    return life_of(host_of, tmp_path, site)


def test_which_frameworks_are_missing_is_found_out_by_one_program_for_all(life, site):
    (site.folder / "torch.py").unlink()
    assert life(*CHECKS) == ((), 1)
    assert life(*CHECKS) == ((), 1)
    site.add("torch")
    told, count = life(Found(COMPUTES), *CHECKS[1:])
    assert (told, count) == (BOTH, 2)


def test_a_python_that_says_nothing_of_itself_is_not_asked_by_every_check(life, site):
    site.python.write_text(f"#!/bin/sh\necho >> {site.starts}\necho What?\n")
    told, count = life()
    assert "its last line is no JSON: 'What?'" in told[0].reason
    assert not told[0].usable
    assert count == 1


def test_what_a_python_prints_at_its_end_costs_no_framework(life, site):
    site.python.write_text(site.python.read_text().replace("exec ", "") + "echo bye\n")
    assert life() == (BOTH, 2)


@pytest.fixture
def hanging(host_of, tmp_path, site):
    """Checks with a Python that hangs before it reads any program; its process is in ``pid``."""
    site.python.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 600\n")
    host = host_of(environments=[SystemEnvironment()], framework_checks=[Found(COMPUTES), Check(COMPUTES, "plain")])
    return lambda **more: FrameworkChecks(host, tmp_path, environment={}, python=str(site.python), **more)


def test_a_python_that_hangs_is_the_reason_of_all_that_asks_it_and_is_asked_again(hanging):
    checks = hanging(deadline_s=0.5)
    asyncio.run(checks.run(FACTS))
    assert {one.name for one in checks.found} == {"torch", "plain"}
    assert all("did not end within 0.5 s" in one.reason for one in checks.found)
    assert all(one.is_pending for one in checks.found if one.name == "torch"), "that says nothing of what is installed"
    assert not checks.is_fresh


def test_what_no_time_is_left_for_says_so(hanging):
    checks = hanging(deadline_s=0.3)
    asyncio.run(checks.run(FACTS, within_s=0.1))
    (reason,) = {one.reason for one in checks.found if one.name == "plain"}
    assert "took all the time" in reason


def test_what_is_not_known_yet_is_not_told_to_be_missing(hanging, tmp_path):
    """An earlier life had another Python, and knew of no framework."""
    (tmp_path / "frameworks.json").write_text('{"found": [], "believed": {}}')
    checks = hanging()
    told = []

    async def main():
        known = asyncio.Event()

        def tell():
            told.extend(checks.found)
            known.set()

        running = asyncio.create_task(checks.run(FACTS, tell=tell))
        async with asyncio.timeout(30):
            await known.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(main())
    assert {(one.name, one.usable, one.is_pending) for one in told} == {
        ("torch", False, True),
        ("plain", False, True),
    }
    request, facts = Request(devices=0, frameworks=(FrameworkNeed("torch"),)), replace(FACTS, frameworks=tuple(told))
    assert why_ineligible(request, facts) == ()
    assert [reason.message for reason in why_not_now(request, facts)] == ["torch is not checked yet"]


@pytest.mark.skipif(sys.platform != "linux", reason="by the kernel's own means")
def test_a_python_that_hangs_before_it_reads_the_program_ends_with_its_worker(tmp_path, site):
    site.python.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/new && mv {tmp_path}/new {tmp_path}/pid\nexec sleep 600\n")
    source = f"""
import asyncio, pathlib
from gpulayer.worker.check_script import run_script
asyncio.run(run_script("", pathlib.Path({str(tmp_path / "run")!r}), python={str(site.python)!r}, variables={{}}))
"""
    with subprocess.Popen([sys.executable, "-c", source]) as worker:
        ends = time.monotonic() + 30
        while not (tmp_path / "pid").exists():
            assert time.monotonic() < ends
            time.sleep(0.01)
        pid = (tmp_path / "pid").read_text().strip()
        worker.kill()
    while is_alive(pid):
        assert time.monotonic() < ends, f"{pid} still runs"
        time.sleep(0.01)


def test_before_the_first_join_it_is_known_what_there_is_to_check_and_nothing_is_run(host_of, tmp_path, site):
    class Absent(Found):
        def script(self):
            return CheckScript(self.source, ("no_such_module",))

    host = host_of(environments=[SystemEnvironment()], framework_checks=[Found(COMPUTES), Absent(COMPUTES, "absent")])
    checks = FrameworkChecks(host, tmp_path, environment={}, python=str(site.python))
    asyncio.run(checks.begin(WITH_GPU))
    assert {(one.name, one.is_pending) for one in checks.found} == {("torch", True)}
    assert site.count() == 1, "it was only looked what is installed"
    asyncio.run(checks.run(WITH_GPU))
    assert checks.found == BOTH


def test_a_python_that_hangs_keeps_no_worker_from_joining(hanging):
    checks = hanging()
    asyncio.run(checks.begin(FACTS, within_s=0.1))
    assert {(one.name, one.is_pending) for one in checks.found} == {("torch", True), ("plain", True)}
