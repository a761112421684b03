"""``gpulayer context``: control planes by name, so that no command needs an address or a token."""

import os
import sys
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from gpulayer.cli.console import print_json, print_line, print_table, say
from gpulayer.cli.context_names import context_names
from gpulayer.cli.nouns import RETRY_FOR_S, JsonFlag, command_app
from gpulayer.cli.records import when
from gpulayer.client import calls
from gpulayer.client.contexts import Context, Contexts, change_contexts, check_name, read_contexts
from gpulayer.errors import UsageError
from gpulayer.net import parse_pins, parse_proxy, parse_urls
from gpulayer.sdk.settings import CONTEXTS_FILE, USER_AGENT, config_folder

if TYPE_CHECKING:
    from gpulayer.wire.plane import CallerRecord

__all__ = ["app"]

app = command_app(help="Add, list, use and remove control planes by name.", no_args_is_help=True)


class _Changes(TypedDict, total=False):
    """Fields of a context that were given."""

    urls: tuple[str, ...]
    fingerprints: tuple[str, ...]
    proxy: str


Name = Annotated[
    str, typer.Argument(metavar="NAME", help="What you call the control plane.", autocompletion=context_names)
]


@app.command()
def add(
    name: Name,
    urls: Annotated[list[str] | None, typer.Argument(metavar="[URL]…", help="Its addresses, tried in turn.")] = None,
    *,
    fingerprint: Annotated[
        list[str] | None, typer.Option("--fingerprint", metavar="PIN", help="Of its certificate; may be given again.")
    ] = None,
    token_file: Annotated[
        str, typer.Option("--token-file", metavar="FILE", help="Where the token stands (-: stdin).")
    ] = "",
    proxy: Annotated[
        str, typer.Option("--proxy", metavar="URL", help="An HTTP proxy to tunnel through (none: no longer).")
    ] = "",
    use: Annotated[
        bool | None,
        typer.Option("--use/--no-use", help="Make it the current one, or not. Default: if it is the first."),
    ] = None,
    check: Annotated[bool, typer.Option("--check/--no-check", help="Ask it first who you are there.")] = True,
) -> None:
    """Add a control plane, or change one: what is not given stays.

    The token comes from --token-file or a prompt, never from the command line, where other users of this machine would
    see it. GPULAYER_TOKEN is for the control plane of GPULAYER_URL: it is taken where that is the one that is added.
    A new name without a URL takes GPULAYER_URL and GPULAYER_FINGERPRINT.
    """
    check_name(name)
    before = read_contexts(_file()).named.get(name)
    changes = _changes(urls or [], fingerprint, proxy, before)
    token = _token(token_file, before, urls=changes.get("urls") or (before.urls if before else ()))
    wanted = _changed(before, changes, token)
    location = wanted.location(proxy=os.environ.get("GPULAYER_PROXY", ""))
    you: CallerRecord | None = None
    answered = ""
    if check:
        from gpulayer.client.connect import telling  # noqa: PLC0415 - as below
        from gpulayer.client.transport import Transport  # noqa: PLC0415 - the other commands here need none

        with telling(Transport(location, client=USER_AGENT, retry_for_s=RETRY_FOR_S), say) as transport:
            you = transport.send(calls.get_plane())["you"]
            answered = transport.url

    def change(contexts: Contexts) -> Contexts:
        # Upon what is there now: another command may have changed the rest of it meanwhile.
        return contexts.with_context(name, _changed(contexts.named.get(name, before), changes, token), is_current=use)

    after = change_contexts(_file(), change)
    print_line(f"context {name}: {', '.join(wanted.urls)}{' (current)' if after.current == name else ''}")
    if you is not None:
        until = f", until {when(you['expires_at'])}" if you["expires_at"] else ""
        print_line(f"at {answered} you are {you['name']} ({you['role']}{until})")
    _say_what_wins(after.current == name)


@app.command("list")
def list_contexts(*, json: JsonFlag = False) -> None:
    """All contexts; no token is shown."""
    contexts = read_contexts(_file())
    if json:
        rows = [
            {
                "name": name,
                "current": name == contexts.current,
                "urls": list(one.urls),
                "fingerprints": list(one.fingerprints),
                "proxy": one.proxy,
                "token_id": one.token_id,
            }
            for name, one in contexts.named.items()
        ]
        print_json({"current": contexts.current, "contexts": rows})
        return
    table = [
        [
            "*" if name == contexts.current else "",
            name,
            " ".join(one.urls),
            "pin" if one.fingerprints else "CA",
            one.token_id,
            one.proxy,
        ]
        for name, one in contexts.named.items()
    ]
    headers = ["", "name", "addresses", "trusted by", "token", "proxy"]
    print_table(headers, table, empty="no contexts; gpulayer context add NAME URL adds one")


@app.command("use")
def use_context(name: Name) -> None:
    """Commands go there from now on."""
    change_contexts(_file(), lambda contexts: contexts.using(name))
    print_line(f"current context: {name}")
    _say_what_wins(True)


@app.command()
def remove(name: Name) -> None:
    """Forget it and its token here; the token itself stays good (gpulayer token revoke)."""
    was_current = False

    def change(contexts: Contexts) -> Contexts:
        nonlocal was_current
        was_current = contexts.current == name
        return contexts.without(name)

    change_contexts(_file(), change)
    print_line(f"context {name} removed")
    if was_current:
        say("no context is current now: commands go to this machine's own control plane")


def _file() -> Path:
    return config_folder(os.environ) / CONTEXTS_FILE


def _changes(urls: list[str], fingerprints: list[str] | None, proxy: str, before: Context | None) -> _Changes:
    """The fields that were given, checked. Raises UsageError."""
    if fingerprints is not None and not all(text.strip() for text in fingerprints):
        raise UsageError("--fingerprint is empty", hint="leave it out where a public CA vouches for the server")
    if before is None and not urls:
        urls = [os.environ.get("GPULAYER_URL", "")]
        fingerprints = fingerprints or [os.environ.get("GPULAYER_FINGERPRINT", "")]
        if not urls[0]:
            raise UsageError("a new context needs a URL", hint="gpulayer context add NAME https://gpu-box:8470")
    found: _Changes = {}
    if urls:
        found["urls"] = tuple(str(address) for address in parse_urls(" ".join(urls)))
    if fingerprints is not None:
        found["fingerprints"] = tuple(parse_pins(fingerprints))
    if proxy:
        address = None if proxy == "none" else parse_proxy(proxy)
        found["proxy"] = str(address or "")
    return found


def _changed(before: Context | None, changes: _Changes, token: str) -> Context:
    return replace(before or Context(urls=(), token=""), **changes, token=token)


def _token(token_file: str, before: Context | None, *, urls: Collection[str]) -> str:
    """To be sent to ``urls``. Raises UsageError."""
    if token_file == "-":  # noqa: S105 - a name for stdin
        found = sys.stdin.readline()
    elif token_file:
        try:
            found = Path(token_file).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text"
            raise UsageError(f"--token-file {token_file} can't be read: {why}") from None
    elif os.environ.get("GPULAYER_TOKEN") and _is_of_environment(urls):
        found = os.environ["GPULAYER_TOKEN"]
    elif before is not None:
        found = before.token
    elif sys.stdin.isatty():
        from getpass import getpass  # noqa: PLC0415 - only where somebody is asked

        found = getpass("token (not shown): ")
    else:
        found = ""
    if not found.strip():
        raise UsageError(
            "a context needs a client token",
            hint="give --token-file FILE (-: stdin); GPULAYER_TOKEN is for the control plane of GPULAYER_URL alone",
        )
    return found.strip()


def _is_of_environment(urls: Collection[str]) -> bool:
    """Whether each of these URLs is one of GPULAYER_URL: a token of one control plane is not shown to another."""
    try:
        known = {str(address) for address in parse_urls(os.environ.get("GPULAYER_URL", ""))}
    except UsageError:
        return False
    return bool(urls) and known.issuperset(urls)


def _say_what_wins(is_current: bool) -> None:
    if is_current and os.environ.get("GPULAYER_URL"):
        say("GPULAYER_URL is set here and comes before the current context: unset it to go there")
