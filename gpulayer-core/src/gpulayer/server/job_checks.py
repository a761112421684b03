"""What plugins say of jobs before they are taken in: the hook ``gpulayer_check_job``.

All checks of a submission run side by side. Each is asked for some jobs at a time, a guarded call with a deadline of
its own, so that the size of a batch is no failure of the plugin. Each gets specs of its own: whatever a plugin does to
them, nothing of it is kept or seen by others. A check that fails, or takes too long, is not asked further for this
submission: the rest is taken in without it, and whoever submits is warned.

Fewer calls of one check run at a time than the guard has slots; the others wait for their turn, in order, before the
clock of their call runs. So that many submit at once switches no check off: who has waited for too long is told to
come again.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from gpulayer.errors import JobRefused, PluginFault, StorageUnavailable
from gpulayer.plugins.contracts.problem import (
    JOB_CHECK_DEADLINE_S,
    JOB_CHECK_JOBS,
    JOB_CHECKS_DEADLINE_S,
    Problem,
    Severity,
)
from gpulayer.plugins.host import Host
from gpulayer.plugins.registry import JobCheck, Registered
from gpulayer.plugins.results import instance_of, list_of
from gpulayer.spec.job import JobSpec
from gpulayer.wire.jobs import ProblemRecord

__all__ = ["JobChecks"]

_MOST_PROBLEMS: Final = 100  # of one job, and of those that are told of
_LINE: Final = 400
_WORD: Final = 100
_TEXT: Final = 1 << 20  # secrets are looked for in all of it
_SIDE_BY_SIDE: Final = 4  # of one check; less than the guard has slots, so that none of these is lacking
_TURN_S: Final = 30.0
_LOOK: Final = "gpulayer plugins says what went wrong"

Read = Callable[[int, int], Awaitable[Sequence[JobSpec]]]


class JobChecks:
    """Of one control plane. ``check`` may run for many submissions at a time."""

    def __init__(self) -> None:
        self._turns: dict[str, asyncio.Semaphore] = {}

    async def check(self, host: Host, count: int, read: Read) -> list[ProblemRecord]:
        """The warnings, each said once. Raises JobRefused where a plugin found an error, with all problems in its
        details, and StorageUnavailable where others had all the turns.

        read: fresh specs of the jobs from one place to another, which is asked for once by each check.
        """
        checks = host.registry.job_checks
        if not checks:
            return []
        answers = await asyncio.gather(
            *(self._ask(host, check, count, read) for check in checks), return_exceptions=True
        )
        found: list[tuple[str, _Said]] = []
        for check, answer in zip(checks, answers, strict=True):
            if isinstance(answer, BaseException):
                raise answer
            found.append((check.plugin, answer))
        warnings = [_record(plugin, one) for plugin, said in found for one in said.warnings]
        errors = [(plugin, said) for plugin, said in found if said.errors]
        if errors:
            raise _refusal(errors, warnings, is_batch=count > 1)
        lacking = [_record(plugin, _silence(count - said.answered, count)) for plugin, said in found if said.is_silent]
        return [*lacking, *warnings][:_MOST_PROBLEMS]

    async def _ask(self, host: Host, check: Registered[JobCheck], count: int, read: Read) -> "_Said":
        """All that it says, until it fails or its time for a submission has passed."""
        said = _Said()
        left_s = JOB_CHECKS_DEADLINE_S
        turns = self._turns.setdefault(check.plugin, asyncio.Semaphore(_SIDE_BY_SIDE))
        for start in range(0, count, JOB_CHECK_JOBS):
            specs = await read(start, min(start + JOB_CHECK_JOBS, count))
            is_over = threading.Event()  # what still runs then stops after the job that it is at
            try:
                async with _turn(turns, check.plugin):
                    began_s = time.monotonic()
                    asked = await host.acall(
                        check,
                        "gpulayer_check_job",
                        _asking(host, specs, start, is_over),
                        deadline_s=JOB_CHECK_DEADLINE_S,
                    )
                    left_s -= time.monotonic() - began_s
            except PluginFault:
                said.is_silent = True
                break
            finally:
                is_over.set()
            said.take(asked, start + len(specs))
            if left_s <= 0 and said.answered < count:
                said.is_silent = True
                host.note(check.plugin, "gpulayer_check_job", _slow(said.answered, count))
                break
        return said


@dataclass(slots=True)
class _Said:
    """Of one plugin. errors: the first ones, with the place of the job; more: how many others there were. answered: for
    how many jobs; is_silent: it was to say something of the others as well."""

    errors: list[tuple[int, Problem]] = field(default_factory=list)
    more: int = 0
    warnings: dict[Problem, None] = field(default_factory=dict)
    answered: int = 0
    is_silent: bool = False

    def take(self, problems: Sequence[tuple[int, Problem]], answered: int) -> None:
        self.answered = answered
        for place, problem in problems:
            match problem.severity:
                case Severity.ERROR if len(self.errors) < _MOST_PROBLEMS:
                    self.errors.append((place, problem))
                case Severity.ERROR:
                    self.more += 1
                case Severity.WARNING if len(self.warnings) < _MOST_PROBLEMS:
                    self.warnings[problem] = None
                case Severity.WARNING:
                    pass


@asynccontextmanager
async def _turn(turns: asyncio.Semaphore, plugin: str) -> AsyncIterator[None]:
    """Raises StorageUnavailable where others have all of them for too long."""
    try:
        async with asyncio.timeout(_TURN_S):
            await turns.acquire()
    except TimeoutError:
        raise StorageUnavailable(
            f"too many jobs are being submitted for the checks of plugin {plugin}", hint="try again in a moment"
        ) from None
    try:
        yield
    finally:
        turns.release()


def _asking(
    host: Host, specs: Sequence[JobSpec], start: int, is_over: threading.Event
) -> Callable[[JobCheck], list[tuple[int, Problem]]]:
    def ask(check: JobCheck) -> list[tuple[int, Problem]]:
        found: list[tuple[int, Problem]] = []
        for place, spec in enumerate(specs, start):
            if is_over.is_set():
                break
            problems = list_of(Problem, check(spec), at_most=_MOST_PROBLEMS)
            found.extend((place, _checked(host, problem)) for problem in problems)
        return found

    return ask


def _silence(lacking: int, count: int) -> Problem:
    if count == 1:
        return Problem(Severity.WARNING, "its check failed: the job was accepted without it", hint=_LOOK)
    of = "the jobs were" if lacking == count else f"{lacking:,} of {count:,} jobs were"
    return Problem(Severity.WARNING, f"its check failed: {of} accepted without it", hint=_LOOK)


def _slow(answered: int, count: int) -> str:
    return f"it had checked {answered:,} of {count:,} jobs when its {JOB_CHECKS_DEADLINE_S:g} s for a submission ended"


def _checked(host: Host, problem: Problem) -> Problem:
    """One of our own making, of texts that fit into a line and hold no secrets. Raises TypeError and ValueError."""

    def line(text: object, limit: int) -> str:
        said = instance_of(str, text)
        if len(said) > _TEXT:
            raise ValueError(f"it gave a text of {len(said):,} characters; the limit is {_TEXT:,}")
        line = host.line(said)
        return line if len(line) <= limit else line[: limit - 1] + "…"

    return Problem(
        instance_of(Severity, problem.severity),
        line(problem.message, _LINE),
        field=line(problem.field, _WORD),
        hint=line(problem.hint, _LINE),
    )


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
