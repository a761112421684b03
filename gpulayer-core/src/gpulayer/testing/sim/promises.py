"""The promises, in words: what is broken where a rule is, and what the soak proves."""

from typing import Final

__all__ = ["PROMISES"]

PROMISES: Final[dict[int, str]] = {
    1: "What was answered with success survives kill -9 and power loss",
    2: "A device never has two live process trees",
    3: "An --exclusive job runs on one worker at a time; nothing stale is accepted",
    4: "At least once (--retries 0: at most once); one result; terminal is final",
    5: "The same idempotency key is the same job",
    6: "An outage of the control plane stops no job",
    7: "Gangs start all or none",
    8: "A cancel ends in one terminal state, in time",
    9: "A full disk or a failed fsync refuses new work and corrupts nothing",
    10: "Wall clocks never decide who owns what",
    11: "1,000 workers are heard in time, and none is lost falsely",
    12: "A restored backup never revives old leases",
    13: "Memory and descriptors stay flat, and nothing gets stuck",
    14: "This harness finds bugs that are planted",
}
