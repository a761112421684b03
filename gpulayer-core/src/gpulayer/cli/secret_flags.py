"""``--secret`` and ``--secret-file``: values from the submitter's environment, files and standard input.

Never from argv, where every user of the machine can read them.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Final

from gpulayer.errors import UsageError
from gpulayer.spec.secrets import MAX_VALUE_BYTES, Secret, check_secret, shown_name

__all__ = ["read_secrets"]

_STDIN: Final = "-"


def read_secrets(names: Sequence[str], files: Sequence[str], *, environment: Mapping[str, str]) -> dict[str, str]:
    """By name of variable. Blocks where standard input is asked for. Raises UsageError, which tells no value."""
    found: dict[str, str] = {}
    for name in names:
        if "=" in name:
            raise UsageError(
                f"--secret {shown_name(name)}=…: a value in a command line is seen by all on this machine",
                hint=f"set the variable {shown_name(name)}, then --secret {shown_name(name)}; or --secret-file",
            )
        if name not in environment:
            raise UsageError(
                f"--secret {name[:60]}: {name[:60]} is not set here",
                hint=f"set it first, or --secret-file {name[:60]}=FILE",
            )
        _put(found, name, environment[name], f"--secret {name[:60]}")
    is_read = False
    for text in files:
        name, separator, path = text.partition("=")
        if not separator or not name or not path:
            raise UsageError(
                f"--secret-file {text[:60]}: not of the form NAME=FILE", hint="NAME=- reads standard input"
            )
        if path == _STDIN and is_read:
            raise UsageError(f"--secret-file {name[:60]}=-: standard input was read for another secret")
        is_read = is_read or path == _STDIN
        _put(found, name, _content(name, path), f"--secret-file {name[:60]}")
    return found


def _put(found: dict[str, str], name: str, value: str, flag: str) -> None:
    if name in found:
        raise UsageError(f"{flag}: {name[:60]} is given twice")
    check_secret(name, value)
    found[name] = Secret(value)


def _content(name: str, path: str) -> str:
    try:
        if path == _STDIN:
            content = sys.stdin.buffer.read(MAX_VALUE_BYTES + 3)
        else:
            with open(path, "rb") as file:
                content = file.read(MAX_VALUE_BYTES + 3)
    except OSError as error:
        raise UsageError(f"--secret-file {name[:60]}: {path} can't be read: {error.strerror}") from None
    try:
        text = content.decode()
    except UnicodeDecodeError:
        # Not even cut off in the middle of a character is such a file small enough.
        if len(content) > MAX_VALUE_BYTES:
            raise UsageError(f"--secret-file {name[:60]}: {path} is over the limit of 64 KiB") from None
        raise UsageError(
            f"--secret-file {name[:60]}: {path} is not UTF-8 text", hint="encode it, for example with base64"
        ) from None
    if text.endswith("\n"):
        return text[:-2] if text.endswith("\r\n") else text[:-1]
    return text
