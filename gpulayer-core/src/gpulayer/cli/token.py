"""``gpulayer token``: who may use a control plane, and what joins it. A token is shown once, when it is made."""

import os
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gpulayer.cli.console import print_json, print_line, print_table, say
from gpulayer.cli.handover import PLACEHOLDER, handover_lines, life_text
from gpulayer.cli.needs import pairs
from gpulayer.cli.nouns import JsonFlag, TargetOption, command_app, open_client, settings_for
from gpulayer.cli.records import age, when
from gpulayer.client import calls
from gpulayer.client.connect import telling
from gpulayer.client.contexts import Contexts, change_contexts, read_contexts
from gpulayer.client.location import Configured, Location
from gpulayer.client.transport import Transport
from gpulayer.errors import GpulayerError, Unauthenticated, UsageError
from gpulayer.sdk.client import Client
from gpulayer.sdk.settings import CONTEXTS_FILE, config_folder
from gpulayer.spec.units import parse_duration_ms

if TYPE_CHECKING:
    from gpulayer.client.connect import Settings
    from gpulayer.wire.tokens import TokenRecord, TokenReply

app = command_app(help="Make, list, revoke and rotate tokens.", no_args_is_help=True)

_ROLES: Final = ("admin", "submitter", "reader", "join")
_LONGEST_S: Final = 10 * 365 * 86_400


@app.command()
def create(
    *,
    role: Annotated[
        str, typer.Option("--role", metavar="ROLE", help="admin, submitter, reader; join to add workers.")
    ] = "",
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="Whose it is: tokens of one name manage the same jobs.")
    ] = "",
    expires: Annotated[
        str,
        typer.Option(
            "--expires", metavar="TIME", help="30d. Default: admin 30d, others 90d; join 15m, with --uses 24h."
        ),
    ] = "",
    uses: Annotated[
        int | None, typer.Option("--uses", min=1, metavar="N", help="With join: for so many workers (default 1).")
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option("--label", metavar="K=V", help="With join: a label of its workers.")
    ] = None,
    max_devices: Annotated[
        int | None,
        typer.Option("--max-devices", min=0, metavar="N", help="With join: each worker offers at most so many."),
    ] = None,
    target: TargetOption = "",
    json: JsonFlag = False,
) -> None:
    """Make a token, and print it alone on stdout; what to do with it goes to stderr."""
    if role not in _ROLES:
        raise UsageError(f"--role {role}: not a role" if role else "--role is missing", hint=f"one of {_words(_ROLES)}")
    for flag, value in (("--uses", uses), ("--label", label), ("--max-devices", max_devices)):
        if role != "join" and value not in (None, []):
            raise UsageError(f"{flag} goes with --role join alone", hint=f"leave it out for --role {role}")
    life_s = None if not expires else parse_duration_ms(expires, what="--expires") // 1000
    if life_s is not None and not 1 <= life_s <= _LONGEST_S:
        raise UsageError(f"--expires {expires}: a token lives for 1s to 3650d")
    call = calls.create_token(
        role,
        name=name,
        expires_in_s=life_s,
        max_uses=uses,
        labels=pairs(label or (), "--label"),
        max_devices=max_devices,
    )
    with open_client(target) as client:
        plane = client.plane()
        reply = client.transport.send(call)
    if json:
        print_json(reply)
        return
    print_line(reply["token"])
    say(f"token {reply['token_id']} ({reply['role']} {reply['name']})")
    # The whole line only where a person looks: stderr is what ends up in logs.
    shown = reply["token"] if sys.stderr.isatty() else PLACEHOLDER
    for line in handover_lines(reply, plane, token=shown, max_uses=uses or 1):
        say(line)


@app.command("list")
def list_tokens(*, target: TargetOption = "", json: JsonFlag = False) -> None:
    """All tokens, newest first: whose, what for, and whether they are still good."""
    with open_client(target) as client:
        tokens = client.transport.send(calls.list_tokens())["tokens"]
    if json:
        print_json({"tokens": tokens})
        return
    now = datetime.now(UTC)
    rows = [
        [
            token["id"],
            token["role"],
            token["name"],
            token["state"],
            age(token["created_at"], now),
            when(token["expires_at"]) or "never",
            _used(token, now),
            "" if token["max_uses"] is None else f"{token['uses']}/{token['max_uses']}",
        ]
        for token in tokens
    ]
    headers = ["token", "role", "name", "state", "created", "expires", "last used", "uses"]
    print_table(headers, rows, empty="no tokens")


@app.command()
def revoke(
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="Its id, or the name of its owner.")],
    *,
    every: Annotated[bool, typer.Option("--all", help="All tokens of that name.")] = False,
    target: TargetOption = "",
    json: JsonFlag = False,
) -> None:
    """Make it useless at once, and all that it was rotated into. Workers that joined with it stay; `worker remove` ends
    them.
    """
    with open_client(target) as client:
        revoked = client.transport.send(calls.revoke_token(token, all_of_name=every))["tokens"]
        others = [] if json else _still_good(client, revoked)
    if json:
        print_json({"tokens": revoked})
        return
    ids = {record["id"] for record in revoked}
    for record in revoked:
        before = record.get("replaces")
        origin = f": {before} was rotated into it" if before in ids else ""
        print_line(f"token {record['id']} ({_whose(record)}) {record['state']}{origin}")
    for name in dict.fromkeys(record["name"] for record in others):
        good = _words([record["id"] for record in others if record["name"] == name])
        say(f"note: {name} has other tokens that are good: {good}; --all revokes all of a name")


@app.command()
def rotate(*, target: TargetOption = "", json: JsonFlag = False) -> None:
    """Replace the token that commands are sent with by a new one; the old one is good for 10 more minutes.

    Of a context it is replaced there; else it is printed.
    """
    settings = settings_for(target)
    where, file = settings.where, settings.contexts
    if isinstance(where, Configured) and where.context and file is not None:
        reply, names, location = _rotate_in_contexts(file, where.context, settings)
        _take_up(location, reply, settings)
        told = {field: value for field, value in reply.items() if field != "token"}
        if json:
            print_json({**told, "contexts": names})
        else:
            whose = f"{reply['role']} {reply['name']}"
            print_line(f"context {_words(names)}: token {reply['token_id']} ({whose}), for {life_text(reply)}")
        return
    with Client(settings=settings) as client:
        reply = client.transport.send(calls.rotate_token())
    kept: list[str] = []
    if isinstance(where, Configured):
        _take_up(where.location, reply, settings)
        kept = _in_contexts(config_folder(os.environ) / CONTEXTS_FILE, where.location.token, reply["token"])
    if json:
        print_json(reply)
        return
    print_line(reply["token"])
    if kept:
        say(f"context {_words(kept)} had the old token too, and has the new one now")
    say("the old token is good for 10 more minutes; put this one where that is kept, such as GPULAYER_TOKEN")


def _in_contexts(file: Path, old: str, new: str) -> list[str]:
    """The names of the contexts that had the old token and have the new one now: it came from elsewhere, but they would
    be left with one that ends."""
    names: list[str] = []

    def change(contexts: Contexts) -> Contexts:
        names.extend(name for name, one in contexts.named.items() if one.token == old)
        changed = {name: replace(contexts.named[name], token=new) for name in names}
        return replace(contexts, named={**contexts.named, **changed})

    try:
        if any(one.token == old for one in read_contexts(file).named.values()):
            change_contexts(file, change)
    except UsageError as error:  # the new token is printed all the same: it is shown this once
        say(f"note: a context may still have the old token: {error.message}")
        return []
    return names


def _take_up(location: Location, reply: "TokenReply", settings: "Settings") -> None:
    """Use the new token once. A token that was never used counts as lost with its answer: another machine that has the
    old one, and rotates it too, would have it revoked. Used, it makes that machine's rotation the one that is refused.

    Raises Unauthenticated where another rotation came between. What else hinders is told: the token is good.
    """
    taken = replace(location, token=reply["token"])
    try:
        with telling(Transport(taken, client=settings.client, retry_for_s=settings.retry_for_s), say) as transport:
            transport.send(calls.get_plane())
    except Unauthenticated as error:
        raise Unauthenticated(
            f"the new token is no good already: {error.message}",
            hint="somebody else has rotated the old token at the same time: take theirs, or ask for another",
        ) from None
    except GpulayerError as error:
        say(f"note: the new token could not be tried yet ({error.message}); until it is, another rotation replaces it")


def _rotate_in_contexts(file: Path, name: str, settings: "Settings") -> "tuple[TokenReply, list[str], Location]":
    """In every context that has this token. Asked for under the lock of the file, so that of two commands at once the
    second rotates what the first one got. Also where it was asked for."""
    made: TokenReply | None = None
    location: Location | None = None
    names: list[str] = []

    def change(contexts: Contexts) -> Contexts:
        nonlocal made, location
        before = contexts.find(name)
        location = before.location(proxy=settings.environment.get("GPULAYER_PROXY", ""))
        with telling(Transport(location, client=settings.client, retry_for_s=settings.retry_for_s), say) as transport:
            made = transport.send(calls.rotate_token())
        names.extend(other for other, one in contexts.named.items() if one.token == before.token)
        changed = {other: replace(contexts.named[other], token=made["token"]) for other in names}
        return replace(contexts, named={**contexts.named, **changed})

    try:
        change_contexts(file, change)
    except UsageError:
        if made is not None:  # else nobody has it
            print_line(made["token"])
            say("the new token, on stdout, could not be kept:")
        raise
    if made is None or location is None:
        raise AssertionError("contexts were changed without a token")
    return made, names, location


def _still_good(client: Client, revoked: "list[TokenRecord]") -> "list[TokenRecord]":
    """Client tokens that do the same as those that were revoked: of the same name, hence of the same person."""
    names = {record["name"] for record in revoked if record["kind"] == "client"}
    if not names:
        return []
    tokens = client.transport.send(calls.list_tokens())["tokens"]
    return [
        record
        for record in tokens
        if record["name"] in names and record["kind"] == "client" and record["state"] == "valid"
    ]


def _used(record: "TokenRecord", now: datetime) -> str:
    """Kept is the minute that it was in, not the second."""
    at = record["last_used_at"]
    if at is None:
        return "" if record["role"] == "join" else "never"
    at = max(at, record["created_at"])  # the beginning of the minute in which it was both made and used
    return "just now" if now - datetime.fromisoformat(at) < timedelta(minutes=2) else age(at, now)


def _whose(record: "TokenRecord") -> str:
    return f"{record['role']} {record['name']}".rstrip()


def _words(texts: "tuple[str, ...] | list[str]") -> str:
    return ", ".join(texts)
