"""Framework checks: real scripts in real children, whatever they do."""

import asyncio
import json
import os
import signal
import time
from pathlib import Path

import pytest

from gpulayer.spec.machine import Framework
from gpulayer.worker.check_answers import Answer, read_answer
from tests.framework_checks import CPU, CUDA, FACTS, GOOD, NOT_YET, Check, checks_of, found, is_alive


@pytest.fixture
def checks(host_of, tmp_path):
    return checks_of(host_of, tmp_path)


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


def test_only_the_last_line_counts():
    assert read_answer("torch", (CPU,), b'{"version": null}\n\n{"version": "1", "devices": {"cpu": ""}}\n\n') == (
        Answer((Framework("torch", "1", CPU, usable=True),))
    )


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
