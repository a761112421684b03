"""The devices that this worker has met, whatever the last look found; the one memory of them there is.

A device that is not found any more has not become nobody's: jobs may run on it, people ask where it is, and the others
keep their numbers, though a vendor's tool counts anew without it: what it counts now is their ``mask_index``. It comes
back by itself when it is found again. One whose vendor can't read it any more is told by where it stands, and is
recognised by that.

Where they are kept in a file all this outlives the worker, see ``KeptDevices``. Those of a kind of which none is found
at first, but others are, were another machine's, or have all been exchanged: they are forgotten. Pure.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from gpulayer.spec.machine import Device, DeviceState
from gpulayer.spec.request import Accelerator
from gpulayer.worker.findings import MAX_DEVICES

__all__ = ["KnownDevices"]

_GONE: Final = "it is not found any more"
_NOT_YET: Final = "it is not found, and not every probe has answered since the worker's start"


class KnownDevices:
    """``settle`` what each look found. here: the uuids of the last look. known: all that were met. overdue: of those
    that were to be forgotten unless they are found, those of which that is not known yet."""

    def __init__(self, known: Iterable[Device] = (), *, overdue: Iterable[str] = ()) -> None:
        """known: of an earlier life. overdue: uuids of those among them."""
        self._met = {device.uuid: device for device in known}
        self._unseen = {device.kind for device in self._met.values()}  # of which none was found in this life
        self._counted_anew: set[Accelerator] = set()  # those of these kinds found next have the numbers of now
        self.overdue: frozenset[str] = frozenset(overdue)
        self.here: frozenset[str] = frozenset()

    @property
    def known(self) -> tuple[Device, ...]:
        return tuple(self._met.values())

    def settle(
        self, found: Sequence[Device], missing: Mapping[str, str], *, is_whole: bool = True
    ) -> tuple[Device, ...]:
        """Those found, each with the number that it had first, and those that were there before, unhealthy. missing: by
        kind, why none can be used. is_whole: every probe has answered, some time. Slices come and go as people wish
        while their card is there. What is at the address of another one now has taken its place: that was cut into
        slices, made whole again, can be read at last, or gave way to a new card."""
        found = self._recognised(found)
        here = {device.uuid for device in found}
        filled = _filled(found)
        self.overdue -= here
        if is_whole:
            self._forget(found, filled, missing)
        gone = {
            uuid: replace(
                device.without_flowing_figures(),
                state=DeviceState.UNHEALTHY,
                reason=missing.get(device.kind) or (_GONE if is_whole else _NOT_YET),
                mask_index=None,
            )
            for uuid, device in self._met.items()
            if uuid not in here and filled.isdisjoint(_places(device))
        }
        numbers = _Numbers(
            device
            for uuid, device in self._met.items()
            if uuid in gone or (uuid in here and device.kind not in self._counted_anew)
        )
        self._counted_anew -= {device.kind for device in found}
        settled = [numbers.given(device) for device in found]
        every = (*settled, *gone.values())[:MAX_DEVICES]
        self.here = frozenset(here)
        self._met = {
            device.uuid: device
            for device in every
            # One of which only a number is known may be any: it is nobody whom one could miss.
            if device.uuid in self._met or device.pci_address or not _is_unread(device)
        }
        return tuple(sorted(every, key=lambda device: (device.kind, device.index)))

    def _forget(self, found: Sequence[Device], filled: frozenset[str], missing: Mapping[str, str]) -> None:
        """Those that are overdue, where it could be looked, and those of another machine."""
        kinds = {device.kind for device in found if not _is_unread(device)}
        is_ours = {device.kind for uuid, device in self._met.items() if not filled.isdisjoint(_places(device))}
        foreign = (kinds & self._unseen) - is_ours
        self._unseen -= kinds
        for uuid, device in list(self._met.items()):
            if device.kind in foreign or (uuid in self.overdue and device.kind not in missing):
                del self._met[uuid]
                self._counted_anew.add(device.kind)
        self.overdue &= self._met.keys()

    def _recognised(self, found: Sequence[Device]) -> Sequence[Device]:
        """The same, but for those that can't be read: each is the one, or are the slices, met at its address; or where
        that is not told either, and as many can't be read as have gone, those that have gone, as the tool counts them.
        With fewer of them, which one it is can't be told."""
        unread = [device for device in found if _is_unread(device)]
        if not unread:
            return found
        here, filled = {device.uuid for device in found}, _filled(found)
        gone = [device for uuid, device in self._met.items() if uuid not in here and not _is_unread(device)]
        stand_for: dict[str, list[Device]] = {}
        for device in unread:
            if device.pci_address:
                stand_for[device.uuid] = [
                    one for one in gone if (one.kind, one.pci_address) == (device.kind, device.pci_address)
                ]
        for kind in {device.kind for device in unread}:
            nowhere = [device for device in unread if device.kind is kind and not device.pci_address]
            missed = _cards(one for one in gone if one.kind is kind and one.pci_address not in filled)
            if len(missed) == len(nowhere):
                stand_for.update(zip((device.uuid for device in nowhere), missed, strict=True))
        return [one for device in found for one in _standing_for(device, stand_for.get(device.uuid, ()))]


def _is_unread(device: Device) -> bool:
    """Unhealthy and named by where it stands, as probes name what has no uuid of its own or doesn't tell it."""
    where = device.pci_address or str(device.index if device.mask_index is None else device.mask_index)
    return device.state is DeviceState.UNHEALTHY and device.uuid == f"{device.kind.upper()}-{where}"


def _filled(found: Sequence[Device]) -> frozenset[str]:
    """The names and addresses at which there is something."""
    return frozenset(name for device in found for name in (device.uuid, device.pci_address, device.parent) if name)


def _places(device: Device) -> tuple[str, str, str]:
    """What of ``_filled`` would have its place."""
    return device.uuid, device.pci_address, device.parent


def _cards(devices: Iterable[Device]) -> list[list[Device]]:
    """Each with its slices, in the order in which the tool counted them last."""
    cards: dict[str, list[Device]] = {}
    for device in sorted(devices, key=lambda one: one.index if one.mask_index is None else one.mask_index):
        cards.setdefault(device.parent or device.uuid, []).append(device)
    return list(cards.values())


def _standing_for(device: Device, known: Sequence[Device]) -> Iterator[Device]:
    if not known:
        yield device
    for one in known:
        yield replace(
            one.without_flowing_figures(),
            index=device.index,
            state=device.state,
            reason=device.reason,
            mask_index=None,
        )


class _Numbers:
    """Of devices of each kind, those of devices known before first. Slices have the number of their card."""

    def __init__(self, known: Iterable[Device]) -> None:
        self._of: dict[str, int] = {}
        self._taken: set[tuple[Accelerator, int]] = set()
        for device in known:
            self._of.setdefault(device.parent or device.uuid, device.index)
            self._taken.add((device.kind, device.index))

    def given(self, device: Device) -> Device:
        card = device.parent or device.uuid
        index = self._of.get(card)
        if index is None:
            index = device.index
            while (device.kind, index) in self._taken:
                index += 1
            self._of[card] = index
            self._taken.add((device.kind, index))
        return device if index == device.index else replace(device, index=index, mask_index=device.index)
