"""How the CLI speaks: results on stdout, everything else on stderr; rich where a person looks, plain text elsewhere."""

import json
import os
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, TextIO

from gpulayer.errors import GpulayerError
from gpulayer.spec.plain import plain_line

if TYPE_CHECKING:
    from gpulayer.wire.jobs import ProblemRecord

__all__ = [
    "is_fancy",
    "print_error",
    "print_fields",
    "print_json",
    "print_line",
    "print_table",
    "safe",
    "say",
    "say_warnings",
]

_COLOURS = {
    "running": "green",
    "ready": "green",
    "fits": "green",
    "succeeded": "green",
    "usable": "green",
    "failed": "red",
    "lost": "red",
    "rejected": "red",
    "timed_out": "red",
    "gone": "red",
    "unhealthy": "red",
    "queued": "yellow",
    "busy": "yellow",
    "draining": "yellow",
    "silent": "yellow",
    "unreachable": "yellow",
    "cancelled": "magenta",
}


_REPLACED: Final = "\N{REPLACEMENT CHARACTER}"
_DRIVING: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})  # escapes, what turns text around, what breaks lines


_LONGEST = 2000  # line of a plugin's
_LEAST = 16  # of the last column, which is folded


def is_fancy(stream: TextIO) -> bool:
    """Colour and animation only where a person looks and has not said NO_COLOR."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def say(message: str) -> None:
    """One line for people, on stderr."""
    print(safe(message), file=sys.stderr, flush=True)


def print_error(error: GpulayerError) -> None:
    """What happened, and what next."""
    say(f"error: {error.message}")
    if error.hint:
        say(f" hint: {error.hint}")


def say_warnings(problems: "Iterable[ProblemRecord]") -> None:
    """What plugins said of a job that was accepted all the same, a line each."""
    for problem in problems:
        field = f"{problem['field']}: " if problem["field"] else ""
        line = f"warning: plugin {problem['plugin']}: {field}{problem['message']}"
        say(plain_line(line, _LONGEST))
        if problem["hint"]:
            say(f" hint: {plain_line(problem['hint'], _LONGEST)}")


def print_line(text: str) -> None:
    """To stdout, flushed at once. Control characters other than line ends are replaced: names come from elsewhere."""
    print(safe(text), flush=True)


def print_json(document: object) -> None:
    """One document on stdout."""
    print(json.dumps(document, indent=2, ensure_ascii=True), flush=True)


def print_table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, empty: str) -> None:
    """A list on stdout; ``empty`` on stderr when there is nothing to list."""
    if not rows:
        say(empty)
        return
    cells = [[safe(cell).replace("\n", _REPLACED) for cell in row] for row in rows]  # a name must not make a row
    if is_fancy(sys.stdout):
        from rich.console import Console  # noqa: PLC0415 - 0.15 s, only where a person looks
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        table = Table(box=None, pad_edge=False, header_style="bold")
        *firsts, last = headers
        for header in firsts:
            table.add_column(header, no_wrap=True)  # an id that is broken can't be copied
        table.add_column(last, overflow="fold")
        for row in cells:
            table.add_row(*(Text(cell, style=_COLOURS.get(cell, "")) for cell in row))
        console = Console()
        # Where they have no room the terminal breaks the lines, which loses nothing.
        least = sum(max(map(_width, column)) + 2 for column in list(zip(headers, *cells, strict=True))[:-1]) + _LEAST
        console.width = max(console.width, least)
        console.print(table, soft_wrap=True)
        return
    for line in columns([[header.upper() for header in headers], *cells]):
        print(line)
    sys.stdout.flush()


def print_fields(fields: Sequence[tuple[str, str]]) -> None:
    """A record on stdout: a name and a value a line; empty values are left out."""
    shown = [(name, safe(value)) for name, value in fields if value]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        first, *more = value.split("\n")
        print(f"{name:<{width}}  {first}")
        for line in more:
            print(f"{'':<{width}}  {line}")
    sys.stdout.flush()


def columns(rows: Sequence[Sequence[str]], *, gap: int = 2) -> list[str]:
    """Rows padded into columns; nothing trails the last cell."""
    widths = [max(_width(row[index]) for row in rows if index < len(row)) for index in range(max(map(len, rows)))]
    lines: list[str] = []
    for row in rows:
        cells = [cell + " " * (widths[index] - _width(cell) + gap) for index, cell in enumerate(row)]
        lines.append("".join(cells).rstrip())
    return lines


def _width(text: str) -> int:
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def safe(text: str) -> str:
    """Names and messages come from other machines: no control character of theirs may drive this terminal."""
    return "".join(c if c == "\n" or unicodedata.category(c) not in _DRIVING else _REPLACED for c in text)
