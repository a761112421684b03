"""The control plane's own plugins: loaded beside its start, which waits for none of them."""

import logging
import traceback
from collections.abc import Callable

from gpulayer import __version__
from gpulayer.clock import Clock
from gpulayer.errors import GpulayerError, PluginFault
from gpulayer.plugins.contracts.context import Where
from gpulayer.plugins.guard import Guard
from gpulayer.plugins.host import Host, load_plugins
from gpulayer.plugins.registry import Registry
from gpulayer.plugins.starting import Abandoned, load_beside
from gpulayer.server.settings import PlaneSettings

__all__ = ["load_for_plane", "no_plugins"]

_log = logging.getLogger(__name__)


def no_plugins(clock: Clock) -> Host:
    """What there is until they are loaded: nothing is registered."""
    return Host(Registry(), Guard(clock=clock), lambda: ())


async def load_for_plane(
    settings: PlaneSettings, *, clock: Clock, trying: Callable[[tuple[str, ...]], None] = lambda _: None
) -> Host:
    """The host of a control plane; what is wrong with one of its plugins is logged in a line. Raises PluginFault, with
    ``strict``, for the first such thing. trying: see ``load_plugins``.

    Nobody waits for it when the process ends: what a plugin does there may never return.
    """

    def load(abandoned: Abandoned) -> Host:
        try:
            return load_plugins(
                Where.PLANE,
                settings.plugins,
                clock=clock,
                version=__version__,
                marks=settings.layout.plugin_marks,
                begun=abandoned.then,
                trying=trying,
            )
        except GpulayerError:
            raise
        except BaseException as raised:  # with ``strict`` whatever a plugin raises, also what would end the process
            hide = settings.plugins.hide
            _log.error("the plugins can't be loaded:\n%s", hide("".join(traceback.format_exception(raised))))
            raise _fault(raised, hide) from None

    return await load_beside(load)


def _fault(raised: BaseException, hide: Callable[[str], str]) -> PluginFault:
    said = " ".join(hide("".join(traceback.format_exception_only(raised))).split())  # whatever its own text does
    return PluginFault(
        f"the plugins can't be loaded: {said}",
        hint="the lines before this one have the whole story; GPULAYER_PLUGINS=none starts without any",
    )
