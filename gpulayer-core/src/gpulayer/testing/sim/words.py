"""How a story calls things: jobs and attempts by their numbers, times and counts as people say them."""

import re
from collections.abc import Sequence
from typing import Final

from gpulayer.ids import JobId
from gpulayer.spec.array import ARRAY_INDEX
from gpulayer.spec.assignment import Assignment

__all__ = ["attempt_name", "counted", "element_of", "job_name", "lasting", "listed", "share", "with_job_names"]

_MINUTE_MS: Final = 60_000
_JOB_ID: Final = re.compile(r"(?:\bjob )?'?\b([0-9a-f]{16})\b'?")


def job_name(job_id: JobId) -> str:
    """``job 3``: ids of simulated jobs are their numbers, in hexadecimal."""
    try:
        return f"job {int(job_id, 16)}"
    except ValueError:
        return f"job {job_id or '?'}"


def attempt_name(of: Assignment) -> str:
    """``attempt 2 of job 3`` says more than an epoch does; ``attempt 2 of element 1 of job 3``."""
    element = f"element {element_of(of)} of " if of.env else ""
    return f"attempt {of.attempt} of {element}{job_name(of.job_id)}"


def element_of(assignment: Assignment) -> int:
    """The number of the task that it is of."""
    return int(dict(assignment.env).get(ARRAY_INDEX, "0"))


def with_job_names(text: str) -> str:
    """``job 000000000000001f never finished`` is ``job 31 never finished``, as in the story."""
    return _JOB_ID.sub(lambda found: job_name(JobId(found[1])), text)


def lasting(ms: int) -> str:
    """``41 s``, ``2.5 min``, ``1 h``: as people say it."""
    if ms < 1_000:
        return f"{ms} ms"
    if ms < 2 * _MINUTE_MS:
        return f"{round(ms / 1_000, 1):g} s"
    if ms < 60 * _MINUTE_MS:
        return f"{round(ms / _MINUTE_MS, 1):g} min"
    return f"{round(ms / (60 * _MINUTE_MS), 1):g} h"


def counted(number: int, one: str, many: str = "") -> str:
    """``no jobs``, ``1 job``, ``2 jobs``."""
    return f"{number or 'no'} {one if number == 1 else many or one + 's'}"


def listed(parts: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return " and ".join(part for part in (", ".join(parts[:-1]), *parts[-1:]) if part)


def share(probability: float) -> str:
    """``5 %``"""
    return f"{round(100 * probability, 2):g} %"
