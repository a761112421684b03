"""What a job check (the hook ``gpulayer_check_job``) says of a job that somebody submits."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

__all__ = ["JOB_CHECKS_DEADLINE_S", "JOB_CHECK_DEADLINE_S", "JOB_CHECK_JOBS", "Problem", "Severity"]

JOB_CHECK_DEADLINE_S: Final = 2.0
"""For ``JOB_CHECK_JOBS`` jobs of a submission. A check that takes longer, or fails, says nothing of these and of all
that follow: they are accepted, and whoever submits is warned of that."""

JOB_CHECK_JOBS: Final = 20

JOB_CHECKS_DEADLINE_S: Final = 60.0
"""For all jobs of a submission, however many they are."""


class Severity(StrEnum):
    """``error``: nothing of the submission is accepted. ``warning``: whoever submits is told, and it is accepted."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Problem:
    """``message``: one line for people, with the values. ``field``: of the submission, as REST names it, or empty.
    ``hint``: what to do."""

    severity: Severity
    message: str
    field: str = ""
    hint: str = ""
