"""A word of the wire as one of the choices that there are."""

from enum import StrEnum
from typing import TypeVar

from gpulayer.errors import BadRequest

__all__ = ["choice"]

_Choice = TypeVar("_Choice", bound=StrEnum)


def choice(kind: type[_Choice], text: str, where: str) -> _Choice:
    """Raises BadRequest that names the field."""
    if isinstance(text, kind):
        return text  # a default
    try:
        return kind(text)
    except ValueError:
        known = ", ".join(kind)
        raise BadRequest(f"{where}: {text!r} is unknown", hint=f"one of {known}") from None
