"""How large a job's variables may be: its ``env`` and its secrets together. Pure; no value is told.

Linux starts no program with more (execve(2): E2BIG): one variable, with its name, has at most 128 KiB, and all of them
share 2 MiB with the arguments of the command and with what a worker hands on of its own. Found out at the start, it
would be told as the program's failure, hours after the submission.
"""

from collections.abc import Mapping
from itertools import chain
from typing import Final

from gpulayer.errors import UsageError
from gpulayer.spec.secrets import shown_name

__all__ = ["MAX_ALL_BYTES", "MAX_VARIABLE_BYTES", "check_environment"]

MAX_VARIABLE_BYTES: Final = 128 * 1024
MAX_ALL_BYTES: Final = 1024 * 1024

_HINT: Final = "put what is longer into a file, and ship it with --source"


def check_environment(env: Mapping[str, str], secrets: Mapping[str, str]) -> None:
    """Raises UsageError, which names the limit."""
    total = 0
    for name, value in chain(env.items(), secrets.items()):
        size = len(f"{name}={value}\0".encode(errors="surrogatepass"))
        if size > MAX_VARIABLE_BYTES:
            raise UsageError(
                f"env: {shown_name(name)} has {size:,} bytes with its name; a variable can have 128 KiB at most",
                hint=_HINT,
            )
        total += size
    if total > MAX_ALL_BYTES:
        raise UsageError(
            f"env and secrets: {total:,} bytes in all; the variables of a job have 1 MiB together at most", hint=_HINT
        )
