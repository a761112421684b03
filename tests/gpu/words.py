"""What NVIDIA's own tools print of a machine, read here anew, and how the devices that GPUlayer found differ from it.

None of the product's reading is used: what it gets wrong shall be seen. Pure; ``test_words.py`` proves it elsewhere.
Devices are those of ``gpulayer resources detect --json``. What a tool does not say is compared with nothing.
"""

import re
from collections.abc import Sequence
from itertools import combinations
from typing import Any, Final

__all__ = [
    "CARD_FIELDS",
    "card_differences",
    "link_differences",
    "links_told",
    "nvlink_differences",
    "slice_differences",
]

CARD_FIELDS: Final = ("index", "uuid", "memory.total", "compute_cap", "pci.bus_id", "driver_version")
"""What ``card_differences`` reads, of ``--query-gpu`` with ``--format=csv,noheader,nounits``."""

_ESCAPES: Final = re.compile(r"\x1b\[[0-9;]*m")
_MEMORY_MAY_DIFFER: Final = 2**30  # what the driver keeps for itself is told by some versions and not by others

Device = dict[str, Any]  # Any: a JSON document


def card_differences(devices: Sequence[Device], told: str) -> list[str]:
    """Of the rows of a query: each card is a device, or slices of it are."""
    cards = {cells[1]: cells for line in told.splitlines() if len(cells := line.split(", ")) == len(CARD_FIELDS)}
    whole = {device["uuid"]: device for device in devices if not device.get("parent")}
    found = {device.get("parent") or device["uuid"] for device in devices}
    wrong = [f"card {uuid} is no device" for uuid in cards.keys() - found]
    wrong += [f"device {uuid} is no card" for uuid in found - cards.keys()]
    for uuid, (index, _, mib, capability, bus, driver) in cards.items():
        for device in (one for one in devices if uuid in (one["uuid"], one.get("parent"))):
            told_of = {"index": index, "compute_capability": capability, "driver": driver}
            wrong += [
                f"{name} of {device['uuid']} is {device.get(name, '')}, not {value}"
                for name, value in told_of.items()
                if str(device.get(name, "")) != value and not value.startswith("[")
            ]
            if not bus.lower().endswith(device["pci_address"][-7:]):
                wrong.append(f"{device['uuid']} is at {device['pci_address']}, not at {bus}")
        memory = whole.get(uuid, {}).get("memory_bytes")
        if mib.isdecimal() and uuid in whole and abs((memory or 0) - int(mib) * 2**20) >= _MEMORY_MAY_DIFFER:
            wrong.append(f"memory of {uuid} is {memory}, not {mib} MiB")
    return sorted(wrong)


def slice_differences(devices: Sequence[Device], listed: str) -> list[str]:
    """Of ``nvidia-smi -L``: each slice is a device of its card, and has its profile in its name."""
    told: dict[str, tuple[str, str]] = {}
    card = ""
    for line in listed.splitlines():
        uuid = line.rpartition("(UUID: ")[2].rstrip(") ")
        if line.startswith("GPU "):
            card = uuid
        elif line.strip().startswith("MIG "):
            told[uuid] = (card, line.split()[1])
    found = {device["uuid"]: device for device in devices if device.get("parent")}
    wrong = [f"slice {uuid} is no device" for uuid in told.keys() - found.keys()]
    wrong += [f"{uuid} is no slice that is listed" for uuid in found.keys() - told.keys()]
    for uuid in told.keys() & found.keys():
        card, profile = told[uuid]
        if found[uuid]["parent"] != card:
            wrong.append(f"slice {uuid} is of {card}, not of {found[uuid]['parent']}")
        if f"MIG {profile}" not in found[uuid]["model"]:
            wrong.append(f"slice {uuid} is a {profile}, and is called {found[uuid]['model']}")
    cut = {card for card, _ in told.values()}
    wrong += [f"{device['uuid']} is in slices, and a device" for device in devices if device["uuid"] in cut]
    return sorted(wrong)


def links_told(matrix: str) -> dict[tuple[int, int], str]:
    """Of ``nvidia-smi topo -m``, as it prints it: the words by pairs of GPUs."""
    lines = [[cell.strip() for cell in _ESCAPES.sub("", line).split("\t")] for line in matrix.splitlines()]
    heads = next((line for line in lines if "GPU0" in line[:2] and ("X" not in line)), [])
    columns = {int(head[3:]): at for at, head in enumerate(heads) if re.fullmatch(r"GPU\d+", head)}
    rows = {int(line[0][3:]): line for line in lines if re.fullmatch(r"GPU\d+", line[0]) and "X" in line}
    shift = 0 if heads and not heads[0] else 1  # the cell above the names of the rows
    return {
        (one, other): rows[one][columns[other] + shift]
        for one, other in combinations(sorted(columns), 2)
        if one in rows and columns[other] + shift < len(rows[one])
    }


def link_differences(devices: Sequence[Device], matrix: str) -> list[str]:
    """Of whole cards: slices have no links."""
    told = links_told(matrix)
    whole = {device["index"]: device for device in devices if not device.get("parent")}
    wrong = [f"slice {device['uuid']} has links" for device in devices if device.get("parent") and device["links"]]
    for one, other in combinations(sorted(whole), 2):
        links = {whole[one]["links"].get(whole[other]["uuid"]), whole[other]["links"].get(whole[one]["uuid"])} - {None}
        if links != ({told[one, other]} if (one, other) in told else set()):
            shown = " and ".join(sorted(links)) or "not known"
            wrong.append(f"link of {one} and {other} is {shown}, not {told.get((one, other), 'not told')}")
    return wrong


def nvlink_differences(devices: Sequence[Device], status: str) -> list[str]:
    """Of ``nvidia-smi nvlink -s``: no two GPUs are joined by more links than either has that are active."""
    active: dict[str, int] = {}
    uuid = ""
    for line in status.splitlines():
        if line.startswith("GPU "):
            uuid = line.rpartition("(UUID: ")[2].rstrip(") ")
            active[uuid] = 0
        elif re.match(r"\s+Link \d+: [\d.]+ GB/s", line):
            active[uuid] += 1
    wrong = []
    for device in devices:
        most = max((int(link[2:]) for link in device["links"].values() if re.fullmatch(r"NV\d+", link)), default=0)
        if most > active.get(device["uuid"], 0):
            wrong.append(f"{device['uuid']} is joined by {most} NVLinks, and has {active.get(device['uuid'], 0)}")
    return wrong
