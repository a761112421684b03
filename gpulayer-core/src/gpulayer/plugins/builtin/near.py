"""What stands next to a device, as the kernel tells it: for what no tool of the vendor said.

Two small files, which the kernel answers without the driver: nothing can hang.
https://www.kernel.org/doc/html/latest/PCI/sysfs-pci.html
"""

import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from gpulayer.plugins.builtin.pci import read_text
from gpulayer.spec.cores import cores_of, cores_text
from gpulayer.spec.machine import Device

__all__ = ["allowed_cores", "with_near"]


def with_near(
    devices: Sequence[Device], *, allowed: Collection[int] | None = None, sys_root: Path = Path("/sys")
) -> tuple[Device, ...]:
    """The same devices, with the NUMA nodes and cores that were not known of those whose PCI address is.

    allowed: the cores that this process may run on; None: all. Of the near ones only these are told, and none is not
    known: elsewhere nobody could run anyhow.
    """
    return tuple(_near(device, allowed, sys_root) if device.pci_address else device for device in devices)


def allowed_cores() -> Collection[int] | None:
    """Of this process; None: this system does not say."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None


def _near(device: Device, allowed: Collection[int] | None, sys_root: Path) -> Device:
    folder = sys_root / "bus/pci/devices" / device.pci_address
    node = read_text(folder / "numa_node")  # -1: the machine has no nodes, or nobody knows
    cores = cores_of(device.cores or read_text(folder / "local_cpulist"))
    here = cores if allowed is None else cores & frozenset(allowed)
    return replace(
        device,
        numa_node=int(node) if device.numa_node is None and node.isdigit() and len(node) < 6 else device.numa_node,
        cores=cores_text(here),
    )
