"""SIGTERM, the time to end, SIGKILL: what a tree that is told to end may still do."""

import os
import signal
import struct
import sys

import pytest

from gpulayer.spawner import messages as m
from gpulayer.spawner import tree

# The shell dies of SIGTERM at once; the program that it waits for saves its work first.
SAVING = "sh -c 'trap \"sleep 0.3; echo saved; exit 0\" TERM; echo up; while :; do sleep 0.01; done'; echo unreached"
DEAF = "sh -c 'trap \"\" TERM; echo up; while :; do sleep 0.01; done'; echo unreached"


@pytest.fixture
def told_to_end(spawner, agent, until):
    """Start it, and once it says "up" send SIGTERM."""

    def start(program):
        agent.spawn("1.0", "bash", "-c", program)
        until(lambda: b"up\n" in spawner.log("1.0").read_bytes(), "it is up")
        agent.ask(lambda number: m.Signal(number, "1.0", signal.SIGTERM))

    return start


def test_what_a_dead_shell_waited_for_may_still_save_its_work(spawner, agent, told_to_end):
    told_to_end(SAVING)
    record = agent.exited("1.0")
    assert (record.signal, record.tree_clean) == (signal.SIGTERM, True)
    assert spawner.log("1.0").read_bytes() == b"up\nsaved\n"
    assert not spawner.running()


def test_what_does_not_end_after_its_shell_is_ended_by_sigkill(spawner, agent, told_to_end, until):
    told_to_end(DEAF)
    pid = agent.rows()["1.0"].pid
    until(lambda: tree.process(pid).is_dead, "the shell has ended")
    assert agent.rows()["1.0"].state == "running"
    assert agent.ask(lambda number: m.Signal(number, "1.0", signal.SIGTERM)).count >= 1
    agent.ask(lambda number: m.Kill(number, "1.0"))
    record = agent.exited("1.0")
    assert (record.signal, record.tree_clean) == (signal.SIGTERM, True)
    assert not spawner.running()


def test_a_daemon_in_a_session_of_its_own_has_the_same_time(spawner, agent, told_to_end):
    daemon = 'trap "sleep 0.2; echo saved; exit 0" TERM; echo up; while :; do sleep 0.01; done'
    told_to_end(f"setsid sh -c '{daemon}' & sleep 600")
    assert agent.exited("1.0").signal == signal.SIGTERM
    assert spawner.log("1.0").read_bytes() == b"up\nsaved\n"


def test_a_program_that_stopped_itself_hears_sigterm(spawner, agent, until):
    agent.spawn("1.0", "bash", "-c", "trap 'echo heard; exit 3' TERM; kill -STOP $$; sleep 600")
    pid = agent.rows()["1.0"].pid
    until(lambda: tree.process(pid).state == "T", "it is stopped")
    agent.ask(lambda number: m.Signal(number, "1.0", signal.SIGTERM))
    assert agent.exited("1.0").exit_code == 3
    assert spawner.log("1.0").read_bytes() == b"heard\n"


def test_a_program_of_another_architecture_is_told_by_its_name(spawner, agent):
    other, number = ("x86_64", 62) if os.uname().machine == "aarch64" else ("aarch64", 183)
    header = struct.pack(
        "<4s5B7xHHIQQQIHHHHHH", b"\x7fELF", 2, 1, 1, 0, 0, 2, number, 1, 0, 64, 0, 0, 64, 56, 0, 64, 0, 0
    )
    path = spawner.work / "other"
    path.write_bytes(header + bytes(200))
    path.chmod(0o755)
    reply = agent.spawn("1.0", "./other")
    assert reply.exit_code == 126
    assert f"it is built for {other}, this is {os.uname().machine}" in reply.message


def test_windows_line_ends_in_the_first_line_are_told(spawner, agent):
    path = spawner.work / "dos.sh"
    path.write_bytes(f"#!{sys.executable}\r\nprint()\r\n".encode())
    path.chmod(0o755)
    reply = agent.spawn("1.0", "./dos.sh")
    assert (reply.exit_code, "Windows line ends" in reply.message) == (127, True)
