"""Who may die when: agents, spawner, watchdog; and who may speak."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gpulayer.spawner import ALL_GROUPS, ALREADY_RUNNING
from gpulayer.spawner import messages as m
from gpulayer.spawner.state import read_exit_record
from tests.together import kill_together

DAEMONS = "for i in 1 2 3 4 5; do (setsid sh -c 'sleep 600 & sleep 601' &); done; echo up; exec sleep 602"

AGENT = """
import json, os, signal, sys
from gpulayer.spawner.state import StateDir
folder, order = sys.argv[1:]
stream = StateDir(folder).connect()
stream.sendall(b'{"type": "hello", "protocol": 1}\\n' + order.encode())
lines = stream.makefile("rb")
while b'"output"' not in lines.readline():
    pass
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(params=[ALL_GROUPS, ()], ids=["groups", "no-groups"])
def groups(request):
    return request.param


def test_an_agent_killed_mid_job_loses_neither_bytes_nor_code(spawner, until):
    go = spawner.folder / "go"
    program = f"echo first; while [ ! -e {go} ]; do sleep 0.01; done; echo second; exit 42"
    order = m.encode(spawner.order(1, "1.0", ("sh", "-c", program))).decode()
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    killed = subprocess.run([sys.executable, "-c", AGENT, spawner.state.path, order], env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    agent = spawner.client()
    row = agent.rows()["1.0"]
    assert (row.state, row.exit) == ("running", None)
    go.touch()
    record = agent.exited("1.0")
    assert (record.exit_code, record.log_complete) == (42, True)
    assert spawner.log("1.0").read_bytes() == b"first\nsecond\n"


def test_a_job_that_ends_while_no_agent_is_there_is_in_the_table(spawner, until):
    first = spawner.client()
    first.spawn("1.0", "sh", "-c", "exit 17")
    first.close()
    until(spawner.exit_path("1.0").exists, "the exit record is written")
    assert spawner.client().rows()["1.0"].exit.exit_code == 17


def test_a_new_agent_supersedes_the_one_before(spawner):
    first = spawner.client()
    second = spawner.client()
    assert isinstance(first.receive(), m.Superseded)
    with pytest.raises(EOFError):
        first.receive()
    assert second.run("1.0", "true").exit_code == 0


def test_an_observer_may_list_and_nothing_else(spawner, agent):
    observer = spawner.client(role="observer")
    assert observer.rows() == {}
    assert observer.spawn("1.0", "true").code == "forbidden"
    assert agent.run("1.0", "true").exit_code == 0, "the agent is still the agent"


def test_another_protocol_version_is_refused_with_both_named(spawner):
    greeting = spawner.client(protocol=m.PROTOCOL_VERSION + 6).greeting
    assert greeting.code == "protocol"
    assert "protocol 7" in greeting.message
    assert "protocol 1" in greeting.message


@pytest.mark.parametrize(
    "line", [b"no json\n", b"[]\n", b'{"type": "nonsense"}\n', b'{"type": "spawn", "id": 1}\n', b"\xff\n"]
)
def test_garbage_is_answered_and_ends_nothing(spawner, agent, line):
    agent.socket.sendall(line)
    assert agent.receive().code == "bad_request"
    assert agent.run("1.0", "true").exit_code == 0


@pytest.mark.parametrize("key", ["", "../x", ".x", "a/b", "x" * 121, "a\0b"])
def test_a_key_that_is_no_safe_file_name_is_refused(agent, key):
    assert agent.spawn(key, "true").code == "bad_request"


def test_a_path_that_is_not_absolute_and_a_marker_in_use_are_refused(spawner, agent):
    order = spawner.order(1, "1.0", ("sleep", "600"))
    assert isinstance(agent.ask(lambda number: replace(order, id=number)), m.Spawned)
    refused = agent.ask(lambda number: replace(order, id=number, key="2.0"))
    assert (refused.code, refused.message) == ("bad_request", f"marker {order.marker} is another job's")
    for name in ("cwd", "log_path", "exit_path"):
        changes = {"key": "2.0", "marker": None, name: "here"}
        refused = agent.ask(lambda number, changes=changes: replace(order, id=number, **changes))
        assert (refused.code, refused.message) == ("bad_request", "'here' is not absolute")


def test_a_first_message_that_is_no_hello_is_refused(plain_socket):
    plain_socket.sendall(m.encode(m.ListJobs(1)))
    with plain_socket.makefile("rb") as lines:
        assert m.decode(lines.readline()).code == "protocol"
        assert lines.readline() == b""


def test_an_unknown_key_is_not_found(agent):
    assert agent.ask(lambda number: m.Kill(number, "9.9")).code == "not_found"
    assert agent.ask(lambda number: m.Signal(number, "9.9", 15)).code == "not_found"


def test_a_second_start_on_the_folder_goes_away_quietly(spawner, agent):
    before = spawner.state.read_pids()
    assert spawner.start() == ALREADY_RUNNING
    assert spawner.state.read_pids() == before
    assert Path(spawner.state.log_path).read_text() == ""
    assert agent.run("1.0", "true").exit_code == 0


def test_a_folder_deeper_than_a_socket_name_may_be_works(tmp_path, stopped_spawner):
    deep = tmp_path.joinpath(*["a-rather-long-folder-name"] * 8)
    stopped_spawner.state = type(stopped_spawner.state)(str(deep))
    assert stopped_spawner.start() == 0
    assert stopped_spawner.client().run("1.0", "true").exit_code == 0
    assert (deep.stat().st_mode & 0o777, (deep / "spawner.sock").stat().st_mode & 0o777) == (0o700, 0o600)


def test_shutdown_waits_for_the_jobs_or_kills_them(spawner, agent, until):
    agent.spawn("1.0", "sleep", "600")
    refused = agent.ask(m.Shutdown)
    assert (refused.code, refused.message) == ("busy", "1 job still running")
    assert isinstance(agent.ask(lambda number: m.Shutdown(number, force=True)), m.Done)
    assert read_exit_record(str(spawner.exit_path("1.0"))).signal == signal.SIGKILL
    assert agent.exited("1.0").signal == signal.SIGKILL


def test_a_terminated_spawner_ends_its_jobs_and_writes_how(spawner, agent, until):
    agent.spawn("1.0", "sh", "-c", DAEMONS)
    until(lambda: spawner.log("1.0").read_bytes() == b"up\n", "the daemons run")
    os.kill(spawner.watchdog_pid, signal.SIGTERM)
    until(spawner.exit_path("1.0").exists, "the exit record is written")
    assert read_exit_record(str(spawner.exit_path("1.0"))).signal == signal.SIGKILL


def test_a_killed_spawner_takes_its_jobs_along_and_the_next_one_tells(spawner, agent, until):
    agent.run("0.0", "sh", "-c", "exit 8")
    agent.spawn("1.0", "sh", "-c", DAEMONS)
    agent.spawn("2.0", "sleep", "600")
    until(lambda: spawner.log("1.0").read_bytes() == b"up\n", "the daemons run")
    until(lambda: len(spawner.running()) >= 12, "all of them")
    os.kill(spawner.spawner_pid, signal.SIGKILL)
    until(lambda: not spawner.running(), "the watchdog has ended the trees")
    until(lambda: spawner.start() == 0, "the watchdog has gone and another spawner starts")
    rows = spawner.client().rows()
    assert rows["0.0"].exit.exit_code == 8
    assert spawner.log("1.0").read_bytes().startswith(b"up\n"), "what its shell said while it was killed may follow"
    for key in ("1.0", "2.0"):
        record = rows[key].exit
        assert (record.reason, record.exit_code, record.signal) == ("spawner_lost", None, None)
        assert record.tree_clean
        assert read_exit_record(str(spawner.exit_path(key))) == record


@pytest.mark.parametrize("program", ["while :; do echo x; done", "while echo x; do :; done; exit 1"])
def test_a_spawner_killed_while_a_job_writes_is_not_taken_for_a_broken_pipe_of_the_job(spawner, agent, until, program):
    agent.spawn("1.0", "bash", "-c", program)
    until(lambda: spawner.log("1.0").stat().st_size > 100_000, "output flows")
    os.kill(spawner.spawner_pid, signal.SIGKILL)
    until(spawner.exit_path("1.0").exists, "the record")
    record = read_exit_record(str(spawner.exit_path("1.0")))
    assert (record.reason, record.exit_code, record.signal) == ("spawner_lost", None, None)
    assert record.log_bytes == spawner.log("1.0").stat().st_size


def test_an_exit_code_that_only_the_watchdog_saw_is_kept(spawner, agent, until):
    go = spawner.folder / "go"
    pid = agent.spawn("1.0", "sh", "-c", f"while [ ! -e {go} ]; do sleep 0.01; done; exit 55").pid
    agent.spawn("2.0", "sleep", "600")
    os.kill(spawner.spawner_pid, signal.SIGSTOP)  # so that it can't reap
    go.touch()
    until(lambda: Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z", "the job has ended")
    os.kill(spawner.spawner_pid, signal.SIGKILL)
    until(spawner.exit_path("1.0").exists, "the watchdog has written the record")
    record = read_exit_record(str(spawner.exit_path("1.0")))
    assert (record.exit_code, record.reason) == (55, "exited")
    until(spawner.exit_path("2.0").exists, "the other record")
    assert read_exit_record(str(spawner.exit_path("2.0"))).reason == "spawner_lost"


def test_what_a_killed_spawner_and_watchdog_left_is_ended_before_new_work(spawner, agent, until):
    agent.spawn("1.0", "sh", "-c", DAEMONS)
    until(lambda: spawner.log("1.0").read_bytes() == b"up\n", "the daemons run")
    kill_together(spawner.state.read_pids().values())
    until(lambda: spawner.start() == 0, "another spawner starts")
    assert not spawner.running()
    second = spawner.client()
    assert second.rows()["1.0"].exit.reason == "spawner_lost"
    assert second.spawn("1.0", "true").exit.reason == "spawner_lost", "a lost key is not run again"
    assert second.run("3.0", "true").exit_code == 0


def test_a_lost_watchdog_ends_no_job_and_the_spawner_goes_with_the_last(spawner, agent, until):
    agent.spawn("1.0", "sh", "-c", "sleep 0.05; exit 12")
    os.kill(spawner.watchdog_pid, signal.SIGKILL)
    record = agent.exited("1.0")
    assert record.exit_code == 12
    until(lambda: not spawner.is_listening(), "the spawner has gone")
    assert spawner.start() == 0
    assert spawner.client().rows()["1.0"].exit == record


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="no smaps_rollup")
def test_spawner_and_watchdog_are_small(spawner, agent):
    for number in range(50):
        agent.run(f"{number}.0", "true")
    sizes = {}
    for name, pid in spawner.state.read_pids().items():
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        sizes[name] = int(text.split("\nPss:")[1].split()[0])
    print(json.dumps(sizes))
    assert all(size <= 14 * 1024 for size in sizes.values()), sizes
