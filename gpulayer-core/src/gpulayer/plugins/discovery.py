"""What installed distributions add to GPUlayer, by their entry points: plugins (group ``gpulayer``) and commands.

Nothing of theirs is imported. Distributions are looked for in the order of ``sys.path``, as imports are; of one that is
there twice (editable and installed, two folders, two spellings of its name), only the first counts. What can't be read
hurts nobody else, and is told of where it says that it is for GPUlayer.
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
_HEADS: Final = tuple(f"[{group}]" for group in _GROUPS)
# As a file says it that some editor has written: with blanks, a mark before it, something behind it.
_MENTION: Final = re.compile(rf"^[^\[#;=\n]*\[[^\S\n]*{GROUP}(?:\.commands)?[^\S\n]*\].*$", re.MULTILINE)
_BYTE_ORDER_MARK: Final = "\ufeff"


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
    """``name``: the plugin's; that of the folder where a distribution can't be read. ``module``: to import. ``error``
    and ``hint``: why it can't be a plugin; then it is not imported."""

    name: str
    module: str
    distribution: str
    version: str
    error: str = ""
    hint: str = ""


def discover(path: Sequence[str] | None = None) -> tuple[Found, ...]:
    """All plugins, by name and distribution; several may have one name. Cost and path: see ``installed_points``."""
    scan = _scan(_where(path))
    found = [_found(point) for point in scan.points if point.group == GROUP]
    found += dict.fromkeys(map(_unreadable, scan.odd))  # a folder may be on the path twice
    return tuple(sorted(found, key=lambda one: (one.name, one.distribution)))


def installed_points(path: Sequence[str] | None = None) -> tuple[EntryPoint, ...]:
    """Of both groups, by distribution. Reads a small file a distribution, and the metadata of those that have some:
    some milliseconds. path: instead of ``sys.path``."""
    return _scan(_where(path)).points


@dataclass(frozen=True, slots=True)
class _Odd:
    """One for GPUlayer that can't be read: ``path`` of its folder, empty where a finder has none. ``project``: as that
    is called."""

    path: str
    project: str
    error: str
    is_nameless: bool


@dataclass(frozen=True, slots=True)
class _Scan:
    points: tuple[EntryPoint, ...]
    odd: tuple[_Odd, ...]


def _where(path: Sequence[str] | None) -> list[str]:
    return list(sys.path if path is None else path)


def _scan(where: list[str]) -> _Scan:
    names: dict[str, list[metadata.Distribution]] = {}
    odd: list[_Odd] = []
    for one in _all(where):
        text, error = _read(one)
        is_ours = GROUP in text and (f"[{GROUP}" in text or _MENTION.search(text) is not None)
        if not error and not is_ours:
            continue
        name = _spelled_one_way(_name(one))
        if name:
            names.setdefault(name, []).append(one)
        error = error or ("" if name else "its METADATA is missing, or tells no name") or _misspelt(text)
        if error and (shown := _odd(one, error, is_nameless=not name)) and _is_first(shown, name, where):
            odd.append(shown)
    points: list[EntryPoint] = []
    for name, of_it in sorted(names.items()):
        first = _first(name, where)
        if first is not None:
            points += _points(first)
        elif shown := _odd(of_it[0], f"its METADATA says that it is {name[:60]!r}", is_nameless=True):
            odd.append(shown)
    return _Scan(tuple(points), tuple(odd))


def _odd(distribution: metadata.Distribution, error: str, *, is_nameless: bool) -> _Odd | None:
    path = _path(distribution)
    project = os.path.basename(path).rpartition(".")[0].partition("-")[0]
    return _Odd(path, project, error, is_nameless) if project else None


def _is_first(odd: _Odd, name: str, where: list[str]) -> bool:
    """Whether no whole one of its name is there, or none before it: an uninstall may have left this one."""
    first = _first(name or odd.project, where)
    return first is None or _path(first) == odd.path


def _unreadable(odd: _Odd) -> Found:
    folder = os.path.basename(odd.path)
    again = f"pip install --force-reinstall {odd.project}"
    hint = f"remove {odd.path}, then install it again" if odd.is_nameless else f"install it again: {again}"
    return Found(folder[:63], "", odd.project, "", f"it can't be read: {odd.error}", hint)


def _misspelt(text: str) -> str:
    if text.startswith(_BYTE_ORDER_MARK):
        return f"its {_POINTS} begins with a byte order mark"
    for mention in _MENTION.finditer(text):
        line = mention[0].strip()
        if line not in _HEADS:
            return f"its {_POINTS} says {line[:60]!r}, which is not {' or '.join(_HEADS)}"
    return ""


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


def _first(name: str, where: list[str]) -> metadata.Distribution | None:
    """Asked by name, the first on the path answers, which may well have no entry point any more."""
    return next((one for one in _all(where, name) if _name(one)), None)  # without a name it is half a distribution


def _points(first: metadata.Distribution) -> Iterator[EntryPoint]:
    try:
        version = str(first.version or "")
    except Exception:
        version = ""
    for group, key, value in _sections(_read(first)[0]):
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


def _read(distribution: metadata.Distribution) -> tuple[str, str]:
    """Its entry points, and what is wrong with them where they are for GPUlayer and no text."""
    try:
        return distribution.read_text(_POINTS) or "", ""
    except UnicodeDecodeError as error:
        said = error.object.replace(b"\0", b"").decode("utf-8", "replace")  # of UTF-16 as well
        return "", f"its {_POINTS} is no UTF-8 text" if _MENTION.search(said) else ""
    except Exception:  # not readable, a finder's own error
        return "", ""


def _path(distribution: metadata.Distribution) -> str:
    """Of the folder with its metadata: no public name has it."""
    return str(getattr(distribution, "_path", ""))


def _name(distribution: metadata.Distribution) -> str:
    try:
        return str(distribution.name or "")
    except Exception:
        return ""
