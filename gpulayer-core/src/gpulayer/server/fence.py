"""The fence: what a worker may still say and send of an attempt, and what it may not, because it was given away.

Each epoch is lent to one worker, and to nobody once its attempt has ended. Whoever writes for an attempt is asked here
first, and again when the bytes have come, which may take its time: a connection that stood still for longer than the
lease delivers what it holds. Reports need none of this: the engine drops what they say of other epochs, and answers
which those are.
"""

from gpulayer.engine import State
from gpulayer.errors import Forbidden, StaleAttempt
from gpulayer.ids import Epoch, JobId, WorkerId
from gpulayer.server.plane import Plane
from gpulayer.server.web import Call

__all__ = ["is_held", "job_held", "lent", "own_worker"]


def own_worker(call: Call) -> WorkerId:
    """A session opens the routes of its own worker alone. Raises Forbidden."""
    worker_id = call.path("id")
    if call.client.worker is None or call.client.worker != worker_id:
        raise Forbidden(f"this session is not worker {worker_id[:40]!r}'s")
    if call.plane.auth.is_local(call.client.worker):
        call.plane.local_worker_heard += 1
    return call.client.worker


async def lent(call: Call, node: int | None) -> tuple[Epoch, JobId]:
    """The attempt that the path names, if this worker holds (that node of) it. Raises StaleAttempt.

    A yes needs no commit to wait for: bytes of a job that is lent here are welcome whatever becomes of a change that
    is on its way, and the first of a log should not wait for the report that its program runs. A no does wait.
    """
    worker_id, epoch = own_worker(call), Epoch(call.path_int("epoch"))
    job_id = await job_held(call.plane, worker_id, epoch, node)
    if job_id is None:
        raise StaleAttempt(f"attempt {epoch} is not lent to this worker (any more)", hint="end it and forget it")
    return epoch, job_id


async def job_held(plane: Plane, worker_id: WorkerId, epoch: Epoch, node: int | None) -> JobId | None:
    """Whose attempt this is; None where this worker does not hold (that node of) it."""

    def held_job(state: State) -> JobId | None:
        return _held_job(state, worker_id, epoch, node)

    return plane.driver.look(held_job) or await plane.driver.read(held_job)


def is_held(plane: Plane, worker_id: WorkerId, epoch: Epoch, node: int) -> bool:
    """As it stands at this moment, committed or not; for any thread."""
    return plane.driver.look(lambda state: _held_job(state, worker_id, epoch, node)) is not None


def _held_job(state: State, worker_id: WorkerId, epoch: Epoch, node: int | None) -> JobId | None:
    worker, attempt = state.workers.get(worker_id), state.attempts.get(epoch)
    held = None if worker is None else worker.leases.get(epoch)
    return attempt.job_id if attempt is not None and held is not None and node in (None, held) else None
