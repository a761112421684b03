"""A file that is there whole or not at all, whatever dies when: written beside, synced, renamed, its folder synced.

What nobody needs after a loss of power (it speaks of processes that are gone then) is not synced: a sync takes
milliseconds, and some of these files stand on the way to somebody's first command.
"""

import os
from pathlib import Path
from typing import Final

from gpulayer.faults import around
from gpulayer.syncing import Syncs

__all__ = ["write_whole"]

_UNTOLD: Final = Syncs()


def write_whole(
    path: Path, content: bytes, *, point: str = "", is_synced: bool = False, syncs: Syncs = _UNTOLD
) -> None:
    """Replace a file (mode 0600) so that a reader, or a crash, meets the old or the new content. Raises OSError, and
    then the old one is there and nothing beside it, unless what failed is the last sync. One writer at a time.

    point: its fault points, ``plane.port`` for ``plane.before_port``, ``plane.in_port`` and ``plane.after_port``; none
    for what is a comfort alone.
    is_synced: it also survives a loss of power. syncs: who is told where that fails.
    """
    temporary = path.with_name(path.name + ".part")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            around("before", point)
            file.write(content)
            if is_synced:
                file.flush()
                syncs.file(descriptor, temporary)
        around("in", point)
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)  # on a full disk even half a file is too much
        raise
    around("after", point)
    if is_synced:
        syncs.path(path.parent)
