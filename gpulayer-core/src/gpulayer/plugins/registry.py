"""What is registered: static, until plugins of third parties are found by their entry points."""

from collections.abc import Mapping
from dataclasses import dataclass

from gpulayer.plugins.builtin.host import HostProbe
from gpulayer.plugins.builtin.process import ProcessLauncher
from gpulayer.plugins.contracts import Launcher, Probe

__all__ = ["Registry", "builtin_registry"]


@dataclass(frozen=True, slots=True)
class Registry:
    """``probes`` in the order in which they are believed; ``launchers`` by name, ``process`` always among them."""

    probes: tuple[Probe, ...]
    launchers: Mapping[str, Launcher]


def builtin_registry() -> Registry:
    """New objects at each call; the launchers by the name that each gives itself."""
    launcher = ProcessLauncher()
    return Registry(probes=(HostProbe(),), launchers={launcher.name: launcher})
