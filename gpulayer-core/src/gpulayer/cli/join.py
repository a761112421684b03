"""``gpulayer join``: this machine becomes a worker, in the foreground or as a service."""

import os
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpulayer.cli.background import become_worker, worker_settings
from gpulayer.cli.console import say
from gpulayer.cli.needs import pairs
from gpulayer.cli.nouns import command_app
from gpulayer.errors import UsageError
from gpulayer.net import parse_url
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
    token: Annotated[str, typer.Option("--token", metavar="TOKEN", help="The join token; works once.")] = "",
    token_file: Annotated[str, typer.Option("--token-file", metavar="FILE", help="A file that holds it.")] = "",
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
    """Make this machine a worker. A token is needed once; later starts use the identity in the work folder."""
    if uninstall_service:
        _uninstall(name, given=bool(urls or token or token_file or label or once or install_service))
        return 0
    if not urls:
        raise UsageError("missing argument 'URL…'", hint="gpulayer join URL, as `gpulayer up` printed it")
    if token and token_file:
        raise UsageError("--token and --token-file are two ways to say one thing", hint="give one of them")
    if once and install_service:
        raise UsageError("a service goes on after its first job: --once does not go with --install-service")
    addresses = [parse_url(url) for url in urls]
    pairs(label or (), "--label")
    folder = Path(work_dir).expanduser().absolute() if work_dir else _default_folder(name or str(addresses[0]))
    argv = ["--work-dir", str(folder)]
    for address in addresses:
        argv += ["--url", str(address)]
    if token_file:
        if not os.path.isfile(token_file):
            raise UsageError(f"--token-file {token_file} does not exist", hint="give the file `gpulayer up` filled")
        argv += ["--token-file", os.path.abspath(token_file)]
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


def _default_folder(about: str) -> Path:
    """A folder a worker: two on one machine never share an identity."""
    return state_folder(os.environ) / "joined" / re.sub(r"[^A-Za-z0-9.-]+", "-", about).strip("-")


def _keep_token(folder: Path, token: str) -> Path:
    path = folder / "join-token"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, token.encode())
    finally:
        os.close(descriptor)
    return path
