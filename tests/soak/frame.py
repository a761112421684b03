"""Each reliability promise, its proofs, and the one table in which they end.

A module of this folder proves something when it has ``PROOFS``; nothing else has to be told. A proof is a function that
makes so many runs from a seed, says how far it is, and returns a ``Tally``. It breaks nothing off: what it finds broken
is a sentence in the tally that also says how to see it again. What it raises is a violation too, and so is a silence
that lasts too long. The table is the same for two runs and for ten thousand, and tells which it was. Rows that look at
the same worlds say so, and share what was broken in them.
"""

import importlib
import pkgutil
import signal
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from gpulayer.testing.sim.promises import PROMISES

__all__ = ["PROMISES", "Hung", "Proof", "Prove", "Row", "Say", "Tally", "carry_out", "found_proofs", "table"]

WIDTH: Final = 100
UNIT: Final = 7
LATER: Final = {7: "with Launch"}
REST: Final = 0  # proofs of nothing in PROMISES: long runs of other tests

Say = Callable[[str], None]


@dataclass(slots=True)
class Tally:
    """What a proof came to. ``mutants``: (noticed, planted), where it plants faults of its own."""

    runs: int = 0
    faults: int = 0
    violations: list[str] = field(default_factory=list)
    mutants: tuple[int, int] | None = None


class Prove(Protocol):
    """``runs``: how many to make. ``say``: call it with how far it is ("30 of 200 rounds"), at least once a minute."""

    def __call__(self, runs: int, *, seed: int, say: Say) -> Tally: ...


@dataclass(frozen=True, slots=True)
class Proof:
    """``text``: what is done, in a few words (42 characters). ``sample``: runs in CI, of some seconds; 0: none.

    ``full``: the number of the promise. ``unit``: what a run is, as a plural (7 characters). ``silence_s``: hung, when
    it has said nothing for so long. ``is_shared``: it looks at worlds that other proofs look at, too.
    """

    promise: int
    text: str
    prove: Prove
    sample: int
    full: int
    unit: str
    silence_s: float = 300.0
    is_shared: bool = False


@dataclass(slots=True)
class Row:
    """``tally`` is None for what did not end; ``note`` says why."""

    proof: Proof
    tally: Tally | None
    seconds: float = 0.0
    note: str = ""


class Hung(BaseException):
    """A proof has said nothing for too long. Not an Exception: nothing below is to catch it and wait on."""


def found_proofs() -> list[Proof]:
    """The ``PROOFS`` of all modules of this folder, by promise, then by name of the module."""
    package = __name__.rpartition(".")[0]
    proofs: list[Proof] = []
    for module in sorted(pkgutil.iter_modules([str(Path(__file__).parent)]), key=lambda found: found.name):
        if not module.name.startswith(("test_", "__")):
            proofs += getattr(importlib.import_module(f"{package}.{module.name}"), "PROOFS", ())
    return sorted(proofs, key=lambda proof: proof.promise or len(PROMISES) + 1)


def carry_out(proof: Proof, runs: int, *, seed: int, say: Say | None = None) -> Row:
    """Never raises but for KeyboardInterrupt: what a proof raises is a violation that names the place."""
    began, last = time.monotonic(), "nothing said yet"

    def said(text: str) -> None:
        nonlocal last
        last = text
        rearm()
        if say is not None:
            say(text)

    with _deadline(proof.silence_s, lambda: last) as rearm:
        try:
            tally = proof.prove(runs, seed=seed, say=said)
        except (Exception, Hung) as error:
            places = traceback.extract_tb(error.__traceback__)
            where = places[-2] if isinstance(error, Hung) else places[-1]  # not the alarm's own
            what = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno}; at: {last})"
            tally = Tally(violations=["\n".join([what, *getattr(error, "__notes__", ())])])
            return Row(proof, tally, time.monotonic() - began, f"broken off at: {last}")
    return Row(proof, tally, time.monotonic() - began)


@contextmanager
def _deadline(silence_s: float, last: Callable[[], str]) -> Iterator[Callable[[], None]]:
    """Raise ``Hung`` wherever the main thread stands; again each minute, should it be in a clean-up that hangs too."""

    def hung(_number: int, _frame: object) -> None:
        raise Hung(f"nothing said for {silence_s:.0f} s")

    def rearm() -> None:
        signal.setitimer(signal.ITIMER_REAL, silence_s, 60)

    before = signal.signal(signal.SIGALRM, hung)
    rearm()
    try:
        yield rearm
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def table(rows: Sequence[Row], *, scale: float, seed: int, wanted: Collection[int] = PROMISES) -> str:
    """At most 100 columns; below it each violation in full, once. ``wanted``: the promises that were asked for."""
    lines = [_line("", "promise, and what was done to it", "runs", "faults", "violations", "planted", "time")]
    lines.append("-" * WIDTH)
    there = {row.proof.promise for row in rows} | (LATER.keys() & set(wanted))
    numbers = [number for number in PROMISES if number in there]
    for number in numbers:
        lines.append(f"{number:>2}  {PROMISES[number]}" + (f": {LATER[number]}" if number in LATER else ""))
        lines += [_row(row) for row in rows if row.proof.promise == number]
    rest = [row for row in rows if row.proof.promise == REST]
    if rest:
        lines += ["    Long runs of other tests", *map(_row, rest)]
    lines.append("-" * WIDTH)
    violations = _violations(rows)
    lines.append(
        _line(
            "",
            f"all, at {scale:g} of the full numbers, seed {seed}",
            "",  # several rows may tell of the same runs
            "",
            f"{len(violations):,}",
            "",
            _time(sum(row.seconds for row in rows)),
        )
    )
    lines += _notes(rows, scale)
    for violation, broken in violations.items():
        promises = ", ".join(str(row.proof.promise or "-") for row in broken)
        lines += ["", f"{promises}: {broken[0].proof.text}:", *_indented(violation)]
    return "\n".join(lines)


def _violations(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Each once, with all rows that tell of it: a world that broke tells against whatever it was to prove."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        for violation in row.tally.violations if row.tally is not None else ():
            found.setdefault(violation, []).append(row)
    return found


def _notes(rows: Sequence[Row], scale: float) -> list[str]:
    """What a reader of the table can't see in it."""
    notes = []
    if any(row.proof.is_shared for row in rows):
        notes.append("* one set of fleets serves every such row; a fleet that breaks any rule counts in each of them")
    if any(row.tally is not None and row.tally.mutants is not None for row in rows):
        notes.append("planted: of the faults planted in the product's code to break this promise so many were noticed")
        if scale < 1:
            notes.append(
                f"         (at {scale:g} each has few worlds to be noticed in; at full scale a miss is a violation)"
            )
    return notes


def _row(row: Row) -> str:
    tally, text = row.tally, f"  {row.proof.text}{' *' if row.proof.is_shared else ''}"
    if tally is None:
        return f"    {text}: {row.note}"[:WIDTH]
    mutants = _share(tally.mutants) if tally.mutants is not None else ""
    found = f"{len(tally.violations):,}"
    runs = f"{tally.runs:,} {row.proof.unit:<{UNIT}}"
    return _line("", text, runs, f"{tally.faults:,}", found, mutants, _time(row.seconds))


def _line(number: str, text: str, runs: str, faults: str, violations: str, mutants: str, seconds: str) -> str:
    return f"{number:>2}  {text:<44.44} {runs:>14} {faults:>9} {violations:>10} {mutants:>8} {seconds:>6}".rstrip()


def _share(mutants: tuple[int, int]) -> str:
    return f"{mutants[0]} of {mutants[1]}"


def _time(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 5940:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 359_000 else f"{seconds / 3600:.0f} h"


def _indented(text: str) -> list[str]:
    return [f"  {line}" for line in text.splitlines()]
