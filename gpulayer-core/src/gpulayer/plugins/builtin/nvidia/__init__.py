"""NVIDIA's cards and their slices. ``probe`` asks, ``nvml`` and ``smi`` understand, ``cards`` decides, ``visibility``
keeps to what the worker itself may use, ``remembering`` knows which card is which."""

from typing import Final

from gpulayer.plugins.builtin.nvidia.probe import NvidiaProbe
from gpulayer.plugins.contracts.context import Context
from gpulayer.plugins.contracts.probe import Probe
from gpulayer.plugins.hooks import API_VERSION, hookimpl

__all__ = ["GPULAYER_API", "NvidiaProbe", "gpulayer_register_probes"]

GPULAYER_API: Final = API_VERSION


@hookimpl
def gpulayer_register_probes(ctx: Context) -> list[Probe]:
    """The NVIDIA probe."""
    return [NvidiaProbe()]
