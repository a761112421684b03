"""Which devices a worker may offer: those that its own CUDA_VISIBLE_DEVICES and NVIDIA_VISIBLE_DEVICES leave it. Pure.

CUDA_VISIBLE_DEVICES is read as CUDA reads it: numbers, or prefixes of UUIDs that fit one device only; the first entry
that fits none ends the list, one that is there twice empties it. Where CUDA would take the first MIG slice alone of a
card or of a list, all of them are meant here: each job gets its own.
https://docs.nvidia.com/cuda/cuda-c-programming-guide/#env-vars, and PyTorch's torch/cuda/__init__.py for the rest.

A number counts cards as CUDA does: by PCI address, as NVML, only with ``CUDA_DEVICE_ORDER=PCI_BUS_ID``; else the
fastest comes first and the rest in an order that CUDA keeps to itself. Between equal cards the two orders are one;
between different ones nobody can tell which is meant, and then nothing is offered rather than a card that is not ours.

NVIDIA_VISIBLE_DEVICES is the container runtime's. Its numbers are the host's, so inside the container, where no more
cards are seen than it names, they say nothing; with more (a privileged one) they are those cards.
https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpulayer.plugins.builtin.nvidia.cards import Card, Slice

__all__ = ["Offered", "Visible", "is_hidden", "offered", "shown"]

_CUDA: Final = "CUDA_VISIBLE_DEVICES"
_ORDER: Final = "CUDA_DEVICE_ORDER"
_CONTAINER: Final = "NVIDIA_VISIBLE_DEVICES"
_OLD_SLICE: Final = re.compile(r"MIG-(GPU-[^/]+)/(\d+)/(\d+)")
_SHOWN: Final = 200


@dataclass(frozen=True, slots=True)
class Offered:
    """uuids: of these cards, or of their slices; None: all. why: of those that are kept back, for people, where there
    are no others. stray: what a variable names that is none of these, and ends its list."""

    uuids: frozenset[str] | None = None
    why: str = ""
    stray: str = ""


class Visible:
    """What one worker's variables leave it, look after look.

    Numbers mean the cards that they meant when every card was told of first, as for a program that was started then:
    where one vanishes those behind it are counted anew, and none of them is meant instead. What can't be read is meant
    where it stands at the place of one that is.
    """

    def __init__(self) -> None:
        self._meant: set[str] = set()  # uuids of cards and slices; of what could not be read its name by its place
        self._places: set[str] = set()
        self._is_counted = False
        self._variables: tuple[str | None, ...] = ()

    def offered(self, cards: Sequence[Card], environment: Mapping[str, str]) -> Offered:
        """As ``offered``, of these cards now."""
        now = offered(cards, environment)
        variables = tuple(environment.get(name) for name in (_CUDA, _CONTAINER))
        if variables != self._variables:
            self._meant, self._places, self._is_counted, self._variables = set(), set(), False, variables
        if now.uuids is None and not self._meant:
            return now
        if not self._is_counted or not _has_numbers(environment):
            self._meant |= now.uuids or frozenset()
            self._is_counted = all(card.uuid or card.pci_address for card in cards)
        ours = {uuid for card in cards for uuid in self._ours(card)}
        self._places |= {
            card.pci_address for card in cards if card.pci_address and not ours.isdisjoint(_all_of([card]))
        }
        # What was there once is only gone: the variables don't keep it back.
        return Offered(frozenset(ours), "" if self._meant else now.why, now.stray)

    def _ours(self, card: Card) -> frozenset[str]:
        """Of this card and its slices."""
        is_at_our_place = card.pci_address in self._places if not card.uuid else card.name_by_place in self._meant
        return _all_of([card]) if is_at_our_place or card.device_uuid in self._meant else _all_of([card]) & self._meant


def is_hidden(card: Card, uuids: frozenset[str]) -> bool:
    """Whether nothing of it is among these."""
    return uuids.isdisjoint(_all_of([card]))


def shown(environment: Mapping[str, str]) -> str:
    """The variables that keep anything back, for people."""
    given = {name: environment[name] for name in (_CUDA, _CONTAINER) if name in environment}
    return ", ".join(f"{name}={text[:_SHOWN]}" for name, text in given.items() if text != "all")


def _has_numbers(environment: Mapping[str, str]) -> bool:
    """Rather than names, in any of the variables."""
    cuda, container = (environment.get(name, "").strip() for name in (_CUDA, _CONTAINER))
    return cuda[:1].isdigit() or container.removeprefix("nvidia.com/gpu=")[:1].isdigit()


def offered(cards: Sequence[Card], environment: Mapping[str, str]) -> Offered:
    """Cards that can't be read have no uuid to be named by, and only a number."""
    both = [
        one
        for one in (_by_cuda(cards, environment), _by_container(cards, environment.get(_CONTAINER, "")))
        if one.uuids is not None
    ]
    if not both:
        return Offered()
    kept = both[0].uuids or frozenset()
    for one in both[1:]:
        kept &= one.uuids or frozenset()
    why = next((one.why for one in both if not one.uuids), both[0].why)
    return Offered(kept, why, next((one.stray for one in both if one.stray), ""))


def _by_cuda(cards: Sequence[Card], environment: Mapping[str, str]) -> Offered:
    text = environment.get(_CUDA)
    if text is None:
        return Offered()
    shown = f"{_CUDA}={text[:_SHOWN]}" if text else f"{_CUDA} is empty"
    why = f"{shown}: the worker may use none of its {len(cards)} NVIDIA GPUs"
    for prefix in ("GPU-", "MIG-"):
        if text.startswith(prefix):
            entries = text.split(",")
            stray = next((one.strip() for one in entries if not _named(cards, one.strip())), "")
            return Offered(_of_uuids(cards, entries, prefix), _with_stray(why, stray), stray)
    numbers = _numbers(text)
    by_index = {card.index: card for card in cards}
    named: list[Card] = []
    stray = ""
    for number in numbers:
        if number not in by_index:
            stray = str(number)
            break
        named.append(by_index[number])
    if 0 < len(named) < len(cards) and environment.get(_ORDER, "").strip() != "PCI_BUS_ID" and _are_mixed(cards):
        why = f"{shown} counts the fastest first, and which of these different cards that is can't be told from here"
        return Offered(frozenset(), f"{why}: set {_ORDER}=PCI_BUS_ID, or name them by UUID")
    return Offered(_all_of(named), _with_stray(why, stray), stray)


def _with_stray(why: str, stray: str) -> str:
    return f"{why}: {stray[:_SHOWN]} is none of them" if stray else why


def _numbers(text: str) -> list[int]:
    """As by strtoul: ``1gpu,2x`` is 1 and 2. A negative one ends the list, one that is there twice empties it."""
    numbers: list[int] = []
    for entry in text.split(","):
        found = re.match(r"\s*\+?(\d{1,9})", entry)
        if found is None:
            break
        number = int(found[1])
        if number in numbers:
            return []
        numbers.append(number)
    return numbers


def _are_mixed(cards: Sequence[Card]) -> bool:
    return len({card.model for card in cards if card.model}) > 1


def _of_uuids(cards: Sequence[Card], entries: Sequence[str], prefix: str) -> frozenset[str]:
    found: set[str] = set()
    for entry in entries:
        if not entry.startswith(prefix):
            break
        named = _named(cards, entry.strip())
        if not named:
            break
        if named & found:
            return frozenset()
        found |= named
    return frozenset(found)


def _named(cards: Sequence[Card], name: str) -> frozenset[str]:
    """What the one card or slice has whose uuid begins so; empty where there is none, or more than one."""
    if found := _OLD_SLICE.fullmatch(name):
        parents = [card for card in cards if card.uuid.startswith(found[1])]
        ids = int(found[2]), int(found[3])
        slices = [one for card in parents for one in card.slices if _ids(one) == ids or one.uuid == name]
        return frozenset(one.uuid for one in slices) if len(slices) == 1 else frozenset()
    if name.startswith("GPU-"):
        fitting = [card for card in cards if card.uuid.startswith(name)]
        return _all_of(fitting) if len(fitting) == 1 else frozenset()
    slices = [one for card in cards for one in card.slices if one.uuid.startswith(name)]
    return frozenset(one.uuid for one in slices) if len(slices) == 1 else frozenset()


def _ids(one: Slice) -> tuple[int | None, int | None]:
    return one.gpu_instance, one.compute_instance


def _all_of(cards: Sequence[Card]) -> frozenset[str]:
    """And their slices: a card in MIG mode stands for them."""
    return frozenset(uuid for card in cards for uuid in (card.device_uuid, *(one.uuid for one in card.slices)))


def _by_container(cards: Sequence[Card], text: str) -> Offered:
    entries = [entry.strip().removeprefix("nvidia.com/gpu=") for entry in text.split(",") if entry.strip()]
    if not entries or entries[0] in ("all", "void"):  # "void": the devices come by another way
        return Offered()
    why = f"{_CONTAINER}={text[:_SHOWN]}: the worker may use none of its {len(cards)} NVIDIA GPUs"
    if entries == ["none"]:
        return Offered(frozenset(), why)
    if all(re.fullmatch(r"\d+(:\d+)?", entry) for entry in entries):
        if len(cards) <= len({entry.partition(":")[0] for entry in entries}):
            return Offered()
        by_index = {card.index: card for card in cards}
        found: set[str] = set()
        for entry in entries:
            index, _, number = entry.partition(":")
            card = by_index.get(int(index))
            if card is not None and number:
                found |= {one.uuid for one in card.slices if one.number == int(number)}
            elif card is not None:
                found |= _all_of([card])
        return Offered(frozenset(found), why)
    return Offered(frozenset(uuid for entry in entries for uuid in _named(cards, entry)), why)
