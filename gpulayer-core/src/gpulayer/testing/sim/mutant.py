"""What a planted fault is: one function of the product replaced by a broken one."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["Mutant", "Patch", "StaleMutant"]

# Any: a mutant replaces functions of many signatures, and passes their arguments on as they come.
Patch = Callable[[Any], Any]


class StaleMutant(Exception):
    """The product's code has changed, and the mutant does not fit it: it is to be written anew. Never a find."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """``promise``: the one of PROMISES that it breaks. ``owner.attribute`` is replaced by what ``patch`` makes of it;
    the first line of its docstring says what is wrong then. unseen: why nobody has noticed it yet."""

    promise: int
    owner: object
    attribute: str
    patch: Patch
    unseen: str = ""

    @property
    def text(self) -> str:
        """What is wrong with it, for people."""
        return (self.patch.__doc__ or "").strip().partition("\n")[0]

    def made(self) -> tuple[Any, Any]:
        """The sound function and the broken one, which takes the same parameters."""
        sound = getattr(self.owner, self.attribute, None)
        owner = getattr(self.owner, "__name__", repr(self.owner))
        if sound is None:
            raise StaleMutant(f"{owner} has no {self.attribute} any more")
        broken = self.patch(sound)
        if not _fits(inspect.signature(broken), inspect.signature(sound)):
            raise StaleMutant(
                f"{owner}.{self.attribute}{inspect.signature(sound)} is replaced by one that takes"
                f" {inspect.signature(broken)}"
            )
        return sound, broken


def _fits(broken: inspect.Signature, sound: inspect.Signature) -> bool:
    """By name and kind; what is taken as ``*args`` and passed on fits anything from there on."""
    wanted, found = list(sound.parameters.values()), list(broken.parameters.values())
    for place, ours in enumerate(found):
        if ours.kind is ours.VAR_POSITIONAL:
            return True
        if place >= len(wanted) or (ours.name, ours.kind) != (wanted[place].name, wanted[place].kind):
            return False
    return len(found) == len(wanted)
