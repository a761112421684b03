"""The ``torch`` launcher: the command as rank 0 of a ``torch.distributed`` world of one, as by ``torchrun``.

The variables are those of torchrun: https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables. More
than one rank is refused until this package can start them.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from gpulayer.plugins import Assignment, LaunchPlan, LaunchRefused, LaunchSite, Machine, ProcessLauncher

__all__ = ["TorchLauncher"]

_ONE_RANK: Final[Mapping[str, str]] = MappingProxyType(
    {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "NODE_RANK": "0",
        "GROUP_RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        # Any free port: rank 0 makes the store of env://, learns which port it got, and nobody else has to know it. A
        # number chosen here could be taken by the time the program starts; two jobs on one machine would share it.
        "MASTER_PORT": "0",
    }
)


class TorchLauncher:
    """What ``process`` plans, with the variables that ``torch.distributed.init_process_group("nccl")`` reads.

    ``OMP_NUM_THREADS`` is the job's processors, unless its own variables say another number: torch would take all of
    the machine's. ``MASTER_PORT`` is 0; ``init_method="tcp://…"`` needs a port of its own, ``env://`` (the default)
    does not.
    """

    @property
    def name(self) -> str:
        return "torch"

    def plan(self, attempt: Assignment, site: LaunchSite, machine: Machine) -> LaunchPlan:
        if len(attempt.devices) > 1:
            raise LaunchRefused(
                f"the torch launcher starts one process, for one device; the job asks for {len(attempt.devices)}",
                hint="ask for --devices 1, or start the ranks yourself: leave out --launcher torch and run torchrun "
                f"--standalone --nproc-per-node {len(attempt.devices)} …",
            )
        plan = ProcessLauncher().plan(attempt, site, machine)
        threads = {"OMP_NUM_THREADS": str(attempt.cpus)}
        return replace(plan, env={**threads, **plan.env, **_ONE_RANK})
