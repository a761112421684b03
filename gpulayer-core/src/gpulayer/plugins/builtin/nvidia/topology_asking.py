"""Asks how the devices are joined: NVML first, ``nvidia-smi topo -m`` where NVML does not know; and remembers it."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from gpulayer.plugins.builtin.child import CHILD_DEADLINE_S, Child, Unanswered
from gpulayer.plugins.builtin.nvidia.nvml_topology import read_topology
from gpulayer.plugins.builtin.nvidia.topo import Topology, look

__all__ = ["RememberedTopology", "ask_topology"]

_LEAST_S: Final = 0.1
_MOST_TRIES: Final = 3


def ask_topology(
    child: Child,
    *,
    environment: Mapping[str, str],
    nvml: Sequence[str] = (),
    tool: str = "",
    deadline_s: float = CHILD_DEADLINE_S,
) -> Topology:
    """Blocks for up to ``deadline_s``. Raises Unanswered.

    nvml: the command that runs ``nvml_child`` for links; empty: there is no NVML. tool: the path of nvidia-smi; empty:
    none.
    """
    ends_s = time.monotonic() + deadline_s
    told = Topology(reason="neither NVML nor nvidia-smi can be asked")
    if nvml:
        told = read_topology(child.ask(nvml, environment=environment, deadline_s=deadline_s).out)
        if not told.reason:
            return told
    if not tool:
        return told
    shown = look(child, tool, environment, deadline_s=max(_LEAST_S, ends_s - time.monotonic()))
    return told if shown.reason and told.links else shown


class RememberedTopology:
    """Of the devices seen last: it changes when one comes or goes, and asking takes a while."""

    def __init__(self) -> None:
        self._indices: dict[str, int] | None = None
        self._topology = Topology()
        self._tries_left = 0

    def of(self, indices: Mapping[str, int], ask: Callable[[], Topology]) -> Topology:
        """indices: by uuid, as the tools count. ``ask`` is called when they are others than the last time, and a few
        times more where it raised Unanswered."""
        if self._indices != dict(indices):
            self._indices = dict(indices)
            self._topology = Topology()
            self._tries_left = _MOST_TRIES
        if self._tries_left:
            self._tries_left -= 1
            try:
                self._topology = ask()
                self._tries_left = 0
            except Unanswered as error:
                self._topology = Topology(reason=str(error))
        return self._topology
