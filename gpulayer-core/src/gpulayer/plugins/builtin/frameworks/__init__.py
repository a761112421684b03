"""The framework checks of core: torch, jax, cupy, mlx, tensorflow and onnxruntime.

Their scripts are files of their own, for another Python: they are read as text, and never imported here. Each stands
below ``scripts/answer.py``, in one program.
"""

from functools import cache
from importlib.resources import files
from typing import Final

from gpulayer.plugins.contracts.context import Context
from gpulayer.plugins.contracts.framework import CheckScript, FrameworkCheck
from gpulayer.plugins.hooks import API_VERSION, hookimpl
from gpulayer.spec.request import Accelerator

__all__ = ["CHECKS", "GPULAYER_API", "ScriptCheck", "gpulayer_register_framework_checks"]

GPULAYER_API: Final = API_VERSION


class ScriptCheck:
    """Of the framework whose module and script have its name."""

    def __init__(self, name: str, *accelerators: Accelerator) -> None:
        self._name = name
        self._accelerators = accelerators

    @property
    def name(self) -> str:
        return self._name

    @property
    def accelerators(self) -> tuple[Accelerator, ...]:
        return self._accelerators

    def script(self) -> CheckScript:
        wanted = [str(accelerator) for accelerator in self._accelerators]
        parts = (_text("answer"), f"ACCELERATORS = {wanted!r}\n", _text(self._name))
        return CheckScript("\n".join(parts), modules=(self._name,))


CHECKS: Final = (
    ScriptCheck("torch", Accelerator.CUDA, Accelerator.ROCM, Accelerator.MPS, Accelerator.XPU, Accelerator.CPU),
    ScriptCheck("jax", Accelerator.CUDA, Accelerator.ROCM, Accelerator.MPS, Accelerator.CPU),
    ScriptCheck("cupy", Accelerator.CUDA, Accelerator.ROCM),
    ScriptCheck("mlx", Accelerator.MLX, Accelerator.CPU),
    ScriptCheck("tensorflow", Accelerator.CUDA, Accelerator.CPU),
    ScriptCheck("onnxruntime", Accelerator.CUDA, Accelerator.CPU),
)


@hookimpl
def gpulayer_register_framework_checks(ctx: Context) -> list[FrameworkCheck]:
    """One for each framework."""
    return list(CHECKS)


@cache
def _text(name: str) -> str:
    return (files(__name__) / "scripts" / f"{name}.py").read_text(encoding="utf-8")
