"""Ignore files where git does not decide: ``.gitignore`` outside repositories, and ``.gpulayerignore`` everywhere.

Git's semantics, level by level: the deepest file with a matching line decides, within a file the last matching
line; a folder that is ignored is never looked into, so nothing below it can be taken back.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from gpulayer.staging.beneath import Path
from gpulayer.staging.git import IgnoredBy

__all__ = ["IgnoreRules", "Patterns"]

_BOM: Final = "\ufeff"


@dataclass(frozen=True, slots=True)
class _Rule:
    """One line. pathspec compiles it; which line decides is ours to say, for it lets file matches win over folders."""

    number: int
    line: str
    regex: re.Pattern[str]
    ignores: bool
    is_folder_only: bool

    def matches(self, text: str, is_directory: bool) -> bool:
        if self.is_folder_only and not is_directory:
            return False
        found = self.regex.match(text)
        # With ps_d only a folder above matched, and what that means was decided when the folder was looked at.
        return found is not None and not found.groupdict().get("ps_d")


class Patterns:
    """The lines of one ignore file, or of ``--include`` and ``--exclude``."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._rules: list[_Rule] = []  # last line first
        for number, line in enumerate(lines, start=1):
            rule = _compiled(number, line)
            if rule is not None:
                self._rules.insert(0, rule)

    def __bool__(self) -> bool:
        return bool(self._rules)

    def match(self, path: Path, *, is_directory: bool) -> tuple[bool, int, str] | None:
        """(ignored, line number, line) of the deciding line, or None when no line matches this very path."""
        text = "/".join(path)
        for rule in self._rules:
            if rule.matches(text, is_directory):
                return rule.ignores, rule.number, rule.line
        return None

    def covers(self, path: Path, *, is_directory: bool) -> bool:
        """Whether the path or a folder above it matches."""
        if not self._rules:
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


def _compiled(number: int, line: str) -> _Rule | None:
    text = _trimmed(line)
    if not text or text.startswith("#"):
        return None
    # Not at the top: most submits come from git folders, and need not wait for this import.
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern  # noqa: PLC0415

    is_folder_only = text.endswith("/")
    try:
        # Without its last slash, which says what is matched and not how: "a/**/" means folders that "a/**" matches.
        pattern = GitIgnoreSpecPattern(text.removesuffix("/"))
    except ValueError:
        return None  # git reads a malformed line as one that matches nothing
    if pattern.include is None or pattern.regex is None:
        return None
    return _Rule(number, text, pattern.regex, pattern.include, is_folder_only)


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
