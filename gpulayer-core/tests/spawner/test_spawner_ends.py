"""How jobs end: codes, signals, failed starts, trees."""

import errno
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path

import pytest

from gpulayer.clock import SystemClock
from gpulayer.spawner import ALL_GROUPS, tree
from gpulayer.spawner import messages as m
from gpulayer.spawner.state import read_exit_record


@pytest.fixture(params=[ALL_GROUPS, ()], ids=["groups", "no-groups"])
def groups(request):
    return request.param


DOUBLE_FORK = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve("/bin/sleep", ["sleep", "600"], {})
    os._exit(0)
os.wait()
print("ready", flush=True)
"""

# Each process of the chain outlives its child's start by nothing: one is always between death and its parent's look.
CHAIN = """
import os, sys, time
for _ in range(int(sys.argv[1])):
    if os.fork():
        os._exit(3)
    os.setsid()
time.sleep(600)
"""


@pytest.mark.parametrize("code", [0, 1, 2, 126, 127, 128, 200, 255])
def test_an_exit_code_passes_through(spawner, agent, code):
    record = agent.run("1.0", "sh", "-c", f"exit {code}")
    assert (record.exit_code, record.signal, record.reason) == (code, None, "exited")
    assert record.tree_clean
    assert record.log_complete
    assert json.loads(spawner.exit_path("1.0").read_text())["exit_code"] == code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGPIPE, signal.SIGINT])
def test_death_by_signal_passes_through(spawner, agent, number):
    record = agent.run("1.0", "sh", "-c", f"kill -{int(number)} $$")
    assert record.exit_code is None
    assert (record.signal, record.reason) == (number, "signaled")
    assert read_exit_record(str(spawner.exit_path("1.0"))) == record


def _file(folder: Path, name: str, content: bytes, mode: int = 0o755) -> str:
    (folder / name).write_bytes(content)
    (folder / name).chmod(mode)
    return f"./{name}"


@pytest.mark.parametrize(
    ("name", "content", "mode", "code", "number", "words"),
    [
        ("absent", None, 0, 127, errno.ENOENT, "not found"),
        ("plain.sh", b"#!/bin/sh\nexit 0\n", 0o644, 126, errno.EACCES, "chmod +x"),
        ("lost.sh", b"#!/no/such/interpreter -x\nexit 0\n", 0o755, 127, errno.ENOENT, "/no/such/interpreter"),
        ("other", b"\x7fELF\2\1\1" + bytes(200), 0o755, 126, errno.ENOEXEC, "another machine"),
        ("binary", b"ab\0cd\n", 0o755, 126, errno.ENOEXEC, "another machine"),
    ],
)
def test_what_can_not_be_executed_has_the_shells_code(spawner, agent, name, content, mode, code, number, words):
    if content is not None:
        _file(spawner.work, name, content, mode)
    reply = agent.spawn("1.0", f"./{name}")
    assert isinstance(reply, m.SpawnFailed)
    assert (reply.exit_code, reply.errno) == (code, number)
    assert words in reply.message
    record = read_exit_record(str(spawner.exit_path("1.0")))
    assert (record.exit_code, record.reason, record.message) == (code, "spawn_failed", reply.message)
    again = agent.spawn("1.0", "true")
    assert (again.exit_code, again.message) == (code, reply.message)
    assert agent.rows()["1.0"].exit == record


def test_a_name_that_is_not_on_the_path_of_the_job_is_127(agent):
    reply = agent.spawn("1.0", "true", env={"PATH": "/nonexistent"})
    assert (reply.exit_code, reply.message) == (127, "true: not found on the PATH")


def test_a_folder_as_command_is_126(spawner, agent):
    (spawner.work / "folder").mkdir()
    assert agent.spawn("1.0", "./folder").exit_code == 126


def test_a_nul_in_an_argument_is_refused(agent):
    reply = agent.spawn("1.0", "echo", "a\0b")
    assert (reply.exit_code, reply.errno) == (126, errno.EINVAL)


def test_a_missing_work_folder_is_not_the_programs_fault(spawner, agent):
    reply = agent.spawn("1.0", "true", cwd=spawner.folder / "nowhere")
    assert isinstance(reply, m.SpawnFailed)
    assert reply.exit_code is None
    assert "nowhere" in reply.message


def test_a_script_without_a_first_line_is_run_by_sh(spawner, agent):
    command = _file(spawner.work, "bare", b"echo $0 $1; exit 5\n")
    assert agent.run("1.0", command, "one").exit_code == 5
    assert spawner.log("1.0").read_bytes() == b"./bare one\n"


def test_a_job_has_its_environment_and_nothing_else(spawner, agent):
    agent.run("1.0", "/usr/bin/env", env={"A": "1", "B": "\udcff"})
    assert spawner.log("1.0").read_bytes() == b"A=1\nB=\xff\n"


def test_a_job_starts_clean(spawner, agent):
    program = """
import os, resource, signal, sys
print(sorted(map(int, os.listdir("/proc/self/fd"))))
print(os.getsid(0) == os.getpid(), os.getcwd(), signal.getsignal(signal.SIGPIPE) == signal.SIG_IGN)
print(signal.pthread_sigmask(signal.SIG_BLOCK, ()), os.read(0, 1), os.getpriority(os.PRIO_PROCESS, 0))
print(open("/proc/self/status").read().split("SigIgn:")[1].split()[0])
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""
    agent.run("1.0", sys.executable, "-I", "-S", "-c", program, nice=3)
    lines = spawner.log("1.0").read_text().splitlines()
    assert lines[0] == "[0, 1, 2, 3]"  # 3 is the listing itself
    assert lines[1] == f"True {spawner.work} True"  # Python itself ignores SIGPIPE
    assert lines[2] == "set() b'' 3"
    # Above 31 are the C library's own, which its posix_spawn leaves ignored.
    assert int(lines[3], 16) & 0x7FFFFFFF == 1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1)
    assert lines[4] == str(resource.getrlimit(resource.RLIMIT_NOFILE))


def test_a_repeated_spawn_runs_once_and_tells_what_is_known(spawner, agent):
    first = agent.spawn("1.0", "sh", "-c", "echo ran; exec sleep 600")
    again = agent.spawn("1.0", "sh", "-c", "echo ran; exit 9")
    assert (again.pid, again.existing, again.exit) == (first.pid, True, None)
    assert agent.ask(lambda number: m.Kill(number, "1.0")) is not None
    record = agent.exited("1.0")
    late = agent.spawn("1.0", "echo", "ran")
    assert (late.existing, late.exit) == (True, record)
    assert spawner.log("1.0").read_bytes().count(b"ran") == 1


def test_a_forgotten_key_is_gone_and_a_running_one_stays(spawner, agent):
    agent.run("1.0", "true")
    agent.spawn("2.0", "sleep", "600")
    assert isinstance(agent.ask(lambda number: m.Forget(number, "1.0")), m.Done)
    assert isinstance(agent.ask(lambda number: m.Forget(number, "1.0")), m.Done)
    refused = agent.ask(lambda number: m.Forget(number, "2.0"))
    assert (refused.code, set(agent.rows())) == ("busy", {"2.0"})
    assert spawner.exit_path("1.0").exists()


def test_a_nohup_child_does_not_keep_a_job_alive_and_is_ended_with_it(spawner, agent):
    record = agent.run("1.0", "sh", "-c", "nohup sleep 600 & echo started; exit 0")
    assert (record.exit_code, record.tree_clean, record.log_complete) == (0, True, True)
    assert not spawner.running()


def test_a_daemon_of_a_double_fork_and_a_bare_environment_is_ended_with_its_job(spawner, agent):
    agent.spawn("2.0", "sleep", "600")
    record = agent.run("1.0", sys.executable, "-I", "-S", "-c", DOUBLE_FORK)
    assert (record.exit_code, record.tree_clean) == (0, True)
    assert spawner.log("1.0").read_bytes() == b"ready\n"
    (left,) = spawner.running()
    assert left == agent.rows()["2.0"].pid, "another job is not touched"


def test_a_daemon_is_ended_while_its_job_runs_only_by_kill(spawner, agent, until):
    agent.spawn("1.0", sys.executable, "-I", "-S", "-c", DOUBLE_FORK + "time.sleep(600)")
    until(lambda: spawner.log("1.0").read_bytes() == b"ready\n", "the daemon started")
    assert len(spawner.running()) == 2
    assert isinstance(agent.ask(lambda number: m.Kill(number, "1.0")), m.Done)
    record = agent.exited("1.0")
    assert (record.signal, record.tree_clean) == (signal.SIGKILL, True)
    assert not spawner.running()


def test_a_signal_reaches_each_process_of_the_tree_once(spawner, agent, until):
    program = "trap 'echo got; exit 3' TERM; echo up; while :; do sleep 0.01; done"
    agent.spawn("1.0", "bash", "-c", f'setsid bash -c "{program}" & {program}')
    until(lambda: spawner.log("1.0").read_bytes().count(b"up") == 2, "both shells are up")
    reply = agent.ask(lambda number: m.Signal(number, "1.0", signal.SIGTERM))
    assert reply.count >= 2
    record = agent.exited("1.0")
    assert record.exit_code == 3
    assert spawner.log("1.0").read_bytes().count(b"got") >= 1
    assert agent.ask(lambda number: m.Signal(number, "1.0", signal.SIGTERM)).count == 0


def test_many_daemons_and_a_fork_in_progress_leave_nothing(spawner, agent):
    program = "for i in $(seq 25); do (setsid sh -c 'sleep 600 & sleep 601' &); done; exit 7"
    record = agent.run("1.0", "bash", "-c", program)
    assert (record.exit_code, record.tree_clean) == (7, True)
    assert not spawner.running()


def test_a_chain_that_forks_and_changes_session_all_the_time_is_ended(spawner, agent):
    program = (
        "import os, time\nend = time.time() + 30\nwhile time.time() < end:\n if os.fork(): os._exit(0)\n os.setsid()"
    )
    record = agent.run("1.0", sys.executable, "-I", "-S", "-c", program)
    assert (record.exit_code, record.tree_clean) == (0, True)
    assert not spawner.running()


def test_a_stopped_job_can_be_killed(agent, until):
    pid = agent.spawn("1.0", "sleep", "600").pid
    os.kill(pid, signal.SIGSTOP)
    until(lambda: tree.process(pid).state == "T", "it is stopped")
    agent.ask(lambda number: m.Kill(number, "1.0"))
    assert agent.exited("1.0").signal == signal.SIGKILL


def test_dead_orphans_of_a_running_job_are_reaped(spawner, agent, until):
    agent.spawn("1.0", "sh", "-c", "for i in 1 2 3 4 5; do (sleep 0 & ); done; echo done; sleep 600")
    until(lambda: spawner.log("1.0").read_bytes() == b"done\n", "the orphans have run")

    def zombies() -> list[int]:
        return [one.pid for one in tree.processes().values() if one.ppid == spawner.spawner_pid and one.is_dead]

    until(lambda: not zombies(), "no zombie is left")


def test_the_record_tells_what_the_job_used(agent):
    program = "import time\nt = time.process_time()\nwhile time.process_time() - t < 0.05: pass"
    record = agent.run("1.0", sys.executable, "-I", "-S", "-c", program)
    assert 0.05 <= record.cpu_s < 10
    assert record.max_rss_bytes > 1 << 20
    assert abs(record.ended_at_wall_ms - time.time() * 1000) < 60_000


def continuous_ms() -> int:
    return SystemClock().monotonic_ms()


def test_a_job_whose_time_is_not_extended_is_ended_though_no_agent_is_there(spawner, agent, until):
    agent.spawn("1.0", "sleep", "600", kill_by_ms=continuous_ms() + 100)
    agent.close()
    later = spawner.client()
    until(lambda: later.rows()["1.0"].state == "ended", "the spawner ended it")
    record = later.rows()["1.0"].exit
    assert (record.reason, record.signal) == ("expired", signal.SIGKILL)
    assert record.tree_clean


def test_what_comes_when_its_time_has_passed_is_not_started_and_may_not_be_started_later(spawner, agent):
    for _ in range(2):
        reply = agent.spawn("1.0", "sh", "-c", "echo ran", kill_by_ms=continuous_ms() - 1)
        assert isinstance(reply, m.SpawnFailed)
        assert (reply.errno, reply.exit_code) == (errno.ETIME, None)
    assert spawner.log("1.0").read_bytes() == b""
    assert agent.rows()["1.0"].exit.reason == "spawn_failed"


def test_a_job_whose_time_is_extended_lives_on(agent, until):
    first_ms = continuous_ms() + 200
    agent.spawn("1.0", "sleep", "600", kill_by_ms=first_ms)
    assert isinstance(agent.ask(lambda number: m.Extend(number, "1.0", first_ms + 600_000)), m.Done)
    until(lambda: continuous_ms() > first_ms + 100, "the first time has passed")
    assert agent.rows()["1.0"].state == "running"


def test_extending_an_unknown_job_is_an_error(agent):
    reply = agent.ask(lambda number: m.Extend(number, "9.9", 0))
    assert isinstance(reply, m.Failed)
    assert reply.code == "not_found"


def test_a_chain_of_forks_whose_parents_end_at_once_is_ended_with_its_job(spawner, agent):
    """A dead child that is reaped may have left a child that was not in the list of children yet."""
    other = agent.spawn("other", "sleep", "600")
    for number in range(40):
        record = agent.run(f"{number}.0", sys.executable, "-I", "-S", "-c", CHAIN, str(1 + number % 8))
        assert record.exit_code == 3
        assert record.tree_clean
        assert spawner.running() == {other.pid}
