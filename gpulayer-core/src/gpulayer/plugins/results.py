"""Checks of what plugins give back: of the right type, of a bearable size. They raise TypeError and ValueError, which
the guard counts as faults; so they belong inside the call."""

from collections.abc import Iterable
from typing import TypeVar

__all__ = ["instance_of", "list_of", "shown"]

T = TypeVar("T")


def instance_of(kind: type[T], value: object) -> T:
    """The value itself, if it is one. Raises TypeError."""
    if not isinstance(value, kind):
        raise TypeError(f"it gave {shown(value)} where {kind.__name__} is due")
    return value


def list_of(kind: type[T], values: object, *, at_most: int, what: str = "") -> list[T]:
    """All of them, read once; never more than ``at_most`` and one. what: a better word for them than the type's name.

    Raises TypeError for what is no list of these, ValueError for too many.
    """
    what = what or kind.__name__
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise TypeError(f"it gave {shown(values)} where a list of {what} is due")
    found: list[T] = []
    for value in values:
        if len(found) >= at_most:
            raise ValueError(f"it gave more than {at_most:,} {what}")
        found.append(instance_of(kind, value))
    return found


def shown(value: object) -> str:
    """What it is, for people; none of its code is asked."""
    return "None" if value is None else f"a {type(value).__name__}"
