"""The contract of launchers, as tests."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from gpulayer.plugins.contracts.launcher import (
    ACT_DEADLINE_S,
    PLAN_DEADLINE_S,
    ActingLauncher,
    Launched,
    Launcher,
    LaunchPlan,
    LaunchRefused,
    LaunchSite,
    Machine,
    NotLaunched,
)
from gpulayer.spec.assignment import Assignment
from gpulayer.testing.contracts.contract import (
    Ask,
    SharedContract,
    check_line,
    check_plain_name,
    within,
)
from gpulayer.testing.values import UNICODE, an_assignment, cuda_devices, machine_facts, site_in
from gpulayer.worker.plans import checked_plan

__all__ = ["LauncherContract"]


class LauncherContract(SharedContract):
    """``class TestMine(LauncherContract)`` with a fixture ``launcher``, and ``attempt`` where it wants jobs of some
    kind. deadline_s: of a plan; act_deadline_s: of an act."""

    deadline_s: ClassVar[float] = PLAN_DEADLINE_S
    act_deadline_s: ClassVar[float] = ACT_DEADLINE_S

    @pytest.fixture
    def launcher(self) -> Launcher:
        raise NotImplementedError("a fixture `launcher` gives the launcher to be tested")

    @pytest.fixture
    def attempt(self, launcher: Launcher) -> Assignment:
        """One that it plans."""
        return an_assignment(launcher=launcher.name)

    @pytest.fixture
    def site(self, tmp_path: Path) -> LaunchSite:
        return site_in(tmp_path / "attempt")

    @pytest.fixture
    def machine(self) -> Machine:
        variables: Mapping[str, str] = {"PATH": "/usr/bin:/bin", "FROM_THE_ENVIRONMENT": "yes"}
        return Machine(machine_facts(devices=cuda_devices(8)), variables)

    @pytest.fixture
    def ask(self, launcher: Launcher, attempt: Assignment, site: LaunchSite, machine: Machine) -> Ask:
        return lambda: launcher.plan(attempt, site, machine)

    def test_it_is_a_launcher_with_a_plain_name(self, launcher: Launcher) -> None:
        assert isinstance(launcher, Launcher), "a launcher has a name and a method plan"
        check_plain_name(launcher.name)

    def test_it_plans_a_program(self, ask: Ask, attempt: Assignment, site: LaunchSite, machine: Machine) -> None:
        """Of this attempt, in its work folder, with its files, and one that can be started: as the worker checks it."""
        checked_plan(within(self.deadline_s, ask), attempt, site, machine)

    def test_equal_arguments_give_an_equal_plan(
        self, launcher: Launcher, ask: Ask, attempt: Assignment, site: LaunchSite, machine: Machine
    ) -> None:
        plan = within(self.deadline_s, ask)
        assert within(self.deadline_s, ask) == plan, "another plan at the second call"
        equal = replace(attempt), replace(site), Machine(replace(machine.facts), dict(machine.variables))
        assert within(self.deadline_s, lambda: launcher.plan(*equal)) == plan, "another plan for equal arguments"

    def test_it_changes_none_of_its_arguments(self, ask: Ask, machine: Machine) -> None:
        before = dict(machine.variables)
        within(self.deadline_s, ask).env.get("PATH")
        assert dict(machine.variables) == before

    def test_it_reads_no_environment_but_the_machines(self, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
        plan = within(self.deadline_s, ask)
        for name in set(os.environ) - {"PYTEST_CURRENT_TEST"}:
            monkeypatch.delenv(name)
        monkeypatch.setenv("OMP_NUM_THREADS", "99")
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
        assert within(self.deadline_s, ask) == plan, "the plan depends on the environment of this process"

    def test_it_touches_no_disk(self, ask: Ask, tmp_path: Path) -> None:
        before = sorted(tmp_path.rglob("*"))
        within(self.deadline_s, ask)
        assert sorted(tmp_path.rglob("*")) == before

    def test_streams_that_are_apart_stay_apart(
        self, launcher: Launcher, attempt: Assignment, site: LaunchSite, machine: Machine
    ) -> None:
        apart = replace(site, err_path=site.log_path.with_name("stderr"))
        plan = within(self.deadline_s, lambda: launcher.plan(attempt, apart, machine))
        assert plan.err_path == apart.err_path

    def test_the_job_finds_its_own_variables_and_those_of_its_environment(
        self, launcher: Launcher, attempt: Assignment, site: LaunchSite, machine: Machine
    ) -> None:
        asking = replace(attempt, env=(*attempt.env, ("OF_THE_JOB", UNICODE)))
        env = within(self.deadline_s, lambda: launcher.plan(asking, site, machine)).env
        assert env["OF_THE_JOB"] == UNICODE
        assert env["FROM_THE_ENVIRONMENT"] == "yes"

    def test_a_job_of_many_devices_is_planned_or_refused_by_name(
        self, launcher: Launcher, attempt: Assignment, site: LaunchSite, machine: Machine
    ) -> None:
        many = replace(attempt, devices=tuple(device.uuid for device in machine.facts.devices))
        try:
            plan = within(self.deadline_s, lambda: launcher.plan(many, site, machine))
        except LaunchRefused as refused:
            check_line(refused.message, "the message of a refusal")
            return
        assert isinstance(plan, LaunchPlan)

    def test_words_and_paths_of_any_language_stay_as_they_are(
        self, launcher: Launcher, attempt: Assignment, site: LaunchSite, machine: Machine
    ) -> None:
        asking = replace(attempt, command=(*attempt.command, UNICODE, "", "two words"))
        elsewhere = replace(site, work_dir=Path("/w") / UNICODE)
        plan = within(self.deadline_s, lambda: launcher.plan(asking, elsewhere, machine))
        assert plan.argv[-3:] == (UNICODE, "", "two words"), "the command of the job ends the command line"

    def test_an_act_may_be_repeated(self, launcher: Launcher, ask: Ask) -> None:
        """Of launchers that do more than have their plan started."""
        if not isinstance(launcher, ActingLauncher):
            return
        plan, starter = within(self.deadline_s, ask), RecordingStarter()
        for _ in range(2):
            result = within(self.act_deadline_s, lambda: launcher.act(plan, starter))
            assert isinstance(result, Launched | NotLaunched), f"act gave a {type(result).__name__}"
            if isinstance(result, Launched):
                assert starter.said == result, "it says that it runs, and the starter knows nothing of that"


class RecordingStarter:
    """Starts nothing, and says that it runs. ``said``: its last answer."""

    def __init__(self) -> None:
        self.said: Launched | NotLaunched | None = None

    def start(self, plan: LaunchPlan) -> Launched | NotLaunched:
        self.said = Launched(pid=4321)
        return self.said
