"""Jobs that come after others: what they name is found, before any of it is accepted.

In a batch a job may name another one of it; any order will do, but no circle. What is accepted has ids.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpulayer.errors import BadRequest, NotFound
from gpulayer.ids import JobId
from gpulayer.server.auth import Caller
from gpulayer.server.plane import Plane
from gpulayer.server.rights import check_sees
from gpulayer.server.store import reads
from gpulayer.spec.after import AFTER_EXAMPLE, After
from gpulayer.spec.job import JobSpec
from gpulayer.wire.jobs import JobSubmission

__all__ = ["Placed", "place_after"]

_SLICE = 500


@dataclass(frozen=True, slots=True)
class Placed:
    """Specs and submissions with ids in place of names. order: in which the jobs are to be submitted, each after those
    of the batch that it names. named: the jobs that any of them comes after."""

    specs: Sequence[JobSpec]
    submissions: Sequence[JobSubmission]
    order: Sequence[int]
    named: frozenset[JobId] = frozenset()


async def place_after(
    plane: Plane,
    caller: Caller,
    specs: Sequence[JobSpec],
    submissions: Sequence[JobSubmission],
    job_ids: Sequence[JobId],
    *,
    is_again: bool = False,
) -> Placed:
    """job_ids: of these very jobs. is_again: they repeat one that was accepted; what that came after may have been
    repeated as well, and then it is that repetition. Raises BadRequest for a job that is not there or not meant
    clearly, and for a circle; Forbidden for one that the caller may not see."""
    if not any(spec.after for spec in specs):
        return Placed(specs, submissions, range(len(specs)))
    places = _places(specs)
    known: dict[str, JobId] = {}
    found_specs, found_submissions = list(specs), list(submissions)
    waits: dict[int, list[int]] = {}
    for place, spec in enumerate(specs):
        found: list[After] = []
        for after in spec.after:
            inner = places.get(after.job, ()) if len(specs) > 1 else ()
            if len(inner) > 1:
                raise BadRequest(
                    f"{_where(place, specs)}after: several jobs of this batch have the name {after.job!r}",
                    hint="give the one that is meant a name of its own",
                )
            if inner:
                waits.setdefault(place, []).append(inner[0])
                found.append(replace(after, job=job_ids[inner[0]]))
                continue
            if after.job not in known:
                known[after.job] = await _find(plane, caller, after.job, _where(place, specs), is_again=is_again)
            found.append(replace(after, job=known[after.job]))
        if spec.after:
            once = tuple(dict.fromkeys(found))
            found_specs[place] = replace(spec, after=once)
            found_submissions[place] = {**submissions[place], "after": [str(after) for after in once]}
        if place % _SLICE == _SLICE - 1:
            await asyncio.sleep(0)
    order = _ordered(len(specs), waits, specs)
    named = frozenset(after.job for spec in found_specs for after in spec.after)
    return Placed(found_specs, found_submissions, order, named)


def _places(specs: Sequence[JobSpec]) -> Mapping[str, Sequence[int]]:
    places: dict[str, list[int]] = {}
    for place, spec in enumerate(specs):
        if spec.name:
            places.setdefault(spec.name, []).append(place)
    return places


async def _find(plane: Plane, caller: Caller, ref: JobId, where: str, *, is_again: bool) -> JobId:
    if is_again:
        return await plane.query(reads.retried_as, ref)
    try:
        job_id = await plane.query(reads.resolve_job, ref)
    except NotFound as error:
        await check_sees(plane, caller, None)
        raise BadRequest(f"{where}after: {error.message}", hint=AFTER_EXAMPLE) from None
    await check_sees(plane, caller, job_id)
    return job_id


def _ordered(count: int, waits: Mapping[int, Sequence[int]], specs: Sequence[JobSpec]) -> list[int]:
    """As they came, but each after those that it waits for. Raises BadRequest for a circle."""
    order: list[int] = []
    is_placed = [False] * count
    for start in range(count):
        path: list[int] = [] if is_placed[start] else [start]
        on_path = set(path)
        while path:
            place = path[-1]
            first = next((other for other in waits.get(place, ()) if not is_placed[other]), None)
            if first is None:
                on_path.discard(path.pop())
                is_placed[place] = True
                order.append(place)
            elif first in on_path:
                names = [specs[one].name for one in [*path[path.index(first) :], first]]
                raise BadRequest(
                    f"{_where(first, specs)}after: these jobs wait for one another: {' after '.join(_few(names))}",
                    hint="take one --after out, so that one of them can begin",
                )
            else:
                path.append(first)
                on_path.add(first)
    return order


def _few(names: Sequence[str]) -> Iterable[str]:
    return names if len(names) <= 8 else [*names[:4], "…", *names[-3:]]


def _where(place: int, specs: Sequence[JobSpec]) -> str:
    return f"jobs.{place}." if len(specs) > 1 else ""
