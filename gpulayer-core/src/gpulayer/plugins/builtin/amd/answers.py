"""What AMD's tools print of GPUs, as rows of one form. Pure.

Formats: https://rocm.docs.amd.com/projects/amdsmi (``amd-smi static --json`` and ``metric --json``: a list, in later
releases below ``gpu_data``; a figure is a number, or one with a unit) and
https://rocm.docs.amd.com/projects/rocm_smi_lib (``rocm-smi``: texts by names that change their capitals between
releases). Both write ``N/A`` where they know nothing.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["Row", "parsed_amd_smi", "parsed_library", "parsed_rocm_smi"]

_ABSENT: Final = frozenset({"", "n/a", "none", "unknown"})
_UNITS: Final = {"B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30, "TB": 2**40}  # AMD means powers of two
_LINE: Final = re.compile(r"GPU\[(\d+)\]\s*:\s*(.+?)\s*:\s+(.*)")
_DRIVER_LINE: Final = re.compile(r"\s*Driver version:\s*(\S+)\s*")
_TEMPERATURES: Final = ("junction", "edge")
_GFX_DECIMAL: Final = re.compile(r"gfx9(0)(1\d)")


@dataclass(frozen=True, slots=True)
class Row:
    """One GPU as a tool tells of it. address: lower case, empty where it is not told. Empty and None: not told.

    fault: why the tool could read nothing of it.
    """

    index: int
    address: str = ""
    unique_id: int = 0
    model: str = ""
    gfx: str = ""
    driver: str = ""
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    temperature_c: int | None = None
    use_percent: int | None = None
    ecc: bool | None = None
    processes: tuple[tuple[int, int | None], ...] | None = None
    fault: str = ""


def parsed_amd_smi(static: str, metric: str = "") -> tuple[Row, ...]:
    """metric: may be empty or nonsense, then what flows stays unknown. Raises ValueError for what is no such answer."""
    fixed = _entries(static)
    try:
        flowing = {entry.get("gpu"): entry for entry in _entries(metric)}
    except ValueError:
        flowing = {}
    rows = [_of_amd_smi(entry, flowing.get(entry.get("gpu"), {})) for entry in fixed]
    return tuple(row for row in rows if row is not None)


def parsed_rocm_smi(text: str) -> tuple[Row, ...]:
    """Of ``--json`` or without it. Raises ValueError where there is no GPU in it: it ends with 0 when it fails, too."""
    try:
        said = json.loads(_from_brace(text))
        cards = {
            int(name.removeprefix("card")): {str(key).lower(): str(value).strip() for key, value in card.items()}
            for name, card in said.items()
            if name.removeprefix("card").isdecimal() and isinstance(card, dict)
        }
        system = said.get("system")
        driver = str(system.get("Driver version", "")) if isinstance(system, dict) else ""
    except (ValueError, AttributeError):
        cards, driver = _of_lines(text)
    if not cards:
        raise ValueError("rocm-smi tells of no GPU")
    return tuple(_of_rocm_smi(index, card, _told(driver)) for index, card in sorted(cards.items()))


def parsed_library(text: str) -> tuple[Row, ...]:
    """What ``ask_library.py`` prints: one line of JSON. Raises ValueError, with its own words where it tells why."""
    said = json.loads((text.strip().splitlines() or [""])[-1])
    if not isinstance(said, dict) or not isinstance(said.get("gpus"), list):
        raise ValueError(str(said.get("error")) if isinstance(said, dict) else "what it printed is no list of GPUs")
    return tuple(_of_library(index, gpu) for index, gpu in enumerate(said["gpus"]) if isinstance(gpu, dict))


def _of_amd_smi(fixed: Mapping[str, object], flowing: Mapping[str, object]) -> Row | None:
    index = fixed.get("gpu")
    if not isinstance(index, int) or isinstance(index, bool) or index < 0:
        return None
    asic, board, memory = _part(fixed, "asic"), _part(fixed, "board"), _part(flowing, "mem_usage")
    total = _bytes(memory.get("total_vram"))
    heat = _part(flowing, "temperature")
    return Row(
        index=index,
        address=_text(_part(fixed, "bus").get("bdf")).lower(),
        unique_id=_hex(asic.get("asic_serial")),
        model=_text(asic.get("market_name")) or _text(board.get("product_name")),
        gfx=_gfx(_text(asic.get("target_graphics_version"))),
        driver=_text(_part(fixed, "driver").get("version")),
        memory_bytes=_bytes(_part(fixed, "vram").get("size")) or total,
        memory_used_bytes=_bytes(memory.get("used_vram"), least=0),
        temperature_c=_first(_degrees(heat.get("hotspot")), _degrees(heat.get("edge"))),
        use_percent=_percent(_part(flowing, "usage").get("gfx_activity")),
    )


def _of_rocm_smi(index: int, card: Mapping[str, str], driver: str) -> Row:
    names = (_told(card.get("card series", "")), _told(card.get("device name", "")), _told(card.get("card model", "")))
    total = _bytes(card.get("vram total memory (b)"))
    heats = [_degrees(card.get(f"temperature (sensor {place}) (c)")) for place in _TEMPERATURES]
    return Row(
        index=index,
        address=_told(card.get("pci bus", "")).lower(),
        unique_id=_hex(card.get("unique id")),
        model=next((name for name in names if name and not name.startswith("0x")), ""),
        gfx=_gfx(_told(card.get("gfx version", ""))),
        driver=driver,
        memory_bytes=total,
        memory_used_bytes=_bytes(card.get("vram total used memory (b)"), least=0),
        temperature_c=_first(*heats),
        use_percent=_percent(card.get("gpu use (%)")),
    )


def _of_lines(text: str) -> tuple[dict[int, dict[str, str]], str]:
    cards: dict[int, dict[str, str]] = {}
    driver = ""
    for line in text.splitlines():
        if told := _LINE.fullmatch(line.strip()):
            cards.setdefault(int(told[1]), {})[told[2].lower()] = told[3].strip()
        elif told := _DRIVER_LINE.fullmatch(line):
            driver = told[1]
    return cards, driver


def _of_library(index: int, gpu: Mapping[str, object]) -> Row:
    asic = _part(gpu, "asic")
    usage = _part(gpu, "vram_usage")
    total = _bytes(usage.get("vram_total"), unit="MB") or _bytes(_part(gpu, "vram").get("vram_size"), unit="MB")
    processes = gpu.get("processes")
    ecc = gpu.get("ecc")
    return Row(
        index=index,
        address=_text(gpu.get("bdf")).lower(),
        unique_id=_hex(asic.get("asic_serial")),
        model=_text(asic.get("market_name")) or _text(_part(gpu, "board").get("product_name")),
        gfx=_gfx(_text(asic.get("target_graphics_version"))),
        driver=_text(_part(gpu, "driver").get("driver_version")),
        memory_bytes=total,
        memory_used_bytes=_bytes(usage.get("vram_used"), unit="MB", least=0),
        temperature_c=_first(_degrees(gpu.get("hotspot")), _degrees(gpu.get("edge"))),
        use_percent=_percent(_part(gpu, "activity").get("gfx_activity")),
        ecc=ecc if isinstance(ecc, bool) else None,
        processes=_processes(processes) if isinstance(processes, list) else None,
        fault=_text(gpu.get("fault")),
    )


def _processes(entries: Sequence[object]) -> tuple[tuple[int, int | None], ...]:
    found: list[tuple[int, int | None]] = []
    for entry in entries:
        pid = entry.get("pid") if isinstance(entry, dict) else None
        if isinstance(entry, dict) and isinstance(pid, int) and not isinstance(pid, bool) and pid > 0:
            found.append((pid, _bytes(_part(entry, "memory_usage").get("vram_mem"), least=0)))
    return tuple(found)


def _entries(text: str) -> list[Mapping[str, object]]:
    said = json.loads(_from_brace(text))
    if isinstance(said, dict):
        said = said.get("gpu_data")
    if not isinstance(said, list):
        raise ValueError("amd-smi printed no list of GPUs")
    return [entry for entry in said if isinstance(entry, dict)]


def _from_brace(text: str) -> str:
    """Warnings may come first."""
    lines = text.splitlines()
    start = next((number for number, line in enumerate(lines) if line.lstrip().startswith(("{", "["))), 0)
    return "\n".join(lines[start:])


def _part(entry: Mapping[str, object], key: str) -> Mapping[str, object]:
    value = entry.get(key)
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return _told(value) if isinstance(value, str) else ""


def _told(value: str) -> str:
    return "" if value.strip().lower() in _ABSENT else value.strip()


def _number(value: object) -> float | None:
    """Of a number, a text of one, or a part with a ``value``."""
    if isinstance(value, dict):
        value = value.get("value")
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if -1e18 < number < 1e18 else None


def _bytes(value: object, *, unit: str = "B", least: int = 1) -> int | None:
    """least: what is below is not known; a total of 0 is none."""
    if isinstance(value, dict) and isinstance(value.get("unit"), str):
        unit = value["unit"]
    number, factor = _number(value), _UNITS.get(unit)
    if number is None or factor is None or number < least:
        return None
    size = round(number * factor)
    return size if size < 2**60 else None


def _degrees(value: object) -> int | None:
    number = _number(value)
    return None if number is None or not -100 <= number <= 1000 else round(number)


def _percent(value: object) -> int | None:
    number = _number(value)
    return None if number is None or not 0 <= number <= 100 else round(number)


def _hex(value: object) -> int:
    try:
        number = int(value, 16) if isinstance(value, str) else 0
    except ValueError:
        return 0
    return number if 0 < number < 2**64 else 0


def _gfx(name: str) -> str:
    """``gfx9010`` is how rocm-smi writes gfx90a."""
    told = _GFX_DECIMAL.fullmatch(name)
    return name if told is None else f"gfx9{told[1]}{int(told[2]):x}"


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)
