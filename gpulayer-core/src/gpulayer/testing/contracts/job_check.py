"""The contract of job checks (``gpulayer_check_job``), as tests."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType, ModuleType
from typing import ClassVar

import pytest

from gpulayer import __version__
from gpulayer.plugins.contracts.context import Context, Where
from gpulayer.plugins.contracts.problem import JOB_CHECK_DEADLINE_S, Problem, Severity
from gpulayer.plugins.examples import usual_job
from gpulayer.spec.job import JobSpec
from gpulayer.testing.contracts.contract import Ask, SharedContract, check_line, within
from gpulayer.testing.contracts.plugin import hook_of
from gpulayer.testing.values import odd_jobs

__all__ = ["JobCheckContract"]


class JobCheckContract(SharedContract):
    """``class TestMine(JobCheckContract)`` with a fixture ``plugin``, the module that implements the hook, and
    ``options`` where it needs any."""

    deadline_s: ClassVar[float] = JOB_CHECK_DEADLINE_S

    @pytest.fixture
    def plugin(self) -> ModuleType:
        raise NotImplementedError("a fixture `plugin` gives the module that checks jobs")

    @pytest.fixture
    def options(self) -> Mapping[str, str]:
        return {}

    @pytest.fixture
    def context(self, options: Mapping[str, str]) -> Context:
        return Context(Where.PLANE, "under-test", __version__, MappingProxyType(dict(options)))

    @pytest.fixture
    def job(self) -> JobSpec:
        """The usual one."""
        return usual_job()

    @pytest.fixture
    def ask(self, plugin: ModuleType, context: Context, job: JobSpec) -> Ask:
        return lambda: hook_of(plugin, "gpulayer_check_job")(spec=job, ctx=context)

    def test_it_gives_a_list_of_problems(self, ask: Ask) -> None:
        problems = within(self.deadline_s, ask)
        assert isinstance(problems, list | tuple), f"it gave a {type(problems).__name__}; no problem is an empty list"
        _check(problems)

    def test_the_same_job_has_the_same_problems(self, ask: Ask) -> None:
        assert list(within(self.deadline_s, ask)) == list(within(self.deadline_s, ask))

    @pytest.mark.parametrize("number", range(len(odd_jobs())))
    def test_any_legal_job_can_be_checked(self, number: int, plugin: ModuleType, context: Context) -> None:
        check = hook_of(plugin, "gpulayer_check_job")
        within(self.deadline_s, lambda: _check(check(spec=odd_jobs()[number], ctx=context)))


def _check(problems: Iterable[object]) -> None:
    for problem in problems:
        assert isinstance(problem, Problem), f"{problem!r} is no Problem"
        assert isinstance(problem.severity, Severity), f"{problem.severity!r} is no Severity"
        check_line(problem.message, "the message")
