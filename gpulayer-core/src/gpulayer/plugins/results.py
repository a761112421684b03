"""Checks of what plugins give back: of the right type, of a bearable size. They raise TypeError and ValueError, which
the guard counts as faults; so they belong inside the call."""

from collections.abc import Iterable
from typing import TypeVar

__all__ = ["instance_of", "list_of"]

T = TypeVar("T")


def instance_of(kind: type[T], value: object) -> T:
    """The value itself, if it is one. Raises TypeError."""
    if not isinstance(value, kind):
        raise TypeError(f"it gave {_shown(value)} where {kind.__name__} is due")
    return value


def list_of(kind: type[T], values: object, *, at_most: int) -> list[T]:
    """All of them, read once. Raises TypeError for what is no list of these, ValueError for too many."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise TypeError(f"it gave {_shown(values)} where a list of {kind.__name__} is due")
    found: list[T] = []
    for value in values:
        if len(found) >= at_most:
            raise ValueError(f"it gave more than {at_most:,} {kind.__name__}")
        found.append(instance_of(kind, value))
    return found


def _shown(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
