"""A launch plan as it is carried out: taken value by value from somebody else's code, and what GPUlayer says set last.

It names this attempt and its files. What GPUlayer itself says to a program (who it is, where its inputs lie, which
devices it sees) is set here and in no other place, so that no launcher and no job shows itself a device that it does
not hold. Pure, but for the plugin's own objects: to be called inside the guard.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from gpulayer.plugins.contracts.launcher import LaunchPlan, LaunchSite, Machine
from gpulayer.plugins.results import instance_of, list_of
from gpulayer.spec.assignment import Assignment
from gpulayer.spec.capabilities import input_variable
from gpulayer.spec.machine import WorkerFacts
from gpulayer.worker.devices import DEVICE_VARIABLES, device_variables

__all__ = ["check_words", "checked_plan", "checked_variables", "with_secrets"]

# More than a job may have: what its user asks for is no fault of a plugin.
_MAX_WORDS: Final = 1_000_000
_MAX_VARIABLES: Final = 20_000
_OURS: Final = frozenset({"GPULAYER_JOB_ID", "GPULAYER_ATTEMPT", "GPULAYER_OUTPUT_DIR"})
_INPUT: Final = input_variable("")


def checked_plan(value: object, assignment: Assignment, site: LaunchSite, machine: Machine) -> LaunchPlan:
    """The plan as it is carried out. Raises TypeError and ValueError for one that is not of this attempt, names other
    files, or can't be started anywhere."""
    plan = instance_of(LaunchPlan, value)
    if plan.key != str(assignment.key):
        raise ValueError(
            f"its plan has the key {_shown(plan.key)}, where str(attempt.key) is due: {str(assignment.key)!r}"
        )
    if (plan.log_path, plan.exit_path, plan.err_path) != (site.log_path, site.exit_path, site.err_path):
        raise ValueError("its plan names other files for log and end than it was given")
    cwd = Path(os.fspath(instance_of(Path, plan.cwd)))
    if not cwd.is_relative_to(site.work_dir) or ".." in cwd.parts:
        raise ValueError(f"its plan starts in {str(cwd)[:200]}, which is not in the work folder")
    argv = tuple(_word("a word of the command", word) for word in list_of(str, plan.argv, at_most=_MAX_WORDS))
    if not argv:
        raise ValueError("its plan has no program")
    env = {name: text for name, text in checked_variables(plan.env).items() if name not in DEVICE_VARIABLES}
    env |= _own_variables(assignment, site, machine.facts)
    return LaunchPlan(
        key=str(assignment.key),
        argv=argv,
        cwd=cwd,
        env=env,
        log_path=site.log_path,
        exit_path=site.exit_path,
        err_path=site.err_path,
        log_bytes=assignment.limits.log_bytes,
    )


def check_words(assignment: Assignment) -> None:
    """Raises ValueError where its user asks for what no program can be started with."""
    for _, text in (*enumerate(assignment.command), *assignment.env):
        _word("its command or a variable of it", text)


def with_secrets(plan: LaunchPlan, secrets: Mapping[str, str]) -> Mapping[str, str]:
    """The variables of the program: those of the plan, and over them what it alone sees; never over what GPUlayer says.

    plan: a checked one.
    """
    ours = {name for name in plan.env if name in _OURS or name.startswith(_INPUT)}
    return {**plan.env, **{name: text for name, text in secrets.items() if name not in ours | DEVICE_VARIABLES}}


def checked_variables(value: object) -> Mapping[str, str]:
    """A copy that nobody changes. Raises TypeError and ValueError for what no program can be started with."""
    if not isinstance(value, Mapping):
        raise TypeError(f"it gave a {type(value).__name__} where variables are due")
    variables: dict[str, str] = {}
    for name, text in value.items():
        if len(variables) >= _MAX_VARIABLES:
            raise ValueError(f"it gave more than {_MAX_VARIABLES:,} variables")
        plain = _word("the name of a variable", name)
        if not plain or "=" in plain:
            raise ValueError(f"{plain[:60]!r} can't name a variable")
        variables[plain] = _word(f"variable {plain[:60]}", text)
    return MappingProxyType(variables)


def _own_variables(assignment: Assignment, site: LaunchSite, facts: WorkerFacts) -> Mapping[str, str]:
    held = set(assignment.devices)
    return {
        **{input_variable(name): str(path) for name, path in site.inputs},
        "GPULAYER_JOB_ID": assignment.job_id,
        "GPULAYER_ATTEMPT": str(assignment.attempt),
        "GPULAYER_OUTPUT_DIR": str(site.output_dir),
        **device_variables([device for device in facts.devices if device.uuid in held]),
    }


def _shown(key: object) -> str:
    """What is no text is told from a text that looks the same."""
    return repr(key[:60]) if type(key) is str else f"a {type(key).__name__}"


def _word(name: str, value: object) -> str:
    text = str(instance_of(str, value))
    if "\0" in text:
        raise ValueError(f"{name} holds a NUL")
    if not text.isascii():
        os.fsencode(text)  # what no program can be given
    return text
