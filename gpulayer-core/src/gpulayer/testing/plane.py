"""A real control plane on loopback, in a thread: the store, the app and the server that users run, and a client.

Nothing is stubbed. Its folder is the test's, its clock may be too. Of plugins it has core's own and those that it is
given, none that happen to be installed.
"""

import asyncio
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Self, TypeVar

import httpx
import uvicorn

from gpulayer import __version__
from gpulayer.clock import Clock, ManualClock, SystemClock
from gpulayer.plugins.contracts.context import Where
from gpulayer.plugins.discovery import Found
from gpulayer.plugins.host import Host, load_plugins
from gpulayer.plugins.record import PluginRecord, PluginStatus
from gpulayer.plugins.settings import PluginSettings
from gpulayer.sdk import Client
from gpulayer.sdk.settings import resolve_settings
from gpulayer.server import PlaneSettings
from gpulayer.server.app import create_app
from gpulayer.server.gate import Gate, GatedServer, GateLimits
from gpulayer.server.plane import Plane
from gpulayer.server.store import Side, Store
from gpulayer.server.tokens import Role, TokenKind
from gpulayer.spec.capabilities import is_plain_name

__all__ = ["LivePlane", "until"]

T = TypeVar("T")

_PATIENCE_S: Final = 20.0
_TEN_YEARS_S: Final = 10 * 365 * 86_400  # a test may let that much time pass
_TESTER: Final = "test"


class LivePlane:
    """One state folder, served. ``restart`` stops and starts it, as after an upgrade.

    url, token: of the administrator ``test``, for who talks to it otherwise than by ``client``. bare: speaks HTTP,
    without any credentials. clock: None: the machine's. plugin_modules: modules, or their names, by the names of the
    plugins; they are loaded as installed ones are. plugin_options: by plugin, then by option. settings: of
    ``PlaneSettings``. Raises TypeError and ValueError for modules that can't be loaded so.
    """

    def __init__(
        self,
        state_dir: Path,
        *,
        clock: Clock | None = None,
        plugin_modules: Mapping[str, str | ModuleType] | None = None,
        plugin_options: Mapping[str, Mapping[str, str]] | None = None,
        **settings: Any,  # Any: their fields
    ) -> None:
        self.settings = PlaneSettings(state_dir=state_dir, **settings)
        self.clock = clock
        self.wrap_store: Callable[[Store], Any] = lambda store: store  # Any: a test's own store
        self.plugin_modules = {name: _module_name(name, one) for name, one in (plugin_modules or {}).items()}
        self.plugin_options = dict(plugin_options or {})
        self.host: Callable[[], Host | None] = self._load_plugins
        self.limits = GateLimits()
        self.tls: ssl.SSLContext | None = None
        self.url = self.token = ""
        self._client: Client | None = None
        self._left: list[str] = []
        self._seen: dict[str, int] = {}

    @property
    def client(self) -> Client:
        """Of the SDK, with ``token``. It knows nothing of this user's contexts and variables."""
        if self._client is None:
            self._client = Client(settings=resolve_settings(url=self.url, token=self.token, environment={}))
        return self._client

    def plugin_records(self) -> tuple[PluginRecord, ...]:
        """What it knows of each plugin that it was given, as ``gpulayer plugins`` shows it: status, faults, reasons."""
        return tuple(record for record in self.plane.plugins.records() if not record.is_builtin)

    def faults(self) -> list[str]:
        """What went wrong with its plugins since this was asked last, a line each: ``mine, Scorer.score: KeyError: …``.

        Whoever asks has seen it. Of many faults at once the newest stand for all.
        """
        left, self._left = self._left, []
        return left + self._new_faults()

    def start(self) -> Self:
        """Returns when it answers. Raises what its start raised."""
        if hasattr(self, "plane"):  # of the one before
            self._left += self._new_faults()
            self._seen = {}
        self.loop = asyncio.new_event_loop()
        self.listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen(128)
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.thread = threading.Thread(target=self._run, name="plane", daemon=True)
        self._ready = threading.Event()
        self._failures: list[BaseException] = []
        self.thread.start()
        assert self._ready.wait(_PATIENCE_S), "the control plane did not start"
        if self._failures:
            self.listener.close()
            raise self._failures[0]
        self.bare = httpx.Client(timeout=30, trust_env=False, verify=False)  # noqa: S501 - it is on loopback
        if not self.token:
            self.token = self.new_token(TokenKind.CLIENT, name=_TESTER, owner=_TESTER, life_s=_TEN_YEARS_S)
        return self

    def stop(self) -> None:
        """Returns when it has ended, and its state is on the disk."""

        def end() -> None:
            self.plane.stop_holding()
            self.server.should_exit = True

        if self._client is not None:
            self._client.close()
            self._client = None
        if self.thread.is_alive():
            with suppress(RuntimeError):  # it ends at this very moment
                self.loop.call_soon_threadsafe(end)
        self.thread.join(_PATIENCE_S)
        assert not self.thread.is_alive(), "the control plane did not end"
        self.bare.close()
        self.listener.close()

    def restart(self) -> None:
        """At another address; tokens stay good."""
        self.stop()
        self.start()

    def advance(self, ms: int) -> None:
        """Let time pass, and what is due by then happen. For a plane with a ``ManualClock``."""
        assert isinstance(self.clock, ManualClock), "the clock of this control plane is not the test's"
        clock = self.clock

        async def move() -> None:
            clock.advance(ms)
            self.plane.driver.poke()

        self.call(move)

    def call(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine in the plane's loop."""
        return asyncio.run_coroutine_threadsafe(make(), self.loop).result(_PATIENCE_S)

    def new_token(self, kind: TokenKind, **options: Any) -> str:  # Any: as of ``Auth.new_token`` and of the row
        """Good for a quarter of an hour; of a client: an administrator's, unless ``role`` says another."""

        async def make() -> str:
            role = Role.ADMIN if kind is TokenKind.CLIENT else None
            of_row = {name: options.pop(name) for name in ("max_uses", "labels", "max_devices") if name in options}
            token, row = self.plane.auth.new_token(kind, **{"name": "test", "life_s": 900, "role": role, **options})
            row = replace(row, **of_row)
            await self.plane.driver.submit(side=Side(tokens=(row,)))
            self.plane.auth.keep_token(row)
            return token

        return self.call(make)

    @staticmethod
    def until(check: Callable[[], T], timeout_s: float = 10.0) -> T:
        """See ``until`` of this module."""
        return until(check, timeout_s)

    def _new_faults(self) -> list[str]:
        said = []
        for record in self.plugin_records():
            is_refused = record.status not in (PluginStatus.OK, PluginStatus.SUSPENDED)
            if is_refused and record.name not in self._seen:
                said.append(f"{record.name} is {record.status}: {record.error} ({record.hint})")
            new = record.faults - self._seen.get(record.name, 0)
            shown = record.last_faults[-new:] if new > 0 else ()
            said += [f"{record.name}, {fault.hook}: {fault.message}" for fault in shown]
            if new > len(shown):
                said.append(f"{record.name}: and {new - len(shown)} more before these")
            if is_refused or record.faults:
                self._seen[record.name] = record.faults
        return said

    def _load_plugins(self) -> Host:
        found = tuple(
            Found(name, module, f"gpulayer-{name}", "0") for name, module in sorted(self.plugin_modules.items())
        )
        return load_plugins(
            Where.PLANE,
            PluginSettings(options=self.plugin_options),
            clock=self.clock or SystemClock(),
            version=__version__,
            discover=lambda: found,
        )

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self._serve())
        except BaseException as error:
            self._failures.append(error)
        finally:
            self._ready.set()
            self.loop.close()

    async def _serve(self) -> None:
        settings = replace(self.settings, url=self.url)
        self.plane = Plane(settings, clock=self.clock, wrap_store=self.wrap_store, host=self.host())
        try:
            await self.plane.start()
            config = uvicorn.Config(
                create_app(self.plane),
                loop="asyncio",
                ws="none",
                lifespan="off",
                log_config=None,
                timeout_graceful_shutdown=3,
            )
            self.gate = Gate(self.limits)
            self.server = GatedServer(config, self.gate, {self.listener: self.tls})
            self._ready.set()
            await self.server.serve()
        finally:
            await self.plane.close()


def _module_name(plugin: object, module: object) -> str:
    """By which the child that tries it, and the control plane, import it."""
    if not isinstance(plugin, str) or not is_plain_name(plugin):
        raise ValueError(
            f"{plugin!r} can't be the name of a plugin: a lower-case letter, then letters, digits and . _ + -"
        )
    if isinstance(module, str):
        return module
    if not isinstance(module, ModuleType):
        raise TypeError(
            f"the plugin {plugin} is a module or the name of one, not a {type(module).__name__}: "
            f'{{"{plugin}": "gpulayer_{plugin.translate(_TO_IDENTIFIER)}"}}'
        )
    if sys.modules.get(module.__name__) is not module:
        raise ValueError(f"the module {module.__name__} of the plugin {plugin} can't be imported by its name")
    return module.__name__


_TO_IDENTIFIER: Final = str.maketrans("-.+", "___")


def until(check: Callable[[], T], timeout_s: float = 10.0) -> T:
    """Ask again until ``check`` gives something true, and return that. Fails when the time is over."""
    ends = time.monotonic() + timeout_s
    while True:
        found = check()
        if found:
            return found
        assert time.monotonic() < ends, "deadline passed"
        time.sleep(0.01)
