"""Frameworks and ranges of versions as they are written in a request."""

from collections.abc import Sequence

from gpulayer.errors import BadRequest
from gpulayer.spec.ranges import is_empty_range
from gpulayer.spec.request import FrameworkNeed

__all__ = ["check_range", "framework_need", "framework_needs"]


def framework_needs(texts: Sequence[str]) -> tuple[FrameworkNeed, ...]:
    """One that is named twice has to be in both ranges."""
    needs = tuple(framework_need(text) for text in texts)
    for name in {need.name for need in needs} if len(needs) > 1 else ():
        together = ",".join(need.specifier for need in needs if need.name == name and need.specifier)
        check_range(together, f"request.frameworks: {name}")
    return needs


def framework_need(text: str) -> FrameworkNeed:
    """``torch>=2.4`` to its name and specifier. Raises BadRequest that shows a right example."""
    from packaging.requirements import InvalidRequirement, Requirement  # noqa: PLC0415 - 40 ms, seldom needed

    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        requirement = None
    if requirement is None or requirement.extras or requirement.marker or requirement.url:
        raise BadRequest(f"request.frameworks: {text!r} is not a framework", hint="write it like torch>=2.4 or jax")
    check_range(str(requirement.specifier), f"request.frameworks: {requirement.name}")
    return FrameworkNeed(requirement.name.lower(), str(requirement.specifier))


def check_range(text: str, where: str) -> None:
    """Raises BadRequest that shows a right example, also for a range that holds no version."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet  # noqa: PLC0415 - 40 ms, seldom needed

    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        raise BadRequest(f"{where}: {text!r} is not a version range", hint='write it like ">=8.0"') from None
    if is_empty_range(text):
        raise BadRequest(f"{where}: no version is {text}", hint='write a range that one can be in, like ">=8.0,<9.0"')
