"""What ships of a folder, decided before anything is read or sent.

In a git folder exactly the files of ``git ls-files -co --exclude-standard`` that exist, in each submodule and nested
clone by itself; elsewhere (or without git) what ``.gitignore`` files leave. ``.gpulayerignore`` files leave out
more in both. ``--include`` takes back what a rule left out, ``--exclude`` leaves out and wins over all.
Empty folders that no rule ignores ship too. ``.git`` and ``gpulayer_runs/`` never ship; sockets, FIFOs and devices
are named and never opened; links that lead outside are named and left out.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Final

from gpulayer.errors import BadRequest, TooLarge, UsageError
from gpulayer.spec.tree import EntryKind, check_symlink
from gpulayer.spec.units import format_bytes
from gpulayer.staging.beneath import Beneath, Found, Path, shown
from gpulayer.staging.git import GitListing, IgnoredBy, check_ignored, head_commit, is_dirty, list_files
from gpulayer.staging.ignore import IgnoreRules, Patterns
from gpulayer.staging.limits import DEFAULT_LIMITS, TreeLimits

__all__ = ["RUNS_FOLDER", "LeftOut", "Scan", "named", "scan_source"]

RUNS_FOLDER: Final = "gpulayer_runs"
_OWN_IGNORE_FILE: Final = ".gpulayerignore"
_MAX_IGNORE_FILE: Final = 1024 * 1024
_COUNTED: Final = 20_000  # how many names below ignored folders are looked at just to say how many they are


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What one rule left out. ``at_least``: there is more, which was not counted."""

    rule: str
    files: int
    size_bytes: int
    largest: str
    largest_bytes: int
    at_least: bool = False

    def __str__(self) -> str:
        more = "at least " if self.at_least else ""
        files = f"{self.files:,} file" + ("" if self.files == 1 else "s")
        largest = f", largest {self.largest} ({format_bytes(self.largest_bytes)})" if self.largest else ""
        return f"{more}{files} ({format_bytes(self.size_bytes)}) by {self.rule}{largest}"


@dataclass(frozen=True, slots=True)
class Scan:
    """The answer. ``entries``: files, links and folders that ship, sorted by path, each after its folder."""

    root: FilePath
    entries: tuple[Found, ...]
    files: int
    size_bytes: int
    specials: tuple[Path, ...]
    left_out: tuple[LeftOut, ...]
    commit: str
    dirty: bool
    warnings: tuple[str, ...]


def scan_source(
    root: str | os.PathLike[str],
    *,
    environment: Mapping[str, str],
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    limits: TreeLimits = DEFAULT_LIMITS,
) -> Scan:
    """Decide what ships. ``environment`` is for git; ``include`` and ``exclude`` are lines as in ``.gitignore``.

    Raises UsageError (no such folder, a file, a folder that can't be listed) and TooLarge, which names limit, size,
    count and the five largest folders.
    """
    folder = FilePath(root)
    try:
        beneath = Beneath(folder)
    except FileNotFoundError:
        raise UsageError(
            f"source folder {folder} does not exist", hint="name an existing folder with --source"
        ) from None
    except NotADirectoryError:
        raise UsageError(
            f"source {folder} is a file, not a folder",
            hint=f"ship its folder with --source {folder.parent}, or one file with --include",
        ) from None
    except OSError as error:
        raise UsageError(f"source folder {folder} can't be opened: {error.strerror}") from None
    with beneath:
        scanner = _Scanner(beneath, folder, environment, Patterns(include), Patterns(exclude), limits)
        scanner.run()
        return scanner.result()


def named(paths: Iterable[str], limit: int = 10) -> str:
    """``a, b and 3 more``."""
    known = list(paths)
    more = f" and {len(known) - limit:,} more" if len(known) > limit else ""
    return ", ".join(known[:limit]) + more


@dataclass(frozen=True, slots=True)
class _Repository:
    """One repository's view of the folder ``base`` (and of what lies below, up to the next repository)."""

    base: Path
    listing: GitListing
    parents: frozenset[str]

    def relative(self, path: Path) -> str:
        return "/".join(path[len(self.base) :])


_Rules = _Repository | IgnoreRules


@dataclass(slots=True)
class _Tally:
    files: int = 0
    size_bytes: int = 0
    largest: Path = ()
    largest_bytes: int = -1
    at_least: bool = False


@dataclass(slots=True)
class _Scanner:
    beneath: Beneath
    root: FilePath
    environment: Mapping[str, str]
    include: Patterns
    exclude: Patterns
    limits: TreeLimits

    shipped: list[Found] = field(default_factory=list)
    folders: dict[Path, Found] = field(default_factory=dict)
    kept_folders: set[Path] = field(default_factory=set)
    specials: list[Path] = field(default_factory=list)
    outside: list[Path] = field(default_factory=list)
    tallies: dict[str, _Tally] = field(default_factory=dict)
    unlisted: list[tuple[Found, _Repository, IgnoreRules]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    commit: str = ""
    dirty: bool = False
    budget: int = _COUNTED

    def run(self) -> None:
        rules = self._rules_of(())
        if isinstance(rules, _Repository):
            self.commit = head_commit(str(self.root), self.environment)
            self.dirty = rules.listing.has_untracked or is_dirty(str(self.root), self.environment)
        self._folder((), rules, IgnoreRules())
        while self.unlisted:
            self._ask_git()

    def _rules_of(self, path: Path) -> _Rules:
        listing = list_files(os.path.join(self.root, *path), self.environment)
        if listing is None:
            if any(found.path[-1] == ".git" for found in self._listing(path)):
                where = shown(path) or "this folder"
                self.warnings.append(f"git could not list {where}: its .gitignore files alone decide what ships")
            return IgnoreRules()
        parents: set[str] = set()
        for name in (*listing.files, *listing.nested):
            while (cut := name.rfind("/")) > 0 and (name := name[:cut]) not in parents:
                parents.add(name)
        return _Repository(path, listing, frozenset(parents))

    def _folder(self, path: Path, rules: _Rules, extra: IgnoreRules) -> None:
        self._check_depth(path)
        listing = self._listing(path)
        for found in listing:
            if found.kind is EntryKind.FILE and found.path[-1] == _OWN_IGNORE_FILE:
                extra = extra.with_file(path, _OWN_IGNORE_FILE, self._read(found))
            elif found.kind is EntryKind.FILE and found.path[-1] == ".gitignore" and isinstance(rules, IgnoreRules):
                rules = rules.with_file(path, ".gitignore", self._read(found))
        is_empty = True
        for found in listing:
            if self._never_ships(found):
                continue
            is_empty = False
            is_directory = found.kind is EntryKind.DIRECTORY
            if self._excluded(found):
                continue
            by = extra.ignored_by(found.path, is_directory=is_directory)
            if by is None and isinstance(rules, IgnoreRules):
                by = rules.ignored_by(found.path, is_directory=is_directory)
            if by is not None:
                self._leave_out(found, by)
            elif isinstance(rules, IgnoreRules):
                self._take(found, rules, extra)
            else:
                self._take_listed(found, rules, extra)
        if is_empty and path:
            self.kept_folders.add(path)

    def _take(self, found: Found, rules: _Rules, extra: IgnoreRules) -> None:
        if found.kind is EntryKind.DIRECTORY:
            self._folder(found.path, rules, extra)
        else:
            self._ship(found)

    def _take_listed(self, found: Found, rules: _Repository, extra: IgnoreRules) -> None:
        name = rules.relative(found.path)
        if found.kind is not EntryKind.DIRECTORY:
            if name in rules.listing.files:
                self._ship(found)
            else:
                self.unlisted.append((found, rules, extra))
        elif name in rules.parents:
            self._folder(found.path, rules, extra)
        elif name in rules.listing.nested or name in rules.listing.files:
            # A submodule or a clone. One that was never checked out has no .git, and git would answer for the parent.
            is_repository = any(child.path[-1] == ".git" for child in self._listing(found.path))
            self._folder(found.path, self._rules_of(found.path) if is_repository else IgnoreRules(), extra)
        else:
            self.unlisted.append((found, rules, extra))

    def _ask_git(self) -> None:
        """Names that git does not list are ignored, and it says why, or are folders without files."""
        asked, self.unlisted = self.unlisted, []
        by_base: dict[Path, list[tuple[Found, _Repository, IgnoreRules]]] = {}
        for item in asked:
            by_base.setdefault(item[1].base, []).append(item)
        for base, items in by_base.items():
            answers = check_ignored(
                os.path.join(self.root, *base),
                self.environment,
                [repository.relative(found.path) for found, repository, _ in items],
            )
            for found, repository, extra in items:
                by = answers.get(repository.relative(found.path))
                if by is None and found.kind is EntryKind.DIRECTORY:
                    self._folder(found.path, repository, extra)
                else:
                    self._leave_out(found, by or IgnoredBy("git", "not listed"))

    def _leave_out(self, found: Found, by: IgnoredBy) -> None:
        rule = f"{by.source} ({by.pattern})"
        if found.kind is not EntryKind.DIRECTORY:
            self._include_or_count(found, rule)
            return
        self._include_or_count(found, rule)
        for below in self.beneath.walk(start=found.path, enter=self._may_enter, unreadable=lambda path, error: None):
            if not self.include:
                self.budget -= 1
                if self.budget < 0:
                    self._tally(rule).at_least = True
                    return
            if below.kind is not None and not self._never_ships(below) and not self._excluded(below):
                self._include_or_count(below, rule)

    def _may_enter(self, found: Found) -> bool:
        if len(found.path) >= self.limits.depth or found.path[-1] in (".git", RUNS_FOLDER):
            return False
        return not self.exclude.covers(found.path, is_directory=True)

    def _include_or_count(self, found: Found, rule: str) -> None:
        is_directory = found.kind is EntryKind.DIRECTORY
        if is_directory:
            self.folders[found.path] = found
        if self.include.covers(found.path, is_directory=is_directory):
            if is_directory:
                self.kept_folders.add(found.path)
            else:
                self._ship(found)
        elif not is_directory:
            self._count(found, rule)

    def _excluded(self, found: Found) -> bool:
        is_directory = found.kind is EntryKind.DIRECTORY
        answer = self.exclude.match(found.path, is_directory=is_directory)
        if answer is None or not answer[0]:
            return False
        rule = f"--exclude {answer[2]}"
        if is_directory:
            self._tally(rule)
            for below in self.beneath.walk(start=found.path, unreadable=lambda path, error: None):
                self.budget -= 1
                if self.budget < 0:
                    self._tally(rule).at_least = True
                    break
                if below.kind not in (None, EntryKind.DIRECTORY):
                    self._count(below, rule)
        else:
            self._count(found, rule)
        return True

    def _never_ships(self, found: Found) -> bool:
        if found.path[-1] == ".git":
            return True
        if found.kind is None:
            self.specials.append(found.path)
            return True
        if found.kind is EntryKind.DIRECTORY:
            if found.path[-1] == RUNS_FOLDER:
                return True
            self.folders[found.path] = found
        return False

    def _ship(self, found: Found) -> None:
        if found.kind is EntryKind.SYMLINK:
            try:
                check_symlink(found.path, found.target)
            except BadRequest:
                self.outside.append(found.path)
                return
        self.shipped.append(found)

    def _tally(self, rule: str) -> _Tally:
        return self.tallies.setdefault(rule, _Tally())

    def _count(self, found: Found, rule: str) -> None:
        tally = self._tally(rule)
        tally.files += 1
        tally.size_bytes += found.size
        if found.size > tally.largest_bytes:
            tally.largest, tally.largest_bytes = found.path, found.size

    def _listing(self, path: Path) -> list[Found]:
        try:
            return self.beneath.listing(path)
        except OSError as error:
            raise UsageError(
                f"folder {os.path.join(self.root, *path)} can't be listed: {error.strerror}",
                hint="leave it out with --exclude, or make it readable",
            ) from None

    def _read(self, found: Found) -> bytes:
        try:
            descriptor = self.beneath.open_file(found.path)
            with open(descriptor, "rb") as file:
                return file.read(_MAX_IGNORE_FILE)
        except OSError as error:
            raise UsageError(f"{os.path.join(self.root, *found.path)} can't be read: {error.strerror}") from None

    def _check_depth(self, path: Path) -> None:
        if len(path) > self.limits.depth:
            raise TooLarge(
                f"folders below {shown(path[:3])} nest deeper than {self.limits.depth}",
                hint="leave them out with --exclude or .gpulayerignore",
            )

    def result(self) -> Scan:
        for found in self.shipped:
            self.kept_folders.add(found.path[:-1])
        for path in list(self.kept_folders):
            self.kept_folders.update(path[:length] for length in range(1, len(path)))
        self.kept_folders.discard(())
        self.shipped.extend(self.folders[path] for path in self.kept_folders)
        # Components compared one by one: a folder comes before all that lies in it.
        self.shipped.sort(key=lambda found: tuple(map(os.fsencode, found.path)))
        files = sum(found.kind is not EntryKind.DIRECTORY for found in self.shipped)
        size_bytes = sum(found.size for found in self.shipped)
        self._check_limits(files, size_bytes)
        if self.specials:
            self.specials.sort()
            self.warnings.append(f"skipped {named(map(shown, self.specials))}: sockets, pipes and devices do not ship")
        if self.outside:
            self.warnings.append(
                f"skipped {named(map(shown, sorted(self.outside)))}: links that lead outside the folder"
            )
        left_out = [
            LeftOut(rule, t.files, t.size_bytes, shown(t.largest), max(t.largest_bytes, 0), t.at_least)
            for rule, t in self.tallies.items()
            if t.files or t.at_least
        ]
        return Scan(
            root=self.root,
            entries=tuple(self.shipped),
            files=files,
            size_bytes=size_bytes,
            specials=tuple(self.specials),
            left_out=tuple(sorted(left_out, key=lambda item: (-item.size_bytes, item.rule))),
            commit=self.commit,
            dirty=self.dirty,
            warnings=tuple(self.warnings),
        )

    def _check_limits(self, files: int, size_bytes: int) -> None:
        if files <= self.limits.files and size_bytes <= self.limits.size_bytes:
            return
        totals: dict[Path, list[int]] = {}
        for found in self.shipped:
            if found.kind is not EntryKind.DIRECTORY:
                for length in range(len(found.path)):
                    total = totals.setdefault(found.path[:length], [0, 0])
                    total[0] += 1
                    total[1] += found.size
        by = 0 if files > self.limits.files else 1
        for path in sorted(totals, key=len, reverse=True):  # a folder that is little more than one of its folders
            if path and totals.get(path[:-1], [0, 0])[by] * 0.9 <= totals[path][by]:
                totals.pop(path[:-1], None)
        largest = sorted(totals.items(), key=lambda item: -item[1][by])[:5]
        lines = [f"{shown(path) or '.'}/ ({count:,} files, {format_bytes(size)})" for path, (count, size) in largest]
        biggest = max(self.shipped, key=lambda found: found.size)
        self.limits.check(
            files,
            size_bytes,
            f"source {self.root}",
            hint=f"largest folders: {', '.join(lines)}; largest file: {biggest} ({format_bytes(biggest.size)}); "
            "leave some out with --exclude or .gpulayerignore",
        )
