"""Requests and answers between hosts: lost, doubled, delayed, reordered, cut."""

from collections.abc import Callable
from dataclasses import dataclass, field

from gpulayer.testing.sim.clockwork import Clockwork

__all__ = ["Network"]

Answer = Callable[[object], None]


@dataclass(slots=True)
class Network:
    """Messages between the control plane and named hosts.

    Every way is independent: a request may arrive and its answer be lost. ``cut`` hosts reach nobody.
    """

    clock: Clockwork
    loss: float = 0.05
    doubling: float = 0.05
    mean_ms: float = 5.0
    stall: float = 0.02  # chance that a message takes up to half a minute
    cut: set[str] = field(default_factory=set)
    faults: int = 0

    def deliver(self, host: str, what: Callable[[], None]) -> None:
        """Carry one message over the way between ``host`` and the control plane, in either direction."""
        if host in self.cut:
            return
        copies = 1
        if self.clock.chance(self.loss):
            self.faults += 1
            copies = 0
        elif self.clock.chance(self.doubling):
            self.faults += 1
            copies = 2
        for _ in range(copies):
            delay_ms = self.clock.spread_ms(self.mean_ms)
            if self.clock.chance(self.stall):
                self.faults += 1
                delay_ms += self.clock.rng.randrange(30_000)
            self.clock.after(delay_ms, lambda: None if host in self.cut else what())

    def heal(self) -> None:
        """From now on every message arrives once and soon."""
        self.loss = self.doubling = self.stall = 0.0
        self.cut.clear()
