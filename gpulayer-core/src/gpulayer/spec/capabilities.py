"""What workers differ in beyond their hardware: what their plugins let them do, and what they count by name. Pure.

A capability is ``kind:name``, a member of a positive set: who does not say that it has one has it not, and a request
that needs it is refused with the reason. What every worker can do (the defaults below) is never named.
"""

import re
from typing import Final
from urllib.parse import urlsplit

from gpulayer.errors import UsageError

__all__ = [
    "DEFAULT_ENVIRONMENT",
    "DEFAULT_LAUNCHER",
    "KINDS",
    "check_capability",
    "check_input",
    "check_resource",
    "input_variable",
    "is_plain_name",
]

DEFAULT_LAUNCHER: Final = "process"
DEFAULT_ENVIRONMENT: Final = "system"
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


def check_input(name: str, uri: str) -> str:
    """The scheme of the URI, in lower case. Raises UsageError for a name that no variable can have, and for no URI."""
    if not _INPUT.fullmatch(name):
        raise UsageError(f"inputs: {name[:60]!r} can't name an input", hint="write it like data=file:///mnt/data")
    try:
        scheme = urlsplit(uri).scheme
    except ValueError:
        scheme = ""
    if uri and len(scheme) < 2:  # none, or the drive of a Windows path
        raise UsageError(
            f"inputs.{name}: {uri[:60]!r} is a path, and a file of this machine can't be sent in this way yet",
            hint="ship it with --source; a file that the worker has is written file:///mnt/data",
        )
    if not is_plain_name(scheme) or "\0" in uri:
        raise UsageError(f"inputs.{name}: {uri[:60]!r} is no URI", hint="write it like file:///mnt/data on the worker")
    return scheme


def input_variable(name: str) -> str:
    """The variable of the job that holds the input's path."""
    return f"GPULAYER_INPUT_{name.upper()}"
