"""Which processor cores a pinned job gets: its own as long as there are enough, else the least used."""

from collections.abc import Collection
from typing import NamedTuple

__all__ = ["Cores", "Pinning"]


class Pinning(NamedTuple):
    """note: what was asked for and could not be had; empty where all was."""

    cores: frozenset[int]
    note: str


class Cores:
    """The cores that pinned jobs of one spawner have. Does nothing to any process."""

    def __init__(self) -> None:
        self._pinned: dict[str, frozenset[int]] = {}

    def take(self, key: str, count: int, *, usable: Collection[int]) -> Pinning:
        """``count`` of the usable cores for ``key``, never none; those that fewest others have come first."""
        used = {core: sum(core in taken for taken in self._pinned.values()) for core in usable}
        chosen = frozenset(sorted(used, key=lambda core: (used[core], core))[: max(1, count)])
        self._pinned[key] = chosen
        free = sum(used[core] == 0 for core in chosen)
        note = ""
        if len(chosen) < count:
            note = f"pinned to {_cores(len(chosen))}, not {count}: this worker may use no more"
        elif free < len(chosen) == 1:
            note = "pinned to 1 core that another pinned job has too"
        elif free < len(chosen):
            note = f"pinned to {_cores(len(chosen))}; other pinned jobs have {len(chosen) - free} of them too"
        return Pinning(chosen, note)

    def give_back(self, key: str) -> None:
        """May be repeated."""
        self._pinned.pop(key, None)


def _cores(count: int) -> str:
    return f"{count} core{'s' if count != 1 else ''}"
