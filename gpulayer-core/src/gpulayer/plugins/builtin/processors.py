"""What a processor is called, out of ``/proc/cpuinfo``. Pure.

x86 and others name it there. Of an ARM one the kernel shows the numbers of its identification register alone (MIDR_EL1,
Arm Architecture Reference Manual), or a name that fits them all ("ARMv8 Processor rev 1 (v8l)"); here are the names of
the cores that are in machines with an accelerator, after arch/arm64/include/asm/cputype.h of Linux and Arm's manuals.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

__all__ = ["processor_name"]

_MOST: Final = 128
_MOST_KINDS: Final = 4
_NAMES: Final = ("model name", "Model Name", "cpu model", "cpu", "uarch")  # x86, LoongArch, MIPS, Power, RISC-V
_IMPLEMENTER: Final = "CPU implementer"
_PART: Final = "CPU part"

_IMPLEMENTERS: Final[Mapping[int, str]] = MappingProxyType(
    {
        0x41: "ARM",
        0x42: "Broadcom",
        0x43: "Cavium",
        0x46: "Fujitsu",
        0x48: "HiSilicon",
        0x4E: "NVIDIA",
        0x51: "Qualcomm",
        0x53: "Samsung",
        0x61: "Apple",
        0x6D: "Microsoft",
        0x70: "Phytium",
        0xC0: "Ampere",
    }
)
_PARTS: Final[Mapping[tuple[int, int], str]] = MappingProxyType(
    {
        (0x41, 0xC07): "Cortex-A7",
        (0x41, 0xC09): "Cortex-A9",
        (0x41, 0xC0F): "Cortex-A15",
        (0x41, 0xD03): "Cortex-A53",
        (0x41, 0xD05): "Cortex-A55",
        (0x41, 0xD07): "Cortex-A57",
        (0x41, 0xD08): "Cortex-A72",
        (0x41, 0xD09): "Cortex-A73",
        (0x41, 0xD0A): "Cortex-A75",
        (0x41, 0xD0B): "Cortex-A76",
        (0x41, 0xD0C): "Neoverse-N1",
        (0x41, 0xD0D): "Cortex-A77",
        (0x41, 0xD40): "Neoverse-V1",
        (0x41, 0xD41): "Cortex-A78",
        (0x41, 0xD42): "Cortex-A78AE",
        (0x41, 0xD44): "Cortex-X1",
        (0x41, 0xD46): "Cortex-A510",
        (0x41, 0xD47): "Cortex-A710",
        (0x41, 0xD48): "Cortex-X2",
        (0x41, 0xD49): "Neoverse-N2",
        (0x41, 0xD4B): "Cortex-A78C",
        (0x41, 0xD4D): "Cortex-A715",
        (0x41, 0xD4E): "Cortex-X3",
        (0x41, 0xD4F): "Neoverse-V2",
        (0x41, 0xD80): "Cortex-A520",
        (0x41, 0xD81): "Cortex-A720",
        (0x41, 0xD82): "Cortex-X4",
        (0x41, 0xD83): "Neoverse-V3AE",
        (0x41, 0xD84): "Neoverse-V3",
        (0x41, 0xD85): "Cortex-X925",
        (0x41, 0xD87): "Cortex-A725",
        (0x41, 0xD8E): "Neoverse-N3",
        (0x42, 0x516): "ThunderX2",
        (0x43, 0x0A1): "ThunderX",
        (0x43, 0x0AF): "ThunderX2",
        (0x46, 0x001): "A64FX",
        (0x48, 0xD01): "Kunpeng-920",
        (0x4E, 0x003): "Denver 2",
        (0x4E, 0x004): "Carmel",
        (0x51, 0x001): "Oryon",
        (0x61, 0x022): "M1 Icestorm",
        (0x61, 0x023): "M1 Firestorm",
        (0x61, 0x032): "M2 Blizzard",
        (0x61, 0x033): "M2 Avalanche",
        (0x6D, 0xD49): "Azure Cobalt 100",
        (0xC0, 0xAC3): "AmpereOne",
        (0xC0, 0xAC4): "AmpereOne",
    }
)


def processor_name(cpuinfo: str) -> str:
    """Of a machine with several kinds of cores all of them, ``ARM Cortex-A725 + ARM Cortex-X925``; empty where nothing
    tells."""
    fields = list(_fields(cpuinfo))
    cores = list(dict.fromkeys(_cores(fields)))[:_MOST_KINDS]
    named = (value for name in _NAMES for key, value in fields if key == name and value)
    return (" + ".join(cores) or next(named, ""))[:_MOST]


def _fields(cpuinfo: str) -> Iterator[tuple[str, str]]:
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        yield key.strip(), " ".join(value.replace("\0", " ").split())


def _cores(fields: list[tuple[str, str]]) -> Iterator[str]:
    implementer = None
    for key, value in fields:
        if key == _IMPLEMENTER:
            implementer = _number(value)
        elif key == _PART and implementer is not None and implementer in _IMPLEMENTERS:
            part = _number(value)
            if part is not None:
                yield f"{_IMPLEMENTERS[implementer]} {_PARTS.get((implementer, part), f'{part:#05x}')}"


def _number(value: str) -> int | None:
    try:
        return int(value, 16)
    except ValueError:
        return None
