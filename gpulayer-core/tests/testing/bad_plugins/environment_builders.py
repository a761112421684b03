"""Builders of environments."""

import time

from bad_plugins.caught import for_ever, given, hanging
from gpulayer.plugins import Environment, EnvironmentPlan
from gpulayer.plugins.contracts.environment import ENVIRONMENT_PLAN_DEADLINE_S
from gpulayer.testing import EnvironmentBuilderContract


def builder(test):
    return given(EnvironmentBuilderContract, "builder", test)


@given(EnvironmentBuilderContract, "builder")
class GoodBuilder:
    name = "good"

    def plan(self, request):
        return EnvironmentPlan("all", ())

    def build(self, plan, site):
        return Environment({"PATH": "/bin"})


@builder("plain_name")
class BuilderOfNoName(GoodBuilder):
    name = ""


@given(EnvironmentBuilderContract, "builder", "within_its_deadline", deadline_s=EnvironmentBuilderContract.deadline_s)
class BuilderThatPonders(GoodBuilder):
    """A build may take that long, a plan may not."""

    def plan(self, request):
        time.sleep(ENVIRONMENT_PLAN_DEADLINE_S + 1)
        return super().plan(request)


@hanging(EnvironmentBuilderContract, "builder")
class BuilderThatPlansForEver(GoodBuilder):
    plan = for_ever


PLANS = ("it_answers", "prints", "whole_process", "equal_plans", "a_plan", "empty_work_folder")


@hanging(EnvironmentBuilderContract, "builder", *PLANS, deadline_s=0.5, build_deadline_s=0.05)
class BuilderForEver(GoodBuilder):
    build = for_ever


@builder("equal_plans")
class BuilderByPlace(GoodBuilder):
    def plan(self, request):
        return EnvironmentPlan(str(request.work_dir), ())


@builder("changes_nothing_in_the_work_folder")
class BuilderThatLocks(GoodBuilder):
    def plan(self, request):
        (request.work_dir / "lock").touch()
        return EnvironmentPlan("all", ())


@builder("empty_work_folder")
class BuilderThatReads(GoodBuilder):
    def plan(self, request):
        return EnvironmentPlan(next(request.work_dir.iterdir()).name, ())


@builder("environment_for_programs")
class BuilderOfNumbers(GoodBuilder):
    def build(self, plan, site):
        return Environment({"OMP_NUM_THREADS": 1})


@builder("may_be_repeated")
class BuilderOfFirsts(GoodBuilder):
    def __init__(self):
        self.built = set()

    def build(self, plan, site):
        if plan.key not in self.built:
            self.built.add(plan.key)
            (site.folder / "venv").mkdir()
        return Environment({"PATH": ":".join(map(str, site.folder.iterdir()))})


@builder("nothing_to_keep")
class BuilderInTheWorkFolder(GoodBuilder):
    def plan(self, request):
        return EnvironmentPlan()

    def build(self, plan, site):
        (site.folder / "venv").mkdir()
        return Environment({})


@builder("credentials")
class BuilderThatTellsAll(GoodBuilder):
    def build(self, plan, site):
        return Environment(dict(site.environment))


@builder("changes_nothing_of_the_workers")
class BuilderThatTakes(GoodBuilder):
    def build(self, plan, site):
        site.environment.pop("HOME", None)
        return Environment({})


@builder("cancelled")
class BuilderThatStops(GoodBuilder):
    def build(self, plan, site):
        return None if site.is_cancelled() else Environment({})
