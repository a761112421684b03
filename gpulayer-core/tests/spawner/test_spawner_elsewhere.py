"""What is left where the system offers less (macOS, old kernels, minimal containers), played on this machine."""

import os
import signal
import sys

import pytest

from gpulayer.spawner import messages as m
from gpulayer.spawner.state import read_exit_record

TREE = "import gpulayer.spawner.tree as t; "
WITHOUT = {
    "pidfd": "import os, signal; del os.pidfd_open, signal.pidfd_send_signal",
    "splice": "import os; del os.splice",
    "children": TREE + "t.children = lambda: [p.pid for p in t.processes().values() if p.ppid == t.os.getpid()]",
    "marker": "import gpulayer.spawner.launch as l; l.set_marker = lambda marker: None",
    "proc, sub-reaper, waitid, splice": TREE + "t._HAS_PROC = False; import os; del os.waitid, os.splice",
}


@pytest.fixture
def groups():
    return ()


@pytest.fixture(params=WITHOUT.values(), ids=WITHOUT.keys())
def poor_agent(stopped_spawner, request):
    assert stopped_spawner.start(request.param) == 0
    return stopped_spawner.client()


def test_codes_signals_bytes_and_background_children_are_right(stopped_spawner, poor_agent, until):
    assert poor_agent.run("1.0", "sh", "-c", "sleep 600 & exit 7").exit_code == 7
    until(lambda: not stopped_spawner.running(), "nothing is left")
    program = "import os, sys; sys.stdout.write('x' * 300000); sys.stdout.flush(); os.kill(os.getpid(), 9)"
    record = poor_agent.run("2.0", sys.executable, "-I", "-S", "-c", program)
    assert (record.signal, record.log_bytes, record.tree_clean) == (9, 300_000, True)
    assert stopped_spawner.log("2.0").read_bytes() == b"x" * 300_000
    poor_agent.spawn("3.0", "sleep", "600")
    assert poor_agent.ask(lambda number: m.Signal(number, "3.0", signal.SIGTERM)).count == 1
    assert poor_agent.exited("3.0").signal == signal.SIGTERM
    poor_agent.spawn("4.0", "sh", "-c", "sleep 600 & exec sleep 601")
    poor_agent.ask(lambda number: m.Kill(number, "4.0"))
    assert poor_agent.exited("4.0").signal == signal.SIGKILL
    until(lambda: not stopped_spawner.running(), "nothing is left")


def test_a_killed_spawner_is_followed_by_the_end_of_its_jobs(stopped_spawner, poor_agent, until):
    poor_agent.spawn("1.0", "sh", "-c", "sleep 600 & exec sleep 601")
    os.kill(stopped_spawner.spawner_pid, signal.SIGKILL)
    until(stopped_spawner.exit_path("1.0").exists, "the record is written")
    until(lambda: not stopped_spawner.running(), "nothing is left")
    record = read_exit_record(str(stopped_spawner.exit_path("1.0")))
    assert record is not None
    assert record.reason in ("spawner_lost", "signaled")
