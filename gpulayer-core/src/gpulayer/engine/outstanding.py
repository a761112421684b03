"""What a worker should have been told, derived from the state: the commands are levels, not edges.

So no outbox is stored: after a restart of either side the worker gets these again, and knows an epoch it has.
"""

from gpulayer.engine.effects import Assign, Revoke, Stop
from gpulayer.engine.events import NodePhase
from gpulayer.engine.state import State
from gpulayer.ids import WorkerId
from gpulayer.spec.outcome import EndedBy

__all__ = ["outstanding"]


def outstanding(state: State, worker_id: WorkerId) -> tuple[Assign | Stop | Revoke, ...]:
    """By epoch: Assign of every node the worker has not acknowledged, Stop of every attempt that is to end, Revoke of
    what is wanted back and not known to have started."""
    worker = state.workers.get(worker_id)
    if worker is None:
        return ()
    commands: list[Assign | Stop | Revoke] = []
    for epoch, index in sorted(worker.leases.items()):
        attempt = state.attempts[epoch]
        job = state.jobs[attempt.job_id]
        if attempt.nodes[index].phase is NodePhase.ASSIGNED:
            commands.append(Assign(worker.id, epoch, index, attempt.job_id))
        if attempt.stop is not None:
            commands.append(Stop(worker.id, epoch, attempt.stop, job.stop_grace_ms))
        elif attempt.first_failure is not None:
            commands.append(Stop(worker.id, epoch, EndedBy.WORKER_STOPPED, job.entry.grace_ms))
        if attempt.nodes[index].is_revoked:
            commands.append(Revoke(worker.id, epoch))
    return tuple(commands)
