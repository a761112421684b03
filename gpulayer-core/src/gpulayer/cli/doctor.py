"""``gpulayer doctor``: why a control plane can't be used from here, or that it can."""

import os
import sys
from collections.abc import Generator, Iterator
from typing import Annotated, Final

import typer

import gpulayer
from gpulayer.cli.console import is_fancy, print_json, print_line
from gpulayer.cli.exits import Exit
from gpulayer.cli.nouns import JsonFlag, StateOption, TargetOption, command_app, settings_for
from gpulayer.cli.status import not_running
from gpulayer.client.connect import Settings
from gpulayer.client.diagnosis import Finding, Mark, examine, examine_folder
from gpulayer.client.embedded import find_plane, is_stale
from gpulayer.client.location import Local, Location
from gpulayer.errors import Conflict, StorageUnavailable, Unauthenticated, UsageError
from gpulayer.sdk.settings import state_folder
from gpulayer.server.settings import Layout

app = command_app()

_SIGNS: Final = {Mark.OK: "ok", Mark.WARN: "warn", Mark.FAIL: "FAIL", Mark.SKIPPED: "-"}
_LOOKS: Final = 3
_COLOURS: Final = {Mark.OK: "32", Mark.WARN: "33", Mark.FAIL: "31", Mark.SKIPPED: "2"}


@app.command()
def doctor(
    urls: Annotated[
        list[str] | None,
        typer.Argument(metavar="[URL]…", help="Another control plane, as a worker's machine sees it; needs no token."),
    ] = None,
    *,
    fingerprint: Annotated[
        list[str] | None, typer.Option("--fingerprint", metavar="sha256:…", help="Of that control plane.")
    ] = None,
    target: TargetOption = "",
    state: StateOption = "",
    json: JsonFlag = False,
) -> int:
    """Look at each step between here and the control plane, and say what to mend. Exits with 0 if nothing fails."""
    if urls and (target or state):
        raise UsageError("a URL names another control plane than --target or --state", hint="give one of them")
    if fingerprint and not urls:
        raise UsageError("--fingerprint goes with a URL", hint="gpulayer doctor URL --fingerprint sha256:…")
    findings = _of_url(urls, fingerprint or []) if urls else _of_settings(target, state)
    found: list[Finding] = []
    for finding in findings:
        found.append(finding)
        if not json:
            _print(finding)
    failed = [finding for finding in found if finding.mark is Mark.FAIL]
    if json:
        print_json(
            {
                "ok": not failed,
                "findings": [
                    {"check": each.check, "state": str(each.mark), "message": each.message, "hint": each.hint}
                    for each in found
                ],
            }
        )
    elif not failed:
        print_line("nothing fails")
    return _exit(failed, found)


def _of_url(urls: list[str], fingerprints: list[str]) -> Iterator[Finding]:
    proxy = os.environ.get("GPULAYER_PROXY", "")
    location = Location.of(" ".join(urls), "", fingerprint=" ".join(fingerprints), proxy=proxy)
    yield from examine(location, version=gpulayer.__version__, client=f"gpulayer/{gpulayer.__version__}")


def _of_settings(target: str, state: str) -> Iterator[Finding]:
    if state and not (folder := state_folder(os.environ, state_dir=state)).is_dir():
        raise Conflict(
            f"{folder} holds no control plane", hint="--state DIR names another; gpulayer up makes one there"
        )
    try:
        settings = settings_for(target, state=state)
    except Unauthenticated as error:
        yield Finding("token", Mark.FAIL, error.message, error.hint)
        return
    location = yield from _location(settings)
    if location is not None:
        yield from examine(location, version=settings.version, client=settings.client)


def _location(settings: Settings) -> Generator[Finding, None, Location | None]:
    where = settings.where
    if not isinstance(where, Local):
        return where.location
    yield from examine_folder(where.state_dir)
    endpoint = find_plane(where.state_dir)
    store = list(_store(Layout(where.state_dir), is_served=endpoint is not None))
    yield from store
    if endpoint is not None:
        return endpoint.location
    if any(finding.mark is Mark.FAIL for finding in store):
        yield Finding("plane", Mark.SKIPPED, "no control plane runs here now, and none starts on such a store")
    elif is_stale(where.state_dir):
        message = not_running(where.state_dir)
        yield Finding("plane", Mark.WARN, message, f"{where.state_dir / 'plane.log'} may say why")
    elif where.state_dir.is_dir() and not os.access(where.state_dir, os.W_OK):
        message = f"no control plane runs here now, and none can start: {where.state_dir} can't be written"
        yield Finding(
            "plane", Mark.FAIL, message, "make it and its disk writable again; gpulayer backup FILE works still"
        )
    else:
        yield Finding("plane", Mark.OK, not_running(where.state_dir))
    return None


def _store(layout: Layout, *, is_served: bool) -> Iterator[Finding]:
    """What a start would refuse, and more: every page, every index. Nothing is started, changed or kept from starting
    for it: what was seen while a control plane began or ended is looked at once more."""
    from gpulayer.server.store.disk import examine as examine_store  # noqa: PLC0415 - SQLAlchemy

    if not layout.root.is_dir():
        return
    for _ in range(_LOOKS):
        before = _as_it_is(layout)
        said: StorageUnavailable | None = None
        schema: str | None = None
        try:
            schema = examine_store(layout.store, made_after=layout.pepper)
        except StorageUnavailable as error:
            said = error
        except OSError:
            return  # the folder says already what is wrong with it
        if is_served or _as_it_is(layout) == before:
            break
    else:
        return  # a control plane begins and ends just now
    if said is not None:
        yield Finding("store", Mark.FAIL, said.message, said.hint)
    elif schema is not None:
        yield Finding("store", Mark.OK, f"{layout.store} is whole (schema {schema})")
        from gpulayer.server.keeping import lacks_pepper  # noqa: PLC0415 - SQLAlchemy

        if (lost := lacks_pepper(layout)) is not None:
            yield Finding("pepper", Mark.FAIL, lost.message, lost.hint)


def _as_it_is(layout: Layout) -> tuple[object, ...]:
    """Another one after a control plane has begun or ended: it writes into its lock and the store. The lock itself is
    not asked, since that would keep one from starting just then."""
    seen: list[object] = [layout.store.with_name(f"{layout.store.name}-wal").exists()]
    for path in (layout.store, layout.lock):
        try:
            found = path.stat()
        except OSError:
            seen.append(None)
        else:
            seen.append((found.st_ino, found.st_size, found.st_mtime_ns))
    return tuple(seen)


def _print(finding: Finding) -> None:
    sign = f"{_SIGNS[finding.mark]:<4}"
    if is_fancy(sys.stdout):
        sign = f"\x1b[{_COLOURS[finding.mark]}m{sign}\x1b[0m"
        sys.stdout.write(f"{sign}  ")
        print_line(f"{finding.check:<8}  {finding.message}")
    else:
        print_line(f"{sign}  {finding.check:<8}  {finding.message}")
    if finding.hint:
        print_line(f"{'':<16}{finding.hint}")


def _exit(failed: list[Finding], found: list[Finding]) -> int:
    if not failed:
        return Exit.OK
    match failed[0].check:
        case "token":
            return Exit.NOT_AUTHORISED
        case "name" | "address" | "tls" | "answer":
            # One of several addresses that fails does no harm while another answers.
            reached = any(each.check == "answer" and each.mark is Mark.OK for each in found)
            others = [each for each in failed if each.check not in ("name", "address", "tls", "answer")]
            if reached:
                return _exit(others, found) if others else Exit.OK
            return Exit.UNREACHABLE
        case _:
            return Exit.INFRASTRUCTURE
