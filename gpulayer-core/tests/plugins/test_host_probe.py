"""The host probe on made-up cgroup folders, on marks of other kinds of hosts, and on this machine.

Kernels of WSL2: https://github.com/microsoft/WSL/issues/423, and cloud-init's tests/unittests/test_ds_identify.py.
nv_tegra_release: of L4T 35.3.1, as NVIDIA ships it. Cgroups of containers: moby/moby, containers/podman, kubernetes.
"""

import os

import psutil
import pytest

from gpulayer.plugins.builtin.host import HostProbe, host_platform
from gpulayer.plugins.builtin.surroundings import container_kind, host_kind
from gpulayer.plugins.contracts.probe import ProbeSite
from gpulayer.testing import ProbeContract


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


@pytest.mark.parametrize("body", ["exec sleep 600", "exit 1", "echo nonsense"])
def test_a_disk_that_does_not_answer_has_unknown_room_and_the_rest_is_known(tmp_path, monkeypatch, body):
    monkeypatch.setattr("gpulayer.plugins.builtin.host._DISK_S", 0.3)
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{body}\n")
    python.chmod(0o755)
    found = HostProbe(python=str(python)).look(ProbeSite(tmp_path, {"PATH": "/usr/bin:/bin"}))
    assert found.disk_bytes is None
    assert found.memory_bytes > 0
    assert HostProbe(python=str(tmp_path / "none")).look(ProbeSite(tmp_path, {})).disk_bytes is None


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


@pytest.fixture
def marks(tmp_path):
    """Files of a host, by their paths; ends in the roots that the probe takes."""

    def make(files):
        for name, content in files.items():
            path = tmp_path / "root" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        return tmp_path / "root", tmp_path / "root" / "proc"

    return make


RELEASE = "proc/sys/kernel/osrelease"
INTEROP = "proc/sys/fs/binfmt_misc/WSLInterop"
TEGRA = "# R35 (release), REVISION: 3.1, GCID: 32790763, BOARD: t186ref, EABI: aarch64\n"


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({RELEASE: "5.15.133.1-microsoft-standard-WSL2\n"}, "wsl2"),
        ({RELEASE: "4.19.104-microsoft-standard\n"}, "wsl2"),
        ({RELEASE: "6.1.21-mine\n", INTEROP: "enabled\n"}, "wsl2"),
        ({RELEASE: "6.1.21-mine\n", f"{INTEROP}-late": "enabled\n"}, "wsl2"),
        ({RELEASE: "6.1.21-mine\n", "run/WSL/1_interop": ""}, "wsl2"),
        ({RELEASE: "4.4.0-19041-Microsoft\n", INTEROP: "enabled\n"}, ""),
        ({RELEASE: "6.5.0-1023-azure\n"}, ""),
        ({RELEASE: "5.10.104-tegra\n", "etc/nv_tegra_release": TEGRA}, "jetson"),
        ({"proc/device-tree/model": "NVIDIA Jetson AGX Orin Developer Kit\0"}, "jetson"),
        ({"proc/device-tree/model": "Raspberry Pi 4 Model B Rev 1.1\0"}, ""),
        ({}, ""),
    ],
)
def test_p8_wsl2_and_jetsons_are_told_from_other_hosts(marks, files, kind):
    assert host_kind(*marks(files)) == kind


ID = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("files", "environment", "kind"),
    [
        ({".dockerenv": ""}, {}, "docker"),
        ({"run/.containerenv": 'engine="podman-4.9.3"\nname="annas-box"\n'}, {}, "podman"),
        ({".dockerenv": "", "proc/self/cgroup": f"12:pids:/kubepods/besteffort/pod1/{ID}\n"}, {}, "kubernetes"),
        ({"proc/self/cgroup": f"0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope\n"}, {}, "kubernetes"),
        ({"var/run/secrets/kubernetes.io/serviceaccount/namespace": "anna"}, {}, "kubernetes"),
        ({}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ({"proc/self/cgroup": f"4:memory:/docker/{ID}\n"}, {}, "docker"),
        ({"proc/self/cgroup": f"0::/system.slice/docker-{ID}.scope\n"}, {}, "docker"),
        ({"proc/self/cgroup": f"0::/machine.slice/libpod-{ID}.scope/container\n"}, {}, "podman"),
        ({"proc/self/cgroup": "0::/lxc.payload.annas/system.slice\n"}, {}, "lxc"),
        ({"proc/1/environ": "PATH=/bin\0container=lxc\0"}, {}, "lxc"),
        ({"run/systemd/container": "lxc\n"}, {}, "lxc"),
        ({"run/host/container-manager": "annas-own\n"}, {}, "other"),
        ({"run/systemd/container": "systemd-nspawn\n"}, {}, "other"),
        ({".singularity.d/env": ""}, {}, "apptainer"),
        ({"run/systemd/container": "wsl\n", RELEASE: "5.15.133.1-microsoft-standard-WSL2\n"}, {}, ""),
        ({"proc/self/cgroup": "0::/system.slice/docker.service\n"}, {}, ""),
        ({"proc/self/cgroup": "0::/user.slice/user-1000.slice\n", "proc/1/environ": "HOME=/\0"}, {}, ""),
        ({}, {}, ""),
    ],
)
def test_a_container_is_told_by_its_kind_and_by_no_name_of_anybody(marks, files, environment, kind):
    root, proc = marks(files)
    assert container_kind(root, proc, environment) == kind


def test_what_may_not_be_read_marks_nothing(marks, monkeypatch):
    root, proc = marks({RELEASE: "5.15.133.1-microsoft-standard-WSL2\n", ".dockerenv": ""})

    def refused(*_, **__):
        raise PermissionError

    monkeypatch.setattr("pathlib.Path.open", refused)
    monkeypatch.setattr("pathlib.Path.exists", refused)
    assert (host_kind(root, proc), container_kind(root, proc, {})) == ("", "")


def test_p8_a_worker_shows_that_it_is_wsl2_and_in_a_container(marks, tmp_path):
    root, proc = marks(
        {RELEASE: "5.15.133.1-microsoft-standard-WSL2\n", ".dockerenv": "", "proc/cpuinfo": "cpu: POWER9\n"}
    )
    found = HostProbe(proc_root=proc, root=root).look(ProbeSite(tmp_path, {}))
    assert found.labels == (("gpulayer.dev/host", "wsl2"), ("gpulayer.dev/container", "docker"))
    assert found.cpu_model == "POWER9"


def test_the_processors_name_is_read_once(marks, tmp_path):
    root, proc = marks({"proc/cpuinfo": "model name: AMD EPYC 9654 96-Core Processor\n"})
    probe = HostProbe(proc_root=proc, root=root)
    first = probe.look(ProbeSite(tmp_path, {})).cpu_model
    (proc / "cpuinfo").unlink()
    assert probe.look(ProbeSite(tmp_path, {})).cpu_model == first == "AMD EPYC 9654 96-Core Processor"


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ('test "$*" = "-n machdep.cpu.brand_string" && echo "Apple M1 Pro"', "Apple M1 Pro"),
        ("echo 'sysctl: unknown oid' >&2; exit 1", ""),
        (None, ""),
    ],
)
def test_a_mac_says_its_processors_name_through_sysctl(marks, tmp_path, script, name):
    root, proc = marks({})
    (tmp_path / "bin").mkdir()
    if script is not None:
        (tmp_path / "bin" / "sysctl").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin" / "sysctl").chmod(0o755)
    programs = str(tmp_path / "bin")
    probe = HostProbe(proc_root=proc, root=root, system="darwin", programs=(programs,))
    assert probe.look(ProbeSite(tmp_path, {"PATH": programs})).cpu_model == name


class TestOfAMac(ProbeContract):
    @pytest.fixture
    def probe(self, marks, tmp_path):
        root, proc = marks({"bin/sysctl": "#!/bin/sh\necho Apple M1 Pro\n"})
        (root / "bin" / "sysctl").chmod(0o755)
        return HostProbe(proc_root=proc, root=root, system="darwin", programs=(str(root / "bin"),))


class TestOfAContainerInWsl2(ProbeContract):
    @pytest.fixture
    def probe(self, marks):
        root, proc = marks({RELEASE: "5.15.133.1-microsoft-standard-WSL2\n", ".dockerenv": ""})
        return HostProbe(proc_root=proc, root=root)
