"""Ignore files where git does not decide: ``.gitignore`` outside repositories, and ``.gpulayerignore`` everywhere.

Git's semantics, level by level: the deepest file with a matching line decides, within a file the last matching
line; a folder that is ignored is never looked into, so nothing below it can be taken back.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from gpulayer.staging.beneath import Path
from gpulayer.staging.git import IgnoredBy

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

__all__ = ["IgnoreRules", "Patterns"]

_BOM: Final = "\ufeff"


class Patterns:
    """The lines of one ignore file, or of ``--include`` and ``--exclude``."""

    _spec: "GitIgnoreSpec | None" = None

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines: list[tuple[int, str]] = []
        rules = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
        if not rules:
            return
        # Not at the top: most submits come from git folders, and need not wait for this import.
        from pathspec import GitIgnoreSpec  # noqa: PLC0415
        from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern  # noqa: PLC0415

        patterns: list[GitIgnoreSpecPattern] = []
        for number, line in rules:
            try:
                pattern = GitIgnoreSpecPattern(_trimmed(line))
            except ValueError:
                continue  # git reads a malformed line as one that matches nothing
            if pattern.include is not None:
                patterns.append(pattern)
                self._lines.append((number, line.strip()))
        self._spec = GitIgnoreSpec(patterns)

    def __bool__(self) -> bool:
        return bool(self._lines)

    def match(self, path: Path, *, is_directory: bool) -> tuple[bool, int, str] | None:
        """(ignored, line number, line) of the deciding line, or None when no line matches."""
        if self._spec is None:
            return None
        result = self._spec.check_file("/".join(path) + ("/" if is_directory else ""))
        if result.include is None or result.index is None:
            return None
        return (result.include, *self._lines[result.index])

    def covers(self, path: Path, *, is_directory: bool) -> bool:
        """Whether the path or a folder above it matches."""
        if not self._lines:
            return False
        for length in range(1, len(path) + 1):
            found = self.match(path[:length], is_directory=is_directory or length < len(path))
            if found is not None and found[0]:
                return True
        return False


@dataclass(frozen=True, slots=True)
class IgnoreRules:
    """The ignore files from the top down to one folder."""

    levels: tuple[tuple[Path, str, Patterns], ...] = field(default=())

    def with_file(self, folder: Path, name: str, content: bytes) -> "IgnoreRules":
        """These rules and the ignore file ``name`` found in ``folder``."""
        patterns = Patterns(content.decode("utf-8", "surrogateescape").removeprefix(_BOM).split("\n"))
        if not patterns:
            return self
        return IgnoreRules((*self.levels, (folder, name, patterns)))

    def ignored_by(self, path: Path, *, is_directory: bool) -> IgnoredBy | None:
        """The rule that ignores this path, whose folders are known not to be ignored."""
        for folder, name, patterns in reversed(self.levels):
            found = patterns.match(path[len(folder) :], is_directory=is_directory)
            if found is not None:
                ignored, number, line = found
                return IgnoredBy(f"{'/'.join((*folder, name))}:{number}", line) if ignored else None
        return None


def _trimmed(line: str) -> str:
    """Without trailing spaces, save an escaped one; pathspec keeps all of them when one is escaped, git does not."""
    line = line.removesuffix("\r")
    end = len(line)
    while end and line[end - 1] == " ":
        before = line[: end - 1]
        if (len(before) - len(before.rstrip("\\"))) % 2:
            break
        end -= 1
    return line[:end]
