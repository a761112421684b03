"""Lists of cores as Linux writes them: ``0-31,64-95``. Pure.

What names no core at all, or none that can be, is the empty text: "not known". So nobody is ever pinned to nothing.
"""

import re
from collections.abc import Iterable
from typing import Final

__all__ = ["checked_cores", "cores_of", "cores_text"]

_LIST: Final = re.compile(r"\d{1,5}(?:-\d{1,5})?(?:,\d{1,5}(?:-\d{1,5})?)*", re.ASCII)
_MOST: Final = 65_536
_LONGEST: Final = 4096  # of Device.cores


def checked_cores(text: str) -> str:
    """As Linux would write it; empty for what is no such list."""
    return cores_text(cores_of(text))


def cores_of(text: str) -> frozenset[int]:
    """Empty for what is no such list."""
    stripped = text.strip()
    if len(stripped) > _LONGEST or not _LIST.fullmatch(stripped):
        return frozenset()
    cores: set[int] = set()
    for part in stripped.split(","):
        first, _, last = part.partition("-")
        if int(last or first) < int(first) or int(last or first) >= _MOST:
            return frozenset()
        cores.update(range(int(first), int(last or first) + 1))
    return frozenset(cores)


def cores_text(cores: Iterable[int]) -> str:
    """Empty for none, and for so ragged a set that its list would not fit into a device."""
    ranges: list[list[int]] = []
    for core in sorted(set(cores)):
        if ranges and ranges[-1][1] == core - 1:
            ranges[-1][1] = core
        else:
            ranges.append([core, core])
    text = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
    return text if len(text) <= _LONGEST else ""
