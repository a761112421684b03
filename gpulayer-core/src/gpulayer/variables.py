"""Which environment variables a process of ours inherits: an allow-list, for jobs and for what runs in the background.

Jobs of the user that runs a worker or a control plane may read /proc/PID/environ of it where nothing hides that, and
what a process was started with stays there however its variables change later. So tokens and credentials of whoever
starts one are left out at its start.
"""

from collections.abc import Mapping
from typing import Final

__all__ = ["DEVICE_VARIABLES", "HANDED_ON", "SENT_BY_ITSELF", "background_variables", "is_handed_on"]

HANDED_ON: Final = frozenset(
    {
        "CURL_CA_BUNDLE",
        "HOME",
        "LANG",
        "LANGUAGE",
        "LOGNAME",
        "PATH",
        "REQUESTS_CA_BUNDLE",
        "SHELL",
        "SSL_CERT_DIR",
        "SSL_CERT_FILE",
        "TMPDIR",
        "TZ",
        "USER",
    }
)
"""Names of the worker's variables that jobs get; ``LC_*`` too."""

SENT_BY_ITSELF: Final = ("PATH", "VIRTUAL_ENV")
"""What a client sends along to this machine's own control plane without being asked: they differ by terminal."""

DEVICE_VARIABLES: Final = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "GPU_DEVICE_ORDINAL",
        "HIP_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "ZE_AFFINITY_MASK",
    }
)
"""Which devices a program sees. A launcher sets them: a job must see those that it was given and no others."""

# What a Python, the probes and the programs themselves need to find their way about the machine.
_KEPT: Final = frozenset(
    {
        "CUDA_DEVICE_ORDER",
        "CUDA_HOME",
        "CUDA_PATH",
        "DYLD_LIBRARY_PATH",
        "GPULAYER_DEBUG",
        "GPULAYER_FAULTS",
        "GPULAYER_LEASE_TTL",
        "GPULAYER_PLUGINS",
        "GPULAYER_PLUGINS_IMPORT_S",
        "GPULAYER_STATE_DIR",
        "GPULAYER_STRICT",
        "LD_LIBRARY_PATH",
        "NO_COLOR",
        "NVIDIA_VISIBLE_DEVICES",
        "ROCM_PATH",
        "SYSTEMROOT",  # Windows: no socket without it
        "TERM",
        "VIRTUAL_ENV",
        "XDG_RUNTIME_DIR",
        "XDG_STATE_HOME",
    }
)
_KEPT_PREFIXES: Final = ("GPULAYER_PLUGIN_", "LC_", "PYTHON")  # the first: what plugins are told


def is_handed_on(name: str) -> bool:
    """Whether jobs get the worker's variable of that name."""
    return name in HANDED_ON or name.startswith("LC_")


def background_variables(given: Mapping[str, str]) -> dict[str, str]:
    """What a worker or a control plane is to be started with, of the variables of whoever starts it. Pure."""
    return {name: value for name, value in given.items() if _is_kept(name)}


def _is_kept(name: str) -> bool:
    return name in HANDED_ON or name in _KEPT or name in DEVICE_VARIABLES or name.startswith(_KEPT_PREFIXES)
