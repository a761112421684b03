"""What GPUlayer finds of this package: the entry point ``torch`` of the group ``gpulayer`` names this module."""

from typing import Final

from gpulayer.plugins import Context, Launcher, hookimpl
from gpulayer_torch.launcher import TorchLauncher

__all__ = ["GPULAYER_API", "gpulayer_register_launchers"]

GPULAYER_API: Final = "1.0"


@hookimpl
def gpulayer_register_launchers(ctx: Context) -> list[Launcher]:
    """The torch launcher."""
    return [TorchLauncher()]
