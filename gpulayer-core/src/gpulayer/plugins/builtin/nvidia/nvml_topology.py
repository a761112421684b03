"""What NVML told of links (``nvml_child``), as the ``Topology`` that ``nvidia-smi topo -m`` shows. Pure.

NVLinks come first: those straight to the other device and, where both lead to switches, as many as the one with fewer
has there. Without any it is the level of the nearest common ancestor on the PCIe side. Constants are of nvml.h.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from types import MappingProxyType
from typing import Final, TypeVar

from gpulayer.plugins.builtin.nvidia.topo import Topology
from gpulayer.spec.cores import cores_text
from gpulayer.spec.plain import plain_line

__all__ = ["read_topology", "topology_of"]

_ANCESTORS: Final[Mapping[int, str]] = MappingProxyType(
    # Two processors of one board share a bridge, and nvidia-smi calls that PIX.
    {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
)
_GPU: Final = 0
_PROCESSOR: Final = 1  # an NVLink of POWER, to the machine
_SWITCH: Final = 2
_MOST_WORDS: Final = 1024
_LONGEST_REASON: Final = 200

T = TypeVar("T")


def read_topology(printed: str) -> Topology:
    """What the program ``nvml_child`` printed of links. Never raises: an error is the reason."""
    try:
        document = json.loads(printed)
    except (ValueError, RecursionError):
        document = None
    match document:
        case {"error": str(error)}:
            return Topology(reason=f"NVML says: {plain_line(error, _LONGEST_REASON)}")
        case {"nvlinks": dict()}:
            return topology_of(document)
        case _:
            return Topology(reason="what was read of NVML can't be understood")


def topology_of(told: object) -> Topology:
    """Of the document as it was read from JSON. Never raises; of what is not as it should be, nothing is known.

    With a reason: of some pairs NVML could not tell; ``nvidia-smi topo -m`` may know them.
    """
    addresses = {address.casefold(): index for index, address in _by_index(told, "pci") if isinstance(address, str)}
    ends = {index: _ends(links, addresses) for index, links in _by_index(told, "nvlinks")}
    ancestors = dict(_ancestors(told))
    links: dict[tuple[int, int], str] = {}
    untold: list[tuple[int, int]] = []
    for one, other in combinations(sorted(ends), 2):
        left, right = ends[one], ends[other]
        direct = max(left.devices.count(other), right.devices.count(one))
        count = direct + min(left.switches, right.switches)
        is_unclear = (left.has_unknown and right.may_go_on) or (right.has_unknown and left.may_go_on)
        word = f"NV{count}" if count else "" if is_unclear else ancestors.get((one, other), "")
        if word:
            links[one, other] = word
        else:
            untold.append((one, other))
    cores = {index: cores_text(_bits(words)) for index, words in _by_index(told, "cores")}
    nodes = {index: _bits(words) for index, words in _by_index(told, "nodes")}
    return Topology(
        links=links,
        cores={index: text for index, text in cores.items() if text},
        numa_nodes={index: found[0] for index, found in nodes.items() if len(found) == 1},
        reason="NVML does not tell how GPU {} and {} are joined".format(*untold[0]) if untold else "",
    )


@dataclass(frozen=True, slots=True)
class _Ends:
    """Where the active NVLinks of a device lead: devices by index, one for each link; has_unknown: others do, too."""

    devices: tuple[int, ...] = ()
    switches: int = 0
    has_unknown: bool = False

    @property
    def may_go_on(self) -> bool:
        """To a device that does not tell of it."""
        return self.has_unknown or self.switches > 0


def _ends(links: object, addresses: Mapping[str, int]) -> _Ends:
    if not isinstance(links, list):
        return _Ends(has_unknown=True)
    devices: list[int] = []
    switches = 0
    has_unknown = False
    for link in links:
        match link:
            case [_, str(address)] if address.casefold() in addresses:
                devices.append(addresses[address.casefold()])
            case [int(end), _] if end == _SWITCH:
                switches += 1
            case [int(end), str()] if end in (_GPU, _PROCESSOR):
                pass  # one that is not this worker's to see
            case _:
                has_unknown = True
    return _Ends(tuple(devices), switches, has_unknown)


def _ancestors(told: object) -> Iterator[tuple[tuple[int, int], str]]:
    for pair in _part(told, "ancestors", list):
        match pair:
            case [int(one), int(other), int(level)] if level in _ANCESTORS:
                yield (min(one, other), max(one, other)), _ANCESTORS[level]


def _by_index(told: object, name: str) -> Iterator[tuple[int, object]]:
    for index, value in _part(told, name, dict).items():
        if isinstance(index, str) and index.isascii() and index.isdigit() and len(index) < 6:
            yield int(index), value


def _part(told: object, name: str, kind: type[T]) -> T:
    value = told.get(name) if isinstance(told, dict) else None
    return value if isinstance(value, kind) else kind()


def _bits(words: object) -> list[int]:
    """Of a mask in words of 64 bits; what is no mask has none."""
    if not isinstance(words, list) or len(words) > _MOST_WORDS:
        return []
    if not all(isinstance(word, int) and 0 <= word < 2**64 for word in words):
        return []
    return [64 * number + bit for number, word in enumerate(words) for bit in range(64) if word >> bit & 1]
