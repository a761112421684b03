"""``--output`` patterns: which paths below a work folder they choose. Pure.

``*``, ``?`` and ``[…]`` stay within a name, ``**`` spans folders, and a pattern that names a folder chooses all below
it. A pattern comes from whoever submits and is matched by the worker, so matching takes a bounded time whatever the
pattern is: names are matched without backtracking, paths by the set of positions that a pattern can be at.
"""

import re
from collections.abc import Sequence
from typing import Final

from gpulayer.errors import UsageError

__all__ = ["Glob"]

_SPAN: Final = None  # the part "**": any number of names


class Glob:
    """One pattern. Raises UsageError for one that is absolute, climbs, or can't be read."""

    def __init__(self, pattern: str) -> None:
        self.names = _components(pattern)
        parts: list[re.Pattern[str] | None] = []
        for name in self.names:
            if name != "**":
                parts.append(_compiled(name, pattern))
            elif not parts or parts[-1] is not _SPAN:  # two in a row say no more than one
                parts.append(_SPAN)
        self._parts = tuple(parts)

    def match(self, path: Sequence[str]) -> bool:
        """Whether it chooses the path, or a folder above it."""
        positions = self._past_spans({0})
        for name in path:
            if len(self._parts) in positions:
                return True
            ahead: set[int] = set()
            for position in positions:
                part = self._parts[position]
                if part is _SPAN:
                    ahead.add(position)
                    if position == len(self._parts) - 1:
                        return True  # "a/**" is all below a, but not a itself
                elif part.fullmatch(name):
                    ahead.add(position + 1)
            positions = self._past_spans(ahead)
        return len(self._parts) in positions

    def _past_spans(self, positions: set[int]) -> set[int]:
        """A span may be empty, save at the end."""
        last = len(self._parts) - 1
        return positions | {at + 1 for at in positions if at < last and self._parts[at] is _SPAN}


def _components(pattern: str) -> tuple[str, ...]:
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    if pattern.startswith("/") or ".." in parts or "\0" in pattern:
        raise UsageError(
            f"--output {pattern!r} must be relative to the work folder and stay inside it",
            hint="write results below the work folder, or to $GPULAYER_OUTPUT_DIR",
        )
    return tuple(parts) or ("**",)


def _compiled(name: str, pattern: str) -> re.Pattern[str]:
    head, *rest = _runs(name)
    made = head
    if rest:
        # The first place where a middle run fits is as good as any later one, so it is never taken back: (?>…).
        made += "".join(f"(?>.*?{run})" for run in rest[:-1] if run) + ".*" + rest[-1]
    try:
        return re.compile(made, re.DOTALL)
    except re.error as error:
        raise UsageError(f"--output {pattern}: not a pattern ({error})") from None


def _runs(name: str) -> list[str]:
    """The expressions of what stands between the ``*`` of a name, each of a fixed length."""
    runs, position = [""], 0
    while position < len(name):
        character = name[position]
        position += 1
        if character == "*":
            runs.append("")
        elif character == "?":
            runs[-1] += "."
        elif (
            character == "["
            and (end := name.find("]", position + 2 if name[position : position + 1] == "!" else position + 1)) > 0
        ):
            inner = name[position:end]
            negated = inner.startswith("!")
            body = re.sub(r"([\\\[\]^&~|])", r"\\\1", inner[1:] if negated else inner).replace("--", r"-\-")
            runs[-1] += f"[{'^' if negated else ''}{body}]"
            position = end + 1
        else:
            runs[-1] += re.escape(character)
    return runs
