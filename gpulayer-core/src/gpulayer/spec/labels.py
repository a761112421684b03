"""Labels that mean the same on every worker, whoever gives them. Pure.

Names below ``gpulayer.dev/`` are GPUlayer's own. Where a worker stands is a locality and no label: an owner who knows
better than the machine says so with three of them.
"""

from dataclasses import replace
from typing import Final

from gpulayer.spec.machine import Locality

__all__ = [
    "CONTAINER_LABEL",
    "HOST_LABEL",
    "INSTANCE_TYPE_LABEL",
    "NETWORK_GROUP_LABEL",
    "REGION_LABEL",
    "SPOT_LABEL",
    "ZONE_LABEL",
    "located",
]

ZONE_LABEL: Final = "gpulayer.dev/zone"
REGION_LABEL: Final = "gpulayer.dev/region"
NETWORK_GROUP_LABEL: Final = "gpulayer.dev/network-group"
"""Machines of one group reach each other under the addresses that they report."""

INSTANCE_TYPE_LABEL: Final = "gpulayer.dev/instance-type"
"""What the cloud calls this kind of machine: ``a2-highgpu-1g``."""
SPOT_LABEL: Final = "gpulayer.dev/spot"
"""``true`` where the cloud may take the machine away at any time, ``false`` where it says that it does not."""
HOST_LABEL: Final = "gpulayer.dev/host"
"""``wsl2`` or ``jetson``."""
CONTAINER_LABEL: Final = "gpulayer.dev/container"
"""``docker``, ``podman``, ``kubernetes``, ``lxc``, ``apptainer`` or ``other``, where the worker runs in one."""


def located(labels: tuple[tuple[str, str], ...], found: Locality) -> Locality:
    """``found``, and over it what the owner's ``labels`` say; an empty one takes back what was found."""
    told = dict(labels)
    return replace(
        found,
        zone=told.get(ZONE_LABEL, found.zone),
        region=told.get(REGION_LABEL, found.region),
        network_group=told.get(NETWORK_GROUP_LABEL, found.network_group),
    )
