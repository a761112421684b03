"""Asks NVML how devices are joined and prints it as one JSON document: a program of its own, never imported by the
worker.

``python -I -S nvml_links.py FOLDER_OF_PYNVML LIBRARY``. Nothing is judged here: ``nvml_topology`` does that.
"""

import ctypes
import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from itertools import combinations
from typing import Any

_MOST_LINKS = 64  # NVML ends the count sooner: by an invalid argument
_INVALID_ARGUMENT = 2
_NOT_SUPPORTED = 3
_FUNCTION_NOT_FOUND = 13
_LEAST_AFFINITY_WORDS = 16
_NODE_WORDS = 16
_SCOPE_NODE = 0


def main(folder: str, library: str) -> dict[str, Any]:
    """What is told of links, or ``error``."""
    if folder:
        sys.path.append(folder)
    try:
        import pynvml  # noqa: PLC0415 - found only now
    except ImportError as error:
        return {"error": str(error)}
    if library:
        with suppress(OSError):  # pynvml finds it by its name then, wherever it lies
            ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    handles: dict[int, Any] = {}
    try:
        pynvml.nvmlInit()
        for index in range(pynvml.nvmlDeviceGetCount()):
            with suppress(pynvml.NVMLError):  # one that is lost
                handles[index] = pynvml.nvmlDeviceGetHandleByIndex(index)
    except pynvml.NVMLError as error:
        return {"error": str(error)}
    return told_of_links(pynvml, handles)


def told_of_links(nvml: Any, handles: Mapping[int, Any]) -> dict[str, Any]:  # pynvml has no types
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
    if info is None:
        return None
    return info.busId.decode("ascii", "replace") if isinstance(info.busId, bytes) else str(info.busId)


if __name__ == "__main__":
    print(json.dumps(main(*[*sys.argv[1:], "", ""][:2])))  # noqa: T201 - what it is for
