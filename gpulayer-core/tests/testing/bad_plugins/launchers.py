"""Launchers."""

import itertools
import os
from dataclasses import replace
from pathlib import Path

from bad_plugins.caught import for_ever, given, hanging
from gpulayer.plugins import Launched
from gpulayer.plugins.builtin.process import ProcessLauncher
from gpulayer.testing import LauncherContract


def launcher(test):
    return given(LauncherContract, "launcher", test)


@given(LauncherContract, "launcher")
class GoodLauncher:
    name = "good"

    def plan(self, attempt, site, machine):
        return ProcessLauncher().plan(attempt, site, machine)


@launcher("plain_name")
class LauncherOfNoName(GoodLauncher):
    name = None


@launcher("plans_a_program")
class LauncherOfNothing(GoodLauncher):
    def plan(self, attempt, site, machine):
        return replace(super().plan(attempt, site, machine), argv=())


@launcher("equal_arguments")
class LauncherOfPorts(GoodLauncher):
    count = itertools.count(1024)

    def plan(self, attempt, site, machine):
        plan = super().plan(attempt, site, machine)
        return replace(plan, env={**plan.env, "MASTER_PORT": str(next(self.count))})


@launcher("none_of_its_arguments")
class LauncherThatWrites(GoodLauncher):
    def plan(self, attempt, site, machine):
        machine.variables["MINE"] = "1"
        return super().plan(attempt, site, machine)


@launcher("no_environment_but")
class LauncherOfHere(GoodLauncher):
    def plan(self, attempt, site, machine):
        plan = super().plan(attempt, site, machine)
        return replace(plan, env={**plan.env, "HOME": os.environ.get("HOME", "")})


@launcher("touches_no_disk")
class LauncherThatPrepares(GoodLauncher):
    def plan(self, attempt, site, machine):
        site.work_dir.mkdir(parents=True, exist_ok=True)
        return super().plan(attempt, site, machine)


@launcher("plans_a_program")
class LauncherOfAnotherKey(GoodLauncher):
    def plan(self, attempt, site, machine):
        return replace(super().plan(attempt, site, machine), key="mine")


@launcher("plans_a_program")
class LauncherElsewhere(GoodLauncher):
    def plan(self, attempt, site, machine):
        return replace(super().plan(attempt, site, machine), cwd=Path("/"))


@launcher("stay_apart")
class LauncherOfOneStream(GoodLauncher):
    def plan(self, attempt, site, machine):
        return replace(super().plan(attempt, site, machine), err_path=None)


@launcher("its_own_variables")
class LauncherOfItsOwnVariables(GoodLauncher):
    def plan(self, attempt, site, machine):
        return replace(super().plan(attempt, site, machine), env={"PATH": "/bin"})


@launcher("many_devices")
class LauncherOfOneDevice(GoodLauncher):
    def plan(self, attempt, site, machine):
        assert len(attempt.devices) <= 1
        return super().plan(attempt, site, machine)


@launcher("any_language")
class LauncherOfAShell(GoodLauncher):
    def plan(self, attempt, site, machine):
        return replace(super().plan(attempt, site, machine), argv=("sh", "-c", " ".join(attempt.command)))


@launcher("act_may_be_repeated")
class LauncherThatActsOnce(GoodLauncher):
    def __init__(self):
        self.done = set()

    def act(self, plan, starter):
        if plan.key in self.done:
            raise RuntimeError("started already")
        self.done.add(plan.key)
        return starter.start(plan)


@launcher("act_may_be_repeated")
class LauncherThatBoasts(GoodLauncher):
    def act(self, plan, starter):
        return Launched(1)


@hanging(LauncherContract, "launcher", act_deadline_s=0.05)
class LauncherForEver(GoodLauncher):
    plan = act = for_ever


@given(LauncherContract, "launcher", "act_may_be_repeated", act_deadline_s=0.05)
class LauncherThatActsForEver(GoodLauncher):
    act = for_ever
