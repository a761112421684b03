"""The host probe: processors, memory and disk that this worker may really use, where others may reach it, and what kind
of host it is.

A container shows the whole machine's figures in /proc; what counts is the narrowest of processor affinity and the
quotas and limits of every cgroup above the worker, in version 1 or 2.
"""

import logging
import math
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import psutil

from gpulayer.net.interfaces import interface_addresses
from gpulayer.plugins.builtin.child import Child, Unanswered, found_program
from gpulayer.plugins.builtin.processors import processor_name
from gpulayer.plugins.builtin.surroundings import container_kind, host_kind
from gpulayer.plugins.contracts.context import Context
from gpulayer.plugins.contracts.probe import Findings, Probe, ProbeSite
from gpulayer.plugins.hooks import API_VERSION, hookimpl
from gpulayer.spec.labels import CONTAINER_LABEL, HOST_LABEL

__all__ = ["GPULAYER_API", "HostProbe", "gpulayer_register_probes", "host_platform"]

GPULAYER_API: Final = API_VERSION

_log: Final = logging.getLogger(__name__)
_MOST: Final = 128  # characters of a name
_DISK_S: Final = 2.0
_FREE: Final = "import os, sys; disk = os.statvfs(sys.argv[1]); print(disk.f_bavail * disk.f_frsize)"


@hookimpl
def gpulayer_register_probes(ctx: Context) -> list[Probe]:
    """The host probe."""
    return [HostProbe()]


class HostProbe:
    """Reads a few small files, and asks how much room the disk has in a child, which has ``_DISK_S``. On macOS it asks
    one more program, once. The parameters are for tests."""

    def __init__(
        self,
        *,
        cgroup_root: Path = Path("/sys/fs/cgroup"),
        proc_root: Path = Path("/proc"),
        root: Path = Path("/"),
        system: str = sys.platform,
        programs: Sequence[str] = ("/usr/sbin",),
        python: str = sys.executable,
    ) -> None:
        self._cgroup_root = cgroup_root
        self._proc_root = proc_root
        self._root = root
        self._system = system
        self._programs = programs
        self._python = python
        self._sysctl = Child()
        self._disk = Child()
        self._cpu_model = ""

    @property
    def name(self) -> str:
        return "host"

    def look(self, site: ProbeSite) -> Findings:
        return Findings(
            platform=host_platform(),
            cpus=self._cpus(),
            memory_bytes=self._memory_bytes(),
            disk_bytes=self._disk_bytes(site),
            addresses=interface_addresses(),
            labels=self._labels(site),
            cpu_model=self._processor(site),
        )

    def _disk_bytes(self, site: ProbeSite) -> int | None:
        """In a child: a network's disk whose server is gone keeps whoever asks for as long as it likes."""
        command = [self._python, "-I", "-S", "-c", _FREE, str(site.work_dir)]
        try:
            said = self._disk.ask(command, environment=site.environment, deadline_s=_DISK_S, called="the worker's disk")
        except Unanswered as reason:
            _log.debug("how much room the disk has is not known: %s", reason)
            return None
        return int(said.out) if said.code == 0 and said.out.strip().isdecimal() else None

    def _labels(self, site: ProbeSite) -> tuple[tuple[str, str], ...]:
        found = (
            (HOST_LABEL, host_kind(self._root, self._proc_root)),
            (CONTAINER_LABEL, container_kind(self._root, self._proc_root, site.environment)),
        )
        return tuple((name, value) for name, value in found if value)

    def _processor(self, site: ProbeSite) -> str:
        """It stays the same, and to make the file costs the kernel an interrupt of each core."""
        if not self._cpu_model:
            is_mac = self._system == "darwin"
            self._cpu_model = (
                self._brand(site) if is_mac else processor_name("\n".join(_lines(self._proc_root / "cpuinfo")))
            )
        return self._cpu_model

    def _brand(self, site: ProbeSite) -> str:
        program = found_program("sysctl", environment=site.environment, also=self._programs)
        if not program:
            return ""
        try:
            said = self._sysctl.ask([program, "-n", "machdep.cpu.brand_string"], environment=site.environment)
        except Unanswered as reason:
            _log.debug("the processor's name is not known: %s", reason)
            return ""
        return " ".join(said.out.split())[:_MOST] if said.code == 0 else ""

    def _cpus(self) -> int:
        count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        quotas = [quota for quota in self._cpu_quotas() if quota > 0]
        # A quota of 1.5 processors is room for one job of one and no second.
        return max(1, min([count, *(math.floor(quota) for quota in quotas)]))

    def _memory_bytes(self) -> int:
        total = psutil.virtual_memory().total
        return min([total, *(limit for limit in self._memory_limits() if limit > 0)])

    def _cpu_quotas(self) -> Iterator[float]:
        for folder in self._folders(""):
            match _words(folder / "cpu.max"):
                case [quota, period] if quota.isdigit() and period.isdigit() and int(period):
                    yield int(quota) / int(period)
        for folder in self._folders("cpu"):
            match _words(folder / "cpu.cfs_quota_us"), _words(folder / "cpu.cfs_period_us"):
                case [[quota], [period]] if quota.isdigit() and period.isdigit() and int(period):
                    yield int(quota) / int(period)

    def _memory_limits(self) -> Iterator[int]:
        for controller, name in (("", "memory.max"), ("memory", "memory.limit_in_bytes")):
            for folder in self._folders(controller):
                match _words(folder / name):
                    case [limit] if limit.isdigit():
                        yield int(limit)

    def _folders(self, controller: str) -> Iterator[Path]:
        """The worker's own cgroup and all above it; ``controller`` empty: of version 2.

        Inside a container the path in /proc may not exist below the mount; then the mount itself is the limit.
        """
        for line in _lines(self._proc_root / "self" / "cgroup"):
            _, names, path = [*line.split(":", 2), "", ""][:3]
            if controller not in names.split(","):
                continue
            root = self._cgroup_root / controller if controller else self._cgroup_root
            parts = [part for part in path.split("/") if part not in ("", "..")]
            for depth in range(len(parts), -1, -1):
                yield root.joinpath(*parts[:depth])


def host_platform() -> str:
    """``linux-x86_64``, ``darwin-arm64``: what programs are built for."""
    return f"{sys.platform}-{platform.machine().lower()}"


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []  # no such controller here: it limits nothing


def _words(path: Path) -> list[str]:
    return " ".join(_lines(path)).split()
