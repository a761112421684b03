"""Files of the kernel's for which a driver answers, and which take as long as it does: read in a child.

What the bus or the core of the kernel answers by itself (``pci``, ``near``) is read where it is asked for.
"""

import glob
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from gpulayer.plugins.builtin.child import Child, Unanswered
from gpulayer.plugins.builtin.pci import as_number

__all__ = ["TEMPERATURES", "number_of", "read_device_files", "read_files", "temperature_of"]

_PROGRAM: Final = str(Path(__file__).with_name("read_files.py"))

TEMPERATURES: Final = "hwmon/hwmon*/temp*_input"
"""Below the folder of a device: thousandths of a degree."""


def read_files(
    child: Child,
    folder: Path,
    patterns: Sequence[str],
    *,
    environment: Mapping[str, str],
    deadline_s: float,
    python: str = sys.executable,
) -> dict[str, str]:
    """What is in them, by their paths below the folder, stripped; folders have no text. Raises Unanswered: the driver
    did not answer for one of them."""
    root = glob.escape(str(folder))
    command = [python, "-I", "-S", _PROGRAM, *(os.path.join(root, pattern) for pattern in patterns)]
    said = child.ask(command, environment=environment, deadline_s=deadline_s, called=f"reading {folder}")
    try:
        found = json.loads(said.out)
    except ValueError:
        raise Unanswered(f"reading {folder} failed with exit code {said.code}") from None
    return {os.path.relpath(path, folder): text for path, text in found.items()}


def read_device_files(
    child: Child,
    sys_root: Path,
    addresses: Sequence[str],
    names: Sequence[str],
    *,
    environment: Mapping[str, str],
    deadline_s: float,
    python: str = sys.executable,
) -> dict[str, dict[str, str]]:
    """Of devices on the PCI bus, by their addresses and the paths in their folders. Raises Unanswered."""
    folder = sys_root / "bus/pci/devices"
    patterns = [f"{address}/{name}" for address in addresses for name in names]
    read = read_files(child, folder, patterns, environment=environment, deadline_s=deadline_s, python=python)
    found: dict[str, dict[str, str]] = {address: {} for address in addresses}
    for path, text in read.items():
        address, _, name = path.partition("/")
        found[address][name] = text
    return found


def number_of(files: Mapping[str, str], name: str) -> int | None:
    """Decimal or with 0x; None: not there, or no number."""
    return as_number(files.get(name, ""))


def temperature_of(files: Mapping[str, str]) -> int | None:
    """Of a device's files, in degrees: that of the first sensor that answers."""
    for name in sorted(name for name in files if name.startswith("hwmon/") and name.endswith("_input")):
        thousandths = number_of(files, name)
        if thousandths is not None and -100_000 <= thousandths <= 1_000_000:
            return round(thousandths / 1000)
    return None
