"""Framework checks: real scripts in real children, whatever they do."""

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from gpulayer.plugins.builtin.system import SystemEnvironment
from gpulayer.plugins.contracts.framework import CheckScript
from gpulayer.spec.machine import Framework, WorkerFacts
from gpulayer.spec.request import Accelerator
from gpulayer.worker.frameworks import Answer, FrameworkChecks, jobs_python, read_answer

CPU, CUDA = Accelerator.CPU, Accelerator.CUDA
FACTS = WorkerFacts(platform="linux-x86_64", version="0", cpus=8, memory_bytes=1)
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
    assert not ran.is_known
    both = (
        Framework("torch", "2.4.0", CUDA, usable=False, reason="no driver"),
        Framework("torch", "2.4.0", CPU, usable=True),
    )
    assert found(ran) == both
    again = checks(Check("import time; time.sleep(60)"))
    assert again.is_known
    assert not again.is_fresh
    assert again.found == both


def test_without_checks_nothing_is_waited_for(checks):
    none = checks()
    assert none.is_known
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
    assert not checks(Check(GOOD)).is_known


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
