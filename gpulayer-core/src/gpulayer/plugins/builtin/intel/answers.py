"""What ``xpu-smi`` prints, and which devices a ``ZE_AFFINITY_MASK`` leaves. Pure.

Formats: https://github.com/intel/xpumanager/blob/master/doc/smi_user_guide.md. Some releases give a device's details
in the list as well, as texts; others only in the columns of ``discovery --dump``.
"""

import csv
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

__all__ = ["DETAILS", "Listed", "Mask", "affinity_mask", "parsed_list", "with_details"]

DETAILS: Final = "1,2,8,11,16"
"""Of ``discovery --dump``: id, name, driver version, PCI address, size of the memory."""

_SIZE: Final = re.compile(r"([\d.]+) ?MiB")
_ABSENT: Final = frozenset({"", "n/a", "unknown"})


@dataclass(frozen=True, slots=True)
class Listed:
    """A device as the tool lists it. index: its own, which is by PCI address. Empty and None: not told."""

    index: int
    address: str
    model: str = ""
    driver: str = ""
    memory_bytes: int | None = None
    memory_free_bytes: int | None = None
    ecc: bool | None = None


@dataclass(frozen=True, slots=True)
class Mask:
    """whole: indices of devices. parts: of those of which only a tile is given."""

    whole: frozenset[int]
    parts: frozenset[int]


def parsed_list(text: str) -> tuple[Listed, ...]:
    """Of ``discovery -j``. Raises ValueError with the tool's own words where it tells an error, or is no such list."""
    said = json.loads(text)
    if not isinstance(said, dict):
        raise ValueError("what it printed is no list of devices")
    if isinstance(said.get("error"), str):
        raise ValueError(said["error"])
    entries = said.get("device_list")
    if not isinstance(entries, list):
        raise ValueError("what it printed is no list of devices")
    found = [_listed(entry) for entry in entries if isinstance(entry, dict)]
    return tuple(device for device in found if device is not None)


def with_details(devices: tuple[Listed, ...], text: str) -> tuple[Listed, ...]:
    """text: of ``discovery --dump``, columns by name; a figure that it does not tell stays as it is."""
    lines = text.splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith("Device ID,")), None)
    if start is None:
        return devices
    rows = {row.get("Device ID"): row for row in csv.DictReader(lines[start:], restkey="")}
    return tuple(_detailed(device, rows.get(str(device.index), {})) for device in devices)


def affinity_mask(environment: Mapping[str, str]) -> Mask | None:
    """None: it hides none. As Level Zero reads it: an empty one is none, what is no number is left out.

    https://oneapi-src.github.io/level-zero-spec/level-zero/latest/core/PROG.html#affinity-mask
    """
    text = environment.get("ZE_AFFINITY_MASK", "").strip()
    if not text:
        return None
    words = [word.strip() for word in text.split(",")]
    whole = frozenset(int(word) for word in words if word.isdecimal())
    tiles = [word.partition(".")[0] for word in words if re.fullmatch(r"\d+(\.\d+)+", word)]
    return Mask(whole, frozenset(int(tile) for tile in tiles) - whole)


def _listed(entry: Mapping[str, object]) -> Listed | None:
    index, address = entry.get("device_id"), _text(entry, "pci_bdf_address").lower()
    virtual = "virtual" in (_text(entry, "device_function_type") + _text(entry, "function_type")).lower()
    if not isinstance(index, int) or isinstance(index, bool) or index < 0 or not address or virtual:
        return None
    ecc = _text(entry, "memory_ecc_state")
    return Listed(
        index=index,
        address=address,
        model=_text(entry, "device_name"),
        driver=_text(entry, "driver_version"),
        memory_bytes=_bytes(entry, "memory_physical_size_byte"),
        memory_free_bytes=_bytes(entry, "memory_free_size_byte"),
        ecc=ecc == "enabled" if ecc in ("enabled", "disabled") else None,
    )


def _detailed(device: Listed, row: Mapping[str | None, str]) -> Listed:
    size = _SIZE.fullmatch(_told(row.get("Memory Physical Size")))
    return replace(
        device,
        model=_told(row.get("Device Name")) or device.model,
        driver=_told(row.get("Driver Version")) or device.driver,
        memory_bytes=round(float(size[1]) * 2**20) if size is not None else device.memory_bytes,
    )


def _bytes(entry: Mapping[str, object], key: str) -> int | None:
    value = entry.get(key)
    if isinstance(value, int) and not isinstance(value, bool):
        return value if value > 0 else None
    return int(value) or None if isinstance(value, str) and value.isdecimal() else None


def _text(entry: Mapping[str, object], key: str) -> str:
    value = entry.get(key)
    return _told(value) if isinstance(value, str) else ""


def _told(value: str | None) -> str:
    text = (value or "").strip()
    return "" if text.lower() in _ABSENT else text
