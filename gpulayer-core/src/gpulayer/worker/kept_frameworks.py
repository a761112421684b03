"""What the framework checks of a worker found last, in a file of its folder."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpulayer.plugins.results import instance_of, list_of
from gpulayer.spec.machine import Framework
from gpulayer.whole import write_whole
from gpulayer.worker.check_answers import framework_of, row_of

__all__ = ["Kept", "read_kept", "write_kept"]

_MOST_CHECKS = 10_000


@dataclass(frozen=True, slots=True)
class Kept:
    """found: all that was known last. by_key: what is believed without a run, by all that it depends on. installed:
    digests of what the checks were about; empty: nobody knows."""

    found: tuple[Framework, ...] = ()
    by_key: Mapping[str, tuple[Framework, ...]] = field(default_factory=dict)
    installed: frozenset[str] = frozenset()

    def is_otherwise(self, installed: str) -> bool:
        """Whether something else is installed now than when the checks ran; False where that is not known."""
        return bool(installed and self.installed) and installed not in self.installed

    def without(self, names: Collection[str]) -> "Kept":
        """What was known of these frameworks holds no longer."""
        return replace(self, found=tuple(one for one in self.found if one.name not in names))


def read_kept(path: Path) -> Kept:
    """Nothing where no check has ended here yet, or it can't be read."""
    try:
        rows = instance_of(dict, json.loads(path.read_bytes()))
        believed = instance_of(dict, rows["believed"])
        return Kept(
            tuple(map(framework_of, rows["found"])),
            {str(key): tuple(map(framework_of, found)) for key, found in believed.items()},
            frozenset(list_of(str, rows.get("installed", []), at_most=_MOST_CHECKS)),
        )
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return Kept()


def write_kept(path: Path, kept: Kept) -> None:
    """Raises OSError."""
    rows = {
        "found": [row_of(one) for one in kept.found],
        "believed": {key: [row_of(one) for one in found] for key, found in kept.by_key.items()},
        "installed": sorted(kept.installed),
    }
    write_whole(path, json.dumps(rows).encode())
