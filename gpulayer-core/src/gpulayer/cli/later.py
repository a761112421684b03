"""What INTERFACES.md names and this version does not have: refused by name, never ignored."""

from collections.abc import Mapping
from typing import Final

from gpulayer.errors import NotSupported

__all__ = ["LATER_COMMANDS", "LATER_FLAGS", "later_command", "later_flag"]

_NEEDS: Final = (
    "--nodes --min-nodes --ranks-per-node --device-share --preemptible --volume --provider --max-cost"
    " --spot --on-demand"
)
_BRINGS: Final = "--sync-outputs --requirements --image --python"
_RUNS: Final = "--service --replicas --port-name --health"

LATER_FLAGS: Final[Mapping[str, frozenset[str]]] = {
    "submit": frozenset(f"{_NEEDS} {_BRINGS} {_RUNS}".split()),
    "explain": frozenset(_NEEDS.split()),
    "up": frozenset({"--store", "--blobs"}),
    "join": frozenset({"--python"}),
}

LATER_COMMANDS: Final = frozenset(
    {
        "cache",
        "dashboard",
        "mcp",
        "secret",
        "service",
        "skill",
        "job clone",
        "job exec",
        "job top",
    }
)


def later_flag(command: str, flag: str) -> NotSupported | None:
    """The error for a flag of a later version, or None for one that nobody knows."""
    if flag not in LATER_FLAGS.get(command, ()):
        return None
    return NotSupported(f"{flag} comes with a later version", hint=f"gpulayer {command} --help lists what there is now")


def later_command(command: str) -> NotSupported | None:
    """The error to raise for a command of a later version; None for any other word."""
    if command not in LATER_COMMANDS:
        return None
    return NotSupported(
        f"gpulayer {command} comes with a later version", hint="gpulayer --help lists what there is now"
    )
