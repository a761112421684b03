"""``gpulayer join``: this machine becomes a worker, in the foreground or as a service.

What is wrong with the arguments is said before anything is sent. A worker is its folder: found again by its name, else
by the control plane's fingerprint, which stays the same when that moves to another address.
"""

import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpulayer.cli.background import become_worker, worker_settings
from gpulayer.cli.console import say
from gpulayer.cli.needs import pairs
from gpulayer.cli.nouns import command_app
from gpulayer.errors import Unauthenticated, UsageError
from gpulayer.net import Address, Pin, parse_pins, parse_proxy, parse_urls
from gpulayer.sdk.settings import state_folder

if TYPE_CHECKING:
    from gpulayer.cli.service import ServicePlan

app = command_app()


@app.command()
def join(
    urls: Annotated[
        list[str] | None, typer.Argument(metavar="URL…", help="The control plane, as `gpulayer up` printed it.")
    ] = None,
    *,
    token: Annotated[
        str, typer.Option("--token", metavar="TOKEN", help="The join token; works once. -: from stdin.")
    ] = "",
    token_file: Annotated[str, typer.Option("--token-file", metavar="FILE", help="A file that holds it.")] = "",
    fingerprint: Annotated[
        list[str] | None,
        typer.Option("--fingerprint", metavar="SHA256", help="Of its certificate; several while it is replaced."),
    ] = None,
    proxy: Annotated[str, typer.Option("--proxy", metavar="URL", help="An HTTP proxy to go through.")] = "",
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Default: this machine's name.")] = "",
    label: Annotated[list[str] | None, typer.Option("--label", metavar="K=V", help="For --label of submit.")] = None,
    work_dir: Annotated[
        str, typer.Option("--work-dir", metavar="DIR", help="Its identity, spools and work folders.")
    ] = "",
    once: Annotated[bool, typer.Option("--once", help="End after the first job.")] = False,
    install_service: Annotated[
        bool, typer.Option("--install-service", help="Join, and have systemd or launchd run it from now on.")
    ] = False,
    uninstall_service: Annotated[
        bool, typer.Option("--uninstall-service", help="Take that back; of the service of --name, if it had one.")
    ] = False,
) -> int:
    """Make this machine a worker. A token is needed once: later, the same URL and work folder are enough."""
    if uninstall_service:
        _uninstall(name, given=bool(urls or token or token_file or fingerprint or label or once or install_service))
        return 0
    if not urls:
        hint = "gpulayer join URL, as `gpulayer up` printed it"
        if work_dir:
            hint += "; a work folder holds who this worker is, and not where its control plane is"
        raise UsageError("missing argument 'URL…'", hint=hint)
    if token and token_file:
        raise UsageError("--token and --token-file are two ways to say one thing", hint="give one of them")
    if once and install_service:
        raise UsageError("a service goes on after its first job: --once does not go with --install-service")
    addresses = parse_urls(" ".join(urls))
    pins = parse_pins(fingerprint or ())
    way = parse_proxy(proxy)
    token = _join_token(token)
    pairs(label or (), "--label")
    folder = Path(work_dir).expanduser().absolute() if work_dir else worker_folder(_joined(), name, pins, addresses)
    argv = ["--work-dir", str(folder)]
    for address in addresses:
        argv += ["--url", str(address)]
    for pin in pins:
        argv += ["--fingerprint", pin]
    if way is not None:
        argv += ["--proxy", str(way)]
    if token_file:
        argv += ["--token-file", _checked_file(token_file)]
    if name:
        argv += ["--name", name]
    for text in label or ():
        argv += ["--label", text]
    if install_service:
        _install(argv, token, name, folder)
        return 0
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if token:
        argv += ["--token-file", str(_keep_token(folder, token))]
    if once:
        argv.append("--once")
    return become_worker(argv)


def _install(argv: list[str], token: str, name: str, folder: Path) -> None:
    """Everything that can go wrong is found before the file is there, and what needs no token before it is used up."""
    from dataclasses import replace  # noqa: PLC0415 - only for this

    from gpulayer.cli import service_install  # noqa: PLC0415
    from gpulayer.worker import introduce  # noqa: PLC0415 - loads the whole worker

    plan = _plan([sys.executable, "-P", "-m", "gpulayer.cli.background", "worker", *argv], name, folder)
    is_ours = service_install.check_place(plan) or plan.path.exists()
    if not (is_ours and service_install.is_running(plan)):  # else it has joined, and holds its folder
        say(f"joined as {introduce(replace(worker_settings(argv), token=token))}")
    service_install.install_service(plan, say=say)
    again = f"gpulayer join --uninstall-service{f' --name {shlex.quote(name)}' if name else ''}"
    say(f"take it back: {again}")


def _uninstall(name: str, *, given: bool) -> None:
    from gpulayer.cli import service_install  # noqa: PLC0415 - only for this

    if given:
        raise UsageError("--uninstall-service goes with --name alone", hint="gpulayer join --uninstall-service")
    service_install.remove_service(_plan([sys.executable], name, Path()), say=say)


def _plan(argv: list[str], name: str, folder: Path) -> "ServicePlan":
    from gpulayer.cli.service import plan_service  # noqa: PLC0415 - only for a service
    from gpulayer.cli.service_install import this_host  # noqa: PLC0415

    return plan_service(
        argv, name=name, host=this_host(), log=folder / "worker.log", search_path=os.environ.get("PATH", os.defpath)
    )


def worker_folder(joined: Path, name: str, pins: Sequence[Pin], addresses: Sequence[Address]) -> Path:
    """A folder a worker below ``joined``: two on one machine never share an identity.

    By name; else by fingerprint, so that the control plane may move, and a second fingerprint, which replaces the first
    one day, leads to the same folder; else by URL, as also workers of before that have no other.
    """
    by_url = [joined / _as_name(str(address)) for address in addresses]
    if name:
        return joined / _as_name(name)
    if not pins:
        return next((folder for folder in by_url if folder.exists()), by_url[0])
    by_pin = [joined / _as_name(pin[: len("sha256:") + 16]) for pin in pins]
    chosen = next((folder for folder in (*by_pin, *by_url) if folder.exists()), by_pin[0])
    for other in by_pin:
        if other != chosen:
            joined.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                other.symlink_to(chosen.name)
            except FileExistsError:
                pass  # a link already, or a worker of its own
    return chosen.resolve()


def _checked_file(path: str) -> str:
    """Its worker reads it again whenever it has to join; a file that is empty now may be filled by then."""
    try:
        content = Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError as error:
        reason = "does not exist" if isinstance(error, FileNotFoundError) else f"can't be read: {error.strerror}"
        raise UsageError(
            f"--token-file {path} {reason}", hint="put a join token into it: gpulayer token create --role join"
        ) from None
    if content:
        _join_token(content)
    return os.path.abspath(path)


def _joined() -> Path:
    return state_folder(os.environ) / "joined"


def _as_name(about: str) -> str:
    return re.sub(r"[^A-Za-z0-9.-]+", "-", about).strip("-")


def _join_token(given: str) -> str:
    """Whole and of the right kind; of another it says so, and it is sent nowhere."""
    text = sys.stdin.readline().strip() if given == "-" else given.strip()
    if not text and not given:
        return ""
    from gpulayer.server.tokens import TokenKind, parse_token  # noqa: PLC0415 - only with a token

    try:
        kind = parse_token(text)[0]
    except Unauthenticated as error:
        raise Unauthenticated(f"--token: {error.message}", hint=error.hint) from None
    if kind is not TokenKind.JOIN:
        raise UsageError(
            f"--token: that is a {kind} token ({text[:4]}…), and a worker joins with a join token (gle_…)",
            hint="`gpulayer up` prints one, `gpulayer token create --role join` makes another; nothing was sent",
        )
    return text


def _keep_token(folder: Path, token: str) -> Path:
    from gpulayer.whole import write_whole  # noqa: PLC0415 - not for --help

    path = folder / "join-token"
    write_whole(path, token.encode(), is_synced=True)
    return path
