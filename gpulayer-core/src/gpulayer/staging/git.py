"""What git says of a folder: which files it would ship, which rule ignores a path, which commit this is.

Git runs with the environment it is handed, less everything that points it at another repository (a hook's
``GIT_DIR``, say). Listing ignores who owns the repository (``safe.directory``): containers and shared disks often
differ in that, and listing runs nothing that the repository's configuration names. ``status`` may run filters, so
there the owner check stays on, and a folder that git will not look into counts as dirty.
"""

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["GitListing", "IgnoredBy", "check_ignored", "git_environment", "head_commit", "is_dirty", "list_files"]

_KEPT: Final = frozenset({"GIT_CEILING_DIRECTORIES", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM"})
_QUIET: Final = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
_ANY_OWNER: Final = ("-c", "safe.directory=*")
_TIMEOUT_S: Final = 120


@dataclass(frozen=True, slots=True)
class GitListing:
    """``git ls-files -co --exclude-standard`` of one folder; paths with / relative to it.

    nested: repositories below it (submodules, clones), which must be listed by themselves.
    """

    files: frozenset[str]
    nested: frozenset[str]
    has_untracked: bool


@dataclass(frozen=True, slots=True)
class IgnoredBy:
    """The rule that ignores a path: ``.gitignore:3`` and the pattern on that line."""

    source: str
    pattern: str


def git_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for git: nothing in it chooses the repository, prompts, or changes the form of answers."""
    kept = {key: value for key, value in environment.items() if not key.startswith("GIT_") or key in _KEPT}
    return kept | {"LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}


def list_files(folder: str, environment: Mapping[str, str]) -> GitListing | None:
    """None when the folder is in no git repository, when it is ignored as a whole, or when git can't be run."""
    answer = _git(folder, environment, "ls-files", "-z", "-t", "--cached", "--others", "--exclude-standard")
    if answer is None:
        return None
    files: set[str] = set()
    nested: set[str] = set()
    has_untracked = False
    for record in answer.split(b"\0"):
        tag, _, raw = record.partition(b" ")
        if not raw:
            continue
        has_untracked = has_untracked or tag == b"?"
        name = os.fsdecode(raw)
        if name.endswith("/"):
            nested.add(name.rstrip("/"))
        else:
            files.add(name)
    if not files and not nested and _git(folder, environment, "check-ignore", "-q", ".") is not None:
        return None  # a build folder, or a home folder's dotfiles repository that ignores all else
    return GitListing(frozenset(files), frozenset(nested), has_untracked)


def check_ignored(folder: str, environment: Mapping[str, str], paths: Sequence[str]) -> dict[str, IgnoredBy]:
    """Which of these untracked paths are ignored, and by what."""
    if not paths:
        return {}
    stdin = b"\0".join(os.fsencode(path) for path in paths) + b"\0"
    answer = _git(folder, environment, "check-ignore", "-v", "-z", "--stdin", stdin=stdin)
    fields = [os.fsdecode(field) for field in (answer or b"").split(b"\0")]
    found: dict[str, IgnoredBy] = {}
    for source, line, pattern, path in zip(fields[0::4], fields[1::4], fields[2::4], fields[3::4], strict=False):
        if not pattern.startswith("!"):  # -v also names the rule that takes a path back in
            found[path] = IgnoredBy(f"{source}:{line}", pattern)
    return found


def head_commit(folder: str, environment: Mapping[str, str]) -> str:
    """The commit's full hash; empty when there is none yet."""
    answer = _git(folder, environment, "rev-parse", "--verify", "-q", "HEAD")
    return (answer or b"").decode("ascii", "replace").strip()


def is_dirty(folder: str, environment: Mapping[str, str]) -> bool:
    """Whether tracked files below the folder differ from the commit. True when git will not say."""
    answer = _git(
        folder, environment, "status", "--porcelain", "-z", "--untracked-files=no", "--", ".", trusted_only=True
    )
    return answer is None or answer != b""


def _git(
    folder: str,
    environment: Mapping[str, str],
    *arguments: str,
    stdin: bytes = b"",
    trusted_only: bool = False,
) -> bytes | None:
    """The answer, or None when git is missing, times out or exits with anything but 0."""
    try:
        done = subprocess.run(
            ["git", *_QUIET, *(() if trusted_only else _ANY_OWNER), *arguments],
            cwd=folder,
            env=git_environment(environment),
            input=stdin,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
