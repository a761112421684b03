"""The control plane's own plugins: loaded beside its start, which waits for none of them."""

import asyncio
import logging
import threading
import traceback
from collections.abc import Callable

from gpulayer import __version__
from gpulayer.clock import Clock
from gpulayer.errors import GpulayerError, PluginFault
from gpulayer.plugins.contracts.context import Where
from gpulayer.plugins.guard import Guard
from gpulayer.plugins.host import Host, load_plugins
from gpulayer.plugins.registry import Registry
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

    In a thread that nobody waits for when the process ends: what a plugin does there may never return.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Host] = loop.create_future()

    def settle(host: Host | None, error: GpulayerError | None) -> None:
        if answer.done():  # nobody waits any more
            if host is not None:
                host.close()
        elif host is not None:
            answer.set_result(host)
        elif error is not None:
            answer.set_exception(error)

    def load() -> None:
        host, error = None, None
        try:
            host = load_plugins(
                Where.PLANE,
                settings.plugins,
                clock=clock,
                version=__version__,
                marks=settings.layout.plugin_marks,
                trying=trying,
            )
        except GpulayerError as raised:
            error = raised
        except BaseException as raised:  # with ``strict`` whatever a plugin raises, also what would end the process
            _log.error("the plugins can't be loaded", exc_info=raised)
            error = _fault(raised)
        try:
            loop.call_soon_threadsafe(settle, host, error)
        except RuntimeError:  # the loop has gone
            if host is not None:
                host.close()

    threading.Thread(target=load, name="gpulayer-plugins", daemon=True).start()
    return await answer


def _fault(raised: BaseException) -> PluginFault:
    said = " ".join("".join(traceback.format_exception_only(raised)).split())  # whatever its own text does
    return PluginFault(
        f"the plugins can't be loaded: {said}",
        hint="the lines before this one have the whole story; GPULAYER_PLUGINS=none starts without any",
    )
