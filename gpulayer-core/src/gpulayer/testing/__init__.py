"""The plugin test kit and the simulated world. Nothing here decides anything: it runs the product's own code.

``pytest_plugins = ["gpulayer.testing.fixtures"]`` in the topmost conftest gives the fixtures ``clock``, ``plane``,
``fleet`` and ``installed_plugin``. The contract classes (``class TestMine(ProbeContract)``) are imported when they are
asked for, as is everything here: they need pytest, which ``gpulayer-core[testing]`` brings.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gpulayer.testing.broken import BROKEN as BROKEN
    from gpulayer.testing.contracts import Contract as Contract
    from gpulayer.testing.contracts import EnvironmentBuilderContract as EnvironmentBuilderContract
    from gpulayer.testing.contracts import EventSinkContract as EventSinkContract
    from gpulayer.testing.contracts import FrameworkCheckContract as FrameworkCheckContract
    from gpulayer.testing.contracts import JobCheckContract as JobCheckContract
    from gpulayer.testing.contracts import LauncherContract as LauncherContract
    from gpulayer.testing.contracts import PluginContract as PluginContract
    from gpulayer.testing.contracts import ProbeContract as ProbeContract
    from gpulayer.testing.contracts import ProviderContract as ProviderContract
    from gpulayer.testing.contracts import ScorerContract as ScorerContract
    from gpulayer.testing.contracts import StagerContract as StagerContract
    from gpulayer.testing.distribution import Distribution as Distribution
    from gpulayer.testing.distribution import install_distribution as install_distribution
    from gpulayer.testing.distribution import install_plugin as install_plugin
    from gpulayer.testing.fleet import Fleet as Fleet
    from gpulayer.testing.fleet import SimulatedWorker as SimulatedWorker
    from gpulayer.testing.plane import LivePlane as LivePlane
    from gpulayer.testing.plane import until as until
    from gpulayer.testing.values import an_assignment as an_assignment
    from gpulayer.testing.values import an_event as an_event
    from gpulayer.testing.values import cuda_devices as cuda_devices
    from gpulayer.testing.values import machine_facts as machine_facts
    from gpulayer.testing.values import site_in as site_in

_NAMES: Final = {
    "broken": ("BROKEN",),
    "contracts": (
        "Contract",
        "EnvironmentBuilderContract",
        "EventSinkContract",
        "FrameworkCheckContract",
        "JobCheckContract",
        "LauncherContract",
        "PluginContract",
        "ProbeContract",
        "ProviderContract",
        "ScorerContract",
        "StagerContract",
    ),
    "distribution": ("Distribution", "install_distribution", "install_plugin"),
    "fleet": ("Fleet", "SimulatedWorker"),
    "plane": ("LivePlane", "until"),
    "values": ("an_assignment", "an_event", "cuda_devices", "machine_facts", "site_in"),
}
_HOMES: Final = {name: home for home, names in _NAMES.items() for name in names}

__all__ = sorted(_HOMES)  # noqa: PLE0605 - type checkers go by the imports above


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f"{__name__}.{home}")
    except ModuleNotFoundError as error:
        if error.name != "pytest":
            raise
        raise ModuleNotFoundError(
            f"gpulayer.testing.{name} needs pytest: pip install 'gpulayer-core[testing]'", name="pytest"
        ) from None
    return getattr(module, name)
