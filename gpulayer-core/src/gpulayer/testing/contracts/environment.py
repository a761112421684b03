"""The contract of environment builders, as tests."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from gpulayer.plugins.contracts.environment import (
    ENVIRONMENT_DEADLINE_S,
    ENVIRONMENT_PLAN_DEADLINE_S,
    BuildFailed,
    BuildSite,
    Environment,
    EnvironmentBuilder,
    EnvironmentPlan,
    EnvironmentRequest,
)
from gpulayer.testing.contracts.contract import (
    Ask,
    SharedContract,
    check_line,
    check_plain_name,
    within,
)
from gpulayer.testing.values import UNICODE, machine_facts
from gpulayer.worker.plans import checked_variables

__all__ = ["EnvironmentBuilderContract"]


class EnvironmentBuilderContract(SharedContract):
    """``class TestMine(EnvironmentBuilderContract)`` with a fixture ``builder``, and ``fill_work_dir`` where it reads
    files of the job. What it builds, it builds for real. deadline_s: of a plan; build_deadline_s: of a build."""

    deadline_s: ClassVar[float] = ENVIRONMENT_PLAN_DEADLINE_S
    build_deadline_s: ClassVar[float] = ENVIRONMENT_DEADLINE_S

    @pytest.fixture
    def builder(self) -> EnvironmentBuilder:
        raise NotImplementedError("a fixture `builder` gives the environment builder to be tested")

    @pytest.fixture
    def worker_environment(self) -> Mapping[str, str]:
        """Some of it is none of a job's business."""
        return {"PATH": "/usr/bin:/bin", "HOME": "/home/worker", "GPULAYER_TOKEN": "gl-the-workers-own"}

    def fill_work_dir(self, folder: Path) -> None:
        """Put there what the job's source would have for this builder."""

    @pytest.fixture
    def request_of_job(self, builder: EnvironmentBuilder, tmp_path: Path) -> EnvironmentRequest:
        work_dir = tmp_path / "work"
        work_dir.mkdir()
        self.fill_work_dir(work_dir)
        return EnvironmentRequest(builder.name, work_dir)

    @pytest.fixture
    def site(self, tmp_path: Path, worker_environment: Mapping[str, str]) -> BuildSite:
        folder = tmp_path / "built"
        folder.mkdir()
        return BuildSite(folder, machine_facts(), worker_environment, log=_check_log, is_cancelled=lambda: False)

    @pytest.fixture
    def ask(self, builder: EnvironmentBuilder, request_of_job: EnvironmentRequest) -> Ask:
        return lambda: builder.plan(request_of_job)

    def test_it_is_an_environment_builder_with_a_plain_name(self, builder: EnvironmentBuilder) -> None:
        assert isinstance(builder, EnvironmentBuilder), "a builder has a name and the methods plan and build"
        check_plain_name(builder.name)

    def test_equal_work_folders_have_equal_plans(
        self, builder: EnvironmentBuilder, ask: Ask, request_of_job: EnvironmentRequest, tmp_path: Path
    ) -> None:
        plan = within(self.deadline_s, ask)
        assert isinstance(plan, EnvironmentPlan), f"plan gave a {type(plan).__name__}"
        assert within(self.deadline_s, ask) == plan, "another plan for the same folder"
        elsewhere = tmp_path / UNICODE
        elsewhere.mkdir()
        self.fill_work_dir(elsewhere)
        again = within(self.deadline_s, lambda: builder.plan(EnvironmentRequest(builder.name, elsewhere)))
        assert again.key == plan.key, "the key names the content, and not where it lies"

    def test_a_plan_changes_nothing_in_the_work_folder(self, ask: Ask, request_of_job: EnvironmentRequest) -> None:
        before = _content(request_of_job.work_dir)
        within(self.deadline_s, ask)
        assert _content(request_of_job.work_dir) == before

    def test_an_empty_work_folder_is_planned_or_refused_by_name(
        self, builder: EnvironmentBuilder, tmp_path: Path
    ) -> None:
        empty = tmp_path / "empty"
        empty.mkdir()
        try:
            within(self.deadline_s, lambda: builder.plan(EnvironmentRequest(builder.name, empty)))
        except BuildFailed as failed:
            check_line(failed.message.partition("\n")[0], "the message")

    def test_what_it_builds_is_an_environment_for_programs(
        self, builder: EnvironmentBuilder, ask: Ask, site: BuildSite
    ) -> None:
        built = self._built(builder, ask, site)
        assert isinstance(built, Environment), f"build gave a {type(built).__name__}"
        checked_variables(built.variables)

    def test_a_build_may_be_repeated_in_an_emptied_folder(
        self, builder: EnvironmentBuilder, ask: Ask, site: BuildSite
    ) -> None:
        first = self._built(builder, ask, site)
        shutil.rmtree(site.folder)
        site.folder.mkdir()
        assert self._built(builder, ask, site) == first, "another environment for the same plan"

    def test_where_there_is_nothing_to_keep_it_keeps_nothing(
        self, builder: EnvironmentBuilder, ask: Ask, site: BuildSite
    ) -> None:
        """The folder of a plan without a key is the job's work folder."""
        plan = within(self.deadline_s, ask)
        within(self.build_deadline_s, lambda: builder.build(plan, site))
        assert plan.key or list(site.folder.iterdir()) == [], "it changed the work folder of the job"

    def test_the_workers_own_credentials_stay_with_the_worker(
        self, builder: EnvironmentBuilder, ask: Ask, site: BuildSite
    ) -> None:
        values = set(self._built(builder, ask, site).variables.values())
        assert site.environment["GPULAYER_TOKEN"] not in values, "the job could act as the worker"

    def test_it_changes_nothing_of_the_workers_environment(
        self, builder: EnvironmentBuilder, ask: Ask, site: BuildSite
    ) -> None:
        before = dict(site.environment)
        self._built(builder, ask, site)
        assert dict(site.environment) == before

    def test_a_build_that_is_cancelled_ends(self, builder: EnvironmentBuilder, ask: Ask, site: BuildSite) -> None:
        cancelled = BuildSite(site.folder, site.facts, site.environment, site.log, is_cancelled=lambda: True)
        try:
            built = self._built(builder, ask, cancelled)
        except BuildFailed:
            return
        assert isinstance(built, Environment)

    def _built(self, builder: EnvironmentBuilder, ask: Ask, site: BuildSite) -> Environment:
        plan = within(self.deadline_s, ask)
        return within(self.build_deadline_s, lambda: builder.build(plan, site))


def _check_log(line: str) -> None:
    assert isinstance(line, str), "a line of the job's log is text"


def _content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}
