"""``gpulayer join``: this machine becomes a worker, in the foreground."""

import os
import re
from pathlib import Path
from typing import Annotated

import typer

from gpulayer.cli.background import become_worker
from gpulayer.cli.needs import pairs
from gpulayer.cli.nouns import command_app
from gpulayer.client.answers import parse_url
from gpulayer.errors import UsageError
from gpulayer.sdk.settings import state_folder

app = command_app()


@app.command()
def join(
    urls: Annotated[list[str], typer.Argument(metavar="URL…", help="The control plane, as `gpulayer up` printed it.")],
    *,
    token: Annotated[str, typer.Option("--token", metavar="TOKEN", help="The join token; works once.")] = "",
    token_file: Annotated[str, typer.Option("--token-file", metavar="FILE", help="A file that holds it.")] = "",
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Default: this machine's name.")] = "",
    label: Annotated[list[str] | None, typer.Option("--label", metavar="K=V", help="For --label of submit.")] = None,
    work_dir: Annotated[
        str, typer.Option("--work-dir", metavar="DIR", help="Its identity, spools and work folders.")
    ] = "",
    once: Annotated[bool, typer.Option("--once", help="End after the first job.")] = False,
) -> None:
    """Make this machine a worker. A token is needed once; later starts use the identity in the work folder."""
    if token and token_file:
        raise UsageError("--token and --token-file are two ways to say one thing", hint="give one of them")
    addresses = [parse_url(url) for url in urls]
    pairs(label or (), "--label")
    folder = Path(work_dir).expanduser().absolute() if work_dir else _default_folder(name or addresses[0].url)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    argv = ["--work-dir", str(folder)]
    for address in addresses:
        argv += ["--url", address.url]
    if token:
        token_file = str(_keep_token(folder, token))
    if token_file:
        if not os.path.isfile(token_file):
            raise UsageError(f"--token-file {token_file} does not exist", hint="give the file `gpulayer up` filled")
        argv += ["--token-file", token_file]
    if name:
        argv += ["--name", name]
    for text in label or ():
        argv += ["--label", text]
    if once:
        argv.append("--once")
    become_worker(argv)


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
