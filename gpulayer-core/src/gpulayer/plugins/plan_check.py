"""What a launch plan must be to be carried out anywhere: the same for the worker, and for whoever only checks.

It runs the plugin's own objects, so it belongs inside the guard, or into a child. What GPUlayer itself says to a
program is no matter here.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from gpulayer.plugins.contracts.launcher import LaunchPlan, LaunchSite
from gpulayer.plugins.results import instance_of, list_of
from gpulayer.spec.assignment import Assignment

__all__ = ["checked_variables", "checked_word", "plan_as_given"]

# More than a job may have: what its user asks for is no fault of a plugin.
_MAX_WORDS: Final = 1_000_000
_MAX_VARIABLES: Final = 20_000


def plan_as_given(value: object, assignment: Assignment, site: LaunchSite) -> LaunchPlan:
    """The plan, value by value. Raises TypeError and ValueError for one that is not of this attempt, names other files,
    or can't be started anywhere."""
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
    argv = tuple(checked_word("a word of the command", word) for word in list_of(str, plan.argv, at_most=_MAX_WORDS))
    if not argv:
        raise ValueError("its plan has no program")
    return LaunchPlan(
        key=str(assignment.key),
        argv=argv,
        cwd=cwd,
        env=checked_variables(plan.env),
        log_path=site.log_path,
        exit_path=site.exit_path,
        err_path=site.err_path,
        log_bytes=assignment.limits.log_bytes,
    )


def checked_variables(value: object) -> Mapping[str, str]:
    """A copy that nobody changes. Raises TypeError and ValueError for what no program can be started with."""
    if not isinstance(value, Mapping):
        raise TypeError(f"it gave a {type(value).__name__} where variables are due")
    variables: dict[str, str] = {}
    for name, text in value.items():
        if len(variables) >= _MAX_VARIABLES:
            raise ValueError(f"it gave more than {_MAX_VARIABLES:,} variables")
        plain = checked_word("the name of a variable", name)
        if not plain or "=" in plain:
            raise ValueError(f"{plain[:60]!r} can't name a variable")
        variables[plain] = checked_word(f"variable {plain[:60]}", text)
    return MappingProxyType(variables)


def checked_word(name: str, value: object) -> str:
    """Text that a program can be given. Raises TypeError and ValueError for others."""
    text = str(instance_of(str, value))
    if "\0" in text:
        raise ValueError(f"{name} holds a NUL")
    if not text.isascii():
        os.fsencode(text)  # what no program can be given
    return text


def _shown(key: object) -> str:
    """What is no text is told from a text that looks the same."""
    return repr(key[:60]) if type(key) is str else f"a {type(key).__name__}"
