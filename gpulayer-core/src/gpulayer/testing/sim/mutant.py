"""What a planted fault is: one function of the product replaced by a broken one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["Mutant", "Patch"]

# Any: a mutant replaces functions of many signatures, and passes their arguments on as they come.
Patch = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Mutant:
    """``promise``: the one of PROMISES that it breaks. ``owner.attribute`` is replaced by what ``patch`` makes of it;
    the first line of its docstring says what is wrong then."""

    promise: int
    owner: object
    attribute: str
    patch: Patch

    @property
    def text(self) -> str:
        """What is wrong with it, for people."""
        return (self.patch.__doc__ or "").strip().partition("\n")[0]
