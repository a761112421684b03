"""Core's own plugins: the same hooks, the same contracts and the same guard as anybody's."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

__all__ = ["BUILTINS", "LOOK_FOR"]

BUILTINS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "amd": "gpulayer.plugins.builtin.amd",
        "apple": "gpulayer.plugins.builtin.apple",
        "cloud": "gpulayer.plugins.builtin.cloud",
        "file": "gpulayer.plugins.builtin.file",
        "frameworks": "gpulayer.plugins.builtin.frameworks",
        "host": "gpulayer.plugins.builtin.host",
        "intel": "gpulayer.plugins.builtin.intel",
        "nvidia": "gpulayer.plugins.builtin.nvidia",
        "process": "gpulayer.plugins.builtin.process",
        "system": "gpulayer.plugins.builtin.system",
        "webhook": "gpulayer.plugins.builtin.webhook",
    }
)
"""Modules by the names of the plugins; imported when plugins are loaded."""

LOOK_FOR: Final[Mapping[str, str]] = MappingProxyType({"amd": "rocm", "apple": "mps", "intel": "xpu", "nvidia": "cuda"})
"""By the names of those with a probe for devices: which kind of device."""
