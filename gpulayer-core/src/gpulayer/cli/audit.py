"""``gpulayer audit``: who did what on a control plane, and whether the trail of it is whole."""

import json as json_
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gpulayer.cli.console import print_json, print_line, print_table, say
from gpulayer.cli.nouns import JsonFlag, TargetOption, command_app, open_client
from gpulayer.cli.records import details_text, when
from gpulayer.client import calls
from gpulayer.errors import UsageError
from gpulayer.wire.trail import FIRST_HASH, ChainCheck

if TYPE_CHECKING:
    from gpulayer.client.transport import Transport
    from gpulayer.wire.tokens import AuditRecord

app = command_app()

_PAGE: Final = 1000
_BROKEN: Final = 1


@app.command()
def audit(
    *,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compute all hashes anew; exits with 1 where they do not fit.")
    ] = False,
    kept: Annotated[
        str, typer.Option("--kept", metavar="N:HASH", help="With --verify: what --verify printed another time.")
    ] = "",
    after: Annotated[int, typer.Option("--after", min=0, metavar="N", help="Only entries after number N.")] = 0,
    target: TargetOption = "",
    json: JsonFlag = False,
) -> int:
    """Who did what, oldest first: tokens, workers, the control plane's starts and ends, other people's jobs."""
    if kept and not verify:
        raise UsageError("--kept goes with --verify")
    if verify and after:
        raise UsageError("--verify looks at all entries, --after leaves some out", hint="give one of them")
    wanted = _kept(kept)
    with open_client(target) as client:
        if verify:
            return _verify(client.transport, wanted, as_json=json)
        entries = list(_entries(client.transport, after))
    if json:
        print_json({"entries": entries})
        return 0
    rows = [
        [str(each["seq"]), when(each["at"]), each["actor"], each["action"], each["subject"], _details(each)]
        for each in entries
    ]
    rows = [[" ".join(cell.split()) for cell in row] for row in rows]  # one line an entry, whatever a name holds
    print_table(["n", "at", "who", "what", "to", "details"], rows, empty="no entries")
    return 0


def _verify(transport: "Transport", kept: tuple[int, str] | None, *, as_json: bool) -> int:
    check = ChainCheck()
    bad: AuditRecord | None = None
    is_as_kept = kept is None or kept == (0, FIRST_HASH)
    for each in _entries(transport, 0):
        if not check.take(each):
            bad = each
            break
        is_as_kept = is_as_kept or (check.seq, check.hash) == kept
    is_good = bad is None and is_as_kept
    if as_json:
        first_bad = None if bad is None else bad["seq"]
        print_json({"good": is_good, "seq": check.seq, "hash": check.hash, "first_bad": first_bad})
    elif bad is not None:
        print_line(
            f"broken: entry {bad['seq']} ({bad['action']} by {bad['actor']}, {when(bad['at'])}) does not follow from"
            f" entry {check.seq}"
        )
        say("it was changed, or one before it was taken out or slipped in; what comes before is as it was written")
    elif kept is not None and not is_as_kept:
        print_line(f"broken: entry {kept[0]} is not the one whose hash was kept")
        say("the trail was cut, or written anew from some entry on")
    else:
        print_line(f"{check.seq}:{check.hash}")
        say(f"good: {check.seq:,} entries; keep that line elsewhere, and give it to --kept another time")
    return 0 if is_good else _BROKEN


def _entries(transport: "Transport", after: int) -> "Iterator[AuditRecord]":
    while True:
        page = transport.send(calls.list_audit(after=after, limit=_PAGE))
        yield from page["entries"]
        if not page["entries"] or page["next"] <= after:
            return
        after = page["next"]


def _details(entry: "AuditRecord") -> str:
    try:
        details = json_.loads(entry["details"])
    except ValueError:
        return entry["details"]
    return details_text(details) if isinstance(details, dict) else entry["details"]


def _kept(text: str) -> tuple[int, str] | None:
    if not text:
        return None
    number, _, digest = text.strip().partition(":")
    if not (number.isascii() and number.isdigit() and len(number) < 19 and len(digest) == 64):
        raise UsageError(f"--kept {text[:90]}: not of the form N:HASH", hint="give the line that --verify printed")
    return int(number), digest.lower()
