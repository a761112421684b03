"""A provider that makes machines and does not always say so, and somebody who asks it for them.

The rule that is played here is the contract's (``plugins.contracts.provider``): a request id stands for one machine for
ever, and what exists is what ``list`` says.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpulayer.plugins.contracts.provider import MachineState, Offer, ProvidedMachine, WorkerStart
from gpulayer.spec.request import Request
from gpulayer.testing.sim.clockwork import Clockwork
from gpulayer.testing.sim.host import facts_of
from gpulayer.testing.sim.rules import Violation
from gpulayer.testing.sim.scenario import HostPlan

__all__ = ["MACHINE", "Fleet", "SimProvider"]

OWNER: Final = "the control plane"
AGAIN_MS: Final = 10_000
START: Final = WorkerStart(urls=(), fingerprints=(), token="")
MACHINE: Final = HostPlan(number=0, cpus=2)


@dataclass(slots=True)
class SimProvider:
    """``silent``: how many of the next requests for an id are carried out and answered with a failure all the same.
    made: how many machines ever, by request id. begin, end: a machine starts, or is gone."""

    begin: Callable[[str], None]
    end: Callable[[str], None]
    silent: dict[str, int] = field(default_factory=dict)
    made: dict[str, int] = field(default_factory=dict)
    _machines: dict[tuple[str, str], ProvidedMachine] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return "sim"

    def offers(self, request: Request) -> Sequence[Offer]:
        return () if request.devices else (Offer("small", facts_of(MACHINE, "small")),)

    def create(self, request_id: str, offer: str, start: WorkerStart, *, owner: str) -> ProvidedMachine:
        known = self._machines.get((owner, request_id))
        if known is None:
            known = self._machines[owner, request_id] = ProvidedMachine(request_id, offer, MachineState.STARTING)
            self.made[request_id] = self.made.get(request_id, 0) + 1
            self.begin(request_id)
        self._fail(request_id)
        return known

    def list(self, *, owner: str) -> Sequence[ProvidedMachine]:
        return [machine for (whose, _), machine in self._machines.items() if whose == owner]

    def destroy(self, request_id: str, *, owner: str) -> None:
        if self._machines.pop((owner, request_id), None) is not None:
            self.end(request_id)
        self._fail(request_id)

    def _fail(self, request_id: str) -> None:
        left = self.silent.get(request_id, 0)
        if left:
            self.silent[request_id] = left - 1
            raise TimeoutError(f"{request_id}: no answer in time")


@dataclass(slots=True)
class Fleet:
    """Wants machines for a while, and asks until it has them, and until they are gone."""

    clock: Clockwork
    provider: SimProvider
    _wanted: set[str] = field(default_factory=set)
    _answered: set[str] = field(default_factory=set)

    def want(self, request_id: str, *, kind: str, silent: int, lasts_ms: int) -> None:
        """One more machine, for so long; the provider fails to answer so often, whatever it is asked."""
        self.clock.faults[kind] += silent
        self.provider.silent[request_id] = silent
        self._wanted.add(request_id)
        self.clock.after(lasts_ms, lambda: self._wanted.discard(request_id))
        self._ask()

    def check(self) -> None:
        """One machine for each request, and none left that nobody wants."""
        twice = [request_id for request_id, count in self.provider.made.items() if count > 1]
        left = [machine.request_id for machine in self.provider.list(owner=OWNER)]
        if twice or left:
            raise Violation(f"machines were made twice for {twice}, and are left of {left}")

    def _ask(self) -> None:
        there = {machine.request_id for machine in self.provider.list(owner=OWNER)}
        try:
            for request_id in sorted(self._wanted - (there & self._answered)):
                self.provider.create(request_id, "small", START, owner=OWNER)
                self._answered.add(request_id)
            for request_id in sorted(there - self._wanted):
                self.provider.destroy(request_id, owner=OWNER)
        except TimeoutError as error:
            self.clock.say(f"the provider fails: {error}")
        if self._wanted or there or self.provider.list(owner=OWNER):
            self.clock.after(AGAIN_MS, self._ask)
