"""The ``system`` environment: the worker's own, by an allow-list.

Of the worker's variables a job gets those that describe the machine and its user, never those of the worker's own
Python or its place in GPUlayer.
"""

from typing import Final

from gpulayer.plugins.contracts.context import Context
from gpulayer.plugins.contracts.environment import (
    BuildSite,
    Environment,
    EnvironmentBuilder,
    EnvironmentPlan,
    EnvironmentRequest,
)
from gpulayer.plugins.hooks import API_VERSION, hookimpl
from gpulayer.spec.capabilities import DEFAULT_ENVIRONMENT
from gpulayer.variables import is_handed_on

__all__ = ["GPULAYER_API", "SystemEnvironment", "gpulayer_register_environments"]

GPULAYER_API: Final = API_VERSION
DEFAULT_PATH: Final = "/usr/local/bin:/usr/bin:/bin"


@hookimpl
def gpulayer_register_environments(ctx: Context) -> list[EnvironmentBuilder]:
    """The system environment."""
    return [SystemEnvironment()]


class SystemEnvironment:
    """There is nothing to build."""

    @property
    def name(self) -> str:
        return DEFAULT_ENVIRONMENT

    def plan(self, request: EnvironmentRequest) -> EnvironmentPlan:
        return EnvironmentPlan()

    def build(self, plan: EnvironmentPlan, site: BuildSite) -> Environment:
        # Python holds back what it prints into a pipe; a job is watched while it runs.
        variables = {"PATH": DEFAULT_PATH, "PYTHONUNBUFFERED": "1"}
        variables |= {name: value for name, value in site.environment.items() if is_handed_on(name)}
        return Environment(variables)
