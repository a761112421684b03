"""What programs use of a machine at this moment, and whether one more finds room beside them. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from gpulayer.protocol.state import AgentState
from gpulayer.spec.assignment import Assignment

__all__ = ["Room"]


@dataclass(slots=True)
class Room:
    """In use: ``cpus``, ``memory_bytes`` and ``resources`` by name. What the machine has of each is in the state."""

    state: AgentState
    cpus: int = 0
    memory_bytes: int = 0
    resources: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, state: AgentState) -> Self:
        """As the nodes that use it leave it."""
        room = cls(state)
        room.take(held.assignment for held in state.using.values())
        return room

    def take(self, shares: Iterable[Assignment]) -> None:
        """They use it as well from now on."""
        for share in shares:
            self.cpus += share.cpus
            self.memory_bytes += share.memory_bytes
            for name, count in share.resources:
                self.resources[name] = self.resources.get(name, 0) + count

    def has(self, share: Assignment) -> bool:
        """With nothing running, and of what nobody uses, there is room by definition: it was lent, whatever the machine
        looks like now."""
        state = self.state
        if share.resources and not self._has_resources(share):
            return False
        return not (self.cpus or self.memory_bytes) or (
            (state.cpus is None or self.cpus + share.cpus <= state.cpus)
            and (state.memory_bytes is None or self.memory_bytes + share.memory_bytes <= state.memory_bytes)
        )

    def _has_resources(self, share: Assignment) -> bool:
        if self.state.resources is None:
            return True
        there, used = dict(self.state.resources), self.resources
        return all(name not in used or used[name] + count <= there.get(name, 0) for name, count in share.resources)
