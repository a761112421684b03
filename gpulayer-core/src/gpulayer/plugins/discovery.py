"""What installed distributions add to GPUlayer, by their entry points: plugins (group ``gpulayer``) and commands.

Nothing of theirs is imported. Distributions are looked for in the order of ``sys.path``, as imports are; of one that is
there twice (editable and installed, two folders, two spellings of its name), only the first counts. What can't be read
hurts nobody else.
"""

import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Final

from gpulayer.spec.capabilities import is_plain_name

__all__ = ["COMMANDS", "GROUP", "EntryPoint", "Found", "Installed", "discover", "installed_points"]

_log: Final = logging.getLogger(__name__)

GROUP: Final = "gpulayer"
COMMANDS: Final = "gpulayer.commands"

_GROUPS: Final = (GROUP, COMMANDS)
_MODULE: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_POINTS: Final = "entry_points.txt"


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """``group``: ``GROUP`` or ``COMMANDS``. ``value``: as it stands there, without extras."""

    group: str
    name: str
    value: str
    distribution: str
    version: str


@dataclass(frozen=True, slots=True)
class Found:
    """``name``: the plugin's. ``module``: to import. ``error`` and ``hint``: why it can't be a plugin; then it is not
    imported."""

    name: str
    module: str
    distribution: str
    version: str
    error: str = ""
    hint: str = ""


def discover(path: Sequence[str] | None = None) -> tuple[Found, ...]:
    """All plugins, by name and distribution; several may have one name. Cost and path: see ``installed_points``."""
    found = [_found(point) for point in installed_points(path) if point.group == GROUP]
    return tuple(sorted(found, key=lambda one: (one.name, one.distribution)))


def installed_points(path: Sequence[str] | None = None) -> tuple[EntryPoint, ...]:
    """Of both groups, by distribution. Reads a small file a distribution, and the metadata of those that have some:
    some milliseconds. path: instead of ``sys.path``."""
    where = list(sys.path if path is None else path)
    names = {_spelled_one_way(_name(one)) for one in _all(where) if f"[{GROUP}" in _text(one)}
    return tuple(point for name in sorted(names) if name for point in _points(name, where))


class Installed:
    """What is installed now, looked up anew only when a folder of ``sys.path`` has changed: a look reads a file a
    distribution, which takes a while where there are hundreds and the folder is somewhere in the network."""

    def __init__(self, look: Callable[[], tuple[Found, ...]] = discover) -> None:
        self._look = look
        self._seen: tuple[tuple[str, int], ...] | None = None
        self._found: tuple[Found, ...] = ()

    def now(self) -> tuple[Found, ...]:
        """A distribution that comes, goes or has another version changes its folder's time."""
        # Taken before the look: what changes meanwhile is found the next time.
        seen = tuple((entry, _changed_ns(entry)) for entry in sys.path)
        if seen != self._seen:
            self._found = self._look()
            self._seen = seen
        return self._found


def _changed_ns(entry: str) -> int:
    try:
        return os.stat(entry or ".").st_mtime_ns
    except OSError:
        return 0


def _all(where: list[str], name: str | None = None) -> Iterator[metadata.Distribution]:
    context = metadata.DistributionFinder.Context(path=where, name=name)
    for finder in list(sys.meta_path):
        find = getattr(finder, "find_distributions", None)
        if find is None:
            continue
        try:
            yield from find(context)
        except Exception:  # a finder of somebody's, in the middle of it; the others go on
            if name is None:  # it is asked once for all, and then for each by name
                kind = finder if isinstance(finder, type) else type(finder)
                what = f"{kind.__module__}.{kind.__qualname__}"
                _log.warning("not all installed distributions can be listed: %s fails", what, exc_info=True)


def _points(name: str, where: list[str]) -> Iterator[EntryPoint]:
    # Asked by name, the first on the path answers, which may well have no entry point any more.
    first = next((one for one in _all(where, name) if _name(one)), None)  # without a name it is half a distribution
    if first is None:
        return
    try:
        version = str(first.version or "")
    except Exception:
        version = ""
    for group, key, value in _sections(_text(first)):
        yield EntryPoint(group, key, value.partition("[")[0].strip(), _name(first), version)


def _spelled_one_way(name: str) -> str:
    """``Acme_Sched`` and ``acme-sched`` are one distribution:
    https://packaging.python.org/en/latest/specifications/name-normalization/."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _found(point: EntryPoint) -> Found:
    name, module = point.name, point.value
    error = hint = ""
    if not is_plain_name(name):
        error = f"{name[:60]!r} can't be the name of a plugin"
        hint = "a lower-case letter, then letters, digits and . _ + -, at most 63 in all"
    elif not _MODULE.fullmatch(module):
        error = f"its entry point names {module[:60]!r}, which is no module"
        hint = f'the entry point of a plugin is a module: {name} = "package.module"'
    return Found(name[:63], module, point.distribution, point.version, error, hint)


def _sections(text: str) -> Iterator[tuple[str, str, str]]:
    group = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            group = line.removeprefix("[").removesuffix("]")
        elif group in _GROUPS and line and line[0] not in "#;":
            key, _, value = line.partition("=")
            yield group, key.strip(), value.strip()


def _text(distribution: metadata.Distribution) -> str:
    try:
        return distribution.read_text(_POINTS) or ""
    except Exception:  # not text, not readable, a finder's own error
        return ""


def _name(distribution: metadata.Distribution) -> str:
    try:
        return str(distribution.name or "")
    except Exception:
        return ""
