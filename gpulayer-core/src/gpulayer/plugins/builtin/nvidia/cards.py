"""What a driver says of NVIDIA cards, as values, and what follows from it for the machine's devices. Pure.

Whoever reads (NVML or the text of nvidia-smi) fills these in; here alone it is decided what is a device, and whether it
may be used. A figure that nobody could read is None or empty, for that card alone.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from gpulayer.plugins.builtin.believable import believable
from gpulayer.plugins.contracts.probe import ProcessKind, ProcessOnDevice
from gpulayer.spec.machine import Device, DeviceState
from gpulayer.spec.request import Accelerator

__all__ = [
    "Card",
    "OnCard",
    "Reading",
    "Slice",
    "as_pci_address",
    "devices_of",
    "is_memory_shared",
    "merged",
    "processes_of",
    "recovery_trouble",
]

_SHARED: Final = ("GB10", "GH200", "GB200", "GB300", "Thor", "Orin", "Xavier", "Tegra")
# Of cards with memory of their own alone. https://developer.nvidia.com/cuda-gpus
_WITH_OWN_MEMORY: Final = frozenset(
    ("5.0", "5.2", "6.0", "6.1", "7.0", "7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "12.0")
)
_MAX_PID: Final = 2**31
_MAX_BYTES: Final = 2**50
_MAX_DEVICES: Final = 1024  # of a report
_MAX_PROCESSES: Final = 4096
_WORDS: Final = {
    "1": "GPU reset",
    "2": "node reboot",
    "3": "drain P2P",
    "4": "drain and reset",
    "5": "recover IMEX domain",
    "6": "bus reset",
    "7": "system reboot",
}  # nvmlDeviceGpuRecoveryAction_t of nvml.h


@dataclass(frozen=True, slots=True)
class OnCard:
    """A process, as the driver numbers it."""

    pid: int
    is_compute: bool = True
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Slice:
    """A MIG device: ``number`` among those of its card; the ids of its GPU instance and compute instance."""

    number: int
    uuid: str
    model: str = ""
    gpu_instance: int | None = None
    compute_instance: int | None = None
    memory_bytes: int | None = None
    memory_free_bytes: int | None = None
    processes: tuple[OnCard, ...] | None = None


@dataclass(frozen=True, slots=True)
class Card:
    """One card. uuid empty: it can't be read. is_sliced: it is in MIG mode: what computes are its slices, if any.

    trouble: why nothing can compute on it, in the driver's words where it has some.
    """

    index: int
    uuid: str
    model: str = ""
    pci_address: str = ""
    memory_bytes: int | None = None
    memory_free_bytes: int | None = None
    compute_capability: str = ""
    compute_mode: str = ""
    ecc: bool | None = None
    temperature_c: int | None = None
    use_percent: int | None = None
    is_memory_shared: bool = False
    is_sliced: bool = False
    slices: tuple[Slice, ...] = ()
    trouble: str = ""
    processes: tuple[OnCard, ...] | None = None

    @property
    def device_uuid(self) -> str:
        """Of the device that it is: its own, or one that is made of where it stands."""
        return self.uuid or self.name_by_place

    @property
    def name_by_place(self) -> str:
        """For one that can't be read."""
        return f"CUDA-{self.pci_address or self.index}"


@dataclass(frozen=True, slots=True)
class Reading:
    """All that was read at once. said: why there is no card; runtime: the newest CUDA that the driver supports."""

    cards: tuple[Card, ...] = ()
    driver: str = ""
    runtime: str = ""
    said: str = ""


def devices_of(reading: Reading) -> tuple[Device, ...]:
    """Every card, or its slices where it is in MIG mode: then the card as a whole is no device, but for one that has no
    slices, which is there and can't be used. Of several with one uuid the first is it, and those that stand elsewhere
    can't be used: no job could be given one of them for certain."""
    devices: dict[str, Device] = {}
    for card in reading.cards:
        for device in _devices(card, reading):
            known = devices.get(device.uuid)
            if known is not None and not _is_same_place(device, known):
                device = replace(  # noqa: PLW2901
                    device,
                    uuid=card.name_by_place,
                    state=DeviceState.UNHEALTHY,
                    reason=f"it has the same UUID as device {known.index}: {device.uuid}",
                )
            if len(devices) < _MAX_DEVICES:
                devices.setdefault(device.uuid, believable(device))
    return tuple(devices.values())


def _is_same_place(one: Device, other: Device) -> bool:
    if one.pci_address and other.pci_address:
        return one.pci_address == other.pci_address
    return one.index == other.index


def _devices(card: Card, reading: Reading) -> list[Device]:
    trouble = card.trouble
    if not trouble and card.compute_mode == "prohibited":
        trouble = "its compute mode is prohibited: no program may compute on it"
    if not trouble and card.is_sliced and not card.slices:
        trouble = "it is in MIG mode, and no MIG device was made"
    whole = Device(
        uuid=card.device_uuid,
        index=card.index,
        kind=Accelerator.CUDA,
        model=card.model,
        memory_bytes=card.memory_bytes,
        memory_free_bytes=card.memory_free_bytes,
        compute_capability=card.compute_capability,
        state=DeviceState.UNHEALTHY if trouble else DeviceState.USABLE,
        reason=trouble,
        pci_address=card.pci_address,
        driver=reading.driver,
        runtime=reading.runtime,
        is_memory_shared=card.is_memory_shared,
        compute_mode=card.compute_mode,
        ecc=card.ecc,
        temperature_c=card.temperature_c,
        use_percent=card.use_percent,
    )
    if not card.slices:
        return [whole]
    return [_slice(slice_, whole) for slice_ in card.slices]


def _slice(slice_: Slice, whole: Device) -> Device:
    return Device(
        uuid=slice_.uuid,
        index=whole.index,
        kind=whole.kind,
        model=slice_.model or whole.model,
        memory_bytes=slice_.memory_bytes,
        memory_free_bytes=slice_.memory_free_bytes,
        compute_capability=whole.compute_capability,
        state=whole.state,
        reason=whole.reason,
        pci_address=whole.pci_address,
        driver=whole.driver,
        runtime=whole.runtime,
        parent=whole.uuid,
        is_memory_shared=whole.is_memory_shared,
        compute_mode=whole.compute_mode,
        ecc=whole.ecc,
        temperature_c=whole.temperature_c,
    )


def processes_of(reading: Reading) -> tuple[ProcessOnDevice, ...] | None:
    """Those on its devices; None where they could be read of no device."""
    found: list[ProcessOnDevice] = []
    is_known = False
    for card in reading.cards:
        places = [(one.uuid, one.processes) for one in card.slices] if card.is_sliced else [(card.uuid, card.processes)]
        for uuid, processes in places:
            if not uuid or processes is None:
                continue
            is_known = True
            found += [
                ProcessOnDevice(
                    device=uuid,
                    pid=process.pid,
                    kind=ProcessKind.COMPUTE if process.is_compute else ProcessKind.GRAPHICS,
                    memory_bytes=process.memory_bytes,
                )
                for process in merged(processes)
            ]
    return tuple(found[:_MAX_PROCESSES]) if is_known else None


def merged(processes: Iterable[OnCard]) -> tuple[OnCard, ...]:
    """One of each pid: what both computes and draws computes, and is told of twice with the same memory."""
    by_pid: dict[int, OnCard] = {}
    for process in processes:
        if not 1 <= process.pid <= _MAX_PID:
            continue
        if process.memory_bytes is not None and not 0 <= process.memory_bytes <= _MAX_BYTES:
            process = replace(process, memory_bytes=None)  # noqa: PLW2901
        known = by_pid.get(process.pid)
        if known is None:
            by_pid[process.pid] = process
            continue
        figures = [one.memory_bytes for one in (known, process) if one.memory_bytes is not None]
        is_compute = known.is_compute or process.is_compute
        by_pid[process.pid] = OnCard(process.pid, is_compute=is_compute, memory_bytes=max(figures, default=None))
    return tuple(by_pid.values())


def as_pci_address(text: str) -> str:
    """``0000:3b:00.0``, as Linux names it, of what the driver writes: ``00000000:3B:00.0``, ``000:BA:80.0``."""
    parts = text.strip().lower().split(":")
    if len(parts) == 2:
        parts = ["0", *parts]
    try:
        domain, bus = int(parts[0], 16), int(parts[1], 16)
        device, function = (int(part, 16) for part in [*parts[2].split("."), "0"][:2])
    except (ValueError, IndexError):
        return ""
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"


def is_memory_shared(model: str, *, capability: str, has_none: bool, is_ats: bool) -> bool:
    """Whether its memory is the machine's as well. has_none: the driver says that it has none to tell of, which
    a card that has memory of its own may say, too, when it is broken. is_ats: it addresses by the processor's pages."""
    return is_ats or _is_shared_by_name(model) or (has_none and capability not in _WITH_OWN_MEMORY)


def _is_shared_by_name(model: str) -> bool:
    """Parts whose GPU and processor share one address space, coherently."""
    words = model.replace("(", " ").split()
    return any(word == name or word.startswith(name + "-") for name in _SHARED for word in words)


def recovery_trouble(
    *,
    action: str = "",
    has_remap_failed: bool | None = None,
    is_retirement_pending: bool | None = None,
    is_sram_past_threshold: bool | None = None,
) -> str:
    """Why a card must be let go of, of what it says of its own memory and of the recovery that it needs.

    action: as nvidia-smi writes it, or the number that NVML gives. A row that waits for a reset to be remapped is no
    reason: it is out of use already, and new work may start. A page of an older card that waits to be retired is one.
    https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/error-recovery-and-response-flags.html
    https://docs.nvidia.com/deploy/dynamic-page-retirement/
    """
    if action and action.casefold() not in ("none", "0"):
        words = _WORDS.get(action, f"recovery action {action}" if action.isdigit() else action)
        return f"its driver asks for: {words}"
    if has_remap_failed:
        return "a row of its memory could not be replaced (row remap failure)"
    if is_retirement_pending:
        return "a page of its memory is to be retired: the GPU requires a reset (page retirement pending)"
    if is_sram_past_threshold:
        return "its on-chip memory has had too many uncorrectable errors (SRAM threshold exceeded)"
    return ""
