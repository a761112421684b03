"""The plugin test kit and the simulated world. Nothing here decides anything: it runs the product's own code.

``pytest_plugins = ["gpulayer.testing.fixtures"]`` in the topmost conftest gives the fixtures ``clock``, ``plane``,
``fleet`` and ``installed_plugin``. The contract classes (``class TestMine(ProbeContract)``) are imported when they are
asked for, as is everything here: they need pytest, which ``gpulayer-core[testing]`` brings.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gpulayer.testing.broken import BROKEN
    from gpulayer.testing.contracts import (
        Contract,
        EnvironmentBuilderContract,
        EventSinkContract,
        FrameworkCheckContract,
        JobCheckContract,
        LauncherContract,
        PluginContract,
        ProbeContract,
        ProviderContract,
        ScorerContract,
        StagerContract,
    )
    from gpulayer.testing.distribution import Distribution, install_distribution, install_plugin
    from gpulayer.testing.fleet import Fleet, SimulatedWorker
    from gpulayer.testing.plane import LivePlane, until
    from gpulayer.testing.values import an_assignment, an_event, cuda_devices, machine_facts, site_in

__all__ = [
    "BROKEN",
    "Contract",
    "Distribution",
    "EnvironmentBuilderContract",
    "EventSinkContract",
    "Fleet",
    "FrameworkCheckContract",
    "JobCheckContract",
    "LauncherContract",
    "LivePlane",
    "PluginContract",
    "ProbeContract",
    "ProviderContract",
    "ScorerContract",
    "SimulatedWorker",
    "StagerContract",
    "an_assignment",
    "an_event",
    "cuda_devices",
    "install_distribution",
    "install_plugin",
    "machine_facts",
    "site_in",
    "until",
]

_HOMES: Final = {
    "BROKEN": "broken",
    "Contract": "contracts",
    "Distribution": "distribution",
    "Fleet": "fleet",
    "LivePlane": "plane",
    "SimulatedWorker": "fleet",
    "an_assignment": "values",
    "an_event": "values",
    "cuda_devices": "values",
    "install_distribution": "distribution",
    "install_plugin": "distribution",
    "machine_facts": "values",
    "site_in": "values",
    "until": "plane",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOMES.get(name, "contracts")
    try:
        module = import_module(f"{__name__}.{home}")
    except ModuleNotFoundError as error:
        if error.name != "pytest":
            raise
        raise ModuleNotFoundError(
            f"gpulayer.testing.{name} needs pytest: pip install 'gpulayer-core[testing]'", name="pytest"
        ) from None
    return getattr(module, name)
