"""What the program ``nvml_child`` printed, as a reading. Pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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

__all__ = ["NoNvml", "reading_of"]

# Of nvml.h.
_NOT_SUPPORTED: Final = 3
_LIBRARY_NOT_FOUND: Final = 12
_GPU_IS_LOST: Final = 15
_RESET_REQUIRED: Final = 16
_ATS: Final = 2
_COMPUTE_MODES: Final = ("default", "exclusive_thread", "prohibited", "exclusive_process")


class NoNvml(Exception):
    """NVML itself could not be asked; somebody else may be."""


def reading_of(printed: str) -> Reading:
    """Raises NoNvml: the library is not here, or what was printed is no document of ours."""
    try:
        document = _Map(json.loads(printed))
        if error := document.text("error"):
            if document.number("code") in (None, _LIBRARY_NOT_FOUND):
                raise NoNvml(error)
            return Reading(said=f"NVML says: {error}")
        return _reading(document)
    except (ValueError, TypeError) as error:
        raise NoNvml(f"what was read of NVML can't be understood: {error}") from error


def _reading(document: "_Map") -> Reading:
    about = document.map("read")
    cuda = about.number("cuda")
    driver = about.text("driver")
    runtime = f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else ""
    cards = document.maps("cards")
    if not cards:
        words = document.map("failed").words("count")
        said = f"NVML says: {words}" if words else "the driver finds no device"
        return Reading(driver=driver, runtime=runtime, said=said)
    kernel = document.maps("known_to_kernel")
    return Reading(
        cards=tuple(_card(card, _of_kernel(card, kernel, len(cards))) for card in cards),
        driver=driver,
        runtime=runtime,
    )


def _of_kernel(card: "_Map", kernel: Sequence["_Map"], count: int) -> "_Map":
    """NVML counts by address, as the kernel lists them: where both know as many, the places tell who is who."""
    index = card.number("index") or 0
    return kernel[index] if len(kernel) == count else _Map({})


def _card(card: "_Map", kernel: "_Map") -> Card:
    read, failed = card.map("read"), card.map("failed")
    model = read.text("model") or kernel.text("model")
    memory = read.numbers("memory")
    remapped = read.numbers("remapped")
    capability = ".".join(map(str, read.numbers("compute_capability")))
    mode = read.number("compute_mode")
    kernel_uuid = kernel.text("uuid")
    has_none, is_ats = failed.number_of("memory") == _NOT_SUPPORTED, read.number("addressing") == _ATS
    return Card(
        index=card.number("index") or 0,
        uuid=read.text("uuid") or (kernel_uuid if "?" not in kernel_uuid else ""),
        model=model,
        pci_address=as_pci_address(read.text("pci") or kernel.text("pci")),
        memory_bytes=(memory[0] or None) if memory else None,
        memory_free_bytes=memory[1] if len(memory) > 1 else None,
        compute_capability=capability,
        compute_mode=_COMPUTE_MODES[mode] if mode is not None and 0 <= mode < len(_COMPUTE_MODES) else "",
        ecc=_is_set(read.number("ecc")),
        temperature_c=read.number("temperature"),
        use_percent=percent(read.number("use")),
        is_memory_shared=is_memory_shared(model, capability=capability, has_none=has_none, is_ats=is_ats),
        is_sliced=bool(read.number("mig")),
        slices=tuple(_slice(one) for one in card.maps("slices") if one.map("read").text("uuid")),
        trouble=_trouble(read, failed, remapped),
        processes=_processes(read),
    )


def _trouble(read: "_Map", failed: "_Map", remapped: Sequence[int]) -> str:
    for name in failed.names():
        if failed.number_of(name) in (_GPU_IS_LOST, _RESET_REQUIRED):
            return failed.words(name)
    if words := failed.words("uuid"):
        return f"it can't be read: {words}"
    action = read.number("recovery")
    return recovery_trouble(
        action="" if action is None else str(action),
        has_remap_failed=bool(remapped[3]) if len(remapped) > 3 else None,
        is_retirement_pending=_is_set(read.number("retiring")),
        is_sram_past_threshold=_is_set(read.number("sram")),
    )


def _slice(one: "_Map") -> Slice:
    read = one.map("read")
    memory = read.numbers("memory")
    return Slice(
        number=one.number("number") or 0,
        uuid=read.text("uuid"),
        model=read.text("model"),
        gpu_instance=read.number("gpu_instance"),
        compute_instance=read.number("compute_instance"),
        memory_bytes=(memory[0] or None) if memory else None,
        memory_free_bytes=memory[1] if len(memory) > 1 else None,
        processes=_processes(read),
    )


def _processes(read: "_Map") -> tuple[OnCard, ...] | None:
    """None where those that compute could not be read; who draws is not told by every card."""
    computing = read.pairs("compute")
    if computing is None:
        return None
    drawing = read.pairs("graphics") or ()
    found = [OnCard(pid, memory_bytes=memory) for pid, memory in computing]
    found += [OnCard(pid, is_compute=False, memory_bytes=memory) for pid, memory in drawing]
    return tuple(found)


def _is_set(value: int | None) -> bool | None:
    return None if value is None else bool(value)


@dataclass(frozen=True, slots=True)
class _Map:
    """A JSON object that is read with care: of another type is as good as not there."""

    values: object

    def _of(self, name: str) -> object:
        return self.values.get(name) if isinstance(self.values, Mapping) else None

    def names(self) -> list[str]:
        return [str(name) for name in self.values] if isinstance(self.values, Mapping) else []

    def text(self, name: str) -> str:
        value = self._of(name)
        return value.strip() if isinstance(value, str) else ""

    def number(self, name: str) -> int | None:
        value = self._of(name)
        return int(value) if isinstance(value, int) else None

    def numbers(self, name: str) -> list[int]:
        value = self._of(name)
        values = value if isinstance(value, list) else []
        return [one for one in values if isinstance(one, int)]

    def pairs(self, name: str) -> list[tuple[int, int | None]] | None:
        value = self._of(name)
        if not isinstance(value, list):
            return None
        pairs = [one for one in value if isinstance(one, list) and len(one) == 2]
        return [(pid, memory if isinstance(memory, int) else None) for pid, memory in pairs if isinstance(pid, int)]

    def number_of(self, name: str) -> int | None:
        """Of an error."""
        return next(iter(self.numbers(name)), None)

    def words(self, name: str) -> str:
        """Of an error."""
        value = self._of(name)
        return str(value[1]).strip() if isinstance(value, list) and len(value) == 2 else ""

    def map(self, name: str) -> "_Map":
        return _Map(self._of(name))

    def maps(self, name: str) -> "list[_Map]":
        value = self._of(name)
        return [_Map(one) for one in value] if isinstance(value, list) else []
