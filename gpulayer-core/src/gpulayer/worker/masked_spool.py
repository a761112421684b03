"""A spool as it may leave this machine: read at any offset, with secrets masked, the same bytes whoever reads when.

What has been read is masked in the file, too: a program's output lies there in clear only until it is on its way, and
not for as long as the program runs. (Not where a secret holds a ``*``; and not beside the spool, past its limit.)

The file is read again where the control plane lost what it was sent, so it must go on giving the same bytes: half a
secret would be found by nobody. Written is therefore only what lies between two seams (``Masks.seam_before``), and it
begins a reach before what is read, where the seam of the last time was.

Nothing is kept between two reads but where a secret was cut. That happens at the limit of a log and on a full disk: the
beginning of a secret may be the last that fitted, and the end of one the first that was kept behind it. A part is told
from other text by its place alone, so whatever might be one there is masked.
"""

import os
import re
from contextlib import suppress
from typing import Final

from gpulayer.spawner.spool import MIN_LIMIT_BYTES
from gpulayer.worker.masking import Masks

__all__ = ["MaskedSpool"]

# What ``spawner.spool`` writes at the limit: one line when more comes, another before the end that was kept.
_LINE: Final = re.compile(rb"\n?\[gpulayer: [^\n\]]*\]\n")
_LINES_BYTES: Final = 1024


class MaskedSpool:
    """limit_bytes: as the spool was given it; 0 for none."""

    def __init__(self, masks: Masks, *, limit_bytes: int) -> None:
        self._masks = masks
        self._limit = max(limit_bytes, MIN_LIMIT_BYTES) if limit_bytes else 0

    def read(
        self, descriptor: int, offset: int, count: int, *, size: int, is_whole: bool, is_cut: bool = False
    ) -> bytes:
        """At most ``count`` bytes of the first ``size`` from ``offset`` on, of a file that is open for both.

        Fewer, or none, where the rest may be the beginning of a secret, unless it ``is_whole``. is_cut: more than that
        was written, and lost. Blocks.
        """
        masks, reach = self._masks, self._masks.reach
        first = max(0, offset - reach)  # no seam up to ``offset`` is further back
        start = max(0, first - reach)
        wanted = min(size, offset + count + reach) - start
        if wanted <= offset - start:
            return b""
        text = os.pread(descriptor, wanted, start)
        end = start + len(text)
        stop = min(offset + count, end)
        if not is_whole or end < size:
            stop = min(stop, start + masks.settled(text))
        masked = masks.mask(text)
        cuts = self._cuts(descriptor, size, is_whole=is_whole, is_cut=is_cut)
        for begin, after in cuts:
            cut, length = max(begin - start, 0), min(after, end) - max(begin, start)
            if length > 0:
                masked = masked[:cut] + b"*" * length + masked[cut + length :]
        if not is_whole and self._limit and size > self._limit:
            # The end is joined on when the program has ended, and is read then: where it begins must be known.
            stop = min(stop, self._limit + self._lines(descriptor)[0])
        if stop <= offset:
            return b""
        if masked is not text and not masks.is_starry:
            over_first = [after - start for begin, after in cuts if begin < first < after]
            over_stop = [begin - start for begin, after in cuts if begin < stop < after]
            first = max([masks.seam_behind(text, first - start), *over_first])
            last = min([masks.seam_before(text, stop - start), *over_stop])
            _put_back(descriptor, text, masked, first=first, last=last, at=start)
        return masked[offset - start : stop - start]

    def _cuts(self, descriptor: int, size: int, *, is_whole: bool, is_cut: bool) -> list[tuple[int, int]]:
        """Where parts of secrets may stand."""
        cuts: list[tuple[int, int]] = []
        if self._limit and size > self._limit:
            cuts.append(self._before(descriptor, self._limit))
            behind = self._limit + sum(self._lines(descriptor))
            if is_whole and behind > self._limit:
                kept = os.pread(descriptor, self._masks.reach, behind)
                cuts.append((behind, behind + self._masks.left_over(kept)))
        if is_cut:
            cuts.append(self._before(descriptor, size))
        return cuts

    def _before(self, descriptor: int, end: int) -> tuple[int, int]:
        start = max(0, end - self._masks.reach)
        return start + self._masks.settled(os.pread(descriptor, end - start, start)), end

    def _lines(self, descriptor: int) -> tuple[int, int]:
        """The lengths of the two lines at the limit; 0 for one that is not there whole."""
        text = os.pread(descriptor, _LINES_BYTES, self._limit)
        first = _LINE.match(text)
        if first is None:
            return 0, 0
        second = _LINE.match(text, first.end())
        return first.end(), 0 if second is None else second.end() - first.end()


def _put_back(descriptor: int, text: bytes, masked: bytes, *, first: int, last: int, at: int) -> None:
    """From a seam to a seam: what is left outside has to be found by those who read there again."""
    if first < last and text[first:last] != masked[first:last]:
        with suppress(OSError):  # a disk that is full, or one that copies on write: then it stays until the job's end
            os.pwrite(descriptor, masked[first:last], at + first)
