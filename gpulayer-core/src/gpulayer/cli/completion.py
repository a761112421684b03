"""``gpulayer completion``: a shell's completion script, by a command, so that no other command pays for it."""

from enum import StrEnum
from typing import Annotated

import typer

from gpulayer.cli.console import print_line
from gpulayer.cli.nouns import command_app

app = command_app()


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"
    POWERSHELL = "powershell"


@app.command()
def completion(shell: Annotated[Shell, typer.Argument(help="Which shell.")]) -> None:
    """Print a completion script: eval "$(gpulayer completion bash)"."""
    from typer._completion_shared import get_completion_script  # noqa: PLC0415 - only here

    print_line(get_completion_script(prog_name="gpulayer", complete_var="_GPULAYER_COMPLETE", shell=shell.value))
