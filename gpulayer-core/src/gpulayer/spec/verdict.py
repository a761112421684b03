"""What placement says of one worker for one request: the same data for the queue, people, scripts and agents."""

import shlex
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gpulayer.ids import JobId

__all__ = ["PASSING", "FieldChange", "Reason", "ReasonCode", "Verdict", "VerdictKind"]


class ReasonCode(StrEnum):
    """For scripts: codes are added, never renamed. Those that end in ``_busy`` pass when somebody leaves, those in
    ``PASSING`` by themselves."""

    NO_ACCELERATOR = "no_accelerator"
    NO_CUDA_DEVICE = "no_cuda_device"
    TOO_FEW_DEVICES = "too_few_devices"
    DEVICE_MEMORY = "device_memory"
    DEVICE_MODEL = "device_model"
    COMPUTE_CAPABILITY = "compute_capability"
    DEVICE_UNHEALTHY = "device_unhealthy"
    FRAMEWORK_MISSING = "framework_missing"
    FRAMEWORK_VERSION = "framework_version"
    FRAMEWORK_UNUSABLE = "framework_unusable"
    FRAMEWORK_UNCHECKED = "framework_unchecked"
    CPUS = "cpus"
    MEMORY = "memory"
    DISK = "disk"
    LABEL = "label"
    LOCALITY = "locality"
    WORKER_NAME = "worker_name"
    VERSION = "version"
    DRAINING = "draining"
    OFFLINE = "offline"
    QUOTA = "quota"
    PLUGIN_REJECTED = "plugin_rejected"
    PLUGIN_MARKED = "plugin_marked"  # of a worker that fits
    UNKNOWN_VALUE = "unknown_value"
    RESOURCE = "resource"
    CAPABILITY = "capability"
    DEVICES_BUSY = "devices_busy"
    CPUS_BUSY = "cpus_busy"
    MEMORY_BUSY = "memory_busy"
    RESOURCE_BUSY = "resource_busy"
    RESERVED = "reserved"


# What is waited for though nobody's end would help: a device that is mended, a check that ends.
PASSING: Final = frozenset({ReasonCode.DEVICE_UNHEALTHY, ReasonCode.FRAMEWORK_UNCHECKED})


_REPEATED: Final = frozenset({"framework", "label"})


class VerdictKind(StrEnum):
    """``busy``: its machine would do, but not now (full, draining, silent, a device unhealthy, a framework not checked
    yet). ``ineligible``: not as it is."""

    ELIGIBLE = "eligible"
    BUSY = "busy"
    INELIGIBLE = "ineligible"


@dataclass(frozen=True, slots=True)
class Reason:
    """``message`` is for people; ``wanted`` and ``has`` are the two sides of it as text, empty where there are none."""

    code: ReasonCode
    message: str
    wanted: str = ""
    has: str = ""


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One field of the request and the value with which this worker would fit, empty to leave it out. Of ``resources``
    those that change, as the flag takes it: ``licence=1,seat=2``. Of ``framework`` and ``label`` all that stay, as
    words of a shell: ``torch 'jax>=0.4'``."""

    field: str
    value: str

    @property
    def flag(self) -> str:
        """The change as it is typed: ``--device-memory 24GB``, or ``without --device-model``."""
        option = "--resource" if self.field == "resources" else "--" + self.field.replace("_", "-")
        if not self.value:
            return f"without {option}"
        values = shlex.split(self.value) if self.field in _REPEATED else [self.value]
        return " ".join(f"{option} {shlex.quote(value)}" for value in values)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Reasons are complete for an ineligible worker; of one that is eligible they are what scorers think of it.
    ``fits_with`` is empty where nothing simple would help."""

    worker: str
    kind: VerdictKind
    reasons: tuple[Reason, ...] = ()
    busy_with: tuple[JobId, ...] = ()
    until_ms: int | None = None
    fits_with: tuple[FieldChange, ...] = ()
    score: float | None = None
