"""What plugins say of jobs before they are taken in: the hook ``gpulayer_check_job``.

All checks of a submission run side by side, each as one guarded call for all of its jobs, in a thread of its own. Each
gets specs of its own: whatever a plugin does to them, nothing of it is kept or seen by others. A check that fails, or
takes too long, has said nothing.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpulayer.errors import JobRefused, PluginFault
from gpulayer.plugins.contracts.problem import JOB_CHECK_DEADLINE_S, Problem, Severity
from gpulayer.plugins.host import Host
from gpulayer.plugins.registry import JobCheck
from gpulayer.plugins.results import instance_of, list_of
from gpulayer.spec.job import JobSpec
from gpulayer.wire.jobs import ProblemRecord

__all__ = ["check_jobs"]

_MOST_PROBLEMS: Final = 100  # of one job, and of those that are told of
_LINE: Final = 400
_WORD: Final = 100


async def check_jobs(host: Host, read: Callable[[], Awaitable[Sequence[JobSpec]]]) -> list[ProblemRecord]:
    """The warnings, each said once. Raises JobRefused where a plugin found an error, with all problems in its details.

    read: fresh specs of all jobs each time it is called, which is once a check.
    """
    checks = host.registry.job_checks
    if not checks:
        return []
    specs = [await read() for _ in checks]  # before the call: it is no work of the plugin's
    is_over = threading.Event()  # what still runs then stops after the job that it is at
    try:
        answers = await asyncio.gather(
            *(
                host.acall(check, "gpulayer_check_job", _asking(own, is_over), deadline_s=JOB_CHECK_DEADLINE_S)
                for check, own in zip(checks, specs, strict=True)
            ),
            return_exceptions=True,
        )
    finally:
        is_over.set()
    found: list[tuple[str, _Said]] = []
    for check, answer in zip(checks, answers, strict=True):
        if isinstance(answer, PluginFault):
            continue
        if isinstance(answer, BaseException):
            raise answer
        found.append((check.plugin, answer))
    warnings = [_record(plugin, one) for plugin, said in found for one in said.warnings]
    errors = [(plugin, said) for plugin, said in found if said.errors]
    if errors:
        raise _refusal(errors, warnings, is_batch=len(specs[0]) > 1)
    return warnings[:_MOST_PROBLEMS]


@dataclass(slots=True)
class _Said:
    """Of one plugin. errors: the first ones, with the place of the job; more: how many others there were."""

    errors: list[tuple[int, Problem]] = field(default_factory=list)
    more: int = 0
    warnings: dict[Problem, None] = field(default_factory=dict)


def _asking(specs: Sequence[JobSpec], is_over: threading.Event) -> Callable[[JobCheck], _Said]:
    def ask(check: JobCheck) -> _Said:
        said = _Said()
        for place, spec in enumerate(specs):
            if is_over.is_set():
                break
            for problem in list_of(Problem, check(spec), at_most=_MOST_PROBLEMS):
                _take(said, place, _checked(problem))
        return said

    return ask


def _take(said: _Said, place: int, problem: Problem) -> None:
    match problem.severity:
        case Severity.ERROR if len(said.errors) < _MOST_PROBLEMS:
            said.errors.append((place, problem))
        case Severity.ERROR:
            said.more += 1
        case Severity.WARNING if len(said.warnings) < _MOST_PROBLEMS:
            said.warnings[problem] = None
        case Severity.WARNING:
            pass


def _checked(problem: Problem) -> Problem:
    """One of our own making, of plain texts that fit into a line. Raises TypeError."""
    return Problem(
        instance_of(Severity, problem.severity),
        _line(problem.message, _LINE),
        field=_line(problem.field, _WORD),
        hint=_line(problem.hint, _LINE),
    )


def _line(text: object, limit: int) -> str:
    line = " ".join(instance_of(str, text)[: 4 * limit].split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _refusal(errors: Sequence[tuple[str, _Said]], warnings: list[ProblemRecord], *, is_batch: bool) -> JobRefused:
    """The message has the first error; all of them, and then the warnings, are in the details."""
    plugin, first = errors[0]
    place, problem = first.errors[0]
    count = sum(len(said.errors) + said.more for _, said in errors)
    others = "" if count == 1 else f" (and {count - 1:,} more problem{'s' if count > 2 else ''})"
    records = [
        _record(plugin, one, job=place if is_batch else None) for plugin, said in errors for place, one in said.errors
    ]
    return JobRefused(
        f"{f'jobs.{place}: ' if is_batch else ''}plugin {plugin} refuses it: {problem.message}{others}",
        hint=problem.hint,
        details={"problems": [*records, *warnings][:_MOST_PROBLEMS]},
    )


def _record(plugin: str, problem: Problem, *, job: int | None = None) -> ProblemRecord:
    place = "" if job is None else f"jobs.{job}"
    return {
        "plugin": plugin,
        "severity": str(problem.severity),
        "field": ".".join(part for part in (place, problem.field) if part),
        "message": problem.message,
        "hint": problem.hint,
    }
