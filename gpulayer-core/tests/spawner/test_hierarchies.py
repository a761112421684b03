"""What is found and claimed, over recorded trees: /proc/self/{cgroup,mountinfo} and folders that stand for groups.

The kernel's part is played: a folder made in one has the files of a group, and hands controllers down.
"""

import errno
import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpulayer.spawner import hierarchies
from gpulayer.spawner.hierarchies import Hierarchy, claim_all, find

FIRST_FILES = {
    "memory": {"memory.limit_in_bytes": "9223372036854771712"},
    "cpu": {"cpu.cfs_quota_us": "-1", "cpu.shares": "1024"},
    "pids": {"pids.max": "max"},
    "cpuset": {"cpuset.cpus": "0-3", "cpuset.mems": "0"},
    "freezer": {"freezer.state": "THAWED"},
}


@dataclass
class Host:
    """One recorded machine. ``mounts``: (root, folder, kind, options); ``busy``: groups whose processes stay."""

    root: Path
    groups: list[str] = field(default_factory=list)
    mounts: list[str] = field(default_factory=list)

    def mount(self, name: str, kind: str, options: str, *, root: str = "/") -> Path:
        folder = self.root / name
        folder.mkdir(parents=True, exist_ok=True)
        number = 30 + len(self.mounts)
        self.mounts.append(f"{number} 23 0:{number} {root} {folder} rw,nosuid shared:9 - {kind} {kind} {options}")
        return folder

    def find(self) -> list[Hierarchy]:
        (self.root / "cgroup").write_text("".join(f"{line}\n" for line in self.groups))
        (self.root / "mountinfo").write_text(
            "\n".join(["22 1 254:0 / / rw - ext4 /dev/vda rw", *self.mounts, "broken"])
        )
        return find(str(self.root))


@pytest.fixture
def host(tmp_path, monkeypatch):
    """Groups behave: what ``mkdir`` makes has files, ``+memory`` gives it to the groups below, processes move."""
    made = hierarchies._make

    def make(folder):
        path = Path(folder)
        is_new = not path.exists()
        made(folder)
        if not is_new:
            return
        if (path.parent / "cgroup.controllers").exists():
            given = (path.parent / "cgroup.subtree_control").read_text()
            second_group(path, controllers=given)
        else:
            first_group(path, *(one for one in FIRST_FILES if any(path.parent.glob(f"{one}.*"))))

    def write(path, text):
        target = Path(path)
        if not target.exists():
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        if target.name == "cgroup.subtree_control":
            inner = (target.parent / "cgroup.procs").read_text().split()
            if inner and (target.parent / "cgroup.type").exists():
                raise OSError(errno.EBUSY, "Device or resource busy", path)
            name = text.removeprefix("+")
            target.write_text(f"{target.read_text()} {name}".strip())
            for below in target.parent.iterdir():
                if below.is_dir():
                    controllers = below / "cgroup.controllers"
                    controllers.write_text(f"{controllers.read_text()} {name}".strip())
        elif target.name == "cgroup.procs":
            for other in tmp_path.rglob("cgroup.procs"):
                other.write_text(" ".join(pid for pid in other.read_text().split() if pid != text))
            target.write_text(f"{target.read_text()} {text}".strip())
        else:
            target.write_text(text)

    monkeypatch.setattr(hierarchies, "_make", make)
    monkeypatch.setattr(hierarchies, "write", write)
    return Host(tmp_path)


def first_group(folder: Path, *controllers: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in ((n, c) for one in controllers for n, c in FIRST_FILES[one].items()):
        (folder / name).write_text(content)
    (folder / "cgroup.procs").write_text("")
    return folder


def second_group(folder: Path, *, controllers: str = "", procs: str = "", is_root: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cgroup.controllers").write_text(controllers)
    (folder / "cgroup.subtree_control").write_text("")
    (folder / "cgroup.procs").write_text(procs)
    if not is_root:
        (folder / "cgroup.type").write_text("domain")
    return folder


def claimed(host, **options):
    return claim_all(host.find(), "ours", **options)


def test_a_delegated_service_hands_controllers_down_after_its_processes_moved_to_a_leaf(host, monkeypatch):
    mount = host.mount("unified", "cgroup2", "rw,nsdelegate")
    own = second_group(
        mount / "system.slice" / "gpu.service", controllers="cpuset cpu io memory pids", procs="41 42 43"
    )
    monkeypatch.setattr(os, "getxattr", delegated(own))
    host.groups = ["0::/system.slice/gpu.service"]
    (claim,) = claimed(host)
    assert claim == (2, {"cpu", "cpuset", "memory", "pids"}, str(own / "ours"), str(own / "gpulayer-host"))
    assert (own / "cgroup.procs").read_text() == ""
    assert (own / "gpulayer-host" / "cgroup.procs").read_text().split() == ["41", "42", "43"]
    host.groups = ["0::/system.slice/gpu.service/gpulayer-host"]
    assert claimed(host) == [claim], "a later start is in the leaf, and finds the same"


def test_a_service_whose_processes_start_in_a_subgroup_need_not_move(host, monkeypatch):
    mount = host.mount("unified", "cgroup2", "rw")
    service = second_group(mount / "system.slice" / "gpu.service", controllers="memory pids")
    second_group(service / "agent", procs="41")
    monkeypatch.setattr(os, "getxattr", delegated(service))
    host.groups = ["0::/system.slice/gpu.service/agent"]
    (claim,) = claimed(host)
    assert claim == (2, {"memory", "pids"}, str(service / "ours"), str(service / "agent"))
    assert (service / "agent" / "cgroup.procs").read_text() == "41"


def test_in_a_users_terminal_nobodys_processes_are_moved_and_nothing_is_limited(host, monkeypatch):
    mount = host.mount("unified", "cgroup2", "rw")
    manager = second_group(mount / "user.slice" / "user@1000.service", controllers="memory pids")
    own = second_group(manager / "app.slice" / "term.scope", controllers="memory pids", procs="7 8")
    monkeypatch.setattr(os, "getxattr", delegated(manager))
    host.groups = ["0::/user.slice/user@1000.service/app.slice/term.scope"]
    assert claimed(host) == [(2, frozenset(), str(own / "ours"), str(own))]
    assert (own / "cgroup.procs").read_text() == "7 8"
    monkeypatch.setattr(os, "getxattr", delegated(own.parent.parent))
    below = second_group(manager / "init.scope", procs="5")
    host.groups = ["0::/user.slice/user@1000.service/init.scope"]
    assert claimed(host) == [(2, frozenset(), str(below / "ours"), str(below))], "the user's manager is not ours"


def test_what_a_container_sees_is_its_own(host):
    mount = second_group(
        host.mount("unified", "cgroup2", "rw", root="/../x"[3:] or "/"), controllers="cpu memory pids", procs="1 7"
    )
    host.groups = ["0::/"]
    host.mounts = [line.replace(" /x ", " / ") for line in host.mounts]
    (claim,) = claimed(host)
    assert claim == (2, {"cpu", "memory", "pids"}, str(mount / "ours"), str(mount / "gpulayer-host"))
    assert (mount / "gpulayer-host" / "cgroup.procs").read_text() == "1 7"


def test_the_root_of_all_groups_may_hold_processes(host):
    mount = second_group(
        host.mount("unified", "cgroup2", "rw"), controllers="cpu memory pids", procs="1 7", is_root=True
    )
    host.groups = ["0::/"]
    (claim,) = claimed(host)
    assert claim == (2, {"cpu", "memory", "pids"}, str(mount / "ours"), str(mount))
    assert (mount / "cgroup.procs").read_text() == "1 7"


def first_version(host, *names, path="/batch/7", root="/"):
    for number, name in enumerate(names):
        mount = host.mount(name, "cgroup", f"rw,{name}", root=root)
        controllers = name.split(",")
        first_group(mount, *(one for one in controllers if one in FIRST_FILES))
        relative = path.removeprefix(root).strip("/")
        first_group(mount / relative, *(one for one in controllers if one in FIRST_FILES))
        host.groups.append(f"{9 - number}:{name}:{path}")


def test_each_hierarchy_of_version_1_is_claimed_by_itself(host):
    first_version(host, "memory", "cpu,cpuacct", "pids", "cpuset", "freezer", "blkio")
    host.groups.append("1:name=systemd:/x")
    claims = {min(claim.controllers): claim for claim in claimed(host)}
    assert set(claims) == {"memory", "cpu", "pids", "cpuset", "freezer"}
    assert claims["cpu"] == (
        1,
        {"cpu"},
        f"{host.root}/cpu,cpuacct/batch/7/ours",
        f"{host.root}/cpu,cpuacct/batch/7",
    )
    assert Path(claims["cpuset"].base, "cpuset.cpus").read_text() == "0-3"
    assert Path(claims["cpuset"].base, "cpuset.mems").read_text() == "0"


def test_a_container_of_version_1_is_found_below_the_root_of_its_mounts(host):
    first_version(host, "memory", "pids", path="/docker/abc/inner", root="/docker/abc")
    assert {claim.base for claim in claimed(host)} == {f"{host.root}/{one}/inner/ours" for one in ("memory", "pids")}


def test_a_hybrid_host_limits_by_version_1_and_ends_by_version_2(host):
    first_version(host, "memory", "freezer", path="/")
    mount = second_group(host.mount("unified", "cgroup2", "rw"), is_root=True)
    host.groups.append("0::/")
    claims = claimed(host)
    assert [(claim.version, set(claim.controllers)) for claim in claims] == [(2, set()), (1, {"memory"})]
    assert claims[0].base == str(mount / "ours")


def test_only_what_is_allowed_is_claimed(host):
    first_version(host, "memory", "freezer", "pids")
    second_group(host.mount("unified", "cgroup2", "rw"), is_root=True)
    host.groups.append("0::/")
    assert {min(claim.controllers) for claim in claimed(host, allowed=("freezer", "pids"))} == {"freezer", "pids"}
    assert claimed(host, allowed=()) == []


@pytest.mark.parametrize(
    ("groups", "mounts"),
    [
        ([], []),
        (["0::/a"], []),
        (["0::/../../b"], ["40 31 0:38 / {root}/unified rw - cgroup2 cgroup2 rw"]),
        (["4:memory:/other"], ["40 31 0:38 /docker/abc {root}/memory rw - cgroup cgroup rw,memory"]),
        (["0::/gone"], ["40 31 0:38 / {root}/unified rw - cgroup2 cgroup2 rw"]),
        (["rubbish", ""], ["40 31", "40 31 0:38 / {root}/x rw - cgroup cgroup rw,memory"]),
    ],
)
def test_what_can_not_be_reached_is_as_good_as_none(host, groups, mounts):
    host.groups = groups
    host.mounts = [line.format(root=host.root) for line in mounts]
    assert claimed(host) == []


def test_a_read_only_group_is_not_claimed(host, monkeypatch):
    second_group(host.mount("unified", "cgroup2", "ro"), controllers="memory")
    host.groups = ["0::/"]

    def refuse(folder):
        raise OSError(errno.EROFS, "Read-only file system", folder)

    monkeypatch.setattr(hierarchies, "_make", refuse)
    assert claimed(host) == []


def test_a_mount_point_with_a_space_is_read(host):
    second_group(host.mount("with space", "cgroup2", "rw"), is_root=True)
    host.mounts = [line.replace("with space", r"with\040space") for line in host.mounts]
    host.groups = ["0::/"]
    assert [one.own for one in host.find()] == [f"{host.root}/with space"]


def test_this_machine_can_be_read():
    for one in find():
        assert os.path.exists(os.path.join(one.own, "cgroup.procs")) or one.version == 2, one


def delegated(folder):
    def getxattr(path, name):
        if str(path) == str(folder) and name == "user.delegate":
            return b"1"
        raise OSError(errno.ENODATA, "No data available", path)

    return getxattr
