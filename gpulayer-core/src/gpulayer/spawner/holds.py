"""What one job holds of its host while it runs: a control group, processor cores, devices.

Taken before the start, given back when the tree is dead; where some of it survived SIGKILL, not before that is gone.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from gpulayer.spawner import tree
from gpulayer.spawner.cgroups import Group, Groups
from gpulayer.spawner.cores import Cores
from gpulayer.spawner.locks import DeviceLocks
from gpulayer.spawner.messages import Spawn
from gpulayer.spawner.reactor import Reactor

__all__ = ["Hold", "Holds"]

_SETTLE_S: Final = 0.25
_OFTEN_S: Final = 0.1  # two moves within it are frequent ones
_STAY_EVERY_S: Final = 0.006  # of gaps up to 8 ms the kernel (6.18) makes nothing, of 32 ms a wait of 12
_SURVIVORS_LOOK_S: Final = 1.0


@dataclass(slots=True, eq=False)
class Hold:
    """Of the job ``key``. notes: what it asked for and does not have, for people."""

    key: str
    devices: tuple[str, ...] = ()
    group: Group | None = None
    notes: list[str] = field(default_factory=list)


class Holds:
    """Of all jobs of one spawner."""

    def __init__(self, groups: Groups, locks: DeviceLocks, reactor: Reactor) -> None:
        self._groups = groups
        self._locks = locks
        self._reactor = reactor
        self._cores = Cores()
        self._is_settling = False
        self._moved_at = -math.inf
        self._is_staying = False

    @property
    def enforces(self) -> tuple[str, ...]:
        """See ``messages.Welcome``."""
        return self._groups.enforces

    def take(self, order: Spawn, *, marker: int | None) -> Hold:
        """Raises ``DeviceInUse``; whatever else can't be had is noted."""
        self._locks.take(order.devices, key=order.key, marker=marker)
        hold = Hold(order.key, order.devices)
        cores: frozenset[int] = frozenset()
        usable = self._groups.usable_cores
        if order.limits.pin_cores and usable:
            pinning = self._cores.take(order.key, order.limits.pin_cores, usable=usable)
            cores = pinning.cores
            hold.notes += [pinning.note] if pinning.note else []
        hold.group = self._groups.take(order.limits, cores=cores)
        return hold

    @contextmanager
    def inside(self, hold: Hold) -> Iterator[None]:
        """What is started within is held to it."""
        moves = self._groups.moves
        with self._groups.inside(hold.group):
            yield
        if self._groups.moves != moves:
            self._moved()
        if not self._is_settling:
            self._is_settling = True
            self._reactor.later(_SETTLE_S, self._settle)

    def pids(self, hold: Hold) -> list[int] | None:
        """The processes of the tree as its group has them; None where there is none."""
        return None if hold.group is None else self._groups.pids(hold.group)

    def kill(self, hold: Hold) -> bool:
        """SIGKILL the tree as one; False where that is not possible here."""
        return hold.group is not None and self._groups.kill(hold.group)

    def thaw(self, hold: Hold) -> None:
        if hold.group is not None:
            self._groups.thaw(hold.group)

    def memory(self, hold: Hold) -> tuple[int | None, int | None]:
        """See ``Groups.memory``."""
        return (None, None) if hold.group is None else self._groups.memory(hold.group)

    def told(self, hold: Hold) -> str:
        """The notes, a line each, and what its limits refused it. Asked for before ``release``."""
        lines = list(hold.notes)
        if hold.group is not None:
            lines += [*hold.group.notes, self._groups.refused_starts(hold.group)]
        return "\n".join(filter(None, lines))

    def release(self, hold: Hold, *, survivors: Sequence[tree.Process] = (), is_empty: bool = False) -> None:
        """Give all back; with survivors as soon as the last of them has ended. is_empty: ``pids`` has just told so."""
        left = [one for one in survivors if _is_alive(one)]
        if left:
            self._reactor.later(_SURVIVORS_LOOK_S, lambda: self.release(hold, survivors=left))
            return
        if hold.group is not None:
            self._groups.release(hold.group, is_empty=is_empty)
        self._cores.give_back(hold.key)
        self._locks.give_back(hold.devices)

    def close(self) -> None:
        self._groups.close()
        self._locks.close()

    def _moved(self) -> None:
        now, before = self._reactor.now(), self._moved_at
        self._moved_at = now
        if now - before < _OFTEN_S and not self._is_staying:
            self._is_staying = True
            self._reactor.later(_STAY_EVERY_S, self._stay)

    def _stay(self) -> None:
        since_s = self._reactor.now() - self._moved_at
        self._is_staying = since_s < _OFTEN_S
        if self._is_staying:
            if since_s >= _STAY_EVERY_S:
                self._groups.stay()
            self._reactor.later(_STAY_EVERY_S, self._stay)

    def _settle(self) -> None:
        self._is_settling = False
        self._groups.settle()


def _is_alive(one: tree.Process) -> bool:
    now = tree.process(one.pid)
    return now is not None and now.started_ticks == one.started_ticks and not now.is_dead
