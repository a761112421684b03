"""How the devices of one machine are joined: what a link is worth, which ones form islands, a matrix for people. Pure.

Links are the vendor's words; those of ``nvidia-smi topo -m`` are known here. A word that is not known is worth nothing,
and so is a link that nobody told of: it is never taken for a good one.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from types import MappingProxyType
from typing import Final

from gpulayer.spec.machine import Device
from gpulayer.spec.plain import plain_line

__all__ = ["drawn", "islands", "strength"]

_NVLINKS: Final = re.compile(r"NV([1-9][0-9]{0,3})")
_NVLINK: Final = 100
_STRENGTHS: Final[Mapping[str, int]] = MappingProxyType(
    {"XGMI": 101, "PIX": 50, "PXB": 40, "PHB": 30, "NODE": 20, "SYS": 10, "SOC": 10}
)
_LEGEND: Final[Mapping[str, str]] = MappingProxyType(
    {
        "NV#": "# NVLinks",
        "XGMI": "AMD's Infinity Fabric",
        "NV0": "no NVLink",
        "PIX": "PCIe, at most one bridge",
        "PXB": "PCIe, several bridges",
        "PHB": "PCIe, over a host bridge (mostly the processor)",
        "NODE": "PCIe, over host bridges of one NUMA node",
        "SYS": "PCIe, over the link between NUMA nodes",
        "SOC": "PCIe, over the link between sockets (SYS of older drivers)",
    }
)
_OTHER_WORD: Final = "as the vendor names it"
_MOST_COLUMNS: Final = 16
_WIDTH: Final = 100
_WORD: Final = 4  # of a cell
_LONGEST_WORD: Final = 32  # of the legend


def strength(link: str) -> int | None:
    """``NV#``: 100 and one for each NVLink; XGMI as one. None: no link of which it is known what it is worth."""
    bond = _NVLINKS.fullmatch(link)
    return _NVLINK + int(bond[1]) if bond else _STRENGTHS.get(link)


def islands(devices: Sequence[Device]) -> tuple[tuple[Device, ...], ...]:
    """Groups of two and more that NVLinks or XGMI join, directly or through each other; all in the order given."""
    island = {device.uuid: number for number, device in enumerate(devices)}
    for (one, other), link in _told(devices).items():
        if (strength(link) or 0) > _NVLINK and island[one] != island[other]:
            left, kept = island[other], island[one]
            island = {uuid: kept if number == left else number for uuid, number in island.items()}
    groups: dict[int, list[Device]] = {}
    for device in devices:
        groups.setdefault(island[device.uuid], []).append(device)
    return tuple(tuple(group) for group in groups.values() if len(group) > 1)


def drawn(devices: Sequence[Device]) -> list[str]:
    """Lines of at most 100 characters: a matrix of links for each kind of device, and what its words mean.

    Devices are named by their index. Only those of which a link is told are there; none: no lines. More than 16 of a
    kind stand in several parts, one below the other.
    """
    told = _told(devices)
    joined = {uuid for pair in told for uuid in pair}
    lines: list[str] = []
    words: set[str] = set()
    for kind in dict.fromkeys(device.kind for device in devices if device.uuid in joined):
        shown = [device for device in devices if device.kind is kind and device.uuid in joined]
        lines += _matrix(str(kind), shown, told)
        words |= {told.get((one.uuid, other.uuid), "") for one, other in combinations(shown, 2)}
    strongest_first = sorted(words, key=lambda word: (-(strength(word) or 0), not word, word))
    return lines + list(dict.fromkeys(map(_explained, strongest_first)))


def _told(devices: Sequence[Device]) -> dict[tuple[str, str], str]:
    """Links by the uuids of two of these devices, in either order."""
    uuids = {device.uuid for device in devices}
    told: dict[tuple[str, str], str] = {}
    for device in devices:
        for peer, link in device.links:
            if link and peer in uuids and peer != device.uuid:
                told[device.uuid, peer] = link
                told.setdefault((peer, device.uuid), link)
    return told


def _matrix(kind: str, devices: Sequence[Device], told: Mapping[tuple[str, str], str]) -> Iterator[str]:
    names = [str(device.index) for device in devices]
    first = max(map(len, [kind, *names]))
    cell = max(_WORD, *map(len, names)) + 1
    columns = min(_MOST_COLUMNS, (_WIDTH - first) // cell)
    for start in range(0, len(devices), columns):
        part = range(start, min(start + columns, len(devices)))
        yield "".join([kind.rjust(first), *(names[column].rjust(cell) for column in part)])
        for row, device in enumerate(devices):
            links = [told.get((device.uuid, devices[column].uuid), "") for column in part]
            words = ["-" if row == column else _shown(link) for column, link in zip(part, links, strict=True)]
            yield "".join([names[row].rjust(first), *(word.rjust(cell) for word in words)])


def _shown(link: str) -> str:
    """In a cell."""
    return plain_line(link, _WORD) or "?"


def _explained(link: str) -> str:
    if not link:
        return "? = not known"
    word = "NV#" if _NVLINKS.fullmatch(link) else plain_line(link, _LONGEST_WORD)
    return f"{word} = {_LEGEND.get(word, _OTHER_WORD)}"
