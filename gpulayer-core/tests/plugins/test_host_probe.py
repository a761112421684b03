"""The host probe on made-up cgroup folders and on this machine."""

import os

import psutil
import pytest

from gpulayer.plugins.builtin.host import HostProbe, host_platform
from gpulayer.plugins.contracts.probe import ProbeSite


def look(tmp_path, cgroup, files):
    proc, root = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    root.mkdir()
    (proc / "self" / "cgroup").write_text(cgroup)
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return HostProbe(cgroup_root=root, proc_root=proc).look(ProbeSite(tmp_path, {}))


def test_without_cgroups_affinity_and_the_machines_memory_count(tmp_path):
    findings = look(tmp_path, "", {})
    assert findings.cpus == len(os.sched_getaffinity(0))
    assert findings.memory_bytes == psutil.virtual_memory().total
    assert findings.platform == host_platform()
    assert findings.disk_bytes > 0


@pytest.mark.parametrize(
    ("cgroup", "files"),
    [
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "150000 100000\n", "a/b/memory.max": "1000000\n"}),
        ("0::/\n", {"cpu.max": "100000 100000\n", "memory.max": "1000000\n"}),
        ("0::/../x\n", {"cpu.max": "199999 100000\n", "memory.max": "1000000\n"}),
        (
            "4:cpu,cpuacct:/d\n3:memory:/d\n1:name=systemd:/\n",
            {
                "cpu/d/cpu.cfs_quota_us": "100000\n",
                "cpu/d/cpu.cfs_period_us": "100000\n",
                "memory/d/memory.limit_in_bytes": "1000000\n",
            },
        ),
    ],
)
def test_the_narrowest_limit_above_the_worker_counts_in_both_versions(tmp_path, cgroup, files):
    findings = look(tmp_path, cgroup, files)
    assert findings.cpus == 1
    assert findings.memory_bytes == 1_000_000


def test_no_limit_and_nonsense_limit_nothing(tmp_path):
    files = {"cpu.max": "max 100000\n", "memory.max": "max\n", "cpu/cpu.cfs_quota_us": "-1\n"}
    files |= {"cpu/cpu.cfs_period_us": "100000\n", "memory/memory.limit_in_bytes": "?\n"}
    findings = look(tmp_path, "0::/\n4:cpu:/\n5:memory:/\nrubbish\n", files)
    assert findings.cpus == len(os.sched_getaffinity(0))
    assert findings.memory_bytes == psutil.virtual_memory().total


def test_a_fraction_of_a_processor_is_still_one(tmp_path):
    assert look(tmp_path, "0::/\n", {"cpu.max": "10000 100000\n"}).cpus == 1


def test_core_registers_its_own(tmp_path, load):
    host = load(discover=tuple)
    [probe] = [each for each in host.registry.probes if each.plugin == "host"]
    assert probe.name == "host"
    site = ProbeSite(tmp_path, {})
    assert host.call(probe, "Probe.look", lambda thing: thing.look(site), deadline_s=10.0).cpus >= 1
