"""``gpulayer up``: a standing control plane on this machine. On the same state it adopts the background one."""

import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gpulayer.cli.background import plane_command, serve_plane
from gpulayer.cli.console import print_line, say
from gpulayer.cli.nouns import command_app
from gpulayer.cli.worker_log import shown_log
from gpulayer.client import calls
from gpulayer.client.embedded import find_plane, log_tail, start_detached, wait_until_gone
from gpulayer.client.transport import Transport
from gpulayer.errors import Conflict, NotSupported, TimedOut, Unreachable, UsageError
from gpulayer.sdk.settings import state_folder
from gpulayer.spec.units import parse_duration_ms
from gpulayer.variables import background_variables

if TYPE_CHECKING:
    from gpulayer.client.location import EndpointFound

app = command_app()

_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_START_S: Final = 30.0


@app.command()
def up(
    *,
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="Only 127.0.0.1 until TLS is there.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, metavar="N")] = 8470,
    state: Annotated[str, typer.Option("--state", metavar="DIR", help="Where it keeps everything.")] = "",
    no_worker: Annotated[bool, typer.Option("--no-worker", help="This machine does no work itself.")] = False,
    keep_logs: Annotated[
        str, typer.Option("--keep-logs", metavar="TIME", help="How long after a job's end: 30d (default); 0 for ever.")
    ] = "30d",
    detach: Annotated[bool, typer.Option("--detach", help="Return once it serves.")] = False,
) -> int:
    """Start a control plane with a worker on this machine, and print how others reach it."""
    if host not in _LOOPBACK:
        raise NotSupported(
            f"--host {host}: serving other machines needs TLS, which comes with a later version",
            hint="leave --host out; ssh -L and -R carry the port for now",
        )
    keep_logs_ms = parse_duration_ms(keep_logs, what="--keep-logs")
    folder = state_folder(os.environ, state_dir=state)
    running = find_plane(folder)
    if running is not None and not running.embedded:
        if detach:
            say("it runs already, as it was started; gpulayer down ends it")
            _announce(running)
            return 0
        raise Conflict(
            f"a control plane serves {folder} already: {running.url}, process {running.pid}",
            hint="gpulayer status shows it, gpulayer down ends it",
        )
    _check_port(host, port)
    if running is not None:
        _take_over(running, folder)
    argv = plane_command(
        state=folder, mode="standing", host=host, port=port, has_worker=not no_worker, keep_logs_ms=keep_logs_ms
    )
    if detach:
        return _start(argv, folder)
    threading.Thread(target=_announce_when_up, args=(folder,), name="gpulayer-announce", daemon=True).start()
    with shown_log(folder / "worker" / "worker.log"):
        code = serve_plane(argv)
    say("the control plane has ended")
    return code


def _start(argv: list[str], folder: Path) -> int:
    log = folder / "plane.log"
    command = [sys.executable, "-P", "-m", "gpulayer.cli.background", *argv]
    process = start_detached(command, log=log, environment=background_variables(os.environ))
    ends = time.monotonic() + _START_S
    while time.monotonic() < ends and process.poll() is None:
        found = find_plane(folder)
        if found is not None and found.pid == process.pid:
            process.returncode = 0  # it goes on without this command; Popen need not warn of that
            _announce(found)
            return 0
        time.sleep(0.01)
    if process.poll() is None:
        process.terminate()
        process.wait(timeout=10)
    tail = log_tail(log)
    raise Unreachable(
        "the control plane did not start" + (f"; the end of its log:\n{tail}" if tail else ""),
        hint=f"the whole log is {log}",
    )


def _announce_when_up(folder: Path) -> None:
    ends = time.monotonic() + _START_S
    while time.monotonic() < ends:
        found = find_plane(folder)
        if found is not None and found.pid == os.getpid():
            _announce(found)
            return
        time.sleep(0.02)


def _announce(endpoint: "EndpointFound") -> None:
    """How to add machines and how to reach it. The join token works once; the other line holds the user's own."""
    with Transport(endpoint.location) as transport:
        join = transport.send(calls.create_token())
    minutes, port = join["expires_in_s"] // 60, endpoint.port
    say(f"the control plane serves {endpoint.url}")
    say(f"add a worker (works once, for {minutes} min):")
    print_line(f"  gpulayer join {endpoint.url} --token {join['token']}")
    say("use it from another account:")
    print_line(f"  export GPULAYER_URL={endpoint.url} GPULAYER_TOKEN={endpoint.token}")
    say("other machines reach it only through a forwarded port for now; the same lines hold there after")
    say(f"  ssh -R {port}:127.0.0.1:{port} THERE from here, or ssh -L {port}:127.0.0.1:{port} HERE from there")


def _check_port(host: str, port: int) -> None:
    if port == 0:
        return
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        if os.name == "posix":
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UsageError(
                f"port {port} on {host} can't be used: {(error.strerror or str(error)).lower()}",
                hint="choose another with --port N, or end what listens there",
            ) from None


def _take_over(running: "EndpointFound", folder: Path) -> None:
    """The background control plane makes room; its worker and jobs go on."""
    say("taking over from the background control plane")
    with Transport(running.location) as transport:
        transport.send(calls.shutdown_plane(keep_worker=True))
    if not wait_until_gone(running, folder, deadline_s=_START_S):
        raise TimedOut(
            f"the background control plane (process {running.pid}) does not end",
            hint=f"see {folder / 'plane.log'}",
        )
