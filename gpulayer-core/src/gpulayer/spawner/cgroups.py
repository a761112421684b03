"""Control groups of jobs: they hold a tree together, end it as a whole, limit it, and tell of its memory.

A job has a group in the *tracking* hierarchy (version 2, else the freezer) and, for what it is limited in, groups in
the hierarchies of version 1 that do it. To start a job without a race this single-threaded process moves itself into
the groups, starts the program, which is born there, and moves out.

Moving costs 0.05 ms in a burst, but 6 ms (the kernel waits for every processor) when none was moved for a while. So
in the tracking hierarchy it does not move out of a group that limits nothing: it stays *seated* there until the next
start, or until ``settle``, and a group whose job has ended with nothing left serves the next job as it is. A tidy job
that runs alone costs no move at all. The seat is left before its group is killed.
"""

import os
import signal
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from gpulayer.spawner.hierarchies import Claim, read_words, write
from gpulayer.spawner.messages import SpawnLimits

__all__ = ["Group", "Groups", "end_below", "remove_below"]

_UNHELD: Final = "nothing holds it to its limits"
_POOL: Final = 16
_CPU_PERIOD_US: Final = 100_000
_SHARES: Final = 1024  # of version 1; of version 2 it is 100
_WEIGHT: Final = 100
_START_MEMORY: Final = 32 << 20  # while this process is inside, so that no limit can be the death of it
_FREEZE_LOOKS: Final = 10
_LOOK_AGAIN_S: Final = 0.0005
_CLOSE_TRIES: Final = 100


@dataclass(slots=True, eq=False)
class Group:
    """One job's. folders: by claim; the first is the tracking one. notes: what was asked for and could not be set."""

    folders: dict[Claim, str]
    tracked: Claim | None
    is_limited: bool = False
    is_spent: bool = False  # never another job's
    oom_kills_before: int = 0
    cores: frozenset[int] = frozenset()
    after: list[tuple[str, str]] = field(default_factory=list)  # files to write once this process is out again
    notes: list[str] = field(default_factory=list)


class Groups:
    """All groups of one spawner. With no claims it holds jobs to nothing and tells nothing."""

    def __init__(self, claims: Collection[Claim]) -> None:
        claims = [one for one in claims if _can_move(one)]
        second = next((one for one in claims if one.version == 2), None)
        freezer = next((one for one in claims if "freezer" in one.controllers), None)
        self._tracking = second or freezer
        self._limiting: dict[str, Claim] = {}
        for one in claims:
            for controller in one.controllers:
                self._limiting.setdefault(controller, one)
        self._claims = tuple(claims)
        self._count = 0
        self._pool: list[str] = []
        self._stale: list[str] = []
        self._seat = ""  # where this process is in the tracking hierarchy; empty: at home
        self._seated: Group | None = None  # the job that has the seat's group; None: nobody has
        self.moves = 0  # so often has this process moved in order to start a job
        self._affinity = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None

    @property
    def enforces(self) -> tuple[str, ...]:
        """See ``messages.Welcome``."""
        names = {"cpu": "cpus", "memory": "memory", "pids": "pids"}
        found = [names[one] for one in names if one in self._limiting]
        return (*(["cores"] if self._affinity is not None else []), *found)

    @property
    def bases(self) -> tuple[str, ...]:
        """What ``end_below`` and ``remove_below`` are for after a death."""
        return tuple(one.base for one in self._claims)

    @property
    def usable_cores(self) -> frozenset[int]:
        return frozenset(self._affinity or ())

    def take(self, limits: SpawnLimits, *, cores: frozenset[int] = frozenset()) -> Group | None:
        """A group for a job that is about to start; None where there are no groups."""
        wanted = {
            "memory": limits.memory_bytes > 0,
            "cpu": limits.cpus > 0 or limits.cpu_weight > 1,
            "pids": limits.pids > 0,
            "cpuset": bool(cores),
        }
        limiting = {one: self._limiting[one] for one, is_asked in wanted.items() if is_asked and one in self._limiting}
        is_limited = self._tracking in limiting.values()
        group = Group({}, self._tracking, is_limited=is_limited, is_spent=is_limited, cores=cores)
        try:
            if self._tracking is not None:
                group.folders[self._tracking] = self._new(self._tracking) if is_limited else self._place()
            for claim in limiting.values():
                if claim not in group.folders:
                    group.folders[claim] = self._new(claim)
            for controller, claim in limiting.items():
                self._limit(group, controller, claim, limits)
            group.oom_kills_before = self._oom_kills(group) or 0
        except OSError as error:
            group.notes.append(f"its control group can't be made: {error.strerror}; {_UNHELD}")
            self.release(group)
            return Group({}, None, cores=cores, notes=group.notes)
        return group

    @contextmanager
    def inside(self, group: Group | None) -> Iterator[None]:
        """What is started within is born in the groups, on its cores."""
        try:
            self._enter(group)
            yield
        finally:
            self._leave(group)

    def settle(self) -> None:
        """Leave the group of a job that goes on: what befalls that group shall not befall this process."""
        if self._seated is not None:
            self._is_out(self._seated)
        self._sweep()

    def stay(self) -> None:
        """Move to where this process is: while that goes on, the next move need not wait for every processor."""
        if self._seat:
            try:
                write(os.path.join(self._seat, "cgroup.procs"), "0")
            except OSError:  # then the next start says what is wrong
                return

    def pids(self, group: Group) -> list[int] | None:
        """The processes of the tree, without this one; None where no group tells. Zombies are not among them."""
        if group.tracked is None:
            return None
        own = os.getpid()
        return [pid for pid in _pids(group.folders[group.tracked]) if pid != own]

    def kill(self, group: Group) -> bool:
        """SIGKILL everything in it, frozen or forking; False where there is no group that could."""
        if group.tracked is None or not self._is_out(group):
            return False
        group.is_spent = True
        return _kill(group.folders[group.tracked])

    def thaw(self, group: Group) -> None:
        """A frozen tree hears no signal but SIGKILL."""
        if group.tracked is not None:
            _freeze(group.folders[group.tracked], is_frozen=False)

    def memory(self, group: Group) -> tuple[int | None, int | None]:
        """How many of its processes the kernel killed for want of memory, and the most that it used, in bytes.

        None: not known. Asked for once the tree has ended, and before ``release``.
        """
        kills = self._oom_kills(group)
        claim = self._limiting.get("memory")
        folder = None if claim is None else group.folders.get(claim)
        if kills is None or claim is None or folder is None:
            return None, None
        name = "memory.peak" if claim.version == 2 else "memory.max_usage_in_bytes"
        peak = read_words(os.path.join(folder, name)) if group.is_limited or claim.version == 1 else []
        return max(0, kills - group.oom_kills_before), int(peak[0]) if peak and peak[0].isdigit() else None

    def refused_starts(self, group: Group) -> str:
        """A line where its limit of processes kept any from starting; else empty. Asked for before ``release``."""
        claim = self._limiting.get("pids")
        folder = None if claim is None else group.folders.get(claim)
        words = [] if folder is None else read_words(os.path.join(folder, "pids.events"))
        count = dict(zip(words[::2], words[1::2], strict=False)).get("max", "")
        if folder is None or not count.isdigit() or not int(count):
            return ""
        limit = "".join(read_words(os.path.join(folder, "pids.max")))
        return f"it reached its --pids of {limit}: {count} time{'s' if count != '1' else ''} none could be started"

    def release(self, group: Group, *, is_empty: bool = False) -> None:
        """Its job has ended, or never began. is_empty: ``pids`` has just told of none."""
        for claim, folder in group.folders.items():
            if claim is self._tracking:
                if not group.is_spent and not _has_below(folder) and (is_empty or not self.pids(group)):
                    if folder == self._seat:
                        self._seated = None
                        continue
                    if len(self._pool) < _POOL:
                        self._pool.append(folder)
                        continue
                self._is_out(group)
            self._stale.append(folder)
        group.folders.clear()
        group.tracked = None
        self._sweep()

    def close(self) -> None:
        """Go home and remove what is empty. Blocks for a fraction of a second at most."""
        if self._seat:
            self._go_home()
        for claim in self._claims:
            for _ in range(_CLOSE_TRIES):
                if remove_below(claim.base):
                    break
                time.sleep(_LOOK_AGAIN_S)

    # Moving -----------------------------------------------------------------------------------------------------------

    def _enter(self, group: Group | None) -> None:
        if group is None:
            return
        for claim, folder in list(group.folders.items()):
            try:
                if folder != self._seat:
                    self.moves += 1
                    write(os.path.join(folder, "cgroup.procs"), "0")
            except OSError as error:
                group.notes.append(
                    f"its control group can't be entered: {error.strerror}; nothing holds it to its limits"
                )
                del group.folders[claim]
                group.tracked = None if claim is group.tracked else group.tracked
                self._stale.append(folder)
            else:
                if claim is self._tracking:
                    self._leave_seat(folder, group)
        if self._affinity is not None:
            # A move to or from a cpuset may have changed it (before Linux 6.2), and pinned jobs inherit theirs.
            _set_affinity(group.cores or self._affinity)

    def _leave(self, group: Group | None) -> None:
        """Raises nothing: what was started must not be lost for it."""
        if group is None:
            return
        for claim in group.folders:
            try:
                if claim is not self._tracking:
                    write(os.path.join(claim.home, "cgroup.procs"), "0")
                elif group.is_limited:
                    self._is_out(group)
            except OSError as error:
                group.notes.append(f"the spawner can't leave its control group: {error.strerror}")
        if self._affinity is not None:
            _set_affinity(self._affinity)
        for path, value in group.after:
            try:
                write(path, value)
            except OSError as error:
                group.notes.append(f"{os.path.basename(path)} can't be set to {value}: {error.strerror}")

    def _sit(self, folder: str) -> None:
        """Move to a group that no job has."""
        write(os.path.join(folder, "cgroup.procs"), "0")
        self._leave_seat(folder, None)

    def _leave_seat(self, folder: str, group: Group | None) -> None:
        if self._seat and self._seat != folder and self._seated is None:
            self._pool.append(self._seat)
        self._seat, self._seated = folder, group

    def _is_out(self, group: Group) -> bool:
        """Leave the group where this process is in it; False where that fails: it must then not be killed."""
        if self._seated is group and self._tracking is not None:
            try:
                self._sit(self._fresh(self._tracking))
            except OSError:
                self._go_home()
        return self._seated is not group

    def _go_home(self) -> None:
        assert self._tracking is not None
        try:
            write(os.path.join(self._tracking.home, "cgroup.procs"), "0")
        except OSError:  # then it stays, and what it sits in is not killed
            return
        self._leave_seat("", None)

    def _place(self) -> str:
        """A group that limits nothing and that nobody is in, but perhaps this process."""
        assert self._tracking is not None
        if self._seat and self._seated is None:
            return self._seat
        return self._fresh(self._tracking)

    def _fresh(self, claim: Claim) -> str:
        return self._pool.pop() if self._pool else self._new(claim)

    def _new(self, claim: Claim) -> str:
        self._count += 1
        folder = os.path.join(claim.base, str(self._count))
        os.mkdir(folder, 0o755)
        return folder

    def _sweep(self) -> None:
        # A process that has just died holds its group a moment longer: what can't be removed yet is tried again.
        self._stale = [folder for folder in self._stale if not _remove(folder)]

    # Limits -----------------------------------------------------------------------------------------------------------

    def _limit(self, group: Group, controller: str, claim: Claim, limits: SpawnLimits) -> None:
        folder = group.folders[claim]
        is_second = claim.version == 2
        match controller:
            case "memory":
                names = ["memory.max"] if is_second else ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"]
                first = max(limits.memory_bytes, _START_MEMORY)
                values = [(name, str(first)) for name in names]
                if is_second:
                    values += [("memory.swap.max", "0"), ("memory.oom.group", "1")]
                if first != limits.memory_bytes:
                    group.after += [(os.path.join(folder, name), str(limits.memory_bytes)) for name in names]
            case "cpu":
                quota = limits.cpus * _CPU_PERIOD_US
                values = []
                if quota:
                    values += [("cpu.max", f"{quota} {_CPU_PERIOD_US}")] if is_second else []
                    values += [] if is_second else [("cpu.cfs_quota_us", str(quota))]
                if is_second:
                    values.append(("cpu.weight", str(min(10_000, _WEIGHT * limits.cpu_weight))))
                else:
                    values.append(("cpu.shares", str(_SHARES * limits.cpu_weight)))
            case "pids":
                # One more while this process is in there too.
                values = [("pids.max", str(limits.pids + 1))]
                group.after.append((os.path.join(folder, "pids.max"), str(limits.pids)))
            case _:
                values = [("cpuset.cpus", ",".join(map(str, sorted(group.cores))))]
                if not is_second:
                    values.insert(0, ("cpuset.mems", ",".join(read_words(f"{claim.base}/cpuset.mems"))))
        for name, value in values:
            path = os.path.join(folder, name)
            if not os.path.exists(path):  # of a kernel without it: no swap accounting, no killing by group
                group.after = [one for one in group.after if one[0] != path]
                continue
            try:
                write(path, value)
            except OSError as error:
                group.notes.append(f"{name} can't be set to {value}: {error.strerror}")

    def _oom_kills(self, group: Group) -> int | None:
        claim = self._limiting.get("memory")
        folder = None if claim is None else group.folders.get(claim)
        if folder is None or claim is None:
            return None
        words = read_words(os.path.join(folder, "memory.events" if claim.version == 2 else "memory.oom_control"))
        counts = dict(zip(words[::2], words[1::2], strict=False))
        count = counts.get("oom_kill", "")
        return int(count) if count.isdigit() else None


def end_below(base: str, *, spare: Collection[int]) -> set[int]:
    """SIGKILL what is left in the groups of a base whose spawner is dead; the processes that are still there."""
    left: set[int] = set()
    for folder in _folders(base):
        pids = set(_pids(folder))
        if pids and (pids.intersection(spare) or not _kill(folder)):
            _kill_each(pids.difference(spare))
        left |= pids.difference(spare)
    return left


def remove_below(base: str) -> bool:
    """Remove a base and its groups; False while something is in one."""
    for folder in _folders(base):
        _remove(folder)
    return _remove(base)


def _kill(folder: str) -> bool:
    try:
        write(os.path.join(folder, "cgroup.kill"), "1")
    except OSError:  # before Linux 5.14, or of version 1
        pass
    else:
        return True
    # Frozen, nothing forks between the reading and the killing; it dies when it is thawed.
    is_frozen = _freeze(folder, is_frozen=True)
    _kill_each(_pids(folder))
    if is_frozen:
        _freeze(folder, is_frozen=False)
    return is_frozen


def _kill_each(pids: Iterable[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:  # it has ended
            continue


def _can_move(claim: Claim) -> bool:
    """Go there and back: permission to make a group is not yet one to put a process into it."""
    folder = os.path.join(claim.base, "0")
    try:
        os.makedirs(folder, exist_ok=True)
        for kind in ("cpus", "mems") if "cpuset" in claim.controllers and claim.version == 1 else ():
            write(f"{folder}/cpuset.{kind}", ",".join(read_words(f"{claim.base}/cpuset.{kind}")))
        write(os.path.join(folder, "cgroup.procs"), "0")
        write(os.path.join(claim.home, "cgroup.procs"), "0")
    except OSError:
        return False
    finally:
        _remove(folder)
    return True


def _set_affinity(cores: Collection[int]) -> None:
    try:
        os.sched_setaffinity(0, cores)
    except OSError:  # a core was taken away meanwhile; the rest of them is what the kernel leaves
        pass


def _freeze(folder: str, *, is_frozen: bool) -> bool:
    """Freeze or thaw; False where that is not possible here. What takes its time to freeze is not waited for long."""
    second, first = os.path.join(folder, "cgroup.freeze"), os.path.join(folder, "freezer.state")
    is_second = os.path.exists(second)
    try:
        write(second if is_second else first, str(int(is_frozen)) if is_second else ("THAWED", "FROZEN")[is_frozen])
    except OSError:
        return False
    for _ in range(_FREEZE_LOOKS if is_frozen else 0):
        words = read_words(os.path.join(folder, "cgroup.events") if is_second else first)
        if words == ["FROZEN"] or words[-2:] == ["frozen", "1"]:
            break
        time.sleep(_LOOK_AGAIN_S)
    return True


def _pids(folder: str) -> list[int]:
    """Of the group and those that a job made below it."""
    found = [int(pid) for pid in read_words(os.path.join(folder, "cgroup.procs")) if pid.isdigit()]
    if _has_below(folder):
        for below in _folders(folder):
            found += _pids(below)
    return found


def _has_below(folder: str) -> bool:
    try:
        return os.stat(folder).st_nlink > 2
    except OSError:
        return False


def _folders(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _remove(folder: str) -> bool:
    if _has_below(folder):
        for below in _folders(folder):
            _remove(below)
    try:
        os.rmdir(folder)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
