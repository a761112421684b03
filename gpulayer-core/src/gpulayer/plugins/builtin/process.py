"""The ``process`` launcher: the command as one process tree, in the work folder, with the job's environment.

What the environment gives comes first, then the job's own variables, then what GPUlayer says, so that nobody overrides
it: who the job is, where its inputs lie, and which devices it sees.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from gpulayer.plugins.contracts.context import Context
from gpulayer.plugins.contracts.launcher import Launcher, LaunchPlan, LaunchSite, Machine
from gpulayer.plugins.hooks import API_VERSION, hookimpl
from gpulayer.spec.assignment import Assignment
from gpulayer.spec.capabilities import input_variable
from gpulayer.spec.machine import Device
from gpulayer.spec.request import Accelerator

__all__ = ["GPULAYER_API", "ProcessLauncher", "device_variables", "gpulayer_register_launchers"]

GPULAYER_API: Final = API_VERSION

# Level Zero reads an empty mask as "no mask", so what hides every device is an index that no machine has.
_NO_XPU: Final = "255"


@hookimpl
def gpulayer_register_launchers(ctx: Context) -> list[Launcher]:
    """The process launcher."""
    return [ProcessLauncher()]


class ProcessLauncher:
    """Plans without IO; starting goes through the spawner, so the job outlives the agent."""

    @property
    def name(self) -> str:
        return "process"

    def plan(self, attempt: Assignment, site: LaunchSite, machine: Machine) -> LaunchPlan:
        held = set(attempt.devices)
        devices = [device for device in machine.facts.devices if device.uuid in held]
        env = {**machine.variables, **dict(attempt.env)}
        env |= {input_variable(name): str(path) for name, path in site.inputs}
        env |= {
            "GPULAYER_JOB_ID": attempt.job_id,
            "GPULAYER_ATTEMPT": str(attempt.attempt),
            "GPULAYER_OUTPUT_DIR": str(site.output_dir),
        }
        env = {name: value for name, value in env.items() if name not in _DEVICE_VARIABLES}
        env |= device_variables(devices)
        return LaunchPlan(
            key=str(attempt.key),
            argv=attempt.command,
            cwd=site.work_dir,
            env=env,
            log_path=site.log_path,
            exit_path=site.exit_path,
            err_path=site.err_path,
            log_bytes=attempt.limits.log_bytes,
        )


_DEVICE_VARIABLES: Final = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "GPU_DEVICE_ORDINAL",
        "HIP_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "ZE_AFFINITY_MASK",
    }
)


def device_variables(devices: Sequence[Device]) -> Mapping[str, str]:
    """The variables that make exactly these devices visible, by UUID where the vendor reads UUIDs; none hides all.

    CUDA: https://docs.nvidia.com/cuda/cuda-c-programming-guide/#env-vars (an empty list hides all).
    ROCm: https://rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html (ROCR_VISIBLE_DEVICES takes UUIDs; HIP
    reads CUDA_VISIBLE_DEVICES as its own, so that is left out where ROCm devices are handed over).
    Intel: Level Zero's ZE_AFFINITY_MASK takes indices only.
    """
    by_kind: dict[Accelerator, list[Device]] = {}
    for device in devices:
        by_kind.setdefault(device.kind, []).append(device)
    variables: dict[str, str] = {}
    cuda, rocm, xpu = (by_kind.get(kind, []) for kind in (Accelerator.CUDA, Accelerator.ROCM, Accelerator.XPU))
    if cuda or not rocm:
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(device.uuid for device in cuda)
    variables["ROCR_VISIBLE_DEVICES"] = ",".join(device.uuid for device in rocm)
    if not rocm:
        variables["HIP_VISIBLE_DEVICES"] = "-1"
    variables["ZE_AFFINITY_MASK"] = ",".join(str(device.index) for device in xpu) or _NO_XPU
    return variables
