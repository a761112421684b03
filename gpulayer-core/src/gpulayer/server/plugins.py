"""The control plane's own plugins: loaded beside its start, which waits for none of them."""

import asyncio
import logging
import threading

from gpulayer import __version__
from gpulayer.clock import Clock
from gpulayer.plugins.contracts.context import Where
from gpulayer.plugins.guard import Guard
from gpulayer.plugins.host import Host, load_plugins
from gpulayer.plugins.record import PluginRecord, PluginStatus
from gpulayer.plugins.registry import Registry
from gpulayer.server.settings import PlaneSettings

__all__ = ["load_for_plane", "no_plugins"]

_log = logging.getLogger(__name__)


def no_plugins(clock: Clock) -> Host:
    """What there is until they are loaded: nothing is registered."""
    return Host(Registry(), Guard(clock=clock), lambda: ())


async def load_for_plane(settings: PlaneSettings, *, clock: Clock) -> Host:
    """The host of a control plane; what is wrong with one of its plugins is logged in a line. Raises, with ``strict``,
    what a plugin raised.

    In a thread that nobody waits for when the process ends: what a plugin does there may never return.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Host] = loop.create_future()

    def settle(host: Host | None, error: BaseException | None) -> None:
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
            host = load_plugins(Where.PLANE, settings.plugins, clock=clock, version=__version__)
        except BaseException as raised:
            error = raised
        try:
            loop.call_soon_threadsafe(settle, host, error)
        except RuntimeError:  # the loop has gone
            if host is not None:
                host.close()

    threading.Thread(target=load, name="gpulayer-plugins", daemon=True).start()
    host = await answer
    for record in host.records():
        if record.status not in (PluginStatus.OK, PluginStatus.DISABLED):
            _log.warning("%s", _trouble(record))
    return host


def _trouble(record: PluginRecord) -> str:
    came_with = f" ({record.distribution} {record.version})" if record.distribution else ""
    hint = f" ({record.hint})" if record.hint else ""
    line = f"plugin {record.name}{came_with} is {record.status}: {record.error}{hint}"
    return "".join(character if character.isprintable() else " " for character in line)
