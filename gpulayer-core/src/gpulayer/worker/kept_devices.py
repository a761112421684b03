"""The devices that a worker has met, in a file of its folder: they keep their numbers over its next start, and one that
is missing then is told of as one that is not found any more.

For a week since it was found last: whoever takes a card out for good has it told of no longer, and the others of its
kind are counted as the vendor's tool counts them from then on. First it is looked: a machine that was off for longer
has lost none. All of it is forgotten at once where the worker has been given other devices on purpose: other variables,
another host (as a container has with every start), a probe less.
"""

import json
import logging
from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from threading import Lock
from typing import Final

from gpulayer.clock import Clock
from gpulayer.plugins.results import instance_of
from gpulayer.spec.machine import Device
from gpulayer.variables import DEVICE_VARIABLES
from gpulayer.whole import write_whole
from gpulayer.worker.kept import device_of
from gpulayer.worker.known_devices import KnownDevices

__all__ = ["KeptDevices"]

_log: Final = logging.getLogger(__name__)
_KEPT_MS: Final = 7 * 86_400_000
_RENEW_MS: Final = 3_600_000  # what never changes is written again to say that it is still so

# Variables that say which devices a worker is given, and those of batch systems, which give others to every job.
_GIVEN_BY: Final = DEVICE_VARIABLES | {
    "CUDA_DEVICE_ORDER",
    "NVIDIA_VISIBLE_DEVICES",
    "SLURM_JOB_ID",
    "PBS_JOBID",
    "LSB_JOBID",
}


class KeptDevices:
    """``read`` and ``write`` touch the disk. host: what this machine calls itself. probes: the plugins that look for
    devices."""

    def __init__(
        self, path: Path, clock: Clock, *, environment: Mapping[str, str], host: str, probes: Collection[str]
    ) -> None:
        self._path = path
        self._clock = clock
        self._given = {name: environment[name] for name in sorted(_GIVEN_BY) if name in environment} | {"host": host}
        self._probes = frozenset(probes)
        self._seen_ms: dict[str, int] = {}
        self._writing = Lock()
        self._overdue: dict[str, Device] = {}
        self._written: list[tuple[str, int]] | None = None  # None: nobody knows, or what holds no longer
        self._written_ms: int | None = None
        self._is_told = False

    def read(self) -> KnownDevices:
        """Those that were met. What can't be read was never kept; a time that is still to come is taken for now."""
        now_ms = self._clock.wall_ms()
        seen_ms: dict[str, int] = {}
        known: list[Device] = []
        try:
            said = json.loads(self._path.read_bytes())
            if said["given"] != self._given or not self._probes.issuperset(said["probes"]):
                return KnownDevices()
            for wall_ms, fields in said["devices"]:
                known.append(device_of(fields))
                seen_ms[known[-1].uuid] = min(instance_of(int, wall_ms), now_ms)
        except FileNotFoundError:
            self._written = []
            return KnownDevices()
        except (OSError, ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
            _log.warning("which devices were here before this start can't be read: %s", error)
            return KnownDevices()
        self._seen_ms = seen_ms
        self._overdue = {device.uuid: device for device in known if now_ms - seen_ms[device.uuid] >= _KEPT_MS}
        return KnownDevices(known, overdue=self._overdue)

    def write(self, devices: KnownDevices) -> None:
        """Where other devices are known than the last time, or what is there gets old."""
        with self._writing:
            self._write(devices)

    def _write(self, devices: KnownDevices) -> None:
        now_ms = self._clock.wall_ms()
        known = devices.known
        self._seen_ms = {
            device.uuid: now_ms if device.uuid in devices.here else self._seen_ms.get(device.uuid, now_ms)
            for device in known
        }
        self._tell_forgotten(devices)
        names = sorted((device.uuid, device.index) for device in known)
        is_old = self._written_ms is None or not 0 <= now_ms - self._written_ms < _RENEW_MS
        if names == self._written and (not is_old or not known):
            return
        rows = [(self._seen_ms[device.uuid], asdict(device.without_flowing_figures())) for device in known]
        said = {"given": self._given, "probes": sorted(self._probes), "devices": rows}
        try:
            write_whole(self._path, json.dumps(said).encode())
        except OSError as error:  # tried again after the next look, and told of once
            if not self._is_told:
                _log.warning("which devices are here can't be kept: %s", error)
            self._is_told = True
            return
        self._written, self._written_ms, self._is_told = names, now_ms, False

    def _tell_forgotten(self, devices: KnownDevices) -> None:
        for uuid in self._overdue.keys() - devices.overdue:
            device = self._overdue.pop(uuid)
            if all(one.uuid != uuid for one in devices.known):
                _log.info("device %d (%s) has not been found for a week, and is forgotten", device.index, uuid)
