"""The host probe: processors, memory and disk that this worker may really use, and where others may reach it.

A container shows the whole machine's figures in /proc; what counts is the narrowest of processor affinity and the
quotas and limits of every cgroup above the worker, in version 1 or 2.
"""

import math
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil

from gpulayer.net.interfaces import interface_addresses
from gpulayer.plugins.contracts.context import Context
from gpulayer.plugins.contracts.probe import Findings, Probe, ProbeSite
from gpulayer.plugins.hooks import API_VERSION, hookimpl

__all__ = ["GPULAYER_API", "HostProbe", "gpulayer_register_probes", "host_platform"]

GPULAYER_API: Final = API_VERSION


@hookimpl
def gpulayer_register_probes(ctx: Context) -> list[Probe]:
    """The host probe."""
    return [HostProbe()]


class HostProbe:
    """Reads a few small files; blocks for milliseconds. The roots are parameters for tests."""

    def __init__(self, *, cgroup_root: Path = Path("/sys/fs/cgroup"), proc_root: Path = Path("/proc")) -> None:
        self._cgroup_root = cgroup_root
        self._proc_root = proc_root

    @property
    def name(self) -> str:
        return "host"

    def look(self, site: ProbeSite) -> Findings:
        return Findings(
            platform=host_platform(),
            cpus=self._cpus(),
            memory_bytes=self._memory_bytes(),
            disk_bytes=shutil.disk_usage(site.work_dir).free,
            addresses=interface_addresses(),
        )

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
