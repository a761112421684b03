"""Which control groups this host lets this process make, by what /proc and the file system say.

Version 1 mounts each controller as a hierarchy of its own, version 2 all in one; a *hybrid* host has both, the
controllers in the first and only ``cgroup.kill`` in the second. A *claim* is one hierarchy in which a folder of ours,
the base, was made below the group that this process is in; whatever can't be written to is not claimed.

Version 2 hands controllers to groups below only from a group that holds no process (the root of all excepted). Where
the group is ours as a whole (systemd says so of ``Delegate=yes``; so is all that a container sees) its processes,
this worker's agent among them, move to a leaf of their own. Elsewhere nobody else's process is moved: the base then
serves to find and end trees, and limits nothing. https://docs.kernel.org/admin-guide/cgroup-v2.html
"""

import errno
import os
import stat
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from gpulayer.spawner import ALL_GROUPS
from gpulayer.spawner.tree import read_all

__all__ = ["LIMITERS", "Claim", "Hierarchy", "claim", "claim_all", "find", "read_words", "write"]

LIMITERS: Final = frozenset({"memory", "cpu", "pids", "cpuset"})
_LEAF: Final = "gpulayer-host"  # where the processes of a group that became an inner one live
_MOVES: Final = 20
# The file that tells that a controller really is at work in a group of version 1.
_PROOF: Final = {
    "memory": "memory.limit_in_bytes",
    "cpu": "cpu.cfs_quota_us",
    "pids": "pids.max",
    "cpuset": "cpuset.cpus",
    "freezer": "freezer.state",
}


class Hierarchy(NamedTuple):
    """One mounted hierarchy. own: the folder of the group that this process is in. controllers: of version 1."""

    version: int
    controllers: frozenset[str]
    mount: str
    own: str


class Claim(NamedTuple):
    """base: the folder of ours. home: where this process belongs while it starts nothing. controllers: at work below
    the base; none in version 2 means that groups there only hold processes together."""

    version: int
    controllers: frozenset[str]
    base: str
    home: str


def find(proc: str = "/proc/self") -> list[Hierarchy]:
    """The hierarchies in which this process's own group can be seen; empty without any, or without /proc."""
    groups: dict[str, str] = {}  # by controller; that of version 2 has no name
    for line in _lines(os.path.join(proc, "cgroup")):
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        groups |= dict.fromkeys(names.split(","), path)
    found: list[Hierarchy] = []
    for version, controllers, root, mount in _mounts(proc):
        at = groups.get("" if version == 2 else min(controllers))
        relative = None if at is None else _below(root, at)
        if relative is None or any(controllers == one.controllers for one in found):
            continue
        found.append(Hierarchy(version, controllers, mount, os.path.normpath(mount + relative)))
    return found


def claim_all(hierarchies: Collection[Hierarchy], name: str, *, allowed: Collection[str] = ALL_GROUPS) -> list[Claim]:
    """A base called ``name`` in each hierarchy that is allowed and lets itself be written to."""
    claims: list[Claim] = []
    for one in sorted(hierarchies, key=lambda one: -one.version):
        # Version 2 does what the freezer is for, and better.
        is_tracked = any(other.version == 2 for other in claims)
        made = claim(one, name, allowed=set(allowed) - {"freezer"} if is_tracked else allowed)
        claims += [made] if made is not None else []
    return claims


def claim(hierarchy: Hierarchy, name: str, *, allowed: Collection[str] = ALL_GROUPS) -> Claim | None:
    """Make the base in one hierarchy; None where that is not possible or of no use."""
    try:
        if hierarchy.version == 2:
            return _claim_second(hierarchy, name, allowed) if "unified" in allowed else None
        return _claim_first(hierarchy, name, hierarchy.controllers.intersection(allowed))
    except OSError:  # read-only, another user's, or gone: as good as not there
        return None


def read_words(path: str) -> list[str]:
    """The words of a small file; none where it can't be read."""
    try:
        return os.fsdecode(read_all(path)).split()
    except OSError:
        return []


def write(path: str, text: str) -> None:
    """Write to a file that is there; raises ``OSError`` with what the kernel says of the value."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _claim_first(hierarchy: Hierarchy, name: str, controllers: frozenset[str]) -> Claim | None:
    if not controllers:
        return None
    base = os.path.join(hierarchy.own, name)
    _make(base)
    if "cpuset" in controllers:  # such a group takes no process before it has both
        for kind in ("cpus", "mems"):
            write(os.path.join(base, f"cpuset.{kind}"), ",".join(read_words(f"{hierarchy.own}/cpuset.{kind}")))
    working = frozenset(one for one in controllers if os.path.exists(os.path.join(base, _PROOF[one])))
    if not working:
        os.rmdir(base)
        return None
    return Claim(1, working, base, hierarchy.own)


def _claim_second(hierarchy: Hierarchy, name: str, allowed: Collection[str]) -> Claim | None:
    root, is_ours = _delegated(hierarchy)
    base = os.path.join(root, name)
    _make(base)
    wanted = LIMITERS.intersection(allowed, read_words(os.path.join(root, "cgroup.controllers")))
    home = hierarchy.own
    if not _hand_down(root, wanted) and is_ours:
        home = os.path.join(root, _LEAF)
        _make(home)
        _move_all(root, home)
        _hand_down(root, wanted)
    given = wanted.intersection(read_words(os.path.join(base, "cgroup.controllers")))
    _hand_down(base, given)
    working = given.intersection(read_words(os.path.join(base, "cgroup.subtree_control")))
    return Claim(2, working, base, home)


def _delegated(hierarchy: Hierarchy) -> tuple[str, bool]:
    """The group below which ours belong, and whether all that is in it is ours."""
    own, parent = hierarchy.own, os.path.dirname(hierarchy.own)
    if os.path.basename(own) == _LEAF:
        return parent, True
    if _is_delegated(own):
        return own, True
    # systemd's DelegateSubgroup=: the service's processes start in a leaf. A user's whole manager is delegated too,
    # and what is below that is the manager's.
    if own != hierarchy.mount and _is_delegated(parent) and not os.path.basename(parent).startswith("user@"):
        return parent, True
    # The root of all has no type; one that has is the root of what a container sees.
    is_container = own == hierarchy.mount and os.path.exists(os.path.join(own, "cgroup.type"))
    return own, is_container


def _is_delegated(folder: str) -> bool:
    for name in ("user.delegate", "trusted.delegate"):
        try:
            if os.getxattr(folder, name) == b"1":
                return True
        except OSError:  # no such mark, or no such marks here at all
            continue
    return False


def _hand_down(folder: str, controllers: Collection[str]) -> bool:
    """Give controllers to the groups below; False where processes in ``folder`` are in the way of one."""
    is_free = True
    given = read_words(os.path.join(folder, "cgroup.subtree_control"))
    for name in sorted(set(controllers).difference(given)):
        try:
            write(os.path.join(folder, "cgroup.subtree_control"), f"+{name}")
        except OSError as error:  # one that is not to be had leaves the others
            is_free = is_free and error.errno != errno.EBUSY
    return is_free


def _move_all(source: str, target: str) -> None:
    for _ in range(_MOVES):  # they may fork meanwhile
        pids = read_words(os.path.join(source, "cgroup.procs"))
        if not pids:
            return
        for pid in pids:
            try:
                write(os.path.join(target, "cgroup.procs"), pid)
            except OSError:  # it has ended
                continue


def _make(folder: str) -> None:
    try:
        os.mkdir(folder, 0o755)
    except FileExistsError:
        if not stat.S_ISDIR(os.lstat(folder).st_mode):
            raise


def _mounts(proc: str) -> Iterator[tuple[int, frozenset[str], str, str]]:
    """(version, controllers, root, mount point) of each cgroup mount; see proc_pid_mountinfo(5)."""
    for line in _lines(os.path.join(proc, "mountinfo")):
        left, _, right = line.partition(" - ")
        fields, kinds = left.split(), right.split()
        if len(fields) < 5 or len(kinds) < 3:
            continue
        root, mount = (_unescape(field) for field in fields[3:5])
        if kinds[0] == "cgroup2":
            yield 2, frozenset(), root, mount
        elif kinds[0] == "cgroup":
            controllers = frozenset(kinds[2].split(",")).intersection(_PROOF)
            if controllers:
                yield 1, controllers, root, mount


def _below(root: str, path: str) -> str | None:
    """``path`` as seen from a mount of ``root``; None where it can't be reached through it."""
    if ".." in path.split("/") or ".." in root.split("/"):
        return None
    if root == "/":
        return path
    if path == root or path.startswith(root + "/"):
        return path[len(root) :]
    return None


def _unescape(text: str) -> str:
    for code in ("040", "011", "012", "134"):
        text = text.replace(f"\\{code}", chr(int(code, 8)))
    return text


def _lines(path: str) -> list[str]:
    try:
        with open(path, "rb") as file:
            return os.fsdecode(file.read()).splitlines()
    except OSError:
        return []
