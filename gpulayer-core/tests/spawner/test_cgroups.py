"""What control groups are for, on whatever this machine has of them: a test asserts by what the spawner enforces.

Where there is nothing, that is what is asserted: nothing is claimed, and the job runs without the limit.
"""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from gpulayer.spawner import ALL_GROUPS
from gpulayer.spawner import messages as m
from gpulayer.spawner.hierarchies import claim_all, find
from gpulayer.spawner.state import read_exit_record
from tests.together import kill_together

KINDS = {"all": ALL_GROUPS, "freezer": tuple(set(ALL_GROUPS) - {"unified"}), "none": ()}

RUNAWAY = """
import os
while True:
    try:
        pid = os.fork()
    except OSError:
        continue
    if pid and os.getppid() != 1:
        os.setsid() if os.getsid(0) != os.getpid() and os.getpgid(0) != os.getpid() else None
"""

ALLOCATE = """
import sys
kept = []
for _ in range(int(sys.argv[1])):
    kept.append(bytearray(b"x" * (1 << 20)))
print("has it", flush=True)
"""


@pytest.fixture(params=KINDS)
def host(another, request):
    return another("host", groups=KINDS[request.param])


limiting = pytest.mark.parametrize("host", ["all", "none"], indirect=True)  # what limits is the same in both versions


@pytest.fixture
def agent(host):
    return host.client()


def python(program, *argv):
    return (sys.executable, "-I", "-S", "-c", program, *argv)


def group_folders(host):
    """Every group of the spawner's, the bases themselves left out."""
    return [folder for base in host.state.read_groups() for folder, _, _ in os.walk(base) if folder != base]


def test_what_is_enforced_is_what_there_are_control_groups_for(host, agent):
    claims = claim_all(find(), "gpulayer-test-of-claims", allowed=host.groups)
    for claim in claims:
        os.rmdir(claim.base)
    controllers = {name for claim in claims for name in claim.controllers}
    expected = {"cores"} | ({"cpus"} if "cpu" in controllers else set()) | (controllers & {"memory", "pids"})
    assert set(agent.greeting.enforces) == expected
    assert len(host.state.read_groups()) == len(claims)


@limiting
def test_a_tree_that_takes_more_memory_than_its_limit_is_told_from_a_plain_kill(host, agent):
    limits = m.SpawnLimits(memory_bytes=64 << 20)
    record = agent.run("1.0", *python(ALLOCATE, "300"), limits=limits)
    if "memory" in agent.greeting.enforces:
        assert (record.signal, record.oom_kills) == (signal.SIGKILL, 1)
        assert 32 << 20 < record.memory_peak_bytes <= 65 << 20
    else:
        assert (record.exit_code, record.oom_kills, record.memory_peak_bytes) == (0, None, None)
    killed = agent.run("2.0", "sh", "-c", "kill -9 $$", limits=limits)
    assert (killed.signal, killed.oom_kills or 0) == (signal.SIGKILL, 0)
    exited = agent.run("3.0", "sh", "-c", "exit 137", limits=limits)
    assert (exited.exit_code, exited.oom_kills or 0) == (137, 0)


@limiting
def test_a_limit_below_what_the_spawner_itself_needs_ends_the_job_and_not_the_spawner(host, agent):
    record = agent.run("1.0", *python(ALLOCATE, "300"), limits=m.SpawnLimits(memory_bytes=1 << 20))
    assert (record.signal == signal.SIGKILL) == ("memory" in agent.greeting.enforces)
    assert agent.run("2.0", "true").exit_code == 0


@limiting
def test_a_child_that_the_kernel_kills_for_memory_is_counted_though_its_parent_exits(host, agent):
    program = f"{sys.executable} -I -S -c '{ALLOCATE}' 300; exit $?"
    record = agent.run("1.0", "bash", "-c", program, limits=m.SpawnLimits(memory_bytes=64 << 20))
    has_memory = "memory" in agent.greeting.enforces
    assert (record.exit_code, record.oom_kills) in ([(137, 1), (None, 1)] if has_memory else [(0, None)])


@limiting
def test_a_fork_bomb_stays_within_its_limit_and_is_ended_whole(host, agent, until):
    if "pids" not in agent.greeting.enforces:
        assert agent.run("0.0", "true", limits=m.SpawnLimits(pids=5)).exit_code == 0
        return
    agent.spawn("1.0", *python(RUNAWAY), limits=m.SpawnLimits(pids=40))
    until(lambda: len(host.running()) >= 30, "the bomb has gone off")
    assert agent.run("2.0", "true").exit_code == 0, "others are not touched"
    counts = [len(host.running()) for _ in range(5)]
    assert max(counts) <= 40
    agent.ask(lambda number: m.Kill(number, "1.0"))
    record = agent.exited("1.0")
    assert (record.signal, record.tree_clean) == (signal.SIGKILL, True)
    assert not host.running()


@limiting
def test_a_limit_of_one_process_lets_that_one_run(host, agent):
    program = "import os\ntry: os.fork()\nexcept OSError as error: print(error.errno)"
    record = agent.run("1.0", *python(program), limits=m.SpawnLimits(pids=1))
    told = "it reached its --pids of 1: 1 time none could be started"
    assert (record.exit_code, record.message) == (0, told if "pids" in agent.greeting.enforces else "")


@limiting
def test_a_job_has_the_processor_time_of_so_many_cores_and_its_weight(host, agent, until):
    agent.spawn("1.0", "sleep", "600", limits=m.SpawnLimits(cpus=2, cpu_weight=3))
    found = {}
    for folder in group_folders(host):
        for name in ("cpu.cfs_quota_us", "cpu.shares", "cpu.max", "cpu.weight"):
            path = Path(folder, name)
            if path.exists() and str(agent.rows()["1.0"].pid) in Path(folder, "cgroup.procs").read_text().split():
                found[name] = path.read_text().split()
    if "cpus" in agent.greeting.enforces:
        first = {"cpu.cfs_quota_us": ["200000"], "cpu.shares": ["3072"]}
        assert found in (first, {"cpu.max": ["200000", "100000"], "cpu.weight": ["300"]})
    else:
        assert found in ({}, {"cpu.max": ["max", "100000"], "cpu.weight": ["100"]})


CORES = "import os, time; print(*sorted(os.sched_getaffinity(0)), flush=True); time.sleep(600)"


@limiting
def test_pinned_jobs_have_cores_of_their_own_until_there_are_no_more(host, agent, until):
    usable = sorted(os.sched_getaffinity(0))
    for number in range(len(usable)):
        agent.spawn(f"{number}.0", *python(CORES), limits=m.SpawnLimits(pin_cores=1))
        until(lambda number=number: host.log(f"{number}.0").read_bytes().endswith(b"\n"), "it has told its cores")
    assert sorted(int(host.log(f"{number}.0").read_text()) for number in range(len(usable))) == usable
    record = agent.run(
        "more", *python(CORES.split(";", maxsplit=1)[0] + CORES.split(";")[1]), limits=m.SpawnLimits(pin_cores=1)
    )
    assert record.message == "pinned to 1 core that another pinned job has too"
    all_of_them = agent.run("all", "true", limits=m.SpawnLimits(pin_cores=len(usable) + 1))
    assert all_of_them.exit_code == 0
    assert f"pinned to {len(usable)} core" in all_of_them.message
    assert agent.run("free", *python("import os; print(*sorted(os.sched_getaffinity(0)))")).message == ""
    assert host.log("free").read_text().split() == [str(core) for core in usable], (
        "a job that is not pinned has them all"
    )


STOPS_ITSELF = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
os.kill(os.getpid(), signal.SIGSTOP)
while True:
    signal.pause()
"""

SHEDS_ITS_MARKER = """
import os, resource, time
if os.fork():
    os._exit(0)
os.setsid()
resource.setrlimit(15, (resource.RLIM_INFINITY,) * 2)
print("shed", flush=True)
time.sleep(600)
"""


def test_a_stopped_job_hears_sigterm(host, agent, until):
    program = STOPS_ITSELF
    pid = agent.spawn("1.0", *python(program)).pid
    until(lambda: Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T", "it has stopped itself")
    agent.ask(lambda number: m.Signal(number, "1.0", signal.SIGTERM))
    assert agent.exited("1.0").exit_code == 3


@pytest.mark.parametrize("signum", [signal.SIGTERM, None], ids=["signal", "kill"])
def test_a_frozen_job_hears_sigterm_and_can_be_killed(host, agent, until, signum):
    agent.spawn("1.0", "sleep", "600")
    agent.spawn("2.0", "sleep", "600")  # so that the spawner is not in the group of the first
    pid = str(agent.rows()["1.0"].pid)
    for folder in group_folders(host):
        for name, text in (("cgroup.freeze", "1"), ("freezer.state", "FROZEN")):
            path = Path(folder, name)
            if path.exists() and pid in Path(folder, "cgroup.procs").read_text().split():
                path.write_text(text)
    if signum is None:
        agent.ask(lambda number: m.Kill(number, "1.0"))
    else:
        agent.ask(lambda number: m.Signal(number, "1.0", signum))
    record = agent.exited("1.0")
    assert (record.signal, record.tree_clean) == (signum or signal.SIGKILL, True)
    assert agent.run("3.0", "true").exit_code == 0, "no later job is frozen"


def test_a_group_serves_one_job_after_another_and_tells_nothing_of_the_one_before(host, agent):
    for number in range(40):
        assert agent.run(f"{number}.0", "true").exit_code == 0
    assert len(group_folders(host)) <= 2 * len(host.state.read_groups())
    both = [agent.spawn(f"{number}.1", "sleep", "0.01") for number in range(8)]
    assert all(isinstance(reply, m.Spawned) for reply in both)
    for number in range(8):
        assert agent.exited(f"{number}.1").exit_code == 0


def test_a_job_that_leaves_its_session_group_and_environment_does_not_leave_its_tree(host, agent, until):
    daemon = "setsid sh -c '(env -i setsid sleep 600 &) ; (ulimit -S -R unlimited 2>/dev/null; sleep 601 &)' "
    record = agent.run("1.0", "sh", "-c", f"{daemon}; exit 4")
    assert (record.exit_code, record.tree_clean) == (4, True)
    assert not host.running()


def test_groups_that_a_job_made_below_its_own_go_with_it(host, agent, until):
    program = """
import os, sys, time
for line in open("/proc/self/cgroup"):
    print(line.strip())
for base in sys.argv[1:]:
    for folder, _, files in os.walk(base):
        if str(os.getpid()) in open(folder + "/cgroup.procs").read().split():
            os.mkdir(folder + "/mine")
            for kind in ("cpus", "mems"):
                if os.path.exists(folder + "/cpuset." + kind) and not os.path.exists(folder + "/cgroup.kill"):
                    open(folder + "/mine/cpuset." + kind, "w").write(open(folder + "/cpuset." + kind).read())
            if os.fork() == 0:
                open(folder + "/mine/cgroup.procs", "w").write("0")
                time.sleep(600)
            break
print("ready", flush=True)
os._exit(6)
"""
    record = agent.run("1.0", *python(program, *host.state.read_groups()))
    assert (record.exit_code, record.tree_clean) == (6, True)
    assert not host.running()
    assert not [folder for folder in group_folders(host) if folder.endswith("/mine")]


def test_what_a_killed_spawner_and_watchdog_left_in_groups_is_ended_though_it_shed_its_marker(host, agent, until):
    agent.spawn("1.0", "sh", "-c", 'echo $$; "$0" -I -S -c "$1"; sleep 600', sys.executable, SHEDS_ITS_MARKER)
    until(lambda: host.log("1.0").read_bytes().endswith(b"shed\n"), "the daemon has shed its marker")
    before = host.state.read_groups()
    kill_together(host.state.read_pids().values())
    until(lambda: host.start() == 0, "another spawner starts")
    left = [pid for folder in group_folders(host) for pid in Path(folder, "cgroup.procs").read_text().split()]
    assert [pid for pid in left if int(pid) not in host.state.read_pids().values()] == []
    assert host.state.read_groups() == before
    assert read_exit_record(str(host.exit_path("1.0"))).reason == "spawner_lost"
    daemon = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _runs(pid, SHEDS_ITS_MARKER)]
    if before:
        assert daemon == []
    for pid in daemon:  # without a group nothing was left to know it by
        os.kill(pid, signal.SIGKILL)


def _runs(pid, program):
    try:
        return program.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def test_the_spawner_is_in_no_group_of_a_job_that_goes_on(host, agent, until):
    agent.spawn("1.0", "sleep", "600")
    pid = str(agent.rows()["1.0"].pid)
    spawner = str(host.spawner_pid)

    def is_apart():
        groups = [Path(folder, "cgroup.procs").read_text().split() for folder in group_folders(host)]
        return not any(pid in procs and spawner in procs for procs in groups)

    until(is_apart, "the spawner has left the job's group")
    started = time.monotonic()
    agent.ask(lambda number: m.Kill(number, "1.0"))
    assert agent.exited("1.0").signal == signal.SIGKILL
    assert time.monotonic() - started < 20
