"""What is wrong with a request, by the flag that says it: below the command line it is called by its field."""

import re
from types import MappingProxyType
from typing import Final

__all__ = ["by_flag"]

_FLAGS: Final = MappingProxyType(
    {
        "accelerator": "--accelerator",
        "accelerators": "--accelerator",
        "devices": "--devices",
        "device_model": "--device-model",
        "device_models": "--device-model",
        "device_memory": "--device-memory",
        "device_memory_bytes": "--device-memory",
        "compute_capability": "--compute-capability",
        "frameworks": "--framework",
        "cpus": "--cpus",
        "memory": "--memory",
        "memory_bytes": "--memory",
        "disk": "--disk",
        "disk_bytes": "--disk",
        "labels": "--label",
        "zone": "--zone",
        "region": "--region",
        "network_group": "--network-group",
        "resources": "--resource",
        "timeout": "--timeout",
        "grace": "--grace",
        "keep_for": "--keep-for",
        "retries": "--retries",
        "log_limit": "--log-limit",
    }
)
_FIELD: Final = re.compile(r"(?:request\.)?([a-z_]+)(?=[:.])")


def by_flag(message: str) -> str:
    """``request.device_memory_bytes: …`` as ``--device-memory: …``; any other message as it is."""
    found = _FIELD.match(message)
    flag = _FLAGS.get(found[1]) if found else None
    return flag + message[found.end() :] if found and flag else message
