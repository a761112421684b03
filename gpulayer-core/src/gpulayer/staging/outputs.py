"""What a job made: files that are new or changed in its work folder, and all of its output folder, as one tree.

Call it when the job's processes are dead. A file is read only when its size, times, inode or mode differ from the
baseline, and it is an output only when its content does too. What can't come along (links that lead outside or
nowhere, sockets, files that can't be read) is named in the warnings and fails nothing.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path as FilePath
from typing import Final

from gpulayer.errors import BadRequest, UsageError
from gpulayer.ids import Digest
from gpulayer.spec.globs import Glob
from gpulayer.spec.tree import Entry, EntryKind, check_symlink
from gpulayer.spec.units import format_bytes
from gpulayer.staging.beneath import Beneath, Found, Path, shown
from gpulayer.staging.limits import DEFAULT_LIMITS, TreeLimits
from gpulayer.staging.scan import RUNS_FOLDER, named
from gpulayer.staging.trees import BuiltTree, Content, assemble, hash_file
from gpulayer.staging.workfolder import Baseline, BaselineEntry

__all__ = ["NOT_OUTPUTS", "OutputPatterns", "collect_outputs"]

NOT_OUTPUTS: Final = (
    "__pycache__",
    "*.pyc",
    ".git",
    ".venv",
    ".ipynb_checkpoints",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    "node_modules",
    RUNS_FOLDER,
)


class OutputPatterns:
    """``--output`` patterns and what never comes home. Without patterns everything matches.

    Raises UsageError for a pattern that is absolute or climbs.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._globs = [Glob(pattern) for pattern in patterns]
        asked_for = {name for glob in self._globs for name in glob.names}
        self._excluded = tuple(name for name in NOT_OUTPUTS if name not in asked_for)

    def match(self, path: Path) -> bool:
        """Everything matches where there are no patterns."""
        return not self._globs or any(glob.match(path) for glob in self._globs)

    def is_excluded(self, name: str) -> bool:
        """Tool caches, unless a pattern names them."""
        return any(fnmatchcase(name, pattern) for pattern in self._excluded)


def collect_outputs(
    work: FilePath,
    output_dir: FilePath | None,
    baseline: Baseline,
    *,
    patterns: Sequence[str] = (),
    limits: TreeLimits = DEFAULT_LIMITS,
) -> BuiltTree:
    """The outputs as a tree whose contents still lie in ``work`` and ``output_dir``.

    ``patterns`` choose among the files of ``work``; ``output_dir`` comes whole, at the tree's top, and wins where
    both have a path. Raises UsageError (a bad pattern) and TooLarge, which names the largest outputs.
    """
    collector = _Collector(limits)
    chosen = OutputPatterns(patterns)
    skip = _position_below(work, output_dir)
    from_work = collector.collect(work, baseline, chosen, skip)
    from_output_dir: dict[Path, tuple[Entry, Content | None]] = {}
    if output_dir is not None and output_dir.is_dir() and not output_dir.is_symlink():
        from_output_dir = collector.collect(output_dir, Baseline({}), None, None)
    collector.check()
    return collector.join(from_work, from_output_dir)


_Nodes = dict[Path, tuple[Entry, Content | None]]


@dataclass(slots=True)
class _Collector:
    limits: TreeLimits
    specials: list[Path] = field(default_factory=list)
    bad_links: list[Path] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    candidates: list[Found] = field(default_factory=list)

    def collect(self, root: FilePath, baseline: Baseline, patterns: OutputPatterns | None, skip: Path | None) -> _Nodes:
        folders: dict[Path, Found] = {}
        files: list[Found] = []
        nodes: _Nodes = {}

        def enter(found: Found) -> bool:
            if found.path == skip or (patterns is not None and patterns.is_excluded(found.path[-1])):
                return False
            if len(found.path) >= self.limits.depth:
                self.problems.append(f"skipped what lies below {shown(found.path[:3])}/…: folders nest too deep")
                return False
            return True

        def unreadable(path: Path, error: OSError) -> None:
            self.problems.append(f"skipped folder {shown(path) or '.'}: {error.strerror}")

        try:
            opened = Beneath(root, follow=False)  # the job may have put a link to anywhere in its place
        except OSError as error:
            self.problems.append(
                f"nothing of the job's {root.name} folder: it is gone or was replaced ({error.strerror})"
            )
            return nodes
        with opened as beneath:
            for found in beneath.walk(enter=enter, unreadable=unreadable):
                path = found.path
                if path == skip or (patterns is not None and patterns.is_excluded(path[-1])):
                    continue
                before = baseline.entries.get(path)
                matches = patterns is None or patterns.match(path)
                match found.kind:
                    case None:
                        self.specials.append(path)
                    case EntryKind.DIRECTORY:
                        folders[path] = found
                        if matches and (before is None or before.kind is not EntryKind.DIRECTORY):
                            nodes[path] = (Entry(path[-1], EntryKind.DIRECTORY, found.mode), None)
                    case EntryKind.SYMLINK:
                        if matches and (before is None or before.target != found.target):
                            self._link(root, found, nodes)
                    case EntryKind.FILE:
                        if matches and (before is None or before.signature != found.signature):
                            files.append(found)
                            if _is_certainly_new(before, found):
                                self.candidates.append(found)
            self.check()  # before anything is read: hashing 200 GB only to refuse it would take an hour
            for found in files:
                self._file(root, beneath, found, baseline, nodes)
        for path in list(nodes):
            for length in range(1, len(path)):
                folder = folders[path[:length]]
                nodes.setdefault(folder.path, (Entry(folder.path[-1], EntryKind.DIRECTORY, folder.mode), None))
        return nodes

    def _link(self, root: FilePath, found: Found, nodes: _Nodes) -> None:
        try:
            check_symlink(found.path, found.target)
            os.stat(os.path.join(root, *found.path))
        except (BadRequest, OSError):
            self.bad_links.append(found.path)
        else:
            nodes[found.path] = (Entry(found.path[-1], EntryKind.SYMLINK, 0o777, target=found.target), None)

    def _file(self, root: FilePath, beneath: Beneath, found: Found, baseline: Baseline, nodes: _Nodes) -> None:
        try:
            read, digest = hash_file(beneath, found)
        except UsageError as error:
            self.problems.append(f"skipped {error.message}")
            return
        before = baseline.entries.get(found.path)
        if before is not None and before.digest == digest:
            return
        if not _is_certainly_new(before, found):
            self.candidates.append(read)
        entry = Entry(found.path[-1], EntryKind.FILE, read.mode, read.size, digest)
        nodes[found.path] = (entry, Content(FilePath(root, *found.path), read.size))

    def check(self) -> None:
        largest = sorted(self.candidates, key=lambda found: -found.size)[:5]
        hint = "largest: " + ", ".join(f"{found} ({format_bytes(found.size)})" for found in largest)
        hint += "; choose outputs with --output PATTERN"
        self.limits.check(len(self.candidates), sum(found.size for found in self.candidates), "the output", hint)

    def join(self, under: _Nodes, over: _Nodes) -> BuiltTree:
        """Both as one tree. A path in ``over`` replaces what ``under`` has there, be it a file or a whole folder."""
        plain = {path for path, (entry, _) in over.items() if entry.kind is not EntryKind.DIRECTORY}
        nodes: _Nodes = {}
        for path, node in under.items():
            hidden = any(path[:length] in plain for length in range(1, len(path) + 1))
            is_in_the_way = node[0].kind is not EntryKind.DIRECTORY and path in over
            if not hidden and not is_in_the_way:
                nodes[path] = node
        nodes.update(over)
        contents: dict[Digest, Content] = {
            entry.digest: content for entry, content in nodes.values() if content is not None
        }
        return assemble({path: entry for path, (entry, _) in nodes.items()}, contents, warnings=self._warnings())

    def _warnings(self) -> tuple[str, ...]:
        warnings: list[str] = []
        if self.specials:
            warnings.append(f"skipped {named(map(shown, self.specials))}: sockets, pipes and devices are no outputs")
        if self.bad_links:
            warnings.append(f"skipped {named(map(shown, self.bad_links))}: links that lead outside or nowhere")
        if len(self.problems) > 10:
            return (*warnings, *self.problems[:10], f"and {len(self.problems) - 10:,} more such problems")
        return (*warnings, *self.problems)


def _is_certainly_new(before: BaselineEntry | None, found: Found) -> bool:
    """Without reading it: it was not there, was no file, or had another size."""
    return before is None or before.kind is not EntryKind.FILE or before.signature[0] != found.size


def _position_below(work: FilePath, output_dir: FilePath | None) -> Path | None:
    """The output folder's path within the work folder, if it lies there."""
    if output_dir is None:
        return None
    try:
        return output_dir.absolute().relative_to(work.absolute()).parts or None
    except ValueError:
        return None
