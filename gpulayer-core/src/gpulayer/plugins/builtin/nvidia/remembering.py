"""Which card is which, over the looks of one worker's life: cards that fail or vanish renumber no other one.

NVML counts the cards that are there: where one falls off the bus, those behind it move up. A card keeps the number that
it had first. One that can't be read any more is recognised by its address or its number, and one that is no longer
listed, or nobody answers for, is told of as it was, unhealthy: work on it is known to be lost, and it comes back by
itself. Pure, with a memory.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gpulayer.plugins.builtin.nvidia.cards import Card
from gpulayer.spec.machine import Device, DeviceState

__all__ = ["Remembered"]


class Remembered:
    """Of one probe."""

    def __init__(self) -> None:
        self._cards: dict[str, Card] = {}  # as last read, by uuid
        self._devices: dict[str, Device] = {}  # as last offered, by uuid

    def recognised(self, cards: Sequence[Card]) -> tuple[Card, ...]:
        """The same cards by their first numbers, and with the uuids that they had where none can be read."""
        there = {card.uuid for card in cards if card.uuid}
        known: list[Card] = []
        for card in cards:
            if not card.uuid and (before := self._before(card, there)):
                there.add(before.uuid)
                card = replace(  # noqa: PLW2901
                    card,
                    uuid=before.uuid,
                    model=card.model or before.model,
                    pci_address=before.pci_address,
                    is_sliced=before.is_sliced,
                    slices=before.slices,
                )
            known.append(card)
        first = {uuid: card.index for uuid, card in self._cards.items()}
        taken = set(first.values())
        numbered: list[Card] = []
        for card in known:
            index = first.get(card.uuid)
            if index is None:
                index = card.index
                while index in taken:
                    index += 1
                taken.add(index)
            numbered.append(replace(card, index=index))
            if card.uuid:
                self._cards[card.uuid] = numbered[-1]
        return tuple(sorted(numbered, key=lambda card: card.index))

    def _before(self, card: Card, there: Iterable[str]) -> Card | None:
        gone = [known for uuid, known in self._cards.items() if uuid not in there]
        for known in gone:
            if card.pci_address and known.pci_address == card.pci_address:
                return known
        return next((one for one in gone if not card.pci_address and one.index == card.index), None)

    def all_of(self, cards: Sequence[Card]) -> tuple[Card, ...]:
        """These, and those that were there earlier: whoever counts cards counts them too."""
        there = {card.uuid for card in cards}
        return (*cards, *(card for uuid, card in self._cards.items() if uuid not in there))

    def with_vanished(self, devices: Sequence[Device], cards: Sequence[Card]) -> tuple[Device, ...]:
        """These, and what was offered earlier of cards that are not listed now. Slices come and go as people wish."""
        listed = {card.uuid for card in cards if card.uuid}
        vanished = [device for device in self._devices.values() if (device.parent or device.uuid) not in listed]
        known = [device for device in devices if (device.parent or device.uuid) in listed]
        self._devices = {device.uuid: device for device in (*known, *vanished)}
        words = "it has vanished: the driver lists it no longer"
        return (*devices, *(_unhealthy(device, words) for device in vanished))

    def unanswered(self, why: str) -> tuple[Device, ...]:
        """All that were offered last, where nobody answers for them now."""
        return tuple(_unhealthy(device, why) for device in self._devices.values())


def _unhealthy(device: Device, why: str) -> Device:
    flowing = device.without_flowing_figures()
    return replace(flowing, state=DeviceState.UNHEALTHY, reason=why)
