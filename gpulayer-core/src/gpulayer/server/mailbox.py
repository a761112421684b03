"""What each worker is still to be told, in memory.

Commands are levels, not edges: whoever comes with a cursor that is unknown here (a new agent, a restarted control
plane) gets everything that ``engine.outstanding`` derives from the state. A command stays until the worker's next
request acknowledges it by its cursor, ``<incarnation>.<number>``, so a lost answer loses nothing; and it is retracted
when its attempt ends before that: what waited while a worker was away may have been lent to another since.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpulayer.engine import State
from gpulayer.engine.effects import Assign, Effect, Revoke, Stop
from gpulayer.engine.events import NodePhase
from gpulayer.engine.records import AttemptImage, Record
from gpulayer.ids import Epoch, JobId, WorkerId
from gpulayer.spec.outcome import EndedBy

__all__ = ["AssignOrder", "Mailboxes", "Order", "RevokeOrder", "StopOrder", "orders_of"]

REPLY_LIMIT = 256


@dataclass(frozen=True, slots=True)
class AssignOrder:
    """An assignment as of its step; the job's spec is added when it is fetched. index: of an array, which element."""

    epoch: Epoch
    node: int
    job_id: JobId
    attempt: int
    devices: tuple[str, ...]
    cpus: int
    memory_bytes: int
    resources: tuple[tuple[str, int], ...] = ()
    index: int = 0


@dataclass(frozen=True, slots=True)
class StopOrder:
    """End the worker's node of this attempt. ``ended_by``: what it is to give as the cause.

    node: None where it holds none any more.
    """

    epoch: Epoch
    ended_by: EndedBy
    grace_ms: int
    node: int | None


@dataclass(frozen=True, slots=True)
class RevokeOrder:
    """Give the attempt back if its program has not started."""

    epoch: Epoch


Order = AssignOrder | StopOrder | RevokeOrder


class _Mailbox:
    def __init__(self) -> None:
        self.orders: deque[tuple[int, Order]] = deque()
        self.last = 0

    def retract(self, epoch: Epoch) -> None:
        if any(order.epoch == epoch for _, order in self.orders):
            self.orders = deque(entry for entry in self.orders if entry[1].epoch != epoch)


class Mailboxes:
    """All mailboxes of one run of the control plane. ``incarnation`` names that run."""

    def __init__(self, incarnation: str) -> None:
        self._incarnation = incarnation
        self._boxes: dict[WorkerId, _Mailbox] = {}
        self._untold: dict[WorkerId, set[Epoch]] = {}

    def deliver(self, state: State, records: Iterable[Record], effects: Iterable[Effect]) -> set[WorkerId]:
        """Put what a commit released into mailboxes, and take out what it ended; returns who is to be told something.

        A worker that has never asked has no mailbox: it will get its commands from the state.
        """
        for record in records:
            if isinstance(record, AttemptImage):
                for node in record.nodes:
                    if node.phase is not NodePhase.ENDED:
                        continue
                    self._untold.get(node.worker, set()).discard(record.epoch)
                    if node.worker in self._boxes:
                        self._boxes[node.worker].retract(record.epoch)
        changed: set[WorkerId] = set()
        for effect in effects:
            if not isinstance(effect, Assign | Stop | Revoke):
                continue
            if isinstance(effect, Assign) and effect.epoch in state.attempts:
                self._untold.setdefault(effect.worker, set()).add(effect.epoch)
            box = self._boxes.get(effect.worker)
            if box is None:
                continue
            for order in orders_of(state, (effect,)):
                box.last += 1
                box.orders.append((box.last, order))
                changed.add(effect.worker)
        return changed

    def knows(self, worker: WorkerId, cursor: str) -> bool:
        """Whether the cursor was given out by this incarnation."""
        return worker in self._boxes and self._number(worker, cursor) is not None

    def reset(self, worker: WorkerId, orders: Iterable[Order]) -> None:
        """Begin anew with what the state says is outstanding."""
        box = self._boxes.setdefault(worker, _Mailbox())
        box.orders.clear()
        for order in orders:
            box.last += 1
            box.orders.append((box.last, order))

    def acknowledge(self, worker: WorkerId, cursor: str) -> None:
        """Forget what the cursor says has arrived."""
        number = self._number(worker, cursor)
        box = self._boxes[worker]
        while box.orders and number is not None and box.orders[0][0] <= number:
            box.orders.popleft()

    def waiting(self, worker: WorkerId) -> tuple[str, list[Order]]:
        """Commands not acknowledged yet (the oldest, if there are very many), and the cursor behind them."""
        box = self._boxes[worker]
        picked = [box.orders[index] for index in range(min(len(box.orders), REPLY_LIMIT))]
        self._untold.get(worker, set()).difference_update(order.epoch for _, order in picked)
        last = picked[-1][0] if picked else box.last
        return f"{self._incarnation}.{last}", [order for _, order in picked]

    def untold(self, worker: WorkerId) -> frozenset[Epoch]:
        """What was lent to it in this run and stood in no answer: no start of its agent can have begun that. What is
        not in here may have been told, or was lent in an earlier run."""
        return frozenset(self._untold.get(worker, ()))

    def forget(self, worker: WorkerId) -> None:
        """Drop all that waits for it. Unknown workers are no error."""
        self._boxes.pop(worker, None)
        self._untold.pop(worker, None)

    def _number(self, worker: WorkerId, cursor: str) -> int | None:
        incarnation, _, number = cursor.partition(".")
        if incarnation != self._incarnation or not number.isascii() or not number.isdigit() or len(number) > 18:
            return None
        return int(number) if int(number) <= self._boxes[worker].last else None


def orders_of(state: State, commands: Sequence[Assign | Stop | Revoke]) -> list[Order]:
    """Commands with what a worker must know; an assignment whose attempt has ended meanwhile is left out."""
    orders: list[Order] = []
    for command in commands:
        match command:
            case Assign():
                attempt = state.attempts.get(command.epoch)
                if attempt is None:
                    continue
                share = attempt.nodes[command.node].allocation
                orders.append(
                    AssignOrder(
                        epoch=command.epoch,
                        node=command.node,
                        job_id=command.job_id,
                        attempt=attempt.number,
                        devices=share.devices,
                        cpus=share.cpus,
                        memory_bytes=share.memory_bytes,
                        resources=share.resources,
                        index=attempt.task_index,
                    )
                )
            case Stop():
                worker = state.workers.get(command.worker)
                node = None if worker is None else worker.leases.get(command.epoch)
                orders.append(StopOrder(command.epoch, command.ended_by, command.grace_ms, node))
            case Revoke():
                orders.append(RevokeOrder(command.epoch))
    return orders
