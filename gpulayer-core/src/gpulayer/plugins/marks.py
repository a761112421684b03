"""Marks of the calls that run now, in a file that outlives the process: who ended it is known at its next start.

What a plugin does in native code or with ``os._exit`` ends the process that it runs in; no thread contains that. A mark
that is left behind says which calls ran at that moment, which is a suspicion and no proof: somebody may have killed the
process. So a plugin is given up only after ``STRIKES`` starts in a row that found its mark, and is tried again after a
day, in another version, when it is named (``GPULAYER_PLUGINS``), and after any call of the same hook that returned.
What a machine that went down left behind counts for nothing.

Marks of several plugins accuse nobody: one of them has ended the process, and the others ran beside it. At the next
start their first calls are made one at a time, so that the guilty one is alone when it does it again.

Beside it stand the plugins whose import hung: the next starts need not wait for them again, for an hour, unless the
version is another, more time is given, or the plugin is named.
"""

import hashlib
import json
import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["STRIKES", "Mark", "Marks"]

_log: Final = logging.getLogger(__name__)

STRIKES: Final = 3
_AGAIN_AFTER_MS: Final = 24 * 3600 * 1000
_HANGS_FOR_MS: Final = 3600 * 1000
_TURN_S: Final = 1.0
_LONG: Final = "long"
_SLOT: Final = 256
_SLOTS: Final = 64
_EMPTY: Final = bytes(_SLOT)
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Mark:
    """Left behind by the process before this one: ``hook`` of ``plugin`` ran when it ended. version: a hash of it, as
    it may be of any length and hold anything. was_long: another one could wait no longer, and began beside it."""

    plugin: str
    version: str
    hook: str
    was_long: bool = False


@dataclass(slots=True)
class _Strikes:
    """In a row, 0: it was not the only one; ``wall_ms``: of the last start that found one."""

    version: str
    hook: str
    count: int
    wall_ms: int


@dataclass(frozen=True, slots=True)
class _Hang:
    """It was given up after ``seconds``, at ``wall_ms``."""

    version: str
    seconds: float
    wall_ms: int


class Marks:
    """Of one process; the file is its own. Safe in threads. ``versions``: by plugin; others leave no marks."""

    def __init__(self, path: Path, versions: Mapping[str, str], *, wall_ms: int, boot: str | None = None) -> None:
        """Reads what was left, counts it, and begins anew. Raises OSError where the file can't be had."""
        self._path = path
        self._counts_path = path.with_name(f"{path.name}.counts")
        self._hangs_path = path.with_name(f"{path.name}.hangs")
        self._versions = {plugin: _hash(version) for plugin, version in versions.items()}
        self._wall_ms = wall_ms
        self._boot = _boot() if boot is None else boot
        self._lock = threading.Lock()
        self._turns = threading.Condition(self._lock)
        self._turn: tuple[int, str] | None = None  # the suspect that runs now: where its mark is, and what that says
        self._free = list(range(_SLOTS, 0, -1))
        self.left = self._read()
        """One a plugin and hook."""
        self._strikes = self._count(wall_ms)
        self._hangs = self._read_hangs()
        path.parent.mkdir(parents=True, exist_ok=True)
        # Written in full now: what is overwritten later needs no room on the disk.
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        os.pwrite(self._file, _slot(self._boot) + _EMPTY * _SLOTS, 0)

    def gave_up(self, plugin: str, *, is_named: bool) -> Mark | None:
        """The mark for which the plugin is not to be loaded. is_named: somebody asked for it by name."""
        found = self._strikes.get(plugin)
        if found is None or found.count < STRIKES:
            return None
        if is_named:
            self._forgive(plugin)
            return None
        return Mark(plugin, found.version, found.hook)

    def hung(self, plugin: str, seconds: float) -> None:
        """Its import has just been given up after so long."""
        self._hangs[plugin] = _Hang(self._versions.get(plugin, ""), seconds, self._wall_ms)
        self._write_hangs()

    def hangs(self, plugin: str, seconds: float, *, is_named: bool) -> bool:
        """Whether it hung not long ago, with at least so much time. What is forgotten is written at the next hang."""
        found = self._hangs.get(plugin)
        if found is None:
            return False
        is_lately = 0 <= self._wall_ms - found.wall_ms < _HANGS_FOR_MS
        if is_named or not is_lately or found.seconds < seconds or found.version != self._versions.get(plugin):
            del self._hangs[plugin]
            return False
        return True

    def wait_turn(self, plugin: str, hook: str) -> None:
        """To be called before ``begin``: a suspect waits for another one, for a moment."""
        if plugin in self._strikes:
            with self._turns:
                self._turns.wait_for(lambda: self._turn is None or plugin not in self._strikes, _TURN_S)

    def begin(self, plugin: str, hook: str) -> int:
        """A call runs from now on; the number is for ``end``. 0: it left no mark."""
        version = self._versions.get(plugin)
        if version is None:
            return 0
        with self._lock:
            if not self._free or self._file < 0:
                return 0
            place = self._free.pop()
            said = f"{plugin}\t{version}\t{hook}"
            if plugin in self._strikes:
                if self._turn is not None:
                    # It has had its time, and did no harm: of the two, it is not the suspect.
                    _try_write(self._file, _slot(f"{self._turn[1]}\t{_LONG}"), self._turn[0] * _SLOT)
                self._turn = (place, said)
            _try_write(self._file, _slot(said), place * _SLOT)
            return place

    def end(self, place: int, plugin: str, hook: str) -> None:
        """That call has returned, or raised."""
        if not place:
            return
        with self._turns:
            if self._file >= 0:
                _try_write(self._file, _EMPTY, place * _SLOT)
                self._free.append(place)
            if self._turn is not None and self._turn[0] == place:
                self._turn = None
                self._turns.notify()
        found = self._strikes.get(plugin)
        if found is not None and found.hook == hook:
            self._forgive(plugin)

    def close(self) -> None:
        """The process ends in peace: no mark stays, not even of a call that hangs. May be repeated."""
        with self._lock:
            if self._file < 0:
                return
            os.close(self._file)
            self._file = -1
        self._path.unlink(missing_ok=True)

    def _read(self) -> tuple[Mark, ...]:
        try:
            content = self._path.read_bytes()[: _SLOT * (_SLOTS + 1)]
        except OSError:
            return ()
        lines = [
            content[at : at + _SLOT].rstrip(b"\0").decode("utf-8", "replace") for at in range(0, len(content), _SLOT)
        ]
        if not lines or lines[0] != self._boot:
            return ()  # the machine went down since, and whatever ran with it
        parts = [line.split("\t") for line in lines[1:] if line]
        marks = (Mark(part[0], part[1], part[2], was_long=part[3:] == [_LONG]) for part in parts if len(part) in (3, 4))
        return tuple(dict.fromkeys(marks))

    def _count(self, wall_ms: int) -> dict[str, _Strikes]:
        kept: dict[str, _Strikes] = {}
        before = self._read_counts()
        for plugin, old in before.items():
            # Given up, so it had no chance to leave a mark; or its row of marks has an end.
            if old.count >= STRIKES and old.version == self._versions.get(plugin):
                is_due = not 0 <= wall_ms - old.wall_ms < _AGAIN_AFTER_MS
                kept[plugin] = _Strikes(old.version, old.hook, STRIKES - 1 if is_due else old.count, old.wall_ms)
        left = [mark for mark in self.left if mark.version == self._versions.get(mark.plugin)]
        suspects = _suspects(left, before)
        is_proof = len({mark.plugin for mark in suspects}) == 1
        for mark in suspects:
            was = before.get(mark.plugin)
            is_again = was is not None and was.version == mark.version
            count = (was.count if was is not None and is_again else 0) + is_proof
            if mark.plugin not in kept or kept[mark.plugin].wall_ms != wall_ms:
                kept[mark.plugin] = _Strikes(mark.version, mark.hook, min(count, STRIKES), wall_ms)
        if kept or before:
            self._write_counts(kept)
        return kept

    def _forgive(self, plugin: str) -> None:
        with self._lock:
            if self._strikes.pop(plugin, None) is not None:
                self._write_counts(self._strikes)

    def _read_counts(self) -> dict[str, _Strikes]:
        try:
            found = json.loads(self._counts_path.read_bytes())
            return {
                str(plugin): _Strikes(str(version), str(hook), int(count), int(wall_ms))
                for plugin, (version, hook, count, wall_ms) in found.items()
            }
        except (OSError, ValueError, TypeError, AttributeError):
            return {}  # none yet, or damaged: a suspicion less

    def _write_counts(self, strikes: Mapping[str, _Strikes]) -> None:
        known = {name: (one.version, one.hook, one.count, one.wall_ms) for name, one in strikes.items()}
        _replace(self._counts_path, known)

    def _read_hangs(self) -> dict[str, _Hang]:
        try:
            found = json.loads(self._hangs_path.read_bytes())
            return {
                str(plugin): _Hang(str(version), float(seconds), int(wall_ms))
                for plugin, (version, seconds, wall_ms) in found.items()
            }
        except (OSError, ValueError, TypeError, AttributeError):
            return {}  # none yet, or damaged: a start that waits

    def _write_hangs(self) -> None:
        known = {name: (one.version, one.seconds, one.wall_ms) for name, one in self._hangs.items()}
        _replace(self._hangs_path, known)


def _suspects(left: list[Mark], before: Mapping[str, _Strikes]) -> list[Mark]:
    """Those of the marks among which the guilty one is: of suspects of the start before, whose calls were made one at a
    time, where there are any; and none that had run for long when another one began."""
    known = [mark for mark in left if (old := before.get(mark.plugin)) is not None and old.version == mark.version]
    suspects = known or left
    return [mark for mark in suspects if not mark.was_long] or suspects


def _replace(path: Path, known: Mapping[str, tuple[object, ...]]) -> None:
    try:
        if not known:
            path.unlink(missing_ok=True)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f"{path.name}.new")
        beside.write_text(json.dumps(known), encoding="utf-8")
        os.replace(beside, path)
    except OSError as error:
        _log.warning("%s can't be written: %s", path, error.strerror)


def _hash(version: str) -> str:
    return hashlib.sha256(version.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _slot(text: str) -> bytes:
    return text.encode("utf-8", "replace")[:_SLOT].ljust(_SLOT, b"\0")


def _try_write(file: int, content: bytes, at: int) -> None:
    try:
        os.pwrite(file, content, at)
    except OSError:
        pass  # a mark less; the call matters more


def _boot() -> str:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return "-"
