"""What ``nvidia-smi`` prints, as readings; for machines where NVML can't be asked otherwise. Pure.

Its errors come on its standard output, between rows or instead of them, with any exit code: what is no row is what it
said, and a row is taken for what it has. Fields in brackets, ``[N/A]``, ``[Unknown Error]``, are not known.
https://docs.nvidia.com/deploy/nvidia-smi/
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gpulayer.plugins.builtin.believable import percent
from gpulayer.plugins.builtin.nvidia.cards import (
    Card,
    OnCard,
    Reading,
    Slice,
    as_pci_address,
    is_memory_shared,
    recovery_trouble,
)

__all__ = [
    "APPS",
    "FIELDS",
    "Table",
    "apps_of",
    "card_of",
    "listed_of",
    "query",
    "reading_of",
    "refused_field",
    "rows_of",
    "table_of",
]

FIELDS: Final = (
    "index",
    "uuid",
    "name",
    "pci.bus_id",
    "memory.total",
    "memory.free",
    "compute_cap",
    "driver_version",
    "compute_mode",
    "ecc.mode.current",
    "mig.mode.current",
    "temperature.gpu",
    "utilization.gpu",
    "gpu_recovery_action",
    "addressing_mode",
    "remapped_rows.failure",
    "retired_pages.pending",
    "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded",
)
"""Asked for together; a driver refuses all for one that it does not know: see ``refused_field``."""

APPS: Final = ("gpu_uuid", "pid", "used_memory")

_MIB: Final = 2**20
_MAX_INDEX: Final = 100_000
_MAX_CARDS: Final = 1024  # far more than a machine has
_REFUSED: Final = re.compile(r'Field "([^"]+)" is not a valid field')
_NO_HANDLE: Final = re.compile(
    r"Unable to determine the device handle for GPU(\d*):?\s+([\da-f]+:[\da-f]+:[\da-f]+\.[\da-f]+)\s*:\s*(.+)",
    re.IGNORECASE,
)
_ESCAPES: Final = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_LOST: Final = re.compile(r"(is lost|requires? (a )?reset|reset required)", re.IGNORECASE)
_LISTED: Final = re.compile(r"GPU (\d+): (.+?)(?: \(UUID: (GPU-[^)]+)\))?$")
_LISTED_SLICE: Final = re.compile(r"\s+MIG (\S+)\s+Device\s+(\d+): \(UUID: (MIG-[^)]+)\)$")
_DRIVER: Final = re.compile(r"(?:Driver|KMD) Version:\s*(\d[\d.]*)")
_CUDA: Final = re.compile(r"CUDA (?:UMD )?Version:\s*(\d[\d.]*)")
_TABLE_CARD: Final = re.compile(r"\|\s+(\d+)\s+(.+?)\s+\S+\s+\|\s*([\da-fA-F:]+\.[\da-f])\s+\S+\s*\|\s*\S+\s*\|$")
_TABLE_USE: Final = re.compile(r"\|.*\|\s*(\d+)MiB\s*/\s*(\d+)MiB\s*\|\s*(?:(\d+)%|N/A)\s+(\S.*?)\s*\|$")
_TABLE_SLICE: Final = re.compile(r"\|\s+(\d+)\s+(\d+)\s+(\d+)\s+(\d+)\s+\|\s*(\d+)MiB\s*/\s*(\d+)MiB\s*\|")
_MODES: Final = {
    "default": "default",
    "exclusive_process": "exclusive_process",
    "e. process": "exclusive_process",
    "exclusive_thread": "exclusive_thread",
    "e. thread": "exclusive_thread",
    "prohibited": "prohibited",
}


@dataclass(frozen=True, slots=True)
class Table:
    """What the plain table has that no query has: the CUDA that the driver supports, and the slices' memory. Its cards
    are told shortly: names are cut."""

    driver: str = ""
    runtime: str = ""
    cards: tuple[Card, ...] = ()


def query(fields: Sequence[str], *, of: str = "gpu") -> list[str]:
    """The arguments that ask for these."""
    return [f"--query-{of}={','.join(fields)}", "--format=csv,noheader,nounits"]


def refused_field(printed: str) -> str:
    """The field that this driver does not know, for which it answered nothing at all; empty: none."""
    found = _REFUSED.search(printed)
    return found.group(1) if found else ""


def reading_of(
    queried: str, fields: Sequence[str], *, table: str = "", listed: str = "", apps: str | None = None
) -> Reading:
    """queried: of ``query(fields)``; table: of no argument; listed: of ``-L``; apps: of ``query(APPS)``, None where
    that failed."""
    rows, said = rows_of(queried, fields)
    head = table_of(table)
    slices = {card.index: card.slices for card in head.cards}
    named = {card.index: card.slices for card in listed_of(listed)}
    processes = None if apps is None else apps_of(apps)
    cards = []
    for number, row in enumerate(rows[:_MAX_CARDS]):
        card = card_of(row, number)
        if card.is_sliced:
            card = replace(card, slices=_joined(named.get(card.index, ()), slices.get(card.index, ()), card.model))
        elif processes is not None:
            card = replace(card, processes=tuple(processes.get(card.uuid, ())))
        cards.append(card)
    cards += _unopened(said, taken={card.index for card in cards})
    driver = next((value for row in rows if (value := _value(row, "driver_version"))), head.driver)
    if not cards:
        return Reading(driver=driver, runtime=head.runtime, said="nvidia-smi says: " + " ".join(said) if said else "")
    return Reading(tuple(sorted(cards, key=lambda card: card.index)), driver=driver, runtime=head.runtime)


def rows_of(printed: str, fields: Sequence[str] = ()) -> tuple[list[dict[str, str]], list[str]]:
    """The rows by the names of their fields, and the lines that are none. Without ``fields`` the first line that has
    several cells names them, with units in brackets."""
    rows: list[dict[str, str]] = []
    said: list[str] = []
    names = list(fields)
    for line in _ESCAPES.sub("", printed).splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if fields and len(cells) > len(names) and cells[1][:4] in _UUIDS:
            more = len(cells) - len(names)  # of the name, which alone may have commas
            cells[2 : 3 + more] = [", ".join(cells[2 : 3 + more])]
        if not names and len(cells) > 1:
            names = [re.sub(r" \[.*\]$", "", cell) for cell in cells]
        elif names and len(cells) == len(names) and (not fields or _is_of_device(cells)):
            rows.append(dict(zip(names, cells, strict=True)))
        elif line.strip():
            said.append(line.strip())
    return rows, said


_UUIDS: Final = ("GPU-", "MIG-")


def _is_of_device(cells: Sequence[str]) -> bool:
    """Its number may be one that could not be read."""
    return cells[0].isdecimal() or any(cell.startswith(_UUIDS) for cell in cells[:2])


def card_of(row: Mapping[str, str], number: int = 0) -> Card:
    """number: its place, where the row has no index."""
    index = _index(row)
    model = _value(row, "name")
    uuid = _value(row, "uuid")
    capability = _value(row, "compute_cap")
    has_none = row.get("memory.total", "").strip("[]") in ("N/A", "Not Supported")
    is_ats = _value(row, "addressing_mode") == "ATS"
    return Card(
        index=number if index is None else index,
        uuid=uuid if uuid.startswith("GPU-") else "",
        model=model,
        pci_address=as_pci_address(_value(row, "pci.bus_id")),
        memory_bytes=_bytes(row, "memory.total") or None,
        memory_free_bytes=_bytes(row, "memory.free"),
        compute_capability=capability,
        compute_mode=_MODES.get(_value(row, "compute_mode").casefold(), ""),
        ecc=_is_on(row, "ecc.mode.current"),
        temperature_c=_figure(row, "temperature.gpu"),
        use_percent=percent(_figure(row, "utilization.gpu")),
        is_memory_shared=is_memory_shared(model, capability=capability, has_none=has_none, is_ats=is_ats),
        is_sliced=_is_on(row, "mig.mode.current") is True,
        trouble=_trouble(row),
    )


def _trouble(row: Mapping[str, str]) -> str:
    for cell in row.values():
        if cell.startswith("[") and _LOST.search(cell):
            return cell.strip("[]")
    uuid = row.get("uuid")
    if uuid is not None and not uuid.startswith("GPU-"):
        said = uuid.strip("[] ") if uuid.startswith("[") or not uuid else f"it tells {uuid!r} for its UUID"
        return f"it can't be read: {said or 'it tells no UUID'}"
    return recovery_trouble(
        action=_value(row, "gpu_recovery_action"),
        has_remap_failed=_is_on(row, "remapped_rows.failure"),
        is_retirement_pending=_is_on(row, "retired_pages.pending"),
        is_sram_past_threshold=_is_on(row, "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded"),
    )


def _unopened(said: Iterable[str], *, taken: set[int]) -> list[Card]:
    """Cards that it only complains of. Where it does not say their number, they have those that nobody else has."""
    cards: list[Card] = []
    for line in said:
        found = _NO_HANDLE.search(line)
        if found is None or len(taken) >= _MAX_CARDS:
            continue
        number, address, words = found.groups()
        index = int(number) if number else next(free for free in range(len(taken) + 1) if free not in taken)
        if index not in taken:
            taken.add(index)
            trouble = f"it can't be read: {words.strip()}"
            cards.append(Card(index=index, uuid="", pci_address=as_pci_address(address), trouble=trouble))
    return cards


def listed_of(printed: str) -> list[Card]:
    """Of ``-L``: the cards, those with slices sliced. A uuid may be missing."""
    cards: list[Card] = []
    for line in printed.splitlines():
        if found := _LISTED.match(line.rstrip()):
            index, model, uuid = found.groups()
            cards.append(Card(index=int(index), uuid=uuid or "", model=model))
        elif cards and (found := _LISTED_SLICE.match(line.rstrip())):
            profile, number, uuid = found.groups()
            slice_ = Slice(int(number), uuid, model=f"{cards[-1].model} MIG {profile}")
            cards[-1] = replace(cards[-1], is_sliced=True, slices=(*cards[-1].slices, slice_))
    return cards


def table_of(printed: str) -> Table:
    """Of no argument at all; of any version, and cut short wherever."""
    driver, cuda = _DRIVER.search(printed), _CUDA.search(printed)
    cards: dict[int, Card] = {}
    last: Card | None = None
    for line in printed.splitlines():
        if found := _TABLE_SLICE.match(line):
            index, gpu_instance, compute_instance, number, used, total = map(int, found.groups())
            if card := cards.get(index):
                slice_ = Slice(
                    number,
                    "",
                    gpu_instance=gpu_instance,
                    compute_instance=compute_instance,
                    memory_bytes=total * _MIB,
                    memory_free_bytes=(total - used) * _MIB,
                )
                cards[index] = replace(card, is_sliced=True, slices=(*card.slices, slice_))
        elif found := _TABLE_CARD.match(line):
            last = Card(index=int(found[1]), uuid="", model=found[2], pci_address=as_pci_address(found[3]))
            cards[last.index] = last
        elif last is not None and (found := _TABLE_USE.match(line)):
            used, total = int(found[1]), int(found[2])
            cards[last.index] = replace(
                last,
                memory_bytes=total * _MIB,
                memory_free_bytes=(total - used) * _MIB,
                use_percent=percent(int(found[3])) if found[3] else None,
                compute_mode=_MODES.get(found[4].casefold(), ""),
            )
            last = None
    return Table(driver[1] if driver else "", cuda[1] if cuda else "", tuple(cards.values()))


def _joined(named: Sequence[Slice], measured: Sequence[Slice], model: str) -> tuple[Slice, ...]:
    """Of the list their names, of the table their sizes."""
    sizes = {slice_.number: slice_ for slice_ in measured}
    found = []
    for slice_ in named:
        size = sizes.get(slice_.number)
        profile = slice_.model.rpartition(" MIG ")[2]
        found.append(replace(size or slice_, uuid=slice_.uuid, model=f"{model} MIG {profile}"))
    return tuple(found)


def apps_of(printed: str) -> dict[str, list[OnCard]] | None:
    """Of ``query(APPS)``: who computes, by the uuid of the device. None: what it said is no such list."""
    rows, said = rows_of(printed, APPS)
    if not rows and any(not line.startswith("No running") for line in said):
        return None
    found: dict[str, list[OnCard]] = {}
    for row in rows:
        pid = _figure(row, "pid")
        if pid is not None:
            process = OnCard(pid, memory_bytes=_bytes(row, "used_memory"))
            found.setdefault(row["gpu_uuid"], []).append(process)
    return found


def _value(row: Mapping[str, str], name: str) -> str:
    """Empty: not known."""
    text = row.get(name, "")
    return "" if text.startswith("[") or text == "N/A" else text


def _index(row: Mapping[str, str]) -> int | None:
    index = _figure(row, "index")
    return index if index is not None and 0 <= index < _MAX_INDEX else None


def _figure(row: Mapping[str, str], name: str) -> int | None:
    number = _value(row, name).partition(" ")[0]  # with a unit or without
    return int(number) if re.fullmatch(r"-?\d{1,15}", number) else None


def _bytes(row: Mapping[str, str], name: str) -> int | None:
    mib = _figure(row, name)
    return None if mib is None or mib < 0 else mib * _MIB


def _is_on(row: Mapping[str, str], name: str) -> bool | None:
    return {"enabled": True, "yes": True, "1": True, "disabled": False, "no": False, "0": False}.get(
        _value(row, name).casefold()
    )
