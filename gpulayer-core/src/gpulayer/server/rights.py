"""What a caller whom the route takes may do there with this very job, or with these very blobs.

Reading is open to every client. A submitter manages its owner's jobs, an admin everybody's. A worker reads what makes
up the sources of the jobs that are lent to it. A job reads what is its own; where it may submit, it also reads and
manages what it submitted, in any of its attempts.
"""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from gpulayer.engine import State
from gpulayer.errors import Forbidden
from gpulayer.ids import Digest, JobId, WorkerId
from gpulayer.server.auth import Caller
from gpulayer.server.store import StoredJob, reads
from gpulayer.server.tokens import Grant, Role, TokenKind
from gpulayer.server.uploaded import tree_reader
from gpulayer.staging.trees import check_tree

if TYPE_CHECKING:
    from gpulayer.server.plane import Plane

__all__ = ["check_manages", "check_reads_blobs", "check_sees", "is_anothers"]


def check_manages(caller: Caller, job: StoredJob) -> None:
    """May it cancel this job and run it again? Raises Forbidden that says whose the job is."""
    job_id = job.image.id
    if caller.kind is TokenKind.JOB:
        if not _has_submitted(caller, job.owner, job.submitter):
            raise Forbidden(
                f"job {job_id} was not submitted by job {caller.job}",
                hint="a job manages the jobs that it submitted, and not itself",
            )
    elif is_anothers(caller, job) and not caller.role.includes(Role.ADMIN):
        raise Forbidden(
            f"job {job_id} is {job.owner}'s; token {caller.token_id} manages the jobs of {caller.owner}",
            hint=f"ask {job.owner} or an admin",
        )


def is_anothers(caller: Caller, job: StoredJob) -> bool:
    """Whether whoever calls does not own the job."""
    return caller.owner != job.owner


async def check_sees(plane: "Plane", caller: Caller, job_id: JobId | None) -> None:
    """May it read the record, log and files of this job? None: of one that is not there. Raises Forbidden, in the same
    words for jobs that are not there, so that nobody learns which are."""
    if caller.kind is not TokenKind.JOB or (job_id is not None and job_id == caller.job):
        return
    if job_id is not None and caller.grant.includes(Grant.SUBMIT):
        made = await plane.query(reads.maker_of, job_id)
        if made is not None and _has_submitted(caller, *made):
            return
    raise Forbidden(f"the token of job {caller.job} does not read this job", hint="it reads what is its own")


async def check_reads_blobs(plane: "Plane", caller: Caller, digests: Collection[Digest]) -> None:
    """May it read all of these? Raises Forbidden, in the same words for blobs that are not here."""
    match caller.kind:
        case TokenKind.CLIENT:
            return
        case TokenKind.WORKER:
            jobs = await plane.driver.read(lambda state: _lent_to(state, caller.worker))
            lacking = await _outside(plane, await _sources(plane, jobs), set(digests))
            holder = "no job that is lent to this worker"
        case _:
            own = [] if caller.job is None else [caller.job]
            lacking = await _outside(plane, await _sources(plane, own), set(digests))
            if lacking:
                lacking = await _outside(plane, await _outputs(plane, caller), lacking)
            holder = f"nothing that is job {caller.job}'s own"
    if lacking:
        raise Forbidden(f"blob {min(lacking)} is part of {holder}")


def _has_submitted(caller: Caller, owner: str, submitter: str) -> bool:
    """The name of a job's token says which job it is of; nobody else can have it together with this owner."""
    return caller.grant.includes(Grant.SUBMIT) and owner == caller.owner and submitter == caller.name


def _lent_to(state: State, worker_id: WorkerId | None) -> list[JobId]:
    worker = None if worker_id is None else state.workers.get(worker_id)
    if worker is None:
        return []
    return list({state.attempts[epoch].job_id: None for epoch in worker.leases})


async def _sources(plane: "Plane", jobs: Sequence[JobId]) -> list[Digest]:
    found: dict[Digest, None] = {}
    for submission in (await plane.submissions(jobs)).values():
        source = submission.get("source")
        if source is not None:
            found[Digest(source["digest"])] = None
    return list(found)


async def _outputs(plane: "Plane", caller: Caller) -> list[Digest]:
    if caller.job is None:
        return []
    submitter = caller.name if caller.grant.includes(Grant.SUBMIT) else None
    return await plane.query(reads.output_trees, caller.job, owner=caller.owner, submitter=submitter)


async def _outside(plane: "Plane", roots: Sequence[Digest], digests: set[Digest]) -> set[Digest]:
    """Those that are part of none of these trees."""
    left = digests
    for root in roots:
        if not left:
            break
        left = left - await _digests(plane, root)
    return left


async def _digests(plane: "Plane", root: Digest) -> frozenset[Digest]:
    async def load() -> frozenset[Digest]:
        return await plane.in_thread(lambda: check_tree(root, tree_reader(plane)).digests)

    return await plane.trees.of(root, load)
