"""Secrets out of logs: each byte that belongs to an occurrence of one becomes ``*``, so that offsets stay true. Pure.

What becomes of a byte depends on the bytes within ``reach`` of it and on nothing else. So no state is kept between two
pieces of a log: whoever masks a piece reads that much more on both sides, and gets the same bytes wherever it began.
At the growing end, what may be the beginning of a secret waits for what follows it (``settled``).

Looked for are each value, without blanks around it, and each of its lines that has 4 characters or more; as bytes,
exactly. What a program does to a value before it prints it (an encoding, a break in a line) hides it from this.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final, TypeVar, cast

from gpulayer.protocol.messages import (
    DiskFilled,
    Input,
    LogDrained,
    OutputsCollected,
    OutputsFailed,
    ProcessExited,
    ProcessLost,
    SpawnFailed,
    StagingFailed,
)
from gpulayer.spec.secrets import MIN_LENGTH

__all__ = ["Masks", "masked_input"]

_STAR: Final = b"*"
_HEAD: Final = 4
_Answer = TypeVar("_Answer", bound=Input)


class Masks:
    """For the values of one job. reach: how many bytes around a byte tell what becomes of it."""

    def __init__(self, values: Iterable[str]) -> None:
        patterns = {pattern for value in values for pattern in _patterns(value)}
        self._patterns = [_Pattern(pattern) for pattern in sorted(patterns)]
        self.reach = max((len(pattern) for pattern in patterns), default=1) - 1

    def __repr__(self) -> str:
        return f"Masks({len(self._patterns)} patterns)"

    def mask(self, text: bytes) -> bytes:
        """The same length; the very text where there is nothing to mask."""
        if len(self._patterns) == 1 and not self._patterns[0].overlaps:
            return self._patterns[0].replaced(text)
        masked: bytearray | None = None
        for pattern in self._patterns:
            for start, end in pattern.runs(text):
                masked = bytearray(text) if masked is None else masked
                masked[start:end] = _STAR * (end - start)
        return text if masked is None else bytes(masked)

    def settled(self, text: bytes) -> int:
        """How many bytes of a text that goes on can't become part of a secret by what follows."""
        return min((pattern.begins_at(text) for pattern in self._patterns), default=len(text))

    def left_over(self, text: bytes) -> int:
        """How many bytes may be the end of a secret whose beginning is missing before the text."""
        return max((pattern.ends_at(text) for pattern in self._patterns), default=0)

    @property
    def is_starry(self) -> bool:
        """Whether a ``*`` is looked for: then what was masked once can't be told from what was not."""
        return any(_STAR in pattern.content for pattern in self._patterns)

    def seam_before(self, text: bytes, at: int) -> int:
        """The last place up to ``at`` where the text may be parted, so that its second part alone is masked as it is in
        the whole. It is less than a reach away.

        That is where the first occurrence over ``at`` begins: it covers what is between, and so whatever the others
        over that place cover of the second part.
        """
        return min((pattern.first_over(text, at) for pattern in self._patterns), default=at)

    def seam_behind(self, text: bytes, at: int) -> int:
        """The same the other way: the first place from ``at`` on where the first part alone is masked as in the
        whole."""
        return max((pattern.last_over(text, at) for pattern in self._patterns), default=at)

    def mask_text(self, text: str) -> str:
        """A text for people, whole."""
        # Where a name of a file is no text it has surrogates, as everywhere.
        given = text.encode("utf-8", "surrogateescape")
        masked = self.mask(given)
        return text if masked is given else masked.decode("utf-8", "surrogateescape")


def masked_input(answer: _Answer, masks: Masks) -> _Answer:
    """What the machine is told of a node, with the texts for people masked: they go to the journal and to the record.
    Pure."""
    match answer:
        case ProcessExited() | ProcessLost() | SpawnFailed() | StagingFailed() | DiskFilled() | OutputsFailed():
            return cast("_Answer", replace(answer, evidence=masks.mask_text(answer.evidence)))
        case LogDrained():
            return cast("_Answer", replace(answer, warning=masks.mask_text(answer.warning)))
        case OutputsCollected():
            return cast("_Answer", replace(answer, warnings=tuple(map(masks.mask_text, answer.warnings))))
        case _:
            return answer


class _Pattern:
    """One run of bytes that is looked for."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self._head = content[:_HEAD]
        # Where one overlaps itself, the next occurrence begins a period later at the earliest, and in text that goes on
        # like that a whole run of them is found in one go: else a page of one letter would cost a search for each.
        period = _period(content)
        self._overlap = len(content) - period
        again = b"(?:" + re.escape(content[-period:]) + b")*"
        self._run = re.compile(re.escape(content) + again) if self._overlap else None

    def runs(self, text: bytes) -> Iterator[tuple[int, int]]:
        """Where it occurs; stretches may overlap."""
        size, at = len(self.content), text.find(self.content)
        while at >= 0:
            end, after = at + size, at + size
            if self._run is not None:
                found = self._run.match(text, at)
                assert found is not None
                end = found.end()
                after = end - size + 1
            yield at, end
            at = text.find(self.content, after)

    @property
    def overlaps(self) -> bool:
        """Whether an occurrence may begin before another one has ended."""
        return self._overlap > 0

    def replaced(self, text: bytes) -> bytes:
        """The quick way for one that never overlaps itself."""
        return text.replace(self.content, _STAR * len(self.content))

    def first_over(self, text: bytes, at: int) -> int:
        """Where the first occurrence begins that goes over this place; the place itself if none does."""
        begin = text.find(self.content, *self._over(at))
        return at if begin < 0 else begin

    def last_over(self, text: bytes, at: int) -> int:
        """Where the last occurrence ends that goes over this place; the place itself if none does."""
        begin = text.rfind(self.content, *self._over(at))
        return at if begin < 0 else begin + len(self.content)

    def _over(self, at: int) -> tuple[int, int]:
        return max(0, at - len(self.content) + 1), at + len(self.content) - 1

    def begins_at(self, text: bytes) -> int:
        """Where the longest end of the text begins that this begins with, without being whole; its length if none."""
        at = max(0, len(text) - len(self.content) + 1)
        while (at := text.find(self._head, at)) >= 0:
            if self.content.startswith(text[at:]):
                return at
            at += 1
        for at in range(max(0, len(text) - len(self._head) + 1), len(text)):  # too near to the end for a whole head
            if self.content.startswith(text[at:]):
                return at
        return len(text)

    def ends_at(self, text: bytes) -> int:
        """Where the longest beginning of the text ends that this ends with, without being whole; 0 if none."""
        for end in range(min(len(text), len(self.content) - 1), 0, -1):
            if self.content.endswith(text[:end]):
                return end
        return 0


def _patterns(value: str) -> Iterable[bytes]:
    """A value whole (a program often strips it), and line by line: a document is mostly printed in parts."""
    whole = value.strip()
    if whole:
        yield whole.encode()
    for line in re.split(r"[\r\n]+", whole):
        if len(line.strip()) >= MIN_LENGTH:
            yield line.strip().encode()


def _period(content: bytes) -> int:
    """The least shift of an overlap with itself; its length if none. As Knuth, Morris and Pratt do it."""
    border, borders = 0, [0] * len(content)
    for place in range(1, len(content)):
        while border and content[place] != content[border]:
            border = borders[border - 1]
        border += content[place] == content[border]
        borders[place] = border
    return len(content) - borders[-1]
