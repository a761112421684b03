"""Ignore files where git does not decide: ``.gitignore`` outside repositories, and ``.gpulayerignore`` everywhere.

Git's semantics, level by level: the deepest file with a matching line decides, within a file the last matching
line; a folder that is ignored is never looked into, so nothing below it can be taken back.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from pathspec import GitIgnoreSpec
from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

from gpulayer.staging.beneath import Path
from gpulayer.staging.git import IgnoredBy

__all__ = ["IgnoreRules", "Patterns"]

_BOM: Final = "\ufeff"


class Patterns:
    """The lines of one ignore file, or of ``--include`` and ``--exclude``."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._patterns: list[GitIgnoreSpecPattern] = []
        self._lines: list[tuple[int, str]] = []
        for number, line in enumerate(lines, start=1):
            try:
                pattern = GitIgnoreSpecPattern(line)
            except ValueError:
                continue  # git reads a malformed line as one that matches nothing
            if pattern.include is not None:
                self._patterns.append(pattern)
                self._lines.append((number, line.strip()))
        self._spec = GitIgnoreSpec(self._patterns)

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def match(self, path: Path, *, is_directory: bool) -> tuple[bool, int, str] | None:
        """(ignored, line number, line) of the deciding line, or None when no line matches."""
        result = self._spec.check_file("/".join(path) + ("/" if is_directory else ""))
        if result.include is None or result.index is None:
            return None
        return (result.include, *self._lines[result.index])

    def covers(self, path: Path, *, is_directory: bool) -> bool:
        """Whether the path or a folder above it matches."""
        if not self._patterns:
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
