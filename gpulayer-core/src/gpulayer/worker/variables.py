"""The worker's own environment variables: an allow-list, like its jobs'.

Jobs of the user that runs the worker can read /proc/PID/environ of it, and what a process was started with stays there
however its variables change later. So tokens and credentials of whoever starts a worker are left out at its start.
"""

from collections.abc import Mapping
from typing import Final

from gpulayer.plugins.builtin.process import HANDED_ON

__all__ = ["worker_variables"]

# What a Python, the probes and the worker itself need to find their way about the machine.
_KEPT: Final = frozenset(
    {
        "CUDA_HOME",
        "CUDA_PATH",
        "CUDA_VISIBLE_DEVICES",
        "DYLD_LIBRARY_PATH",
        "GPULAYER_DEBUG",
        "GPULAYER_FAULTS",
        "GPULAYER_STATE_DIR",
        "GPU_DEVICE_ORDINAL",
        "HIP_VISIBLE_DEVICES",
        "LD_LIBRARY_PATH",
        "NO_COLOR",
        "NVIDIA_VISIBLE_DEVICES",
        "ROCM_PATH",
        "ROCR_VISIBLE_DEVICES",
        "TERM",
        "VIRTUAL_ENV",
        "XDG_RUNTIME_DIR",
        "XDG_STATE_HOME",
        "ZE_AFFINITY_MASK",
    }
)
_KEPT_PREFIXES: Final = ("LC_", "PYTHON")


def worker_variables(given: Mapping[str, str]) -> dict[str, str]:
    """What a worker is to be started with, of the variables of whoever starts it. Pure."""
    return {name: value for name, value in given.items() if _is_kept(name)}


def _is_kept(name: str) -> bool:
    return name in HANDED_ON or name in _KEPT or name.startswith(_KEPT_PREFIXES)
