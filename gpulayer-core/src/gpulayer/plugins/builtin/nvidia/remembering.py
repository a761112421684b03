"""Which card is which, over the looks of one worker's life: cards that fail or vanish renumber no other one.

NVML counts the cards that are there: where one falls off the bus, those behind it move up, and the worker's own
variables would mean others. A card keeps the number that it had first; one that can't be read any more is recognised by
its address or its number. Pure, with a memory.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from gpulayer.plugins.builtin.nvidia.cards import Card

__all__ = ["Remembered"]

_MOST_KEPT: Final = 1024


class Remembered:
    """Of one probe."""

    def __init__(self) -> None:
        self._cards: dict[str, Card] = {}  # as last read, by uuid

    def recognised(self, cards: Sequence[Card]) -> tuple[Card, ...]:
        """The same cards by their first numbers, and with the uuids that they had where none can be read."""
        there = {card.uuid for card in cards if card.uuid}
        are_all_here = len(cards) >= len(self._cards)
        known: list[Card] = []
        for card in cards:
            if not card.uuid and (before := self._before(card, there, are_all_here=are_all_here)):
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
                self._cards.pop(card.uuid, None)
                self._cards[card.uuid] = numbered[-1]
        while len(self._cards) > _MOST_KEPT:  # those that are gone for longest
            del self._cards[next(iter(self._cards))]
        return tuple(sorted(numbered, key=lambda card: card.index))

    def _before(self, card: Card, there: Collection[str], *, are_all_here: bool) -> Card | None:
        """By its address; by its number only where no card has vanished, which moves those behind it up."""
        gone = [known for uuid, known in self._cards.items() if uuid not in there]
        for known in gone:
            if card.pci_address and known.pci_address == card.pci_address:
                return known
        is_by_number = are_all_here and not card.pci_address
        return next((one for one in gone if is_by_number and one.index == card.index), None)

    def all_of(self, cards: Sequence[Card]) -> tuple[Card, ...]:
        """These, and those that were there earlier: whoever counts cards counts them too."""
        there = {card.uuid for card in cards}
        return (*cards, *(card for uuid, card in self._cards.items() if uuid not in there))
