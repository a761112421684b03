"""Requests and answers between hosts: lost, doubled, delayed, reordered, cut in one direction or both, half open."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from gpulayer.testing.sim.clockwork import Clockwork
from gpulayer.testing.sim.scenario import Noise
from gpulayer.testing.sim.words import lasting, with_job_names

__all__ = ["IN", "OUT", "Network"]

OUT: Final = "out"  # from a host to the control plane
IN: Final = "in"
LONGEST_STALL_MS: Final = 30_000
DEAF_MS: Final = 30_000  # whose request for commands was lost, or its answer, asks again after so long


@dataclass(slots=True)
class _Line:
    """A host's. cuts: how many there are of each way. is_dead: its connections are, and it does not know."""

    cuts: dict[str, int] = field(default_factory=lambda: {OUT: 0, IN: 0})
    is_dead: bool = False


@dataclass(slots=True)
class Network:
    """Messages between the control plane and named hosts. Every way is independent: a request may arrive and its answer
    be lost."""

    clock: Clockwork
    noise: Noise
    _lines: dict[str, _Line] = field(default_factory=dict)

    def deliver(self, host: str, way: str, what: Callable[[], None]) -> None:
        """Carry one message over the way between ``host`` and the control plane, in this direction."""
        line = self._line(host)
        if line.is_dead or line.cuts[way]:
            return
        dice, noise, copies = self.clock.dice(f"{way} {host}"), self.noise, 1
        kind, whose = dice.random(), host.partition(" ")[0]  # of a worker's copy: it is troubled
        if kind < noise.loss:
            self.clock.fault("message_lost", whose, after_ms=DEAF_MS)
            self._tell(host, way, "is lost")
            return
        if kind < noise.loss + noise.doubling:
            self.clock.fault("message_doubled", whose, after_ms=0)
            self._tell(host, way, "comes twice")
            copies = 2
        for _ in range(copies):
            delay_ms = dice.spread_ms(noise.mean_ms)
            if dice.random() < noise.stall:
                stalled_ms = int(dice.random() * LONGEST_STALL_MS)
                self.clock.fault("message_stalled", whose, lasts_ms=stalled_ms, after_ms=0)
                self._tell(host, way, f"takes {lasting(stalled_ms)}")
                delay_ms += stalled_ms
            self.clock.after(delay_ms, lambda: None if line.is_dead or line.cuts[way] else what())

    def cut(self, host: str, ways: tuple[str, ...], lasts_ms: int) -> None:
        """For so long nothing gets through there, and what is under way is lost."""
        line = self._line(host)
        for way in ways:
            line.cuts[way] += 1
        self.clock.after(lasts_ms, lambda: self._mend(host, ways))

    def mend(self, host: str) -> None:
        """Everything gets through there again."""
        self._line(host).cuts[OUT] = self._line(host).cuts[IN] = 0
        self.clock.say(f"the network of {host} is whole again")

    def half_open(self, host: str) -> None:
        """All its connections are dead, which shows only by an answer that does not come (``renew``)."""
        self._line(host).is_dead = True

    def renew(self, host: str) -> None:
        """Nobody there waits any longer on a connection from before."""
        line = self._line(host)
        if line.is_dead:
            line.is_dead = False
            self.clock.say(f"{host} has new connections")

    def heal(self) -> None:
        """From now on every message arrives once and soon."""
        self.noise = Noise(loss=0.0, doubling=0.0, stall=0.0, mean_ms=self.noise.mean_ms, commit_failure=0.0)
        for line in self._lines.values():
            line.cuts[OUT] = line.cuts[IN] = 0
            line.is_dead = False

    def _mend(self, host: str, ways: tuple[str, ...]) -> None:
        line = self._line(host)
        mended = [way for way in ways if line.cuts[way] == 1]
        for way in ways:
            line.cuts[way] = max(0, line.cuts[way] - 1)
        if mended and not any(line.cuts.values()):
            self.clock.say(f"the network of {host} is whole again")
        elif mended:
            what = f"what {host} sends" if mended == [OUT] else f"what is sent to {host}"
            self.clock.say(f"{what} arrives again; the other way is still cut")

    def _tell(self, host: str, way: str, what: str) -> None:
        if self.clock.story is not None:
            who = (
                with_job_names(host).replace("client-key-", "the client of job ").replace("canceller-", "who cancels ")
            )
            text = f"a message of {who} {what}" if way == OUT else f"an answer to {who} {what}"
            self.clock.story.noise(self.clock.now_ms, text)

    def _line(self, host: str) -> _Line:
        line = self._lines.get(host)
        if line is None:
            line = self._lines[host] = _Line()
        return line
