"""Reads NVML in a process of its own and prints what it read as one JSON document: a program, never imported by the
worker.

``python -I -S nvml_child.py cards|links FOLDER_OF_PYNVML LIBRARY ROOT``. Of cards each figure is read on its own:
``read`` has those that could be, ``failed`` the number and the words of the error of each of the others. Of links see
``told_of_links``. Nothing is judged here: ``nvml`` and ``nvml_topology`` do that.
"""

import ctypes
import glob
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import combinations
from typing import Any

_MOST_LINKS = 64  # NVML ends the count sooner: by an invalid argument
_INVALID_ARGUMENT = 2
_NOT_SUPPORTED = 3
_FUNCTION_NOT_FOUND = 13
_LEAST_AFFINITY_WORDS = 16
_NODE_WORDS = 16
_SCOPE_NODE = 0


def main(what: str, folder: str, library: str, root: str) -> dict[str, Any]:
    """All of it, or ``error``, with NVML's number for it in ``code`` where NVML itself said so."""
    if folder:
        sys.path.append(folder)
    try:
        import pynvml  # noqa: PLC0415 - found only now
    except ImportError as error:
        return {"error": str(error)}
    if library:
        with suppress(OSError):  # pynvml finds it by its name then, wherever it lies
            ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    try:
        pynvml.nvmlInit()
        return _links(pynvml) if what == "links" else _cards(pynvml, root)
    except pynvml.NVMLError as error:
        return {"error": _words(pynvml, error), "code": error.value}


def _cards(nvml: Any, root: str) -> dict[str, Any]:  # pynvml has no types
    about = _Reads(nvml)
    about.read("driver", nvml.nvmlSystemGetDriverVersion)
    about.read("cuda", nvml.nvmlSystemGetCudaDriverVersion_v2)
    about.read("count", nvml.nvmlDeviceGetCount)
    cards = [_card(nvml, index) for index in range(about.got.get("count", 0))]
    document = about.document() | {"cards": cards}
    if any("uuid" in card["failed"] for card in cards):
        document["known_to_kernel"] = list(_known_to_kernel(root))
    return document


def _links(nvml: Any) -> dict[str, Any]:
    handles: dict[int, Any] = {}
    for index in range(nvml.nvmlDeviceGetCount()):
        with suppress(nvml.NVMLError):  # one that is lost
            handles[index] = nvml.nvmlDeviceGetHandleByIndex(index)
    return told_of_links(nvml, handles)


class _Reads:
    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self.got: dict[str, Any] = {}
        self.failed: dict[str, tuple[int, str]] = {}

    def read(self, name: str, function: Callable[[], Any]) -> None:
        try:
            self.got[name] = function()
        except self._nvml.NVMLError as error:
            self.failed[name] = (error.value, _words(self._nvml, error))
        except Exception as error:
            self.failed[name] = (0, f"{type(error).__name__}: {error}")

    def document(self) -> dict[str, Any]:
        return {"read": self.got, "failed": self.failed}


def _card(nvml: Any, index: int) -> dict[str, Any]:
    reads = _Reads(nvml)
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        reads.failed["uuid"] = (error.value, _words(nvml, error))
        return {"index": index} | reads.document()
    reads.read("uuid", lambda: nvml.nvmlDeviceGetUUID(handle))
    reads.read("model", lambda: nvml.nvmlDeviceGetName(handle))
    reads.read("pci", lambda: _text(nvml.nvmlDeviceGetPciInfo(handle).busId))
    reads.read("memory", lambda: _memory(nvml, handle))
    reads.read("compute_capability", lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle))
    reads.read("compute_mode", lambda: nvml.nvmlDeviceGetComputeMode(handle))
    reads.read("ecc", lambda: nvml.nvmlDeviceGetEccMode(handle)[0])
    reads.read("temperature", lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
    reads.read("use", lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    reads.read("addressing", lambda: nvml.nvmlDeviceGetAddressingMode(handle))
    reads.read("recovery", lambda: _field(nvml, handle, nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION))
    reads.read("remapped", lambda: nvml.nvmlDeviceGetRemappedRows(handle))
    reads.read("retiring", lambda: nvml.nvmlDeviceGetRetiredPagesPendingStatus(handle))
    reads.read("sram", lambda: _is_sram_past_threshold(nvml, handle))
    reads.read("mig", lambda: nvml.nvmlDeviceGetMigMode(handle)[0])
    _read_processes(nvml, handle, reads)
    slices = list(_slices(nvml, handle)) if reads.got.get("mig") else []
    return {"index": index, "slices": slices} | reads.document()


def _slices(nvml: Any, card: Any) -> Iterator[dict[str, Any]]:
    try:
        count = nvml.nvmlDeviceGetMaxMigDeviceCount(card)
    except nvml.NVMLError:
        return
    for number in range(count):
        try:
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(card, number)
        except nvml.NVMLError:
            continue  # there may be this many; there is none here
        reads = _Reads(nvml)
        reads.read("uuid", partial(nvml.nvmlDeviceGetUUID, handle))
        reads.read("model", partial(nvml.nvmlDeviceGetName, handle))
        reads.read("memory", partial(_memory, nvml, handle))
        reads.read("gpu_instance", partial(nvml.nvmlDeviceGetGpuInstanceId, handle))
        reads.read("compute_instance", partial(nvml.nvmlDeviceGetComputeInstanceId, handle))
        _read_processes(nvml, handle, reads)
        yield {"number": number} | reads.document()


def _read_processes(nvml: Any, handle: Any, reads: _Reads) -> None:
    for kind, name in (("compute", "Compute"), ("graphics", "Graphics")):
        reads.read(kind, partial(_processes, nvml, handle, name))


def _processes(nvml: Any, handle: Any, name: str) -> list[tuple[int, int | None]]:
    try:
        found = getattr(nvml, f"nvmlDeviceGet{name}RunningProcesses_v3")(handle)
    except nvml.NVMLError as error:
        if error.value != _FUNCTION_NOT_FOUND:
            raise
        found = getattr(nvml, f"nvmlDeviceGet{name}RunningProcesses_v2")(handle)
    return [(process.pid, process.usedGpuMemory) for process in found]


def _memory(nvml: Any, handle: Any) -> tuple[int, int]:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return memory.total, memory.free


def _field(nvml: Any, handle: Any, number: int) -> int:
    value = nvml.nvmlDeviceGetFieldValues(handle, [number])[0]
    if value.nvmlReturn:
        raise nvml.NVMLError(value.nvmlReturn)
    return int(value.value.uiVal)


def _is_sram_past_threshold(nvml: Any, handle: Any) -> bool:
    status = nvml.c_nvmlEccSramErrorStatus_v1_t()
    nvml.nvmlDeviceGetSramEccErrorStatus(handle, ctypes.byref(status))
    return bool(status.bThresholdExceeded)


def _known_to_kernel(root: str) -> Iterator[dict[str, str]]:
    """Of cards that NVML can't open, what the kernel module still knows, in the order of their addresses."""
    for path in sorted(glob.glob(os.path.join(root, "proc/driver/nvidia/gpus/*/information"))):
        found = {"pci": os.path.basename(os.path.dirname(path))}
        with suppress(OSError), open(path, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name in ("Model", "GPU UUID"):
                    found["uuid" if name == "GPU UUID" else "model"] = value.strip()
        yield found


def told_of_links(nvml: Any, handles: Mapping[int, Any]) -> dict[str, Any]:
    """By the indices of devices.

    ``ancestors``: [index, index, level of their nearest common one]. ``nvlinks``: of each device, [type of the other
    end or None, its PCI address] for every active one; None: it could not say. ``pci``: its address.
    ``cores`` and ``nodes``: the words of the bit masks of what is near.
    """
    told: dict[str, Any] = {"ancestors": [], "nvlinks": {}, "pci": {}, "cores": {}, "nodes": {}}
    words = max(_LEAST_AFFINITY_WORDS, ((os.cpu_count() or 1) + 63) // 64)
    for index, handle in handles.items():
        name = str(index)
        told["pci"][name] = _address(_said(nvml, "nvmlDeviceGetPciInfo", handle))
        told["cores"][name] = list(_said(nvml, "nvmlDeviceGetCpuAffinity", handle, words) or ())
        told["nodes"][name] = list(_said(nvml, "nvmlDeviceGetMemoryAffinity", handle, _NODE_WORDS, _SCOPE_NODE) or ())
        told["nvlinks"][name] = _nvlinks(nvml, handle)
    for (one, first), (other, second) in combinations(handles.items(), 2):
        level = _said(nvml, "nvmlDeviceGetTopologyCommonAncestor", first, second)
        told["ancestors"].append([one, other, level])
    return told


def _nvlinks(nvml: Any, handle: Any) -> list[list[Any]] | None:
    found: list[list[Any]] = []
    for link in range(_MOST_LINKS):
        try:
            is_active = nvml.nvmlDeviceGetNvLinkState(handle, link)
        except nvml.NVMLError as error:
            if error.value in (_INVALID_ARGUMENT, _FUNCTION_NOT_FOUND):  # no more, or a driver without any
                break
            if error.value == _NOT_SUPPORTED:  # by the whole device, or by this link of it
                continue
            return None
        if is_active:
            end = _said(nvml, "nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
            found.append([end, _address(_said(nvml, "nvmlDeviceGetNvLinkRemotePciInfo", handle, link))])
    return found


def _said(nvml: Any, function: str, *arguments: Any) -> Any:
    """None: it refused, or this pynvml lacks it."""
    try:
        return getattr(nvml, function)(*arguments)
    except (nvml.NVMLError, AttributeError):
        return None


def _address(info: Any) -> str | None:
    return None if info is None else _text(info.busId)


def _words(nvml: Any, error: Any) -> str:
    """The library's own, which are nvidia-smi's too; pynvml has others for some."""
    with suppress(nvml.NVMLError, UnicodeError):
        if words := nvml.nvmlErrorString(error.value):
            return str(words)
    return str(error)


def _text(value: Any) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else str(value)


if __name__ == "__main__":
    print(json.dumps(main(*[*sys.argv[1:], "", "", "", ""][:4])))  # noqa: T201 - what it is for
