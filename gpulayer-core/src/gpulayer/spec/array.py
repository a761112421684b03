"""How an array is written: ``24`` elements, or ``24%4``: at most four at once, as users of Slurm write it."""

from typing import Final

from gpulayer.errors import UsageError

__all__ = ["ARRAY_COUNT", "ARRAY_INDEX", "MAX_ELEMENTS", "parse_array"]

MAX_ELEMENTS: Final = 10_000
ARRAY_INDEX: Final = "GPULAYER_ARRAY_INDEX"
ARRAY_COUNT: Final = "GPULAYER_ARRAY_COUNT"
_EXAMPLE: Final = "--array 24 is 24 elements with the numbers 0 to 23; --array 24%4 begins no more than 4 at once"


def parse_array(text: str, *, what: str = "--array") -> tuple[int, int]:
    """How many elements, and how many of them at once (0: any number). Raises UsageError."""
    count_text, mark, limit_text = text.partition("%")
    count, limit = _number(count_text), _number(limit_text) if mark else 0
    if count is None or limit is None or (mark and not limit) or not count:
        raise UsageError(f"{what} {text[:40]!a}: not a number of elements", hint=_EXAMPLE)
    if count > MAX_ELEMENTS:
        raise UsageError(
            f"{what} {count_text[:40]}: an array has {MAX_ELEMENTS:,} elements at most",
            hint="let each element do several of them, or submit several arrays",
        )
    return count, min(limit, count)


def _number(text: str) -> int | None:
    if not (text.isascii() and text.isdigit()):
        return None
    return int(text.lstrip("0")[:9] or "0")  # more digits are too many elements anyhow
