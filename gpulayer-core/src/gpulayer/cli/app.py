"""The program: which command is which module, and how every failure becomes a line and an exit code."""

import errno
import os
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import redirect_stdout
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.exceptions import Abort, TyperException
from typer.exceptions import Exit as TyperExit

import gpulayer
from gpulayer.cli.console import print_error, print_line, safe, say
from gpulayer.cli.exits import Exit, exit_for_error
from gpulayer.cli.later import later_command, later_flag
from gpulayer.cli.quick import QuickGroup, QuickTyper
from gpulayer.errors import BadRequest, GpulayerError, JobRefused, StorageUnavailable, UsageError
from gpulayer.faults import VARIABLE as FAULTS_VARIABLE

if TYPE_CHECKING:
    from gpulayer.cli.plugin_commands import PluginCommand

__all__ = ["run"]

# Kept here, so that --help loads no command's module.
COMMANDS: Final = {
    "submit": ("gpulayer.cli.submit", "Run a command where it fits, with its output and files."),
    "explain": ("gpulayer.cli.explain", "Say which workers fit a request and why the others do not."),
    "job": ("gpulayer.cli.job", "List, show, follow, wait for, cancel and retry jobs."),
    "worker": ("gpulayer.cli.worker", "List, show, drain, resume and remove workers."),
    "resources": ("gpulayer.cli.resources", "What all workers offer, and what is free now."),
    "up": ("gpulayer.cli.up", "Start a control plane on this machine, or end it."),
    "join": ("gpulayer.cli.join", "Make this machine a worker of a control plane."),
    "down": ("gpulayer.cli.down", "End the control plane of this machine and its own worker."),
    "context": ("gpulayer.cli.context", "Add, list, use and remove control planes by name."),
    "status": ("gpulayer.cli.status", "Which control plane is used, and how it is."),
    "doctor": ("gpulayer.cli.doctor", "Find out why a control plane can't be used from here."),
    "token": ("gpulayer.cli.token", "Make, list, revoke and rotate tokens."),
    "backup": ("gpulayer.cli.backup", "Keep all of a control plane in one file, or make it of one."),
    "restore": ("gpulayer.cli.restore", "Make a control plane of a backup, in an empty folder."),
    "audit": ("gpulayer.cli.audit", "Who did what, and whether the trail of it is whole."),
    "plugins": ("gpulayer.cli.plugins", "List and check plugins, and the commands that they add."),
    "completion": ("gpulayer.cli.completion", "Print the completion script of a shell."),
}


# On the line of the other one, so that all of them fit one screen.
_BELOW: Final = {"down": "up", "restore": "backup"}

# What other programs call it.
_MEANT: Final = {
    "--gpus": "did you mean --devices N?",
    "--gpu": "did you mean --devices N?",
    "--num-gpus": "did you mean --devices N?",
    "--dry-run": "gpulayer explain, with the same needs, says where a job would run",
}
_DISK_TROUBLE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
_LONGEST_CODE: Final = 10**20
COMPLETE_VARIABLE: Final = "_GPULAYER_COMPLETE"  # the shell's script of `gpulayer completion` sets it


class _Root(QuickGroup):
    """Commands by name, imported when one is named. Those of plugins are looked for when the name is not core's own:
    reading what is installed takes 20 ms, so ``--help`` does not list them."""

    plugin_command: "PluginCommand | None" = None  # the one that runs

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        return list(COMMANDS)

    def get_command(self, ctx: typer.Context, cmd_name: str) -> Any:  # type: ignore[override]
        # Any: typer's own command type is private.
        if cmd_name not in COMMANDS:
            return None if self.plugin_command is None else _load(self.plugin_command)
        command = typer.main.get_command(import_module(COMMANDS[cmd_name][0]).app)
        command.name = cmd_name
        return command

    def resolve_command(self, ctx: typer.Context, args: list[str]) -> Any:  # type: ignore[override]
        try:
            if args[0] not in COMMANDS:
                self.plugin_command = _command_of_plugin(args[0])
            return super().resolve_command(ctx, args)
        except GpulayerError:
            if ctx.resilient_parsing:
                return None, None, args[1:]  # a shell that completes shows no errors
            raise

    def shell_complete(self, ctx: typer.Context, incomplete: str) -> Any:  # type: ignore[override]
        from typer._click.shell_completion import CompletionItem  # noqa: PLC0415 - only when a shell asks

        added = [CompletionItem(name) for name in _plugin_command_names() if name.startswith(incomplete)]
        return [*super().shell_complete(ctx, incomplete), *added]

    def format_commands(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        # Any: typer's formatter is private.
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (", ".join([name, *(second for second, first in _BELOW.items() if first == name)]), text)
                    for name, (_, text) in COMMANDS.items()
                    if name not in _BELOW
                ]
            )


app = QuickTyper(cls=_Root)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        print_line(f"gpulayer {gpulayer.__version__}")
        raise typer.Exit


@app.callback(no_args_is_help=True)
def _root(
    *,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Run work on GPUs that are somewhere else: gpulayer submit -- nvidia-smi"""


def run(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    _open_what_is_closed()
    command: Any = typer.main.get_command(app)  # Any: a _Root, which typer's own types do not say
    if COMPLETE_VARIABLE in os.environ:
        from typer._completion_classes import completion_init  # noqa: PLC0415 - only when a shell asks

        completion_init()
    try:
        if FAULTS_VARIABLE in os.environ:
            from gpulayer.cli.trials import arm_faults  # noqa: PLC0415 - only in a trial

            arm_faults(os.environ)
        code = command.main(args=None if argv is None else list(argv), prog_name="gpulayer", standalone_mode=False)
        sys.stdout.flush()
        return _returned(code, command.plugin_command)
    except TyperExit as ended:
        return ended.exit_code
    except TyperException as error:
        return _report_usage(error)
    except GpulayerError as error:
        if os.environ.get("GPULAYER_DEBUG") == "1":
            traceback.print_exc()
        if isinstance(error, UsageError | BadRequest):
            from gpulayer.cli.flags import by_flag  # noqa: PLC0415 - only after an error

            error.message = by_flag(error.message)
        print_error(error)
        candidates = error.details.get("candidates")  # which another program may have sent
        for candidate in candidates if isinstance(candidates, list | tuple) else ():
            say(f"       {candidate}")
        if isinstance(error, JobRefused):
            _say_problems(error)
        return exit_for_error(error)
    except SystemExit as ended:
        # Typer turns a closed pipe into exit 1 before anyone else can see it, and leaves this way after completing.
        if not isinstance(ended.__context__, BrokenPipeError):
            return _exit_asked(ended.code, command.plugin_command)
        _let_go_of_stdout()
        return Exit.PIPE_CLOSED
    except (KeyboardInterrupt, Abort):
        return Exit.INTERRUPTED
    except OSError as error:
        if error.errno not in _DISK_TROUBLE:
            return _report_bug(command.plugin_command)
        _let_go_of_stdout()
        print_error(StorageUnavailable(f"the output can't be written: {error.strerror}", hint="free space, then retry"))
        return Exit.INFRASTRUCTURE
    except BaseException:  # of a plugin's own kind, or GeneratorExit
        return _report_bug(command.plugin_command)


def _say_problems(error: JobRefused) -> None:
    """Where there are several, all of them; the error itself tells of the first."""
    problems = error.details.get("problems")  # from another program
    if not isinstance(problems, list) or len(problems) < 2:
        return
    for problem in problems:
        if isinstance(problem, dict):
            plugin, field, message = (str(problem.get(name) or "") for name in ("plugin", "field", "message"))
            kind = "warning: " if problem.get("severity") == "warning" else ""
            say(f"       {kind}plugin {plugin}: {f'{field}: ' if field else ''}{message}")


def _report_usage(error: TyperException) -> int:
    """Typer's own complaints, in this program's one form."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "gpulayer"
    if type(error).__name__ == "NoArgsIsHelpError":
        say(error.format_message())
        return Exit.USAGE
    option = getattr(error, "option_name", None)
    if isinstance(option, str) and type(error).__name__ == "NoSuchOption":
        later = later_flag(path.removeprefix("gpulayer").strip(), option)
        if later is not None:
            print_error(later)
            return Exit.USAGE
        meant = _MEANT.get(option)
        if meant is not None:
            print_error(UsageError(f"no such option: {option}", hint=meant))
            return Exit.USAGE
    message = error.format_message().rstrip(".")
    print_error(UsageError(message[:1].lower() + message[1:], hint=f"see {path} --help"))
    return Exit.USAGE


def _unknown_command(parent: str, name: str, known: Sequence[str]) -> UsageError:
    close = get_close_matches(name, known, n=1)
    hint = f"did you mean {parent} {close[0]}?" if close else f"see {parent} --help"
    return UsageError(f"no such command: {parent} {name}", hint=hint)


def _command_of_plugin(name: str) -> "PluginCommand":
    """Raises what is to be said of a name that is none."""
    error = later_command(name)
    if error is not None:
        raise error
    from gpulayer.cli.plugin_commands import find_command  # noqa: PLC0415 - core's own commands never need it
    from gpulayer.plugins.settings import PluginSettings  # noqa: PLC0415

    found = find_command(name, PluginSettings.of(os.environ), taken=COMMANDS)
    if found is None:
        raise _unknown_command("gpulayer", name, [*COMMANDS, *_plugin_command_names()])
    return found


def _plugin_command_names() -> list[str]:
    from gpulayer.cli.plugin_commands import find_commands  # noqa: PLC0415 - core's own commands never need it
    from gpulayer.plugins.settings import PluginSettings  # noqa: PLC0415

    found = find_commands(PluginSettings.of(os.environ), taken=COMMANDS)
    return [command.name for command in found if not command.error]


def _load(command: "PluginCommand") -> Any:  # Any: typer's own command type is private
    from gpulayer.cli.plugin_commands import load_command  # noqa: PLC0415

    if COMPLETE_VARIABLE not in os.environ:
        return load_command(command)
    with redirect_stdout(sys.stderr):  # a shell reads names from stdout
        return load_command(command)


def _returned(code: object, culprit: "PluginCommand | None") -> int:
    """A number is the exit code; nothing, and True and False, are 0. What else a plugin returns can't be meant so."""
    if code is None or isinstance(code, bool):
        return Exit.OK
    if not isinstance(code, int):
        if culprit is None:
            return Exit.OK
        return _report_bad_end(culprit, f"it returned a {type(code).__name__}, which is no exit code")
    return _checked(code, culprit)


def _exit_asked(code: object, culprit: "PluginCommand | None" = None) -> int:
    """What ``sys.exit(code)`` means anywhere in Python: nothing is 0, a text is said, and 1."""
    if code is None:
        return Exit.OK
    if isinstance(code, int):
        return _checked(code, culprit)
    try:
        text = str(code)
    except BaseException:  # it may be a plugin's code
        return _report_bug(culprit)
    say(text)
    return 1


def _checked(code: int, culprit: "PluginCommand | None") -> int:
    """Of a larger number a shell sees the last eight bits: 256 would be a success."""
    if culprit is None or code in range(256):
        return code
    told = f"{code}" if abs(code) < _LONGEST_CODE else "a number of many digits"
    return _report_bad_end(culprit, f"it ended with {told}, which is no exit code")


def _report_bad_end(culprit: "PluginCommand", what: str) -> int:
    say(f"error: the command {culprit.name} of {culprit.origin} failed, which is no fault of gpulayer: {what}")
    say(f" hint: a number from 0 to 255 is one; please report it to the authors of {culprit.distribution}")
    return Exit.BUG


def _report_bug(culprit: "PluginCommand | None" = None) -> int:
    story = traceback.format_exc()
    if os.environ.get("GPULAYER_DEBUG") == "1":
        sys.stderr.write(safe(story))
    error = sys.exc_info()[1]
    said = _said(error)
    if culprit is None:
        say(f"error: internal error: {said}")
    else:
        say(f"error: the command {culprit.name} of {culprit.origin} failed, which is no fault of gpulayer: {said}")
    whom = "" if culprit is None else f" to the authors of {culprit.distribution}"
    try:
        from gpulayer.sdk.settings import state_folder  # noqa: PLC0415 - only after a fault

        folder = state_folder(os.environ)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        log = folder / f"error-{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}.log"
        log.write_text(f"gpulayer {gpulayer.__version__}, Python {sys.version}\n{sys.argv[:2]}\n{story}")
        say(f" hint: please report it{whom} with {log}")
    except OSError:
        say(f" hint: GPULAYER_DEBUG=1 shows where; please report it{whom}")
    return Exit.BUG


def _said(error: BaseException | None) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException:  # what it says of itself may be a plugin's code, too
        return type(error).__name__


def _open_what_is_closed() -> None:
    """Where a standard stream was closed by the caller (``>&-``), the next file opened would take its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - as long as the process


def _let_go_of_stdout() -> None:
    """The reader has gone; what is still buffered must not complain at exit."""
    descriptor = os.open(os.devnull, os.O_WRONLY)
    os.dup2(descriptor, sys.stdout.fileno())
    os.close(descriptor)
