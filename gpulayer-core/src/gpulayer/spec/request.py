"""What a workload needs from a machine.

A ``Request`` is a value: hashable, comparable, without names of jobs or users in it. Equal requests share one
class in the queue, so nothing belongs here that does not change where a job may run.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gpulayer.spec.units import format_bytes

__all__ = ["DEVICE_KINDS", "FRAMEWORKS", "Accelerator", "FrameworkNeed", "Request"]


class Accelerator(StrEnum):
    """A kind of device. ``cpu``: none is needed. ``any``: whichever there is; in requests alone."""

    CUDA = "cuda"
    ROCM = "rocm"
    XPU = "xpu"
    MPS = "mps"
    MLX = "mlx"
    CPU = "cpu"
    ANY = "any"


DEVICE_KINDS: Final = (Accelerator.CUDA, Accelerator.ROCM, Accelerator.XPU, Accelerator.MPS, Accelerator.MLX)

FRAMEWORKS: Final = ("cupy", "jax", "mlx", "onnxruntime", "tensorflow", "torch")  # checked without a plugin of others


@dataclass(frozen=True, slots=True, order=True)
class FrameworkNeed:
    """``torch>=2.4``: a framework's name and a PEP 440 version specifier (empty: any version)."""

    name: str
    specifier: str = ""

    def __str__(self) -> str:
        return self.name + self.specifier


@dataclass(frozen=True, slots=True)
class Request:
    """Resources of one node of a task.

    accelerators: kinds in order of preference; ``any`` with 0 devices means "no device needed".
    devices: how many of one kind, all on one worker. ``cpu`` leases none.
    device_memory_bytes: memory of each device. compute_capability: a PEP 440 specifier such as ``>=8.0``.
    cpus: cores counted against the worker. memory_bytes, disk_bytes: 0 means "not stated".
    resources: (name, how many) of what workers count by name, such as licences; sorted, none below 1.
    capabilities: what a worker must be able to do beyond what every worker can, as ``kind:name``; sorted.
    """

    accelerators: tuple[Accelerator, ...] = (Accelerator.ANY,)
    devices: int = 0
    device_models: tuple[str, ...] = ()
    device_memory_bytes: int = 0
    compute_capability: str = ""
    frameworks: tuple[FrameworkNeed, ...] = ()
    cpus: int = 1
    memory_bytes: int = 0
    disk_bytes: int = 0
    labels: tuple[tuple[str, str], ...] = ()
    worker: str = ""
    zone: str = ""
    region: str = ""
    network_group: str = ""
    resources: tuple[tuple[str, int], ...] = ()
    capabilities: tuple[str, ...] = ()

    def summary(self) -> str:
        """One line for people: ``2 × cuda, 40 GB each, torch>=2.4``."""
        parts: list[str] = []
        kinds = " or ".join(self.accelerators)
        if self.devices:
            parts.append(f"{self.devices} × {kinds}")
        elif self.accelerators != (Accelerator.ANY,):
            parts.append(kinds)
        if self.device_models:
            parts.append(" or ".join(self.device_models))
        if self.device_memory_bytes:
            parts.append(f"{format_bytes(self.device_memory_bytes)} each")
        if self.compute_capability:
            parts.append(f"compute capability {self.compute_capability}")
        parts.extend(str(framework) for framework in self.frameworks)
        if self.cpus != 1 or not parts:
            parts.append(f"{self.cpus} cpu" + ("s" if self.cpus != 1 else ""))
        if self.memory_bytes:
            parts.append(f"{format_bytes(self.memory_bytes)} memory")
        if self.disk_bytes:
            parts.append(f"{format_bytes(self.disk_bytes)} disk")
        parts.extend(f"{count} × {name}" for name, count in self.resources)
        parts.extend(f"{key}={value}" for key, value in self.labels)
        parts.extend(capability.replace(":", " ", 1) for capability in self.capabilities)
        for name, value in (
            ("worker", self.worker),
            ("zone", self.zone),
            ("region", self.region),
            ("network group", self.network_group),
        ):
            if value:
                parts.append(f"{name} {value}")
        return ", ".join(parts)
