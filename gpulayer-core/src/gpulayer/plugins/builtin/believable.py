"""Figures and words of vendors' tools, as far as they can be believed: what can't be is unknown, of that device alone.

A probe that gives one figure out of bounds is refused as a whole, and a broken card says the strangest things. Pure.
"""

import re
from dataclasses import replace
from typing import Final

from gpulayer.spec.machine import Device
from gpulayer.spec.plain import plain_line

__all__ = ["believable", "percent", "words"]

_MAX_BYTES: Final = 2**50  # a pebibyte
_COLDEST_C: Final = -100
_HOTTEST_C: Final = 200
_MAX_INDEX: Final = 100_000
_MAX_NODE: Final = 100_000
_MAX_WORD: Final = 64
_MAX_NAME: Final = 200
_MAX_WORDS: Final = 1000
_CAPABILITY: Final = re.compile(r"\d{1,4}\.\d{1,4}|gfx[0-9a-f]{3,8}\S{0,40}")


def believable(device: Device) -> Device:
    """The same device, without what can't be."""
    memory = _between(device.memory_bytes, 1, _MAX_BYTES)
    capability = device.compute_capability
    return replace(
        device,
        index=device.index if 0 <= device.index <= _MAX_INDEX else 0,
        model=words(device.model, _MAX_NAME),
        reason=words(device.reason),
        memory_bytes=memory,
        memory_free_bytes=_between(device.memory_free_bytes, 0, _MAX_BYTES if memory is None else memory),
        compute_capability=capability if _CAPABILITY.fullmatch(capability) else "",
        pci_address=words(device.pci_address, _MAX_WORD),
        driver=words(device.driver, _MAX_WORD),
        runtime=words(device.runtime, _MAX_WORD),
        compute_mode=words(device.compute_mode, _MAX_WORD),
        numa_node=_between(device.numa_node, 0, _MAX_NODE),
        temperature_c=_between(device.temperature_c, _COLDEST_C, _HOTTEST_C),
        use_percent=percent(device.use_percent),
    )


def percent(value: int | None) -> int | None:
    """None: not known, or out of a hundred's bounds."""
    return _between(value, 0, 100)


def words(text: str, at_most: int = _MAX_WORDS) -> str:
    """What a tool said, as one plain line."""
    return plain_line(text, at_most)


def _between(value: int | None, least: int, most: int) -> int | None:
    return value if value is not None and least <= value <= most else None
