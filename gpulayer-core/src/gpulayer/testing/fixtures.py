"""Fixtures for tests of plugins: ``pytest_plugins = ["gpulayer.testing.fixtures"]`` in the topmost conftest.

A test pays only for those that it names. Each leaves nothing behind: no process, no thread, no module of a plugin.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final

import pytest

from gpulayer.clock import ManualClock
from gpulayer.testing.broken import BROKEN
from gpulayer.testing.distribution import Distribution, install_plugin

if TYPE_CHECKING:
    from gpulayer.testing.fleet import Fleet
    from gpulayer.testing.plane import LivePlane

__all__ = ["InstalledPlugins", "clock", "fleet", "installed_plugin", "plane", "plane_options", "plane_plugins"]


@pytest.fixture
def clock() -> ManualClock:
    """It stands still until the test says ``clock.advance(ms)``; for a ``plane``, say ``plane.advance(ms)``."""
    return ManualClock()


@pytest.fixture
def plane_plugins() -> Mapping[str, str | ModuleType]:
    """By the names of the plugins that ``plane`` loads their modules, or the names of those; to be overridden, like
    ``plane_options``."""
    return {}


@pytest.fixture
def plane_options() -> Mapping[str, Mapping[str, str]]:
    """By plugin, then by option: ``{"mine": {"table": "…"}}``."""
    return {}


@pytest.fixture
def plane(
    tmp_path: Path,
    clock: ManualClock,
    plane_plugins: Mapping[str, str | ModuleType],
    plane_options: Mapping[str, Mapping[str, str]],
) -> "Iterator[LivePlane]":
    """A control plane of the test's own, with ``clock`` as its clock: no lease runs out however long the test takes.

    A plugin of it that failed fails the test at its end, unless the test has asked for ``plane.faults()``.
    """
    from gpulayer.testing.plane import LivePlane  # noqa: PLC0415 - the server is much to import

    live = LivePlane(
        tmp_path / "plane", clock=clock, plugin_modules=plane_plugins, plugin_options=plane_options
    ).start()
    yield live
    live.stop()
    faults = "\n".join(live.faults())
    assert not faults, f"plugins of this control plane failed, and the test did not ask for plane.faults():\n{faults}"


@pytest.fixture
def fleet(plane: "LivePlane") -> "Fleet":
    """Simulated workers of that plane: ``fleet.add("box", cpus=8)``."""
    from gpulayer.testing.fleet import Fleet  # noqa: PLC0415 - as above

    return Fleet(plane)


class InstalledPlugins:
    """``installed_plugin(NAME, source)``, ``installed_plugin(NAME, broken=WHAT)``; or ``install_distribution`` into
    its ``folder`` for more. children: what a child process needs in its environment to find them too.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._monkeypatch = monkeypatch
        self.children: Final = {"PYTHONPATH": str(folder)}

    def __call__(self, name: str, source: str = "", *, broken: str = "", version: str = "1.0") -> Distribution:
        """broken: a key of ``gpulayer.testing.broken.BROKEN``."""
        made = install_plugin(self.folder, name, BROKEN[broken] if broken else source, version=version)
        tops = {file.partition("/")[0].removesuffix(".py") for file in made.files}
        # One of that name that this process has imported from elsewhere would be taken for it.
        for module in [module for module in sys.modules if module.partition(".")[0] in tops]:
            self._monkeypatch.delitem(sys.modules, module)
        return made


@pytest.fixture
def installed_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InstalledPlugins]:
    """Made-up distributions that this process finds as if pip had installed them, until the test ends."""
    folder = tmp_path / "installed"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    yield InstalledPlugins(folder, monkeypatch)
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]
