"""Macs with Apple's own processors: one GPU, which has the machine's memory."""

from typing import Final

from gpulayer.plugins.builtin.apple.probe import AppleProbe
from gpulayer.plugins.contracts.context import Context
from gpulayer.plugins.contracts.probe import Probe
from gpulayer.plugins.hooks import API_VERSION, hookimpl

__all__ = ["GPULAYER_API", "AppleProbe", "gpulayer_register_probes"]

GPULAYER_API: Final = API_VERSION


@hookimpl
def gpulayer_register_probes(ctx: Context) -> list[Probe]:
    """The Apple probe."""
    return [AppleProbe()]
