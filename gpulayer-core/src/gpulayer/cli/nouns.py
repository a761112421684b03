"""What every command file starts from: a group that knows later commands, and the control plane a command is for."""

import sys
from typing import Annotated, Any

import typer

from gpulayer.cli.console import say
from gpulayer.cli.later import later_command
from gpulayer.cli.quick import QuickGroup, QuickTyper
from gpulayer.client.connect import Settings
from gpulayer.client.location import LOCAL, REMOTE
from gpulayer.errors import UsageError
from gpulayer.sdk.client import Client
from gpulayer.sdk.settings import resolve_settings

__all__ = ["JsonFlag", "StateOption", "TargetOption", "command_app", "open_client", "settings_for"]

JsonFlag = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]


def _complete_target(incomplete: str) -> list[str]:
    from gpulayer.cli.context_names import context_names  # noqa: PLC0415 - only when a shell asks

    return [*(name for name in (LOCAL, REMOTE) if name.startswith(incomplete)), *context_names(incomplete)]


TargetOption = Annotated[
    str,
    typer.Option(
        "--target",
        metavar="local|remote|CONTEXT",
        help="This machine's control plane, the configured one, or that of a context.",
        autocompletion=_complete_target,
    ),
]

StateOption = Annotated[
    str, typer.Option("--state", metavar="DIR", help="The state folder, where `up` was given another one.")
]


class _Noun(QuickGroup):
    def resolve_command(self, ctx: typer.Context, args: list[str]) -> Any:  # type: ignore[override]
        # Any: typer's own command type is private.
        path = f"{ctx.command_path.removeprefix('gpulayer').strip()} {args[0]}"
        error = later_command(path)
        if error is not None:
            raise error
        if args[0] not in self.commands and not args[0].startswith("-"):
            raise UsageError(f"no such command: gpulayer {path}", hint=f"one of {', '.join(self.commands)}")
        return super().resolve_command(ctx, args)


def command_app(**options: Any) -> typer.Typer:  # Any: handed on to typer
    """A noun's commands."""
    return QuickTyper(cls=_Noun, **options)


RETRY_FOR_S = 3.0  # a command that somebody waits for says soon that nothing answers


def settings_for(target: str = "", *, state: str = "") -> Settings:
    """``state``: a state folder of this machine, which is meant then whatever is configured."""
    if state and target not in ("", LOCAL):
        raise UsageError(f"--state names a folder of this machine, --target {target} does not", hint="give one of them")
    return resolve_settings(target=LOCAL if state else target, state_dir=state, retry_for_s=RETRY_FOR_S)


def open_client(target: str = "") -> Client:
    """The client of the control plane meant. Opening it may start this machine's own, and says so to a person."""
    return Client(settings=settings_for(target), say=say if sys.stderr.isatty() else lambda _: None)
