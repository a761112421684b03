"""What runs in the background, as a program: ``python -m gpulayer.cli.background plane|worker …``.

argparse instead of typer, and imports only of what is started: its start-up time is part of every cold submit.
``gpulayer up`` calls ``serve_plane`` in the foreground with the same arguments; ``gpulayer join`` becomes ``worker``.
"""

import argparse
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NoReturn, TextIO, cast

from gpulayer.cli.ending import end_with
from gpulayer.cli.trials import arm_faults, lease_ttl_ms, wanted_faults
from gpulayer.errors import Conflict, GpulayerError, UsageError
from gpulayer.hiding import hide_process
from gpulayer.variables import background_variables

if TYPE_CHECKING:
    from gpulayer.server.settings import CertificateFiles
    from gpulayer.worker import WorkerSettings

__all__ = [
    "become_worker",
    "main",
    "plane_command",
    "run_worker",
    "serve_plane",
    "tls_setting",
    "worker_command",
    "worker_settings",
]

_IN_PLACE: Final = "--in-place-of-one-that-died"  # of who started it unasked (``client.embedded``)
_PYDANTIC_PLUGINS: Final = "PYDANTIC_DISABLE_PLUGINS"


def main(argv: Sequence[str] | None = None) -> int:
    """Run until told to end. Returns an exit code; errors are one line and a hint on stderr, which is a log here."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        arm_faults(os.environ)
        _hide_printed()
        match arguments[:1]:
            case ["plane"]:
                return serve_plane(arguments)
            case ["worker"]:
                return run_worker(arguments[1:])
            case _:
                print("usage: python -m gpulayer.cli.background plane|worker …", file=sys.stderr)
                return 2
    except GpulayerError as error:
        from gpulayer.cli.console import print_error, say  # noqa: PLC0415 - only after an error

        if isinstance(error, Conflict) and (error.details.get("is_served") or error.details.get("has_ended")):
            # Of several commands that start one at once all but one end here, and that is as it should be.
            say(f"this start is not needed: {error.message}")
        else:
            print_error(error)
        from gpulayer.cli.exits import exit_for_error  # noqa: PLC0415 - only after an error

        return exit_for_error(error)


def _leave_out_pydantic_plugins() -> None:
    """Of this process. Whatever is installed may name plugins of pydantic, which imports them in the middle of a
    request, and fails where any distribution's metadata is damaged. To be called before pydantic is imported."""
    os.environ[_PYDANTIC_PLUGINS] = "__all__"


def _hide_printed() -> None:
    """Output is a log here, and plugins may print what they were trusted with."""
    from gpulayer.plugins.hiding import Printed, SecretsHider  # noqa: PLC0415 - only for what is started
    from gpulayer.plugins.settings import PluginSettings  # noqa: PLC0415

    variables = PluginSettings.of(os.environ).variables
    if variables:
        hider = SecretsHider({"": variables})
        sys.stdout, sys.stderr = cast("TextIO", Printed(sys.stdout, hider)), cast("TextIO", Printed(sys.stderr, hider))


def plane_command(
    *,
    state: Path,
    mode: str,
    host: str = "127.0.0.1",
    port: int = 0,
    has_worker: bool = True,
    idle_exit_s: float | None = None,
    keep_logs_ms: int | None = None,
    keep_events_ms: int | None = None,
    tls: str = "auto",
    public_urls: Sequence[str] = (),
) -> list[str]:
    """The arguments of a control plane, as ``main`` reads them. Pure."""
    argv = ["plane", "--state", str(state), "--mode", mode, "--host", host, "--port", str(port)]
    if not has_worker:
        argv.append("--no-worker")
    if idle_exit_s is not None:
        argv += ["--idle-exit-s", f"{idle_exit_s:g}"]
    if keep_logs_ms is not None:
        argv += ["--keep-logs-ms", str(keep_logs_ms)]
    if keep_events_ms is not None:
        argv += ["--keep-events-ms", str(keep_events_ms)]
    if tls != "auto":
        argv += ["--tls", tls]
    for url in public_urls:
        argv += ["--public-url", url]
    return argv


def tls_setting(text: str) -> "Literal['auto', 'off'] | CertificateFiles":
    """``--tls``. Raises UsageError for what is neither ``auto``, ``off`` nor two paths."""
    from gpulayer.server.settings import CertificateFiles  # noqa: PLC0415 - only for a control plane

    match text:
        case "auto":
            return "auto"
        case "off":
            return "off"
        case _:
            pass
    cert, comma, key = text.partition(",")
    if not comma or not cert or not key:
        raise UsageError(
            f"--tls {text}: not a certificate and its key", hint="--tls auto, --tls off or --tls CERT.pem,KEY.pem"
        )
    # Absolute: it is started again from another folder.
    return CertificateFiles(Path(cert).absolute(), Path(key).absolute())


def worker_command(*, state: Path, python: str, host_name: str) -> tuple[str, ...]:
    """The whole command line of a control plane's own worker. Pure."""
    folder = state / "worker"
    return (
        *(python, "-P", "-m", "gpulayer.cli.background", "worker"),
        *("--work-dir", str(folder)),
        *("--endpoint-file", str(state / "endpoint.json")),
        *("--token-file", str(folder / "join-token")),
        *("--default-name", host_name),
    )


def serve_plane(argv: Sequence[str]) -> int:
    """Serve until told to end. Blocks. ``argv`` as of ``plane_command``."""
    parser = argparse.ArgumentParser(prog="gpulayer-plane", allow_abbrev=False)
    parser.add_argument("command", choices=["plane"])
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--mode", choices=["embedded", "standing"], required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--no-worker", action="store_true")
    parser.add_argument("--idle-exit-s", type=float, default=600.0)
    parser.add_argument("--keep-logs-ms", type=int)
    parser.add_argument("--keep-events-ms", type=int)
    parser.add_argument("--tls", default="auto")
    parser.add_argument("--public-url", action="append", default=[])
    parser.add_argument(_IN_PLACE, dest="in_place", action="store_true")
    given = parser.parse_args(argv)
    hide_process()
    _leave_out_pydantic_plugins()
    from gpulayer.plugins.settings import PluginSettings  # noqa: PLC0415 - only for what is started
    from gpulayer.server import ServeSettings, serve  # noqa: PLC0415 - loads the whole server
    from gpulayer.server.settings import DEFAULT_KEEP_EVENTS_MS, DEFAULT_KEEP_LOGS_MS  # noqa: PLC0415

    again = [word for word in argv if word != _IN_PLACE]
    own_worker = worker_command(state=given.state, python=sys.executable, host_name=_host_name())
    return serve(
        ServeSettings(
            state_dir=given.state,
            mode=given.mode,
            host=given.host,
            port=given.port,
            worker_command=None if given.no_worker else own_worker,
            worker_environment=background_variables(os.environ),
            idle_exit_s=given.idle_exit_s,
            lease_ttl_ms=lease_ttl_ms(os.environ),
            keep_logs_ms=DEFAULT_KEEP_LOGS_MS if given.keep_logs_ms is None else given.keep_logs_ms,
            keep_events_ms=DEFAULT_KEEP_EVENTS_MS if given.keep_events_ms is None else given.keep_events_ms,
            tls=tls_setting(given.tls),
            public_urls=tuple(given.public_url),
            plugins=PluginSettings.of(os.environ),
            in_place=given.in_place,
            restart=lambda port: (*again, *(() if given.port else ("--port", str(port)))),  # the last one counts
        )
    )


def become_worker(argv: Sequence[str]) -> NoReturn:
    """Replace this process by a worker in the foreground, ``argv`` as of ``run_worker``.

    A new program, because only so are the variables of whoever starts it, tokens among them, really gone: the jobs of
    the same user can read what this process was started with.
    """
    command = [sys.executable, "-P", "-m", "gpulayer.cli.background", "worker", "--foreground", *argv]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, command, background_variables(os.environ))  # noqa: S606 - no shell is wanted


def run_worker(argv: Sequence[str]) -> int:
    """Work until told to end. Blocks. What it does is told on stderr: plainly with ``--foreground``, else as a log."""
    from gpulayer.cli.worker_log import tell_in_log, tell_plainly  # noqa: PLC0415 - not for a control plane
    from gpulayer.worker import run  # noqa: PLC0415 - loads the whole worker

    settings = worker_settings(argv)
    _leave_out_pydantic_plugins()  # its plugins may use it; jobs get ``settings.environment``, read before this
    if "--foreground" in argv:
        tell_plainly()
    else:
        tell_in_log()
    return run(settings)


def worker_settings(argv: Sequence[str]) -> "WorkerSettings":
    """What a worker's command line means."""
    parser = argparse.ArgumentParser(prog="gpulayer-worker", allow_abbrev=False)
    parser.add_argument("--work-dir", type=Path, required=True)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--endpoint-file", type=Path)
    where.add_argument("--url", action="append", default=None)
    parser.add_argument("--fingerprint", action="append", default=[])
    parser.add_argument("--proxy", default="")
    parser.add_argument("--token-file", type=Path)
    named = parser.add_mutually_exclusive_group()
    named.add_argument("--name", default="")
    named.add_argument("--default-name", default="")
    parser.add_argument("--label", action="append", default=[])
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--foreground", action="store_true")
    given = parser.parse_args(argv)
    from gpulayer.net import parse_pins, parse_proxy  # noqa: PLC0415 - not for a control plane
    from gpulayer.plugins.settings import PluginSettings  # noqa: PLC0415 - only for what is started
    from gpulayer.worker import WorkerSettings  # noqa: PLC0415

    return WorkerSettings(
        work_dir=given.work_dir,
        urls=tuple(given.url or ()),
        endpoint_file=given.endpoint_file,
        pins=parse_pins(given.fingerprint),
        proxy=parse_proxy(given.proxy),
        token_file=given.token_file,
        name=given.name,
        default_name=given.default_name or _host_name(),
        labels=tuple(sorted(tuple(text.split("=", 1)) for text in given.label)),
        once=given.once,
        environment=dict(os.environ),
        faults=wanted_faults(os.environ),
        plugins=PluginSettings.of(os.environ),
    )


def _host_name() -> str:
    return socket.gethostname().split(".")[0] or "worker"


if __name__ == "__main__":
    end_with(main)
