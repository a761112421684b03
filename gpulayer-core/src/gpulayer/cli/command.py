"""What stands after ``submit``'s options: the command, and which folder it brings by default. Pure."""

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from gpulayer.errors import UsageError

__all__ = ["check_command", "default_source", "left_behind", "read_env"]

_PYTHON: Final = re.compile(r"(python|pypy)[\d.]*(\.exe)?", re.IGNORECASE)
_WITH_VALUE: Final = ("-W", "-X", "--check-hash-based-pycs")


def check_command(command: Sequence[str], *, is_file: Callable[[str], bool]) -> None:
    """Raise UsageError for nothing to run, and for a whole shell line given as one word."""
    if not command:
        raise UsageError("there is no command to run", hint="put it last: gpulayer submit [OPTIONS] -- COMMAND…")
    if command[0] == "":
        raise UsageError("the program's name is empty", hint="check the quotes and variables in the command")
    if len(command) == 1 and any(c.isspace() for c in command[0]) and not is_file(command[0]):
        line = command[0]
        raise UsageError(
            f"{line!r} is one word with spaces in it, and no such program exists",
            hint=f"for a shell to read it: gpulayer submit -- bash -c {shlex.quote(line)}",
        )


def default_source(command: Sequence[str], *, is_file: Callable[[str], bool]) -> tuple[str, list[str]] | None:
    """For ``python file.py``: its folder, and the command as it is typed inside that folder. None for all else."""
    if not _PYTHON.fullmatch(os.path.basename(command[0])):
        return None
    index = 1
    while index < len(command) and command[index].startswith("-"):
        if command[index].startswith(("-c", "-m")) or command[index] == "-":
            return None
        index += 2 if command[index] in _WITH_VALUE else 1
    if index >= len(command) or not command[index].endswith(".py") or not is_file(command[index]):
        return None
    folder, name = os.path.split(command[index])
    return folder or ".", [*command[:index], name, *command[index + 1 :]]


def left_behind(command: Sequence[str], folder: str | None, *, is_file: Callable[[str], bool]) -> str:
    """A note on the first word of the command as it was typed that names a file here which the job will not find, or
    nothing. ``folder``: what ships by default, None for no folder. Absolute paths and those that climb are passed over.
    """
    if folder is not None and (os.path.isabs(folder) or os.path.normpath(folder) == os.curdir):
        return ""
    home = os.path.normpath(folder or os.curdir)
    is_script_passed = folder is None
    for word in command if os.path.dirname(command[0]) else command[1:]:
        value = word.partition("=")[2] if word.startswith("-") else word
        path = os.path.normpath(value) if value else ""
        if not path or os.path.isabs(path) or path.split(os.sep)[0] == os.pardir or not is_file(value):
            continue
        if folder is None:
            return f"{path} is here, but no folder ships with this command; --source . sends this one"
        if not is_script_passed:
            is_script_passed = True  # the first file is the script that the folder ships for
        elif path.startswith(home + os.sep):
            return f"the job starts in {home}/ and so does not find {path}; --source . keeps paths as they are here"
        else:
            return f"{path} is outside the folder that ships ({home}/); --source . sends this one"
    return ""


def read_env(
    flags: Sequence[str], file_text: str, *, environment: Mapping[str, str], file_name: str = ""
) -> dict[str, str]:
    """``--env-file``'s lines, then ``--env``'s (which win). ``K`` alone hands the submitter's own value on.

    Raises UsageError naming the line or flag.
    """
    found: dict[str, str] = {}
    for number, raw in enumerate(file_text.splitlines(), 1):
        line = raw.strip()
        if line and not line.startswith("#"):
            _set(found, line.removeprefix("export "), f"{file_name}:{number}", environment)
    for text in flags:
        _set(found, text, f"--env {text}", environment)
    return found


def _set(found: dict[str, str], text: str, where: str, environment: Mapping[str, str]) -> None:
    key, separator, value = text.partition("=")
    if not key:
        raise UsageError(f"{where}: a variable needs a name", hint="write --env NAME=VALUE")
    if separator:
        found[key] = value
    elif key in environment:
        found[key] = environment[key]
    else:
        raise UsageError(f"{where}: {key} is not set here", hint=f"write --env {key}=VALUE")
