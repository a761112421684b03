"""The ``process`` launcher: the command as one process tree, in the work folder, with an environment of its own.

The environment is an allow-list. Of the worker's variables a job gets those that describe the machine and its user,
never those of the worker's own Python or its place in GPUlayer; then the job's own; then what GPUlayer says, last, so
that nobody overrides it: who the job is, and which devices it sees.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from gpulayer.plugins.contracts import Launched, LaunchPlan, LaunchSite, Machine, NotLaunched, Starter
from gpulayer.spec.assignment import Assignment
from gpulayer.spec.machine import Device
from gpulayer.spec.request import Accelerator
from gpulayer.variables import HANDED_ON

__all__ = ["ProcessLauncher", "device_variables"]

DEFAULT_PATH: Final = "/usr/local/bin:/usr/bin:/bin"

# Level Zero reads an empty mask as "no mask", so what hides every device is an index that no machine has.
_NO_XPU: Final = "255"


class ProcessLauncher:
    """Plans without IO; starting goes through the spawner, so the job outlives the agent."""

    @property
    def name(self) -> str:
        return "process"

    def plan(self, attempt: Assignment, site: LaunchSite, machine: Machine) -> LaunchPlan:
        held = set(attempt.devices)
        devices = [device for device in machine.facts.devices if device.uuid in held]
        # Python holds back what it prints into a pipe; a job is watched while it runs.
        env = {"PATH": DEFAULT_PATH, "PYTHONUNBUFFERED": "1"}
        env |= {name: value for name, value in machine.environment.items() if _is_handed_on(name)}
        env |= dict(attempt.env)
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

    async def act(self, plan: LaunchPlan, starter: Starter) -> Launched | NotLaunched:
        return await starter.start(plan)


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


def _is_handed_on(name: str) -> bool:
    return name in HANDED_ON or name.startswith("LC_")
