"""The ``process`` launcher: the command as one process tree, in the work folder, with the job's environment.

What the environment gives comes first, then the job's own variables; what GPUlayer itself says is set over any plan.
"""

from typing import Final

from gpulayer.plugins.contracts.context import Context
from gpulayer.plugins.contracts.launcher import Launcher, LaunchPlan, LaunchSite, Machine
from gpulayer.plugins.hooks import API_VERSION, hookimpl
from gpulayer.spec.assignment import Assignment

__all__ = ["GPULAYER_API", "ProcessLauncher", "gpulayer_register_launchers"]

GPULAYER_API: Final = API_VERSION


@hookimpl
def gpulayer_register_launchers(ctx: Context) -> list[Launcher]:
    """The process launcher."""
    return [ProcessLauncher()]


class ProcessLauncher:
    """Plans without IO; starting goes through the spawner, so the job outlives the agent."""

    @property
    def name(self) -> str:
        return "process"

    def plan(self, attempt: Assignment, site: LaunchSite, machine: Machine) -> LaunchPlan:
        return LaunchPlan(
            key=str(attempt.key),
            argv=attempt.command,
            cwd=site.work_dir,
            env={**machine.variables, **dict(attempt.env)},
            log_path=site.log_path,
            exit_path=site.exit_path,
            err_path=site.err_path,
            log_bytes=attempt.limits.log_bytes,
        )
