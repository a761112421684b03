"""``python -m tests.soak [--scale 0.01] [--only 3,9,rest] [--seed N]``: carry out every proof, and print one table.

Exit code 1 with any violation, 130 after Ctrl-C, 143 after SIGTERM: the table is printed all the same, as far as it
came, and what was started is ended.
"""

import argparse
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tests.soak.frame import PROMISES, REST, Proof, Row, carry_out, found_proofs, table

_SHOWN: Final = 3


class Terminated(KeyboardInterrupt):
    """By SIGTERM. As after Ctrl-C, every context on the way out ends what it began."""


def main(argv: list[str] | None = None, *, proofs: list[Proof] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--scale", type=_share, default=1.0, help="share of the full numbers (default: 1)")
    parser.add_argument("--only", default="", help="promises by number, and 'rest' for the other long runs: 3,9,rest")
    parser.add_argument("--seed", type=int, default=1, help="another seed is another run (default: 1)")
    parser.add_argument("--list", action="store_true", help="say what would be done")
    arguments = parser.parse_args(argv)
    wanted = _wanted(parser, arguments.only)
    chosen = [proof for proof in (found_proofs() if proofs is None else proofs) if proof.promise in wanted]
    if arguments.list:
        for proof in chosen:
            print(f"{proof.promise or '-':>2}  {proof.text}: {_runs(proof, arguments.scale):,} {proof.unit}")
        return 0
    with _orderly_end():
        rows, code = _carry_out(chosen, arguments.scale, arguments.seed)
    _clear()
    print(table(rows, scale=arguments.scale, seed=arguments.seed, wanted=wanted))
    if any(row.tally is not None and row.tally.violations for row in rows):
        return code or 1
    return code


def _carry_out(chosen: list[Proof], scale: float, seed: int) -> tuple[list[Row], int]:
    """One after another, until somebody ends it; the exit code of such an end."""
    rows: list[Row] = []
    for proof in chosen:
        began = time.monotonic()
        try:
            row = carry_out(proof, _runs(proof, scale), seed=seed, say=_progress(proof, began))
        except KeyboardInterrupt as end:
            rows.append(Row(proof, None, time.monotonic() - began, "interrupted"))
            return rows, 128 + (signal.SIGTERM if isinstance(end, Terminated) else signal.SIGINT)
        rows.append(row)
        _tell(row)
    return rows, 0


@contextmanager
def _orderly_end() -> Iterator[None]:
    """SIGTERM breaks off what is under way, once: a second one must not disturb what cleans up after the first."""

    def terminated(_number: int, _frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _share(text: str) -> float:
    scale = float(text)
    if not 0 < scale < float("inf"):
        raise ValueError(text)
    return scale


def _wanted(parser: argparse.ArgumentParser, only: str) -> set[int]:
    if not only:
        return {REST, *PROMISES}
    names = {"rest": REST, **{str(number): number for number in PROMISES}}
    try:
        return {names[part.strip()] for part in only.split(",")}
    except KeyError as error:
        parser.error(f"--only takes numbers of promises (1 to {len(PROMISES)}) and 'rest', not {error}")


def _runs(proof: Proof, scale: float) -> int:
    return max(1, round(proof.full * scale))


def _progress(proof: Proof, began: float):
    """One line that is written over, on a terminal."""

    def say(text: str) -> None:
        if sys.stderr.isatty():
            seconds = time.monotonic() - began
            line = f"{proof.promise or '-'}: {proof.text}: {text}, {seconds:.0f} s"
            print(f"\r\033[K{line[:99]}", end="", file=sys.stderr, flush=True)

    return say


def _clear() -> None:
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def _tell(row: Row) -> None:
    _clear()
    tally = row.tally
    found = "no violation" if tally is None or not tally.violations else f"{len(tally.violations)} VIOLATIONS"
    runs = tally.runs if tally is not None else 0
    print(
        f"{row.proof.promise or '-'}: {row.proof.text}: {runs:,} {row.proof.unit}, {found}", file=sys.stderr, flush=True
    )
    for violation in () if tally is None else tally.violations[:_SHOWN]:  # the table is hours away
        print(f"    {violation}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
