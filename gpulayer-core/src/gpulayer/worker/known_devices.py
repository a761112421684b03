"""The devices that this worker has met since its start, whatever the last look found.

A device that is not found any more has not become nobody's: jobs may run on it, people ask where it is, and the others
keep their numbers, though a vendor's tool counts anew without it. It comes back by itself when it is found again.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from gpulayer.spec.machine import Device, DeviceState
from gpulayer.spec.request import Accelerator
from gpulayer.worker.findings import MAX_DEVICES

__all__ = ["KnownDevices"]

_GONE: Final = "it is not found any more"
# Their masks take the numbers that the vendor's tool has for them now.
_NUMBERED_ANEW: Final = frozenset({Accelerator.XPU})


class KnownDevices:
    """``settle`` what each look found."""

    def __init__(self) -> None:
        self._met: dict[str, Device] = {}

    def settle(self, found: Sequence[Device], missing: Mapping[str, str]) -> tuple[Device, ...]:
        """Those found, each with the number that it had first, and those that were there before, unhealthy. missing: by
        kind, why none can be used. A card that was cut into slices, or made whole again, is the same card."""
        here = {device.uuid for device in found}
        cut = {device.parent for device in found if device.parent}
        gone = {
            uuid: replace(
                device.without_flowing_figures(),
                state=DeviceState.UNHEALTHY,
                reason=missing.get(device.kind) or _GONE,
            )
            for uuid, device in self._met.items()
            if uuid not in here and uuid not in cut and device.parent not in here
        }
        numbers = _Numbers(device for uuid, device in self._met.items() if uuid in here or uuid in gone)
        settled = [numbers.given(device) for device in found]
        self._met = {device.uuid: device for device in (*settled, *gone.values())[:MAX_DEVICES]}
        return tuple(sorted(self._met.values(), key=lambda device: (device.kind, device.index)))


class _Numbers:
    """Of devices of each kind, those of devices known before first."""

    def __init__(self, known: Iterable[Device]) -> None:
        self._of: dict[str, int] = {}
        self._taken: set[tuple[Accelerator, int]] = set()
        for device in known:
            if device.kind not in _NUMBERED_ANEW:
                self._of[device.uuid] = device.index
                self._taken.add((device.kind, device.index))

    def given(self, device: Device) -> Device:
        index = self._of.get(device.uuid)
        if index is None and device.kind not in _NUMBERED_ANEW:
            index = device.index
            while (device.kind, index) in self._taken:
                index += 1
            self._taken.add((device.kind, index))
        return device if index is None else replace(device, index=index)
