"""A probe for GPUlayer: the licences that a machine has, as resources that jobs take and give back.

Its option is a variable of the worker, the file where they stand: ``GPULAYER_PLUGIN_LICENCES_FILE=/etc/licences``.
"""

from pathlib import Path
from typing import Final

from gpulayer.plugins import Context, Probe, hookimpl
from gpulayer_licences.probe import LicenceProbe

__all__ = ["GPULAYER_API", "LicenceProbe", "gpulayer_register_probes"]

GPULAYER_API: Final = "1.0"


@hookimpl
def gpulayer_register_probes(ctx: Context) -> list[Probe]:
    """One probe, where a file is named."""
    file = ctx.options.get("file", "")
    return [LicenceProbe(Path(file))] if file else []
