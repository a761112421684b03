"""What workers differ in beyond their hardware: what their plugins let them do, and what they count by name. Pure.

A capability is ``kind:name``, a member of a positive set: who does not say that it has one has it not, and a request
that needs it is refused with the reason. What every worker can do (the defaults below) is never named.
"""

import re
import unicodedata
from collections.abc import Collection, Mapping
from typing import Final
from urllib.parse import urlsplit

from gpulayer.errors import UsageError

__all__ = [
    "DEFAULT_ENVIRONMENT",
    "DEFAULT_LAUNCHER",
    "EVERYBODYS",
    "KINDS",
    "check_capability",
    "check_input",
    "check_inputs",
    "check_resource",
    "input_variable",
    "is_plain_name",
]

DEFAULT_LAUNCHER: Final = "process"
DEFAULT_ENVIRONMENT: Final = "system"
EVERYBODYS: Final = frozenset({f"environment:{DEFAULT_ENVIRONMENT}", f"launcher:{DEFAULT_LAUNCHER}"})
KINDS: Final = ("environment", "launcher", "stager")

_NAME: Final = re.compile(r"[a-z][a-z0-9._+-]{0,62}")
_INPUT: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")


def is_plain_name(name: str) -> bool:
    """Of plugins, and of what they register: a lower-case letter, then letters, digits and ``. _ + -``, at most 63."""
    return _NAME.fullmatch(name) is not None


def check_resource(name: str) -> str:
    """The name itself. Raises UsageError."""
    if not is_plain_name(name):
        raise UsageError(f"resources: {name[:60]!r} can't name a resource", hint="write it like licence=1")
    return name


def check_capability(capability: str) -> str:
    """The capability itself. Raises UsageError that names its kind."""
    kind, _, name = capability.partition(":")
    if kind not in KINDS:
        raise UsageError(f"capabilities: {capability[:60]!r} is unknown", hint=f"one of {', '.join(KINDS)}, then :NAME")
    if not is_plain_name(name):
        raise UsageError(f"{kind}: {name[:60]!r} can't be a name of one", hint="gpulayer plugins lists what there is")
    return capability


def check_inputs(inputs: Mapping[str, str], *, env: Collection[str] = ()) -> list[str]:
    """Of one job, whose other variables are ``env``: the capabilities that they need. Raises UsageError."""
    needed = [f"stager:{check_input(name, uri)}" for name, uri in inputs.items()]
    names: dict[str, str] = {}
    for name in inputs:
        variable = input_variable(name)
        other = names.setdefault(variable, name)
        if other != name:
            raise UsageError(
                f"inputs: {other} and {name} would both be {variable}", hint="give one of them another name"
            )
        if variable in env:
            raise UsageError(f"inputs: {name} is {variable}, which env sets, too", hint="leave it out there")
    return needed


def check_input(name: str, uri: str) -> str:
    """The scheme of the URI, in lower case. Raises UsageError for a name that no variable can have, and for no URI."""
    if not _INPUT.fullmatch(name):
        raise UsageError(f"inputs: {name[:60]!r} can't name an input", hint="write it like data=file:///mnt/data")
    # What reads a URI drops them without a word, and then it names something else.
    if uri != uri.strip() or any(unicodedata.category(character) == "Cc" for character in uri):
        raise UsageError(
            f"inputs.{name}: {uri[:60]!r} has a control character, or a blank at its ends",
            hint="write what belongs to the name with percent signs: a line end is %0A, a blank %20",
        )
    try:
        scheme = urlsplit(uri).scheme
    except ValueError:
        scheme = ""
    if uri and len(scheme) < 2:  # none, or the drive of a Windows path
        raise UsageError(
            f"inputs.{name}: {uri[:60]!r} is a path, and a file of this machine can't be sent in this way yet",
            hint="ship it with --source; a file that the worker has is written file:///mnt/data",
        )
    if not is_plain_name(scheme):
        raise UsageError(f"inputs.{name}: {uri[:60]!r} is no URI", hint="write it like file:///mnt/data on the worker")
    return scheme


def input_variable(name: str) -> str:
    """The variable of the job that holds the input's path."""
    return f"GPULAYER_INPUT_{name.upper()}"
