"""The devices that this worker has met since its start, whatever the last look found.

A device that is not found any more has not become nobody's: jobs may run on it, people ask where it is, and the others
keep their numbers, though a vendor's tool counts anew without it: what it counts now is their ``mask_index``. It comes
back by itself when it is found again.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from gpulayer.spec.machine import Device, DeviceState
from gpulayer.spec.request import Accelerator
from gpulayer.worker.findings import MAX_DEVICES

__all__ = ["KnownDevices"]

_GONE: Final = "it is not found any more"


class KnownDevices:
    """``settle`` what each look found."""

    def __init__(self) -> None:
        self._met: dict[str, Device] = {}

    def settle(self, found: Sequence[Device], missing: Mapping[str, str]) -> tuple[Device, ...]:
        """Those found, each with the number that it had first, and those that were there before, unhealthy. missing: by
        kind, why none can be used. Slices come and go as people wish while their card is there. What is at the address
        of another one now has taken its place: that was cut into slices, made whole again, can be read at last, or gave
        way to a new card."""
        here = {device.uuid for device in found}
        filled = {name for device in found for name in (device.uuid, device.pci_address, device.parent) if name}
        gone = {
            uuid: replace(
                device.without_flowing_figures(),
                state=DeviceState.UNHEALTHY,
                reason=missing.get(device.kind) or _GONE,
                mask_index=None,
            )
            for uuid, device in self._met.items()
            if uuid not in here and filled.isdisjoint((uuid, device.pci_address, device.parent))
        }
        numbers = _Numbers(device for uuid, device in self._met.items() if uuid in here or uuid in gone)
        settled = [numbers.given(device) for device in found]
        self._met = {device.uuid: device for device in (*settled, *gone.values())[:MAX_DEVICES]}
        return tuple(sorted(self._met.values(), key=lambda device: (device.kind, device.index)))


class _Numbers:
    """Of devices of each kind, those of devices known before first. Slices have the number of their card."""

    def __init__(self, known: Iterable[Device]) -> None:
        self._of: dict[str, int] = {}
        self._taken: set[tuple[Accelerator, int]] = set()
        for device in known:
            if not device.parent:
                self._of[device.uuid] = device.index
                self._taken.add((device.kind, device.index))

    def given(self, device: Device) -> Device:
        index = self._of.get(device.uuid)
        if index is None and not device.parent:
            index = device.index
            while (device.kind, index) in self._taken:
                index += 1
            self._taken.add((device.kind, index))
        return device if index in (None, device.index) else replace(device, index=index, mask_index=device.index)
