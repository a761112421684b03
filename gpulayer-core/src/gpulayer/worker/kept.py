"""What outside probes found last, on disk: for a start at which one of them fails or is late.

A worker that has just been started and knows nothing of a resource has jobs rejected that want it, so what was true a
moment ago is believed until the probe answers; but not what is older than an hour. What is read back is checked as
what a probe says is.
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from gpulayer.clock import Clock
from gpulayer.plugins.contracts.probe import Findings
from gpulayer.plugins.results import instance_of
from gpulayer.spec.machine import Device, DeviceState, Framework, Locality
from gpulayer.spec.request import Accelerator
from gpulayer.whole import write_whole
from gpulayer.worker.findings import checked_findings

__all__ = ["KeptFindings", "device_of"]

_log: Final = logging.getLogger(__name__)
_KEPT_MS: Final = 3_600_000
_RENEW_MS: Final = 600_000  # what never changes is written again to say that it is still so


class KeptFindings:
    """By plugin and probe. ``read`` and ``write`` touch the disk; the others don't."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._known: dict[str, tuple[int, Findings]] = {}
        self._written: dict[str, tuple[int, Findings]] = {}

    def read(self) -> None:
        """Of the last hour. What can't be read or can't be was never kept."""
        now_ms = self._clock.wall_ms()
        self._known = {}
        try:
            for key, (wall_ms, fields) in json.loads(self._path.read_bytes()).items():
                if 0 <= now_ms - instance_of(int, wall_ms) < _KEPT_MS:
                    self._known[str(key)] = wall_ms, _findings(fields)
        except (OSError, ValueError, TypeError, AttributeError, KeyError, RecursionError):
            self._known = {}
        self._written = dict(self._known)

    def of(self, key: str) -> Findings | None:
        """What it found, this time or an earlier one."""
        known = self._known.get(key)
        return known[1] if known else None

    def keep(self, key: str, found: Findings) -> None:
        """It has found this just now."""
        # Of processes nothing is kept: who was there then is no reason to lend, or not to lend, a device now.
        self._known[key] = self._clock.wall_ms(), replace(found, processes=None)

    def write(self) -> None:
        """Where something has changed but free space, or what is there gets old."""
        if not self._is_news():
            return
        self._written = dict(self._known)
        rows = {key: (wall_ms, asdict(found)) for key, (wall_ms, found) in self._written.items()}
        try:
            write_whole(self._path, json.dumps(rows).encode())
        except OSError as error:
            _log.warning("what probes found can't be kept: %s", error)

    def _is_news(self) -> bool:
        if self._known.keys() != self._written.keys():
            return True
        for key, (wall_ms, found) in self._known.items():
            before_ms, before = self._written[key]
            if not 0 <= wall_ms - before_ms < _RENEW_MS or _steady(found) != _steady(before):
                return True
        return False


def _steady(found: Findings) -> Findings:
    """Without what always changes."""
    return replace(
        found,
        disk_bytes=None,
        devices=tuple(device.without_flowing_figures() for device in found.devices),
    )


def device_of(fields: dict[str, Any]) -> Device:
    """Of a file. Raises TypeError, ValueError, KeyError or AttributeError for what is no device."""
    return checked_findings(Findings(devices=(_device(fields),))).devices[0]


def _findings(fields: dict[str, Any]) -> Findings:  # Any: of a file; what is no findings is found out in the end
    """Raises TypeError, ValueError, KeyError or AttributeError for what is no findings."""
    locality = fields["locality"]
    found = {
        **fields,
        "devices": tuple(_device(device) for device in fields["devices"]),
        "frameworks": tuple(_framework(framework) for framework in fields["frameworks"]),
        "labels": _pairs(fields["labels"]),
        "locality": None if locality is None else Locality(**locality),
        "addresses": tuple(fields["addresses"]),
        "resources": _pairs(fields["resources"]),
        "missing": _pairs(fields["missing"]),
    }
    return checked_findings(Findings(**found))


def _device(fields: dict[str, Any]) -> Device:
    kind, state = Accelerator(fields["kind"]), DeviceState(fields["state"])
    return Device(**{**fields, "kind": kind, "state": state, "links": _pairs(fields["links"])})


def _framework(fields: dict[str, Any]) -> Framework:
    accelerator, architectures = Accelerator(fields["accelerator"]), tuple(fields["architectures"])
    failed_on = _pairs(fields.get("failed_on", ()))
    return Framework(**{**fields, "accelerator": accelerator, "architectures": architectures, "failed_on": failed_on})


def _pairs(rows: Sequence[Sequence[object]]) -> tuple[tuple[Any, Any], ...]:
    return tuple((name, value) for name, value in rows)
