"""What can be a job's secret: its name, its value, and what may stand beside it. Pure; the values are never told.

One set of rules for clients, which refuse before anything is sent, and for the control plane, which refuses again. A
value that is too short can't be masked without masking everything, so it is refused: a secret that shows is none.
"""

import re
from collections.abc import Collection, Mapping
from typing import Final

from gpulayer.errors import UsageError
from gpulayer.variables import DEVICE_VARIABLES

__all__ = [
    "GRANTS",
    "MAX_LINES",
    "MAX_SECRETS",
    "MAX_VALUE_BYTES",
    "MIN_LENGTH",
    "Secret",
    "check_grant",
    "check_secret",
    "check_secrets",
    "shown_name",
]

GRANTS: Final = ("own", "submit")
MIN_LENGTH: Final = 4
MAX_VALUE_BYTES: Final = 64 * 1024
MAX_SECRETS: Final = 64
MAX_LINES: Final = 1_000  # of all of a job's secrets: each line is looked for in every byte of its log

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
_OURS: Final = "GPULAYER_"


class Secret(str):
    """Text that does not show itself: in a record, a traceback with its variables or a debugger it is ``'***'``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


def check_secrets(secrets: Mapping[str, str], *, env: Collection[str]) -> None:
    """Of one job, whose other variables are ``env``. Raises UsageError, which names the secret and tells no value."""
    if len(secrets) > MAX_SECRETS:
        raise UsageError(f"secrets: a job has {len(secrets)}; at most {MAX_SECRETS} go with one")
    lines = 0
    for name, value in secrets.items():
        check_secret(name, value)
        if name in env:
            raise UsageError(
                f"secrets: {name} is a variable of env, too", hint="leave it out there: what is in env is shown to all"
            )
        lines += value.count("\n") + 1
    if lines > MAX_LINES:
        raise UsageError(
            f"secrets: they have {lines:,} lines; at most {MAX_LINES:,} can be looked for in a log",
            hint="keep a long document in a file of the worker or in encoded form (base64) on one line",
        )


def check_secret(name: str, value: str) -> None:
    """Raises UsageError, which names the secret and does not tell its value."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"secrets: {shown_name(name)!r} can't name a variable",
            hint="letters, digits and _ alone; the value does not go with the name",
        )
    if name.startswith(_OURS) or name in DEVICE_VARIABLES:
        raise UsageError(f"secrets: {name} is set by GPUlayer itself", hint="give it another name")
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise UsageError(f"secrets: {name} is not UTF-8 text", hint="encode it, for example with base64")
    if "\0" in value:
        raise UsageError(f"secrets: {name} holds a NUL character, which no variable can", hint="encode it with base64")
    if not value.strip():
        raise UsageError(f"secrets: {name} is empty")
    if len(value.strip()) < MIN_LENGTH:
        raise UsageError(
            f"secrets: {name} has less than {MIN_LENGTH} characters, which can't be masked in a log",
            hint="pass it with --env if it is no secret",
        )
    if len(value) > MAX_VALUE_BYTES or len(value.encode()) > MAX_VALUE_BYTES:
        raise UsageError(f"secrets: {name} is over the limit of 64 KiB")


def check_grant(grant: str) -> None:
    """Raises UsageError for what no token can be granted."""
    if grant and grant not in GRANTS:
        raise UsageError(f"grant: {grant[:40]!r} is unknown", hint=f"one of {', '.join(GRANTS)}")


def shown_name(name: str) -> str:
    """As much of a name as can be told: who writes NAME=VALUE has put a secret into it."""
    return name.partition("=")[0][:60]
