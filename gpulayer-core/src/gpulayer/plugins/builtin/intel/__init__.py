"""Intel's discrete GPUs: Data Center Max and Flex, Arc and Arc Pro."""

from typing import Final

from gpulayer.plugins.builtin.intel.probe import IntelProbe
from gpulayer.plugins.contracts.context import Context
from gpulayer.plugins.contracts.probe import Probe
from gpulayer.plugins.hooks import API_VERSION, hookimpl

__all__ = ["GPULAYER_API", "IntelProbe", "gpulayer_register_probes"]

GPULAYER_API: Final = API_VERSION


@hookimpl
def gpulayer_register_probes(ctx: Context) -> list[Probe]:
    """The Intel probe."""
    return [IntelProbe()]
