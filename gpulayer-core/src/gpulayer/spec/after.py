"""What a job comes after: another job's success, or its end whatever that is. As text: ``JOB``, or ``JOB:any``."""

from dataclasses import dataclass
from typing import Final

from gpulayer.errors import UsageError
from gpulayer.ids import JobId

__all__ = ["AFTER_EXAMPLE", "MAX_AFTER", "After", "parse_after"]

MAX_AFTER: Final = 256  # a job
AFTER_EXAMPLE: Final = (
    "--after takes the id of a job, the beginning of one, or a unique name, as in --after 7f3a;"
    " with :any it runs whatever that one's end, as in --after train:any"
)
_ANY: Final = ":any"
_OK: Final = ":ok"


@dataclass(frozen=True, slots=True)
class After:
    """``job``: its id, in what was accepted; before that whatever names it. is_any: its failure will do, too."""

    job: JobId
    is_any: bool = False

    def __str__(self) -> str:
        return f"{self.job}{_ANY}" if self.is_any else self.job


def parse_after(text: str) -> After:
    """``:ok`` may be said of what is the default. Raises UsageError where no job is named."""
    is_any = text.endswith(_ANY)
    ref = text.removesuffix(_ANY) if is_any else text.removesuffix(_OK)
    if not ref or ref != ref.strip():
        raise UsageError(f"after: {text[:60]!r} names no job", hint=AFTER_EXAMPLE)
    return After(JobId(ref), is_any)
