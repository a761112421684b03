"""Who is on a device: what strangers compute on is busy and named, what others draw on has less memory for jobs."""

import os
import re
import resource
import signal
import subprocess
import sys

import pytest

from gpulayer.plugins.contracts.probe import Findings, ProcessKind, ProcessOnDevice
from gpulayer.spawner import tree
from gpulayer.spawner.locks import DeviceLocks
from gpulayer.spawner.state import StateDir
from gpulayer.spec.machine import Device, DeviceState
from gpulayer.spec.request import Accelerator
from gpulayer.worker.findings import checked_findings
from gpulayer.worker.kept import KeptFindings
from gpulayer.worker.occupancy import Lent, Occupancy, judged
from tests.together import end_one

GPU = Device("GPU-1", 0, Accelerator.CUDA, "NVIDIA L40S", 48 * 2**30)
MIB = 2**20


@pytest.fixture
def occupancy(tmp_path):
    def make(*, is_whole_host=True):
        return Occupancy(tmp_path / "spawner", [str(tmp_path / "locks")], is_whole_host=is_whole_host)

    return make


def processes(*pids, kind=ProcessKind.COMPUTE):
    return [ProcessOnDevice("GPU-1", pid, kind, MIB) for pid in pids]


def test_strangers_make_a_device_busy_and_are_named_while_graphics_only_take_memory():
    drawing = [ProcessOnDevice("GPU-1", 7, ProcessKind.GRAPHICS, 300 * MIB)]
    found = judged(GPU, drawing)
    assert (found.state, found.reason) == (DeviceState.USABLE, "")
    assert found.memory_taken_bytes == 512 * MIB, "in steps: a desktop always moves"
    assert found.memory_for_jobs_bytes == 48 * 2**30 - 512 * MIB
    one = judged(GPU, [], strangers=["python (pid 4711, user ann)"])
    assert (one.state, one.reason) == (DeviceState.BUSY, "python (pid 4711, user ann) computes on it")
    two = judged(GPU, [], strangers=["a (pid 1, user x)", "b (pid 2, user x)"])
    assert two.reason == "a (pid 1, user x) and 1 more compute on it"


def test_what_a_probe_calls_broken_stays_broken_whoever_is_on_it():
    broken = Device("GPU-1", 0, Accelerator.CUDA, "x", state=DeviceState.UNHEALTHY, reason="Xid 79")
    assert judged(broken, [], strangers=["python (pid 1, user x)"]) == broken


def test_a_process_of_another_program_is_a_stranger_until_it_has_gone(occupancy, stranger):
    looks = occupancy()
    (busy,) = looks.judge([GPU], processes(stranger), lent={})
    assert busy.state is DeviceState.BUSY
    assert re.fullmatch(rf"sleep \(pid {stranger}, user \S+\) computes on it", busy.reason)
    assert looks.is_anybody_there
    assert not looks.has_changed()
    assert looks.judge([GPU], processes(stranger, kind=ProcessKind.GRAPHICS), lent={})[0].state is DeviceState.USABLE
    looks.judge([GPU], processes(stranger), lent={})
    end_one(stranger)
    assert looks.has_changed()
    # The driver may take a moment to see that it died.
    assert looks.judge([GPU], processes(stranger), lent={}) == (GPU,)
    assert not looks.is_anybody_there


def test_what_the_agent_itself_has_started_is_its_own(occupancy):
    program = "import subprocess as s; child = s.Popen(['sleep', '600']); print(child.pid, flush=True); child.wait()"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True) as check:
        grandchild = int(check.stdout.readline())
        try:
            assert occupancy().judge([GPU], processes(check.pid, grandchild), lent={}) == (GPU,)
        finally:
            os.killpg(check.pid, signal.SIGKILL)


def test_in_a_container_what_can_not_be_seen_is_ours_while_a_job_of_ours_runs_there(occupancy):
    hidden = 2**22 + 7  # beyond what a kernel gives out
    looks = occupancy(is_whole_host=False)
    running, starting = Lent("7.0", is_running=True), Lent("7.0", is_running=False)
    assert looks.judge([GPU], processes(hidden), lent={"GPU-1": running}) == (GPU,)
    for lent in ({}, {"GPU-1": starting}, {"GPU-2": running}):
        (busy,) = looks.judge([GPU], processes(hidden), lent=lent)
        assert busy.reason == f"a process that can't be seen from here (pid {hidden}) computes on it"
    assert not looks.is_anybody_there, "whose end could be seen without asking the driver"


def test_a_device_that_another_worker_of_the_host_has_is_busy_until_it_gives_it_back(occupancy, tmp_path):
    locks = DeviceLocks([str(tmp_path / "locks")])
    locks.take(["GPU-1"], key="9.0", marker=None)
    looks = occupancy()
    (busy,) = looks.judge([GPU], [], lent={})
    assert busy.reason == f"another worker on this host has it, process {os.getpid()}"
    assert not looks.has_changed()
    locks.give_back(["GPU-1"])
    assert looks.has_changed()
    assert looks.judge([GPU], [], lent={}) == (GPU,)
    locks.close()


def test_what_is_left_of_a_worker_that_died_keeps_its_device_and_is_named(occupancy, tmp_path, stranger):
    """Its spawner and watchdog are dead, so nobody holds the lock; who comes next ends it, if it can be ended."""
    resource.prlimit(stranger, tree._RTTIME, (tree.MARKER_BASE + 77, resource.RLIM_INFINITY))
    locks = DeviceLocks([str(tmp_path / "locks")])
    locks.take(["GPU-1"], key="9.0", marker=77)
    locks.close()
    looks = occupancy()
    (busy,) = looks.judge([GPU], [], lent={})
    assert busy.reason.startswith(f"sleep (pid {stranger}, user ")
    assert busy.reason.endswith("is left on it by a worker that died, and can't be ended")
    end_one(stranger)
    assert looks.has_changed()
    assert looks.judge([GPU], [], lent={}) == (GPU,)


def test_what_can_not_be_ended_of_our_own_keeps_its_device_and_is_named(occupancy, tmp_path, monkeypatch):
    me = tree.process(os.getpid())
    monkeypatch.setattr(StateDir, "holder", lambda _, name: me if name == "spawner" else None)
    locks = DeviceLocks([str(tmp_path / "locks")])
    locks.take(["GPU-1"], key="9.0", marker=None)
    looks = occupancy()
    assert looks.judge([GPU], [], lent={"GPU-1": Lent("9.0", is_running=True)}) == (GPU,)
    assert looks.judge([GPU], [], lent=None) == (GPU,), "at a start nobody knows yet which attempts run here"
    for lent in ({}, {"GPU-1": Lent("10.0", is_running=False)}):
        (busy,) = looks.judge([GPU], [], lent=lent)
        assert busy.reason == "a process of attempt 9.0 can't be ended and keeps it"
    locks.close()
    assert looks.has_changed()


def test_what_processes_a_probe_tells_of_is_checked_and_never_kept_for_a_later_start(tmp_path):
    class Clock:
        def wall_ms(self):
            return 1_000

    found = Findings(devices=(GPU,), processes=tuple(processes(7)))
    assert checked_findings(found) == found
    for lie in (Findings(processes=(7,)), Findings(processes=tuple(processes(0))), Findings(processes="none")):
        with pytest.raises((TypeError, ValueError)):
            checked_findings(lie)
    kept = KeptFindings(tmp_path / "kept.json", Clock())
    kept.keep("p", found)
    kept.write()
    again = KeptFindings(tmp_path / "kept.json", Clock())
    again.read()
    assert again.of("p") == Findings(devices=(GPU,))


# Rows of `nvidia-smi --query-compute-apps=gpu_uuid,pid,process_name,used_memory` as drivers print them: of a process
# of another user neither name nor memory is told, under Windows and in containers no memory is.
ROWS = """\
GPU-1, 524, [Insufficient Permissions], [Insufficient Permissions]
GPU-1, 1873, python3, 1230 MiB
GPU-2, 99, [Not Found], [N/A]
"""


def test_what_a_driver_tells_of_processes_fits_the_contract_also_where_it_does_not_tell_all():
    rows = [line.split(", ") for line in ROWS.splitlines()]
    told = tuple(
        ProcessOnDevice(uuid, int(pid), memory_bytes=int(size.split()[0]) * MIB if size[0].isdigit() else None)
        for uuid, pid, _, size in rows
    )
    found = checked_findings(Findings(devices=(GPU,), processes=told))
    assert [process.memory_bytes for process in found.processes or ()] == [None, 1230 * MIB, None]
