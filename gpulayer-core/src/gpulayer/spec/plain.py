"""Texts of others for people: plugins, programs and machines say what they like, and it ends up in records, on wires,
in logs and on terminals. Here it becomes plain text of a bearable length. Pure.

One treatment for all: what a terminal would act on, or would break a line, is a space; what is no character (half of a
surrogate pair, as a file's name may have) is U+FFFD. So the result is printable, is UTF-8 and fits into any column.
"""

import unicodedata
from collections.abc import Iterable

__all__ = ["plain_line", "plain_text", "spans"]

_SPANS = 12  # of numbers that are shown
_NO_CHARACTER = "\N{REPLACEMENT CHARACTER}"


def plain_line(text: str, at_most: int) -> str:
    """One line, with single spaces, of at most so many characters; one that is cut ends with an ellipsis.

    Reads no more of a long text than a few times what is kept of it.
    """
    # Cut first: it may be megabytes. Enough is left where much of it is white space.
    line = " ".join(_printable(text[: 8 * at_most]).split())
    return _cut(line, at_most, is_whole=len(text) <= 8 * at_most)


def plain_text(text: str, at_most: int) -> str:
    """With its lines and their indents, of at most so many characters in all."""
    read = text[: 8 * at_most].expandtabs()
    plain = "\n".join(_printable(line).rstrip() for line in read.splitlines()).strip("\n")
    return _cut(plain, at_most, is_whole=len(text) <= 8 * at_most)


def spans(numbers: Iterable[int]) -> str:
    """``0-3, 7``: of many that have gaps everywhere the first, and how many more."""
    found: list[list[int]] = []
    for number in sorted(set(numbers)):
        if found and number == found[-1][-1] + 1:
            found[-1][1:] = [number]
        else:
            found.append([number])
    shown = ", ".join("-".join(map(str, span)) for span in found[:_SPANS])
    rest = sum(span[-1] - span[0] + 1 for span in found[_SPANS:])
    return shown + (f" and {rest} more" if rest else "")


def _printable(text: str) -> str:
    return text if text.isprintable() else "".join(map(_seen, text))


def _seen(character: str) -> str:
    if character.isprintable():
        return character
    return _NO_CHARACTER if unicodedata.category(character) in ("Cs", "Cn", "Co") else " "


def _cut(text: str, at_most: int, *, is_whole: bool) -> str:
    return text if is_whole and len(text) <= at_most else f"{text[: at_most - 1]}…"
