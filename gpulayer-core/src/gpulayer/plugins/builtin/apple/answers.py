"""What ``sysctl`` and ``system_profiler`` of macOS print. Pure.

``sysctl NAME…`` prints ``name: value`` a line and leaves out what it does not know. ``system_profiler -json`` gives a
list of what it calls displays, which are the GPUs; its keys are not documented and have changed between releases.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["Gpu", "parsed_gpus", "parsed_sysctl"]

_METAL: Final = re.compile(r"spdisplays_metal(\d+)")


@dataclass(frozen=True, slots=True)
class Gpu:
    """metal: the newest version of Metal that it supports. Empty: not told."""

    model: str
    is_apple: bool
    metal: str = ""


def parsed_sysctl(text: str) -> Mapping[str, str]:
    """By name."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon and value.strip():
            found[name.strip()] = value.strip()
    return found


def parsed_gpus(text: str) -> tuple[Gpu, ...]:
    """Raises ValueError for what is no such answer; an entry that is none is left out."""
    said = json.loads(text)
    entries = said.get("SPDisplaysDataType") if isinstance(said, dict) else None
    if not isinstance(entries, list):
        raise ValueError("there is no list SPDisplaysDataType in it")
    return tuple(_gpu(entry) for entry in entries if isinstance(entry, dict))


def _gpu(entry: Mapping[str, object]) -> Gpu:
    name = _text(entry, "_name")
    model = _text(entry, "sppci_model") or ("" if name.startswith("kHW_") else name)  # the name of a text, untranslated
    metal = _METAL.fullmatch(_text(entry, "spdisplays_mtlgpufamilysupport"))
    return Gpu(
        model=model,
        is_apple=_text(entry, "spdisplays_vendor") == "sppci_vendor_Apple" or "Apple" in (model or name),
        metal="" if metal is None else f"Metal {metal[1]}",
    )


def _text(entry: Mapping[str, object], key: str) -> str:
    value = entry.get(key)
    return value.strip() if isinstance(value, str) else ""
