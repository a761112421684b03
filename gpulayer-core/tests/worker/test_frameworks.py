"""Framework checks: real scripts in real children, whatever they do."""

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gpulayer.placement.eligibility import why_ineligible, why_not_now
from gpulayer.plugins.builtin.frameworks import CHECKS
from gpulayer.plugins.builtin.system import SystemEnvironment
from gpulayer.plugins.contracts.framework import CheckScript
from gpulayer.spec.machine import Device, DeviceState, Framework, WorkerFacts
from gpulayer.spec.request import Accelerator, FrameworkNeed, Request
from gpulayer.worker.check_answers import Answer, read_answer
from gpulayer.worker.check_devices import seen_devices
from gpulayer.worker.frameworks import FrameworkChecks, jobs_python

CPU, CUDA = Accelerator.CPU, Accelerator.CUDA
FACTS = WorkerFacts(platform="linux-x86_64", version="0", cpus=8, memory_bytes=1)
NOT_YET = Framework("torch", "", CUDA, usable=False, is_pending=True)
GOOD = 'print("hello"); print(\'{"version": "2.4.0", "devices": {"cpu": "", "cuda": "no driver"}}\')'


class Check:
    def __init__(self, source, name="torch", accelerators=(CUDA, CPU)):
        self.source, self.name, self.accelerators = source, name, accelerators

    def script(self):
        if isinstance(self.source, Exception):
            raise self.source
        return CheckScript(self.source)


@pytest.fixture
def checks(host_of, tmp_path):
    def make(*registered, deadline_s=30.0, **environment):
        host = host_of(environments=[SystemEnvironment()], framework_checks=registered)
        return FrameworkChecks(host, tmp_path, environment=environment, python=sys.executable, deadline_s=deadline_s)

    return make


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def found(checks):
    asyncio.run(checks.run(FACTS))
    return checks.found


def test_what_a_script_says_is_known_by_accelerator_and_kept_for_the_next_life(checks):
    ran = checks(Check(GOOD))
    assert ran.found == ()
    both = (
        Framework("torch", "2.4.0", CUDA, usable=False, reason="no driver"),
        Framework("torch", "2.4.0", CPU, usable=True),
    )
    assert found(ran) == both
    again = checks(Check("import time; time.sleep(60)"))
    assert not again.is_fresh
    assert again.found == (NOT_YET, both[1]), "what failed then is told of when it has failed again"


def test_without_checks_nothing_is_waited_for(checks):
    none = checks()
    assert none.is_fresh
    assert found(none) == ()


def test_a_framework_that_is_not_installed_is_not_told_of(checks):
    assert found(checks(Check("print('{\"version\": null}')"))) == ()


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise SystemExit('libcuda is missing')", "exit code 1): libcuda is missing"),
        ("import os; os.kill(os.getpid(), 11)", "signal 11"),
        (GOOD + "; import os; os._exit(3)", "exit code 3"),
        ("pass", "it printed nothing"),
        ("print('fine')", "its last line is no JSON"),
        ("print([1])", "no object with a version"),
        ("print('{\"version\": 2}')", "version is no text"),
        ('print(\'{"version": "2", "devices": [1]}\')', "devices is no object"),
        ('print(\'{"version": "2", "devices": {"cuda": 1}}\')', "a reason is no text"),
        ('print(\'{"version": "2", "devices": {"tpu": ""}}\')', "'tpu', which it is not registered for"),
        ("print('[' * 100000)", "its last line is no JSON"),
        ("print('x' * 70_000_000)", "more than 16 MiB"),
    ],
)
def test_a_script_that_fails_makes_the_framework_unusable_with_the_reason(checks, source, reason):
    told = found(checks(Check(source)))
    assert [(one.accelerator, one.usable) for one in told] == [(CUDA, False), (CPU, False)]
    assert reason in told[0].reason


def test_a_script_that_hangs_is_killed_with_its_children(checks, tmp_path):
    source = f"""
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open({str(tmp_path / "pids")!r}, "w").write(f"{{os.getpid()}} {{child.pid}}")
time.sleep(600)
"""
    (told, _) = found(checks(Check(source), deadline_s=2.0))
    assert "did not end within 2 s" in told.reason
    for pid in (tmp_path / "pids").read_text().split():
        ends = time.monotonic() + 30
        while is_alive(pid):
            assert time.monotonic() < ends, f"{pid} still runs"
            time.sleep(0.01)


def test_what_has_left_the_session_and_holds_its_output_is_not_waited_for(checks, tmp_path):
    source = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
{GOOD}
"""
    try:
        assert [one.version for one in found(checks(Check(source)))] == ["2.4.0"] * 2
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_one_bad_check_costs_no_other(checks):
    told = found(checks(Check(RuntimeError("no script"), "jax"), Check(7, "cupy"), Check(GOOD)))
    assert [one.name for one in told] == ["torch", "torch"]


def test_a_script_gets_what_jobs_get_and_an_empty_folder_of_its_own(checks, tmp_path):
    source = f"""
import json, os
seen = dict(env=dict(os.environ), files=os.listdir(), session=os.getsid(0) == os.getpid(), name=__name__)
open({str(tmp_path / "seen")!r}, "w").write(json.dumps(seen))
print('{{"version": "1", "devices": {{}}}}')
"""
    ran = checks(Check(source), PATH="/bin", GPULAYER_TOKEN="glc_secret", PYTHONPATH="/mine", HOME=str(tmp_path))
    (told, _) = found(ran)
    assert told.reason == "its check says nothing of it"
    seen = json.loads((tmp_path / "seen").read_text())
    ours = {"PATH": "/bin", "PYTHONUNBUFFERED": "1", "HOME": str(tmp_path)}
    assert {name: text for name, text in seen["env"].items() if name != "LC_CTYPE"} == ours  # Python's own (PEP 538)
    assert (seen["files"], seen["session"], seen["name"]) == (["check.py"], True, "__main__")
    assert list((tmp_path / "checks").iterdir()) == []


def test_a_python_that_is_not_there_is_the_reason(host_of, tmp_path):
    host = host_of(environments=[SystemEnvironment()], framework_checks=[Check(GOOD)])
    ran = FrameworkChecks(host, tmp_path, environment={}, python="/no/such/python")
    assert "can't be run by /no/such/python" in found(ran)[0].reason


def test_the_python_of_jobs_is_the_one_on_their_path(tmp_path):
    assert jobs_python({"PATH": str(tmp_path)}, otherwise="/mine") == "/mine"
    (tmp_path / "python3").write_text("#!/bin/sh\n")
    (tmp_path / "python3").chmod(0o755)
    assert jobs_python({"PATH": str(tmp_path)}, otherwise="/mine") == str(tmp_path / "python3")


def test_only_the_last_line_counts():
    assert read_answer("torch", (CPU,), b'{"version": null}\n\n{"version": "1", "devices": {"cpu": ""}}\n\n') == (
        Answer((Framework("torch", "1", CPU, usable=True),))
    )


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


def test_a_pipe_that_somebody_outside_the_session_holds_open_is_not_waited_for(checks, tmp_path):
    source = f"""
import os, subprocess, sys
wait = "import os, time\\nwhile not os.path.exists({str(tmp_path / "go")!r}): time.sleep(0.01)"
child = subprocess.Popen([sys.executable, "-c", wait], start_new_session=True)
open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
{GOOD}
sys.stdout.flush()
os._exit(0)
"""
    told = found(checks(Check(source)))
    pid = int((tmp_path / "pid").read_text())
    assert is_alive(pid)
    (tmp_path / "go").touch()
    assert [one.version for one in told] == ["2.4.0", "2.4.0"]
    deadline_s = time.monotonic() + 30
    while is_alive(pid):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


GPU = Device("GPU-1", 0, CUDA, "NVIDIA H100", driver="550.54.15")
WITH_GPU = replace(FACTS, devices=(GPU,))


class Site:
    """A Python of jobs that has what is in a folder, and tells how often it was started."""

    def __init__(self, folder):
        self.folder = folder / "site"
        self.folder.mkdir()
        self.starts = folder / "starts"
        self.python = folder / "python"
        self.python.write_text(
            f"#!/bin/sh\necho >> {self.starts}\nPYTHONDONTWRITEBYTECODE=1 PYTHONPATH={self.folder} "
            f'exec {sys.executable} -S "$@"\n'
        )
        self.python.chmod(0o755)
        self.add("torch")

    def add(self, module):
        (self.folder / f"{module}.py").touch()

    def count(self):
        """Since it was asked last."""
        count = len(self.starts.read_text().splitlines()) if self.starts.exists() else 0
        self.starts.unlink(missing_ok=True)
        return count


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


@pytest.fixture
def life(host_of, tmp_path, site):
    """What a worker finds at its start, and how many programs it ran for that."""

    def life(*registered, facts=WITH_GPU):
        host = host_of(environments=[SystemEnvironment()], framework_checks=registered or [Found(COMPUTES)])
        checks = FrameworkChecks(host, tmp_path, environment={}, python=str(site.python))
        asyncio.run(checks.run(facts))
        return checks.found, site.count()

    return life


class Found(Check):
    """One that says which modules it needs."""

    modules = ("torch",)

    def script(self):
        return CheckScript(self.source, modules=self.modules)


ANSWER = {"version": "2.4.0", "build": "cuda 12.4", "architectures": ["sm_90"], "devices": {"cuda": "", "cpu": ""}}
COMPUTES = f"print({json.dumps(ANSWER)!r})"
BOTH = (
    Framework("torch", "2.4.0", CUDA, usable=True, build="cuda 12.4", architectures=("sm_90",)),
    Framework("torch", "2.4.0", CPU, usable=True, build="cuda 12.4"),
)


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


def watched(checks, *, until, facts=WITH_GPU):
    """Until that is so, or half a minute has gone."""

    async def main():
        watching = asyncio.create_task(checks.watch(lambda: facts, tell=lambda: None))
        async with asyncio.timeout(30):
            while not until():
                await asyncio.sleep(0.01)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)

    asyncio.run(main())


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


@pytest.mark.parametrize(
    ("end", "why"), [("os.kill(os.getpid(), 11)", "signal 11"), ("time.sleep(600)", "did not end within 3 s")]
)
def test_what_was_said_before_a_script_died_is_believed(checks, end, why):
    so_far = '{"version": "2.4.0", "build": "cuda 12.6", "devices": {"cpu": ""}, "so_far": true}'
    told = found(checks(Check(f"import os, time\nprint('{so_far}', flush=True)\n{end}"), deadline_s=3.0))
    assert [(one.accelerator, one.usable) for one in told] == [(CUDA, False), (CPU, True)]
    assert why in told[0].reason
    assert {(one.version, one.build) for one in told} == {("2.4.0", "cuda 12.6")}


def test_a_check_that_can_not_be_ended_is_left_alone_until_it_has_gone(checks, tmp_path, monkeypatch):
    """As of a process that hangs in a driver; here nobody kills it."""
    monkeypatch.setattr("gpulayer.worker.check_script._kill_session", lambda pid: None)
    monkeypatch.setattr("gpulayer.worker.check_script._DYING_S", 0.1)
    source = f"""
import os, time
open({str(tmp_path / "pids")!r}, "a").write(f"{{os.getpid()}}\\n")
while not os.path.exists({str(tmp_path / "go")!r}):
    time.sleep(0.01)
{GOOD}
"""
    hangs = checks(Check(source), deadline_s=3.0)

    async def main():
        await hangs.run(FACTS)
        assert "did not end within 3 s, and can't be ended: process" in hangs.found[0].reason
        await hangs.run(FACTS)
        (pid,) = (tmp_path / "pids").read_text().split()
        assert hangs.found[0].reason == f"its check hangs and can't be ended (process {pid})"
        assert not hangs.is_fresh
        (tmp_path / "go").touch()
        while is_alive(int(pid)) or Path(f"/proc/{pid}").exists():
            await asyncio.sleep(0.01)
        await hangs.run(FACTS)

    asyncio.run(main())
    assert hangs.found[0].reason == "no driver"
    assert hangs.is_fresh


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


@pytest.mark.parametrize(
    "more",
    [
        {"build": 7},
        {"architectures": "sm_90"},
        {"architectures": ["x"] * 65},
        {"again": ["tpu"]},
        {"again": 1},
        {"failed": ["1"]},
        {"failed": {"cpu": "1"}},
        {"failed": {"tpu": {"1": "why"}}},
    ],
)
def test_an_answer_that_says_more_says_it_as_agreed(more):
    with pytest.raises(ValueError, match=next(iter(more)) + "|registered"):
        read_answer("torch", (CPU,), json.dumps({"version": "1", "devices": {"cpu": ""}, **more}).encode())


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


SECOND = replace(GPU, uuid="GPU-2", index=1)


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
    assert second.found == first.found
    asyncio.run(second.run(TWO))
    assert seen() == ["GPU-1 GPU-2"] * 2


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


@pytest.fixture
def starts(host_of, tmp_path, site):
    """``starts(check, facts=…)``: the checks of a worker that has just begun, after whatever lives there were."""

    def make(check=None, *, facts=WITH_GPU):
        host = host_of(environments=[SystemEnvironment()], framework_checks=[check or Found(COMPUTES)])
        checks = FrameworkChecks(host, tmp_path, environment={}, python=str(site.python), again_s=(0.01,))
        asyncio.run(checks.begin(facts))
        return checks

    return make


FAILS = f"print({json.dumps(ANSWER | {'devices': {'cuda': 'no driver', 'cpu': ''}})!r})"


def absent(site):
    (site.folder / "torch.py").unlink()
    return Found(COMPUTES)


def failing(_site):
    return Found(FAILS)


@pytest.mark.parametrize(
    ("before", "change", "at_once"),
    [
        (absent, lambda site: site.add("torch"), (NOT_YET, replace(NOT_YET, accelerator=CPU))),
        (failing, lambda site: None, (NOT_YET, BOTH[1])),
        (lambda site: Found(COMPUTES), lambda site: None, BOTH),
        (lambda site: Found(COMPUTES), upgraded, (NOT_YET, replace(NOT_YET, accelerator=CPU))),
        (lambda site: Found(COMPUTES), absent, ()),
    ],
)
def test_what_a_start_says_of_an_earlier_life_refuses_nothing_that_may_compute_now(
    starts, site, before, change, at_once
):
    first = starts(before(site))
    asyncio.run(first.run(WITH_GPU))
    change(site)
    checks = starts()
    told = checks.found
    assert tuple(replace(one, architectures=(), build="") for one in told) == tuple(
        replace(one, architectures=(), build="") for one in at_once
    )
    seen = []
    asyncio.run(checks.run(WITH_GPU, tell=lambda: seen.append(checks.found)))
    assert seen[0] == told, "it is told of at once, not when the first check has ended"
    assert checks.found == (BOTH if at_once else ())


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
    request = Request(Accelerator.CUDA, frameworks=(FrameworkNeed("torch"),))
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


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "os.kill(os.getpid(), 15)", "os._exit(137)"])
def test_a_check_that_somebody_kills_is_run_again_and_says_nothing(starts, site, tmp_path, end):
    source = f"import os\nif not os.path.exists({str(tmp_path / 'room')!r}): {end}\n{COMPUTES}"
    checks = starts(Found(source))
    asyncio.run(checks.run(WITH_GPU))
    assert [(one.usable, one.is_pending) for one in checks.found] == [(False, True)] * 2
    assert "its check failed" in on_cuda(checks).reason
    assert not checks.is_fresh
    (tmp_path / "room").touch()
    watched(checks, until=lambda: checks.found == BOTH)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EAGAIN, errno.ENOMEM])
def test_where_the_worker_has_no_room_to_run_a_check_what_was_found_stands(starts, monkeypatch, number):
    checks = starts()
    asyncio.run(checks.run(WITH_GPU))

    def fail(*_):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr("gpulayer.worker.check_script._prepare", fail)
        checks.renew(WITH_GPU, TWO)
        asyncio.run(checks.run(TWO))
        assert checks.found == BOTH
        assert not checks.is_fresh
        first = starts(Found(COMPUTES, "jax"))
        asyncio.run(first.run(TWO))
        told = {one.name: (one.is_pending, one.reason) for one in first.found if one.name == "jax"}
        assert told["jax"][0]
        assert os.strerror(number) in told["jax"][1]
    watched(checks, until=lambda: checks.is_fresh, facts=TWO)
    assert checks.found == BOTH


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
