"""``gpulayer up``: a standing control plane on this machine. On the same state it adopts the background one."""

import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from gpulayer.cli.background import plane_command, serve_plane, tls_setting
from gpulayer.cli.console import print_error, print_line, say
from gpulayer.cli.exits import Exit
from gpulayer.cli.handover import announcement
from gpulayer.cli.nouns import command_app
from gpulayer.cli.worker_log import shown_log
from gpulayer.client import calls
from gpulayer.client.connect import telling
from gpulayer.client.embedded import (
    find_plane,
    is_starting,
    log_size,
    start_detached,
    wait_until_gone,
    why_not_started,
)
from gpulayer.client.holder import is_restored
from gpulayer.client.transport import Transport
from gpulayer.errors import Conflict, GpulayerError, StorageUnavailable, TimedOut, Unreachable, UsageError
from gpulayer.net.address import parse_url
from gpulayer.plugins.settings import PluginSettings
from gpulayer.sdk.settings import state_folder
from gpulayer.spec.units import parse_duration_ms
from gpulayer.variables import background_variables

if TYPE_CHECKING:
    from gpulayer.client.location import EndpointFound
    from gpulayer.server.settings import CertificateFiles
    from gpulayer.wire.tokens import TokenReply

app = command_app()

_START_S: Final = 30.0
_GOES_S: Final = 5.0
_POLL_S: Final = 0.01
_KEPT_MS: Final = 30 * 86_400_000  # of --keep-logs and --keep-events
_SHORTEST_EVENTS_MS: Final = 3_600_000
_CLIENT_NAME: Final = "client"
_PRINTED: Final = "printed-token"


@app.command()
def up(
    *,
    host: Annotated[
        str,
        typer.Option(
            "--host", metavar="ADDRESS", help="Where to listen: 0.0.0.0: everywhere; 127.0.0.1: this machine alone."
        ),
    ] = "0.0.0.0",  # noqa: S104 - other machines are what it is for; it has TLS and tokens
    port: Annotated[int, typer.Option("--port", min=0, max=65535, metavar="N", help="0: any free one.")] = 8470,
    tls: Annotated[
        str,
        typer.Option(
            "--tls", metavar="auto|off|CERT,KEY", help="A certificate of its own, none behind a proxy, or yours (PEM)."
        ),
    ] = "auto",
    public_url: Annotated[
        list[str] | None,
        typer.Option("--public-url", metavar="URL", help="What others use: a DNS name, a proxy, a forwarded port."),
    ] = None,
    state: Annotated[str, typer.Option("--state", metavar="DIR", help="Where it keeps everything.")] = "",
    no_worker: Annotated[bool, typer.Option("--no-worker", help="This machine does no work itself.")] = False,
    keep_logs: Annotated[
        str, typer.Option("--keep-logs", metavar="TIME", help="How long after a job's end they stay. 0: for ever.")
    ] = "30d",
    keep_events: Annotated[
        str,
        typer.Option("--keep-events", metavar="TIME", help="How long events are kept, all jobs'. 0: for ever."),
    ] = "30d",
    detach: Annotated[bool, typer.Option("--detach", help="Return once it serves.")] = False,
) -> int:
    """Start a control plane with a worker on this machine, and print how others reach it."""
    keep_logs_ms = parse_duration_ms(keep_logs, what="--keep-logs")
    keep_events_ms = parse_duration_ms(keep_events, what="--keep-events")
    if 0 < keep_events_ms < _SHORTEST_EVENTS_MS:
        raise UsageError(
            f"--keep-events {keep_events} is shorter than 1h: jobs that run would lose their events",
            hint="give 1h or more, or 0 to keep them for ever",
        )
    public = [_public(url) for url in public_url or ()]
    chosen = _checked_tls(tls)
    PluginSettings.of(os.environ)  # before anything is ended or started; in a log nobody would look for what it raises
    folder = state_folder(os.environ, state_dir=state)
    argv = plane_command(
        state=folder,
        mode="standing",
        host=host,
        port=port,
        has_worker=not no_worker,
        keep_logs_ms=keep_logs_ms,
        keep_events_ms=keep_events_ms,
        tls=chosen if isinstance(chosen, str) else f"{chosen.cert},{chosen.key}",
        public_urls=public,
    )
    ends = time.monotonic() + _START_S
    while True:
        running = _settled(folder, ends)
        if running is not None and not running.embedded:
            return _already(running, argv, folder, is_enough=detach)
        try:
            _check_port(host, port, chosen)
        except UsageError as error:
            if (is_starting(folder) or _is_another(running, folder)) and time.monotonic() < ends:
                continue  # another command's start has it by now
            if is_restored(folder):
                raise UsageError(
                    error.message,
                    hint="the former control plane, of which this one was restored? End that one first: both have the"
                    " same identity, and the workers and clients of both go to whichever answers",
                ) from None
            raise
        if running is not None:
            _take_over(running, folder)
        if not detach:
            break
        if _start(argv, folder):
            return 0
        if time.monotonic() >= ends:
            raise TimedOut(f"others go on starting control planes on {folder}", hint=f"see {folder / 'plane.log'}")
    threading.Thread(target=_announce_when_up, args=(folder,), name="gpulayer-announce", daemon=True).start()
    with shown_log(folder / "worker" / "worker.log"):
        code = serve_plane(argv)
    say("the control plane has ended")
    return code


def _settled(folder: Path, ends: float) -> "EndpointFound | None":
    """The control plane that serves the folder. One that is about to, or to end, is waited for, until ``ends``."""
    has_said = False
    while True:
        found = find_plane(folder)
        if found is not None or not is_starting(folder) or time.monotonic() >= ends:
            return found
        if not has_said:
            say("a control plane starts here, or ends: waiting for it")
            has_said = True
        time.sleep(_POLL_S)


def _is_another(running: "EndpointFound | None", folder: Path) -> bool:
    """Whether another control plane serves the folder by now."""
    found = find_plane(folder)
    return found is not None and (running is None or found.pid != running.pid)


def _already(running: "EndpointFound", argv: Sequence[str], folder: Path, *, is_enough: bool) -> int:
    """Raises Conflict where that is not enough, or it was started in another way."""
    if not is_enough:
        raise Conflict(
            f"a control plane serves {folder} already: {running.url}, process {running.pid}",
            hint="gpulayer status shows it, gpulayer down ends it",
        )
    _check_same(running, argv)
    say("it runs already, as it was started; gpulayer down ends it")
    _announce(running, folder, has_client=True)
    return 0


def _check_same(running: "EndpointFound", argv: Sequence[str]) -> None:
    """Raises Conflict for options that the one that runs was not started with: whoever gave them would go by them."""
    wanted, has = _options(argv), _options(running.restart)
    kept = [str(_KEPT_MS)]
    usual = {"--host": ["0.0.0.0"], "--port": ["8470"], "--mode": ["standing"]}  # noqa: S104
    usual |= {"--keep-logs-ms": kept, "--keep-events-ms": kept}
    given = [name for name, values in wanted.items() if name != "--state" and values not in (usual.get(name), ["0"])]
    others = [name for name in given if wanted[name] != has.get(name)]
    if others and has:
        shown = ", ".join(others).replace("-ms", "")
        raise Conflict(
            f"a control plane runs here already, and was started with another {shown}: {running.url}",
            hint="gpulayer down ends it (joined workers go on), then up again starts it as it is to be",
        )


def _options(argv: Sequence[str]) -> dict[str, list[str]]:
    """Each option of a command line and its values."""
    found: dict[str, list[str]] = {}
    name = ""
    for word in argv:
        if word.startswith("--"):
            name = word
            found.setdefault(name, [])
        elif name:
            found[name].append(word)
    return found


def _public(url: str) -> str:
    """Raises UsageError: a URL that others could not use must not get into the lines that they paste."""
    return str(parse_url(url))


def _checked_tls(text: str) -> "Literal['auto', 'off'] | CertificateFiles":
    """Raises UsageError also for files that can't be used: in the log of a detached one nobody would look."""
    chosen = tls_setting(text)
    if not isinstance(chosen, str):
        from gpulayer.server.certificates import load_certificate  # noqa: PLC0415 - only for one's own

        warning = load_certificate(chosen, now_ms=time.time_ns() // 1_000_000).warning
        if warning:
            say(f"warning: {warning}")
    return chosen


def _start(argv: list[str], folder: Path) -> bool:
    """Blocks until it serves. False where another process was first in the folder."""
    log = folder / "plane.log"
    command = [sys.executable, "-P", "-m", "gpulayer.cli.background", *argv]
    begins = log_size(log)
    process = start_detached(command, log=log, environment=background_variables(os.environ))
    ends = time.monotonic() + _START_S
    while time.monotonic() < ends and process.poll() is None:
        found = find_plane(folder)
        if found is not None and found.pid == process.pid:
            process.returncode = 0  # it goes on without this command; Popen need not warn of that
            _announce(found, folder, has_client=True)
            return True
        time.sleep(_POLL_S)
    if process.poll() == Exit.USAGE and (is_starting(folder) or find_plane(folder) is not None):
        return False
    if process.poll() is None:
        process.terminate()
        process.wait(timeout=10)
    kind = StorageUnavailable if process.returncode == Exit.INFRASTRUCTURE else Unreachable  # as without --detach
    raise kind(
        f"the control plane did not start{why_not_started(log, log_begins=begins)}", hint=f"the whole log is {log}"
    )


def _announce_when_up(folder: Path) -> None:
    """In a thread of its own. The control plane goes on, whatever hinders this."""
    try:
        _announce_once_up(folder)
    except GpulayerError as error:
        print_error(error)
        say("the control plane goes on; gpulayer token create prints the lines that others need")


def _announce_once_up(folder: Path) -> None:
    ends = time.monotonic() + _START_S
    while time.monotonic() < ends:
        found = find_plane(folder)
        if found is not None and found.pid == os.getpid():
            # Off a terminal stdout is a unit's journal or a log, where a token of 90 days would stand for all to read.
            _announce(found, folder, has_client=sys.stdout.isatty())
            return
        time.sleep(0.02)


def _announce(endpoint: "EndpointFound", folder: Path, *, has_client: bool) -> None:
    """How to add machines and how to reach it. Only a join token that works once stands in a command line.

    has_client: with a client token, for whoever looks or has asked for the lines.
    """
    with telling(Transport(endpoint.location), say) as transport:
        join = transport.send(calls.create_token())
        client = _client_token(transport, folder / _PRINTED) if has_client else None
    for text, is_pasted in announcement(endpoint, join, client):
        (print_line if is_pasted else say)(text)


def _client_token(transport: Transport, printed: Path) -> "TokenReply":
    """A new one. The one that was printed before is revoked if nobody has used it: it was not wanted, and its line may
    stand in many a scrollback. ``printed`` has its id."""
    from gpulayer.whole import write_whole  # noqa: PLC0415 - not for --help

    try:
        before = printed.read_text(encoding="ascii")
    except (OSError, ValueError):
        before = ""
    for token in transport.send(calls.list_tokens())["tokens"] if before else ():
        if token["id"] == before and token["state"] == "valid" and token["last_used_at"] is None:
            transport.send(calls.revoke_token(before))
    made = transport.send(calls.create_token("submitter", name=_CLIENT_NAME))
    try:
        write_whole(printed, made["token_id"].encode("ascii"))
    except OSError as error:
        say(f"note: {printed} can't be written ({error.strerror}): the next start does not revoke this client token")
    return made


def _check_port(host: str, port: int, tls: "Literal['auto', 'off'] | CertificateFiles") -> None:
    """Raises UsageError where it can't be listened on, before anything is ended or started. Nobody gets a connection
    meanwhile, and who begins to listen there is not hindered."""
    from gpulayer.server.listening import open_listeners  # noqa: PLC0415 - not for --help

    if port:
        with open_listeners(host, port, tls=tls, is_trial=True):
            pass


def _take_over(running: "EndpointFound", folder: Path) -> None:
    """The background control plane makes room; its worker and jobs go on."""
    say("taking over from the background control plane")
    try:
        with telling(Transport(running.location), say) as transport:
            transport.send(calls.shutdown_plane(keep_worker=True))
    except Unreachable:
        if not wait_until_gone(running, folder, deadline_s=_GOES_S):
            raise  # another start has not ended it, either
    if not wait_until_gone(running, folder, deadline_s=_START_S):
        raise TimedOut(
            f"the background control plane (process {running.pid}) does not end",
            hint=f"see {folder / 'plane.log'}",
        )
