"""Two variables for those who try out how this program takes trouble; nobody needs them to use it.

``GPULAYER_FAULTS`` makes the process that is started die, stop or fail at a named point (``gpulayer.faults``), and
``GPULAYER_LEASE_TTL`` gives a control plane another lease time than 30 seconds, so that a trial need not wait for it.
Read at every cold start: nothing is imported for them unless they are set.
"""

from collections.abc import Mapping
from typing import Final

from gpulayer import faults
from gpulayer.errors import UsageError

__all__ = ["arm_faults", "lease_ttl_ms", "wanted_faults"]

LEASE_VARIABLE: Final = "GPULAYER_LEASE_TTL"
_SHORTEST_MS: Final = 3_000  # an exclusive job is then kept for a second without contact (``protocol.leases``)


def wanted_faults(environment: Mapping[str, str]) -> str:
    """As of ``gpulayer.faults.arm``; empty where none are."""
    return environment.get(faults.VARIABLE, "")


def arm_faults(environment: Mapping[str, str]) -> None:
    """Arm what the environment asks for in this process. Raises UsageError for what ``gpulayer.faults.arm`` refuses."""
    try:
        faults.arm(wanted_faults(environment))
    except ValueError as error:
        raise UsageError(str(error), hint="gpulayer.faults.POINTS names them all; leave it out for none") from None


def lease_ttl_ms(environment: Mapping[str, str]) -> int | None:
    """How long a lease lasts, None where nothing is said of it. Raises UsageError for less than three seconds."""
    text = environment.get(LEASE_VARIABLE, "")
    if not text:
        return None
    from gpulayer.spec.units import parse_duration_ms  # noqa: PLC0415 - only in a trial

    found = parse_duration_ms(text, what=LEASE_VARIABLE)
    if found < _SHORTEST_MS:
        raise UsageError(f"{LEASE_VARIABLE}={text} is shorter than 3 s", hint="leave it out for 30 s")
    return found
