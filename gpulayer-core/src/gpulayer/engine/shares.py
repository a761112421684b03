"""Fair share: of equal priority, the owner who has the least of the fleet goes first.

What an owner has is the greatest of three: what his live attempts take of all cores, of all memory and of all devices
that the known workers have (dominant resource fairness; Ghodsi et al., NSDI 2011). What was lent ahead counts as well.
It follows from attempts and facts, so that a start finds the same. Among equals, and one owner's own jobs, age decides.
"""

from typing import Final

from gpulayer.engine.state import Node, State, Used

__all__ = ["WHOLE", "count", "fill", "give_back", "of_owner"]

WHOLE: Final = 10**9
"""The share of who has all of it; whole numbers, so that it is the same everywhere."""


def of_owner(state: State, owner: str) -> int:
    """The owner's share, 0 to ``WHOLE``; above it where he has what workers do not report any more."""
    used = state.used.get(owner)
    if used is None:
        return 0
    if state.fleet is not None and used.share >= 0:
        return used.share
    fleet = state.fleet
    if fleet is None:
        fleet = state.fleet = _fleet(state)
        for each in state.used.values():
            each.share = -1
    used.share = max(
        used.cpus * WHOLE // fleet.cpus if fleet.cpus else 0,
        used.memory_bytes * WHOLE // fleet.memory_bytes if fleet.memory_bytes else 0,
        used.devices * WHOLE // fleet.devices if fleet.devices else 0,
    )
    return used.share


def count(state: State, owner: str, node: Node) -> None:
    """A node of an attempt of his is live from now on."""
    used = state.used.get(owner)
    if used is None:
        used = state.used[owner] = Used()
    used.share = -1
    used.nodes += 1
    used.cpus += node.allocation.cpus
    used.memory_bytes += node.allocation.memory_bytes
    used.devices += len(node.allocation.devices)


def give_back(state: State, owner: str, node: Node) -> None:
    """It has ended. To be called once."""
    used = state.used[owner]
    used.share = -1
    used.nodes -= 1
    if not used.nodes:
        del state.used[owner]
        return
    used.cpus -= node.allocation.cpus
    used.memory_bytes -= node.allocation.memory_bytes
    used.devices -= len(node.allocation.devices)


def fill(state: State) -> None:
    """For a start."""
    for attempt in state.attempts.values():
        for node in attempt.nodes:
            if node.outcome is None:
                count(state, state.jobs[attempt.job_id].entry.owner, node)


def _fleet(state: State) -> Used:
    facts = [worker.facts for worker in state.workers.values()]
    return Used(
        cpus=sum(each.cpus for each in facts),
        memory_bytes=sum(each.memory_bytes for each in facts),
        devices=sum(len(each.devices) for each in facts),
    )
