"""A launch plan as it is carried out: taken value by value from somebody else's code, and what GPUlayer says set last.

It names this attempt and its files. What GPUlayer itself says to a program (who it is, where its inputs lie, which
devices it sees) is set here and in no other place, so that no launcher and no job shows itself a device that it does
not hold. Pure, but for the plugin's own objects: to be called inside the guard.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from gpulayer.plugins.contracts.launcher import LaunchPlan, LaunchSite, Machine
from gpulayer.plugins.plan_check import checked_variables, checked_word, plan_as_given
from gpulayer.spec.assignment import Assignment
from gpulayer.spec.capabilities import input_variable
from gpulayer.spec.machine import WorkerFacts
from gpulayer.variables import DEVICE_VARIABLES
from gpulayer.worker.devices import device_variables

__all__ = ["check_words", "checked_plan", "checked_variables", "with_secrets"]

_OURS: Final = frozenset({"GPULAYER_JOB_ID", "GPULAYER_ATTEMPT", "GPULAYER_OUTPUT_DIR"})
_INPUT: Final = input_variable("")


def checked_plan(value: object, assignment: Assignment, site: LaunchSite, machine: Machine) -> LaunchPlan:
    """The plan as it is carried out. Raises TypeError and ValueError for one that is not of this attempt, names other
    files, or can't be started anywhere."""
    plan = plan_as_given(value, assignment, site)
    env = {name: text for name, text in plan.env.items() if name not in DEVICE_VARIABLES}
    env |= _own_variables(assignment, site, machine.facts)
    return replace(plan, env=env)


def check_words(assignment: Assignment) -> None:
    """Raises ValueError where its user asks for what no program can be started with."""
    for _, text in (*enumerate(assignment.command), *assignment.env):
        checked_word("its command or a variable of it", text)


def with_secrets(plan: LaunchPlan, secrets: Mapping[str, str]) -> Mapping[str, str]:
    """The variables of the program: those of the plan, and over them what it alone sees; never over what GPUlayer says.

    plan: a checked one.
    """
    ours = {name for name in plan.env if name in _OURS or name.startswith(_INPUT)}
    return {**plan.env, **{name: text for name, text in secrets.items() if name not in ours | DEVICE_VARIABLES}}


def _own_variables(assignment: Assignment, site: LaunchSite, facts: WorkerFacts) -> Mapping[str, str]:
    held = set(assignment.devices)
    return {
        **{input_variable(name): str(path) for name, path in site.inputs},
        "GPULAYER_JOB_ID": assignment.job_id,
        "GPULAYER_ATTEMPT": str(assignment.attempt),
        "GPULAYER_OUTPUT_DIR": str(site.output_dir),
        **device_variables([device for device in facts.devices if device.uuid in held]),
    }
