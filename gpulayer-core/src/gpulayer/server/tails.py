"""The last lines of a failed attempt's log, as text for its record: enough to see why without another question.

At most ``MAX_LINES`` lines of the last ``MAX_BYTES`` bytes. What is not UTF-8 is replaced, and of a line that was
written over (a progress bar's carriage returns) the last state counts. Control characters stay: whoever shows them
escapes them.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpulayer.engine.records import AttemptImage
from gpulayer.ids import Epoch
from gpulayer.server.logs import LogFolder, LogKey
from gpulayer.spec.logs import LogStream

__all__ = ["MAX_BYTES", "MAX_LINES", "Tail", "read_tails", "tail_text"]

MAX_LINES: Final = 20
MAX_BYTES: Final = 4096
_ATTEMPTS: Final = 8  # the newest: a record must not grow with every try


@dataclass(frozen=True, slots=True)
class Tail:
    """``errors``: of standard error where it was kept apart, else empty."""

    log: str
    errors: str


def read_tails(logs: LogFolder, attempts: Iterable[AttemptImage]) -> dict[Epoch, Tail]:
    """Of the newest attempts that ended without success; of a gang, the node that decided. Blocks."""
    failed = [image for image in attempts if image.outcome is not None and not image.outcome.is_success]
    found: dict[Epoch, Tail] = {}
    for image in failed[-_ATTEMPTS:]:
        key = LogKey(image.job_id, image.epoch, image.first_failure or 0)
        tail = Tail(_read(logs.path(key)), _read(logs.path(key._replace(stream=LogStream.STDERR))))
        if tail.log or tail.errors:
            found[image.epoch] = tail
    return found


def tail_text(content: bytes, *, is_cut: bool) -> str:
    """The last lines of ``content``, which is the end of a log. is_cut: there was more before it. Pure."""
    if is_cut:
        _, line_end, whole = content.partition(b"\n")
        # One line fills it all: half of it is better than nothing, but not half a character.
        content = whole if line_end and whole else content.lstrip(bytes(range(0x80, 0xC0)))
    lines = content.decode("utf-8", "replace").rstrip("\r\n").split("\n")
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines[-MAX_LINES:])


def _read(path: Path) -> str:
    try:
        with open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - MAX_BYTES))
            return tail_text(file.read(MAX_BYTES), is_cut=size > MAX_BYTES)
    except OSError:
        return ""  # none was written, or it can't be read now: the record stands without it
