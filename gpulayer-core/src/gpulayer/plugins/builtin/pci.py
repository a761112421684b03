"""What the kernel tells of a device on the PCI bus, in a few small files, for which no driver is asked: nothing hangs.

Format: https://www.kernel.org/doc/html/latest/PCI/sysfs-pci.html.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["ACCELERATOR", "PciDevice", "as_number", "gpus_on_bus", "read_text"]

ACCELERATOR: Final = 0x12  # a base class of PCI: processing accelerators; AMD's newest, but also Intel's NPUs
_MOST_READ: Final = 65_536  # characters
_DISPLAY: Final = 0x03  # a base class of PCI: VGA, 3D and other display controllers


@dataclass(frozen=True, slots=True)
class PciDevice:
    """folder: its own in sysfs. kind: class and subclass, ``0x0300`` for VGA. driver: of the kernel, empty: none."""

    folder: Path
    address: str
    vendor: int
    device: int
    kind: int
    driver: str

    @property
    def render_node(self) -> str:
        """``renderD128``: what programs open below /dev/dri; empty where it has none."""
        return next((path.name for path in sorted(self.folder.glob("drm/renderD*"))), "")


def gpus_on_bus(sys_root: Path, *, vendor: int, also: int | None = None) -> tuple[PciDevice, ...]:
    """All display controllers of a vendor, by address. What can't be read is left out. also: one more base class."""
    found: list[PciDevice] = []
    try:
        addresses = sorted(os.listdir(sys_root / "bus/pci/devices"))
    except OSError:
        return ()
    for address in addresses:
        folder = sys_root / "bus/pci/devices" / address
        kind = as_number(read_text(folder / "class"))
        if kind is None or kind >> 16 not in (_DISPLAY, also) or as_number(read_text(folder / "vendor")) != vendor:
            continue
        found.append(
            PciDevice(
                folder=folder,
                address=address,
                vendor=vendor,
                device=as_number(read_text(folder / "device")) or 0,
                kind=kind >> 8,
                driver=_driver(folder),
            )
        )
    return tuple(found)


def read_text(path: Path) -> str:
    """Of a small file, stripped; empty where it can't be read."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(_MOST_READ).strip()
    except OSError:
        return ""


def as_number(text: str) -> int | None:
    """Decimal or with 0x; None: it is none."""
    try:
        return int(text, 0)
    except ValueError:
        return None


def _driver(folder: Path) -> str:
    try:
        return os.path.basename(os.readlink(folder / "driver"))
    except OSError:
        return ""
