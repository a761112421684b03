"""What NVML tells of how devices are joined, for the program ``nvml_child``: a part of it, loaded by its path.

Standard library only; NVML's module and the handles are given. Nothing is judged here: ``nvml_topology`` does that.
"""

import os
from collections.abc import Mapping
from typing import Any

__all__ = ["told_of_links"]

_MOST_LINKS = 64  # NVML ends the count sooner: by an invalid argument
_INVALID_ARGUMENT = 2
_NOT_SUPPORTED = 3
_FUNCTION_NOT_FOUND = 13
_LEAST_AFFINITY_WORDS = 16
_NODE_WORDS = 16
_SCOPE_NODE = 0


def told_of_links(nvml: Any, handles: Mapping[int, Any]) -> dict[str, Any]:  # pynvml has no types
    """By the indices of devices, as text: what can be printed as JSON.

    ``ancestors``: [index, index, level of their nearest common one]. ``nvlinks``: of each device, [type of the other
    end or None, its PCI address] for every active one; None: it could not say. ``pci``: its
    address. ``cores`` and ``nodes``: the words of the bit masks of what is near.
    """
    told: dict[str, Any] = {"ancestors": [], "nvlinks": {}, "pci": {}, "cores": {}, "nodes": {}}
    words = max(_LEAST_AFFINITY_WORDS, ((os.cpu_count() or 1) + 63) // 64)
    for index, handle in handles.items():
        name = str(index)
        told["pci"][name] = _or_none(nvml, lambda handle=handle: _text(nvml.nvmlDeviceGetPciInfo(handle).busId))
        told["cores"][name] = _or_none(nvml, lambda handle=handle: list(nvml.nvmlDeviceGetCpuAffinity(handle, words)))
        told["nodes"][name] = _or_none(
            nvml, lambda handle=handle: list(nvml.nvmlDeviceGetMemoryAffinity(handle, _NODE_WORDS, _SCOPE_NODE))
        )
        told["nvlinks"][name] = _nvlinks(nvml, handle)
    for one, first in handles.items():
        for other, second in handles.items():
            if one < other:
                level = _or_none(
                    nvml, lambda first=first, second=second: nvml.nvmlDeviceGetTopologyCommonAncestor(first, second)
                )
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
            if error.value == _NOT_SUPPORTED:  # of the whole device, or of this link of it
                continue
            return None
        if is_active:
            end = _or_none(nvml, lambda link=link: nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link))
            pci = _or_none(nvml, lambda link=link: _text(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId))
            found.append([end, pci])
    return found


def _or_none(nvml: Any, function: Any) -> Any:
    try:
        return function()
    except (nvml.NVMLError, AttributeError):  # refused, or unknown to this pynvml
        return None


def _text(value: Any) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else str(value)
