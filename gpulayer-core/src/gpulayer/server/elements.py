"""Arrays as people see them: counts, a page of elements, one element as a job of its own, and all outputs as one tree.

What is under way is asked of the state, what is done of the store, in this order: so an element that ends in between is
done. One that was never lent has no row; it waits, or shares the end of its job.
"""

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from gpulayer.clock import iso_utc
from gpulayer.engine import State
from gpulayer.engine.elements import node_state
from gpulayer.engine.ends import end_text
from gpulayer.engine.state import Job, Task
from gpulayer.errors import GpulayerError, NotFound, TooLarge
from gpulayer.ids import Digest, JobId
from gpulayer.server.store import Side, StoredElement, StoredJob, reads
from gpulayer.server.uploaded import tree_reader
from gpulayer.spec.job import JobState
from gpulayer.staging.merge import merge_trees
from gpulayer.staging.trees import check_tree
from gpulayer.wire.jobs import ArrayRecord, ElementPage, ElementRecord, ReasonRecord

if TYPE_CHECKING:
    from gpulayer.engine.records import AttemptImage
    from gpulayer.server.plane import Plane

__all__ = ["array_record", "check_index", "element_page", "element_view", "is_over", "merged_outputs", "why_kept_back"]

_REMEMBERED: Final = 256


def check_index(job: StoredJob, index: int) -> None:
    """Raises NotFound for an element that the job does not have; any job has element 0."""
    count = job.submission.get("array", 1)
    if index >= count:
        what = f"an array of {count} element{'s'[: count != 1]}" if "array" in job.submission else "no array"
        raise NotFound(
            f"job {job.image.id} is {what}: there is no element {index}", hint="elements count from 0, as in --index 0"
        )


async def array_record(plane: "Plane", job: StoredJob) -> ArrayRecord:
    """Of a job that is an array."""
    job_id, count = job.image.id, job.submission["array"]
    live = await plane.driver.read(lambda state: _live_states(state, job_id))
    states, first_failed = await plane.query(reads.element_states, job_id)
    found: dict[JobState, int] = dict(states)
    left = count - sum(states.values())
    for state, number in live.items():
        found[state] = found.get(state, 0) + min(number, left)
        left -= min(number, left)
    if left:
        unbegun = _unbegun(job)
        found[unbegun] = found.get(unbegun, 0) + left
    shown = {str(state): found[state] for state in JobState if found.get(state)}
    return {
        "count": count,
        "limit": job.submission.get("array_limit"),
        "states": shown,
        "first_failed": first_failed,
    }


async def element_page(plane: "Plane", job: StoredJob, *, first: int, limit: int, is_failed: bool) -> ElementPage:
    """Elements from number ``first`` on; is_failed: only those that are done and have not succeeded."""
    job_id, count = job.image.id, job.submission.get("array", 1)
    last = count - 1 if is_failed else min(first + limit, count) - 1
    live = await plane.driver.read(lambda state: _live(state, job_id, first, last))
    rows = await plane.query(reads.elements_of, job_id, first=first, last=last, is_failed=is_failed)
    cut = len(rows) > limit
    rows = rows[:limit]
    known = {row.index: row for row in rows}
    indices = [row.index for row in rows] if is_failed else list(range(first, last + 1))
    tries: dict[int, list[AttemptImage]] = {}
    if indices:
        tries = await plane.query(reads.last_attempts, job_id, first=indices[0], last=indices[-1])
    elements = [_element(job, index, known.get(index), live.get(index), tries.get(index, [])) for index in indices]
    more = cut if is_failed else last < count - 1
    return {"elements": elements, "next": indices[-1] + 1 if more and indices else None}


async def element_view(plane: "Plane", job: StoredJob, index: int) -> StoredJob:
    """The job as if it were this element alone. Raises NotFound."""
    check_index(job, index)
    if "array" not in job.submission:
        return job
    job_id = job.image.id
    live = (await plane.driver.read(lambda state: _live(state, job_id, index, index))).get(index)
    rows = await plane.query(reads.elements_of, job_id, first=index, last=index)
    tries = (await plane.query(reads.last_attempts, job_id, first=index, last=index)).get(index, [])
    row = rows[0] if rows else None
    state = _state(job, row, live)
    outcome = row.outcome if row is not None and row.state is not None else None
    is_success = outcome is not None and outcome.is_success
    code, message = ("", "") if outcome is None or is_success else (str(outcome.ended_by), end_text(outcome))
    if outcome is None and state.is_final:
        code, message = job.image.reason_code, job.image.reason_message
    image = replace(
        job.image,
        state=state,
        reason_code=code,
        reason_message=message,
        started_wall_ms=next((each.started_wall_ms for each in tries if each.started_wall_ms), None),
        ended_wall_ms=(tries[-1].ended_wall_ms if tries else job.image.ended_wall_ms) if state.is_final else None,
        outcome=outcome,
        outputs=row.outputs if row is not None else None,
    )
    return replace(job, image=image, attempts=tuple(tries))


def is_over(state: State, job_id: JobId, index: int | None) -> bool:
    """Whether the job has ended, or the element of this number has."""
    job = state.jobs.get(job_id)
    if job is None or index is None or not job.is_array:
        return job is None
    return index not in job.tasks and index < job.begun


def why_kept_back(state: State, job_id: JobId, index: int) -> ReasonRecord | None:
    """Why an element waits that could be lent but for the other elements."""
    job = state.jobs.get(job_id)
    if job is None or index < job.begun:
        return None
    head = job.tasks.get(job.begun)
    if head is not None and job.is_kept_back(head):
        count = len(job.tasks) - 1
        return {"code": "array_limit", "message": f"waits for other elements: {count} of {count} at once are under way"}
    if index > job.begun:
        return {"code": "waiting", "message": f"waits for its turn: element {job.begun} is the next"}
    return None


async def merged_outputs(plane: "Plane", job: StoredJob) -> tuple[Digest | None, int]:
    """What an array that has ended brought home as one tree, and how many files of it are left out because an earlier
    element has others of that name. Noted with the job, so that it is put together once. None: nothing came home, or
    all of it is too much for one tree."""
    job_id = job.image.id
    known = plane.merged.get(job_id)
    if known is not None:
        return known
    trees = await plane.query(reads.element_outputs, job_id)
    if not trees:
        return None, 0
    found: tuple[Digest | None, int]
    try:
        found = await plane.in_thread(lambda: _merge(plane, trees))
    except TooLarge:
        found = None, 0  # each element has its own still
    except GpulayerError:
        return None, 0  # an object is gone, or there is no room for more
    tree = found[0]
    if job.image.outputs is None and tree is not None:
        with suppress(GpulayerError):  # the store can't be written now: it is noted the next time
            await plane.driver.submit(side=Side(outputs=((job_id, tree),)))
    plane.merged[job_id] = found
    if len(plane.merged) > _REMEMBERED:
        plane.merged.popitem(last=False)
    return found


def _merge(plane: "Plane", trees: list[Digest]) -> tuple[Digest, int]:
    merged = merge_trees(trees, tree_reader(plane))
    plane.blobs.put_many(merged.objects.items())
    check_tree(merged.root, tree_reader(plane))  # as large as any other may be, and no larger
    return merged.root, merged.clashes


def _live_states(state: State, job_id: JobId) -> dict[JobState, int]:
    """Of the elements that are under way, and of the head; empty for a job that is over."""
    job = state.jobs.get(job_id)
    if job is None:
        return {}
    found: dict[JobState, int] = {}
    for task in job.tasks.values():
        at = _of_task(state, task)
        found[at] = found.get(at, 0) + 1
    return found


def _live(state: State, job_id: JobId, first: int, last: int) -> dict[int, JobState]:
    """Of those elements that are not done."""
    job = state.jobs.get(job_id)
    if job is None:
        return {}
    return {index: at for index in range(first, last + 1) if (at := _live_one(state, job, index)) is not None}


def _live_one(state: State, job: Job, index: int) -> JobState | None:
    task = job.tasks.get(index)
    if task is None:
        return None if index < job.begun else JobState.QUEUED
    return _of_task(state, task)


def _of_task(state: State, task: Task) -> JobState:
    attempt = None if task.epoch is None else state.attempts.get(task.epoch)
    return JobState.QUEUED if attempt is None else node_state(attempt)


def _state(job: StoredJob, row: StoredElement | None, live: JobState | None) -> JobState:
    if row is not None and row.state is not None:
        return row.state
    return live or _unbegun(job)


def _unbegun(job: StoredJob) -> JobState:
    """Of an element that was never lent. (Of a job that is to end, none is any more.)"""
    if job.image.state is JobState.REJECTED:
        return JobState.REJECTED
    if job.image.state.is_final or job.image.stop is not None:
        return JobState.CANCELLED
    return JobState.QUEUED


def _element(
    job: StoredJob,
    index: int,
    row: StoredElement | None,
    live: JobState | None,
    tries: "list[AttemptImage]",
) -> ElementRecord:
    last = tries[-1] if tries else None
    state = _state(job, row, live)
    outcome = row.outcome if row is not None and row.state is not None else None
    return {
        "index": index,
        "state": str(state),
        "attempts": len(tries),
        "worker": ", ".join(node.worker_name for node in last.nodes) if last is not None else "",
        "started_at": iso_utc(next((each.started_wall_ms for each in tries if each.started_wall_ms), None)),
        "ended_at": iso_utc(last.ended_wall_ms) if last is not None and state.is_final else None,
        "exit_code": outcome.exit_code if outcome is not None else None,
        "signal": outcome.signal if outcome is not None else None,
        "ended_by": str(outcome.ended_by) if outcome is not None else None,
        "output_tree": row.outputs if row is not None else None,
    }
