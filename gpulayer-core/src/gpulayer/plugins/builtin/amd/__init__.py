"""AMD's GPUs under ROCm: Instinct, Radeon, and what is inside a processor where ROCm is installed."""

from typing import Final

from gpulayer.plugins.builtin.amd.probe import AmdProbe
from gpulayer.plugins.contracts.context import Context
from gpulayer.plugins.contracts.probe import Probe
from gpulayer.plugins.hooks import API_VERSION, hookimpl

__all__ = ["GPULAYER_API", "AmdProbe", "gpulayer_register_probes"]

GPULAYER_API: Final = API_VERSION


@hookimpl
def gpulayer_register_probes(ctx: Context) -> list[Probe]:
    """The AMD probe."""
    return [AmdProbe()]
