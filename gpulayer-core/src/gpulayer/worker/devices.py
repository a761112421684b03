"""Which devices a program sees: the variables of their vendors. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

from gpulayer.spec.machine import Device
from gpulayer.spec.request import Accelerator

__all__ = ["device_variables", "is_masked_by_number"]

# Level Zero reads an empty mask as "no mask", so what hides every device is an index that no machine has.
_NO_XPU: Final = "255"


def is_masked_by_number(device: Device) -> bool:
    """Its vendor's variables take no id of it, but the number that its vendor's tool has for it at that moment."""
    return device.kind is Accelerator.XPU or (device.kind is Accelerator.ROCM and device.uuid.startswith("ROCM-"))


def device_variables(devices: Sequence[Device]) -> Mapping[str, str]:
    """The variables that make exactly these devices visible, by UUID where the vendor reads UUIDs; none hides all.

    CUDA: https://docs.nvidia.com/cuda/cuda-c-programming-guide/#env-vars (an empty list hides all).
    ROCm: https://rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html (ROCR_VISIBLE_DEVICES takes UUIDs; HIP
    reads CUDA_VISIBLE_DEVICES as its own, so that is left out where ROCm devices are handed over).
    Intel: Level Zero's ZE_AFFINITY_MASK takes indices only, here of whole cards by PCI address, as the probe counts.
    """
    by_kind: dict[Accelerator, list[Device]] = {}
    for device in devices:
        by_kind.setdefault(device.kind, []).append(device)
    variables: dict[str, str] = {}
    cuda, rocm, xpu = (by_kind.get(kind, []) for kind in (Accelerator.CUDA, Accelerator.ROCM, Accelerator.XPU))
    if cuda or not rocm:
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(device.uuid for device in cuda)
    variables["ROCR_VISIBLE_DEVICES"] = ",".join(_rocr_name(device) for device in rocm)
    if not rocm:
        variables["HIP_VISIBLE_DEVICES"] = "-1"
    if xpu:
        variables["ZE_ENABLE_PCI_ID_DEVICE_ORDER"] = "1"
        variables["ZE_FLAT_DEVICE_HIERARCHY"] = "COMPOSITE"  # by default each tile would count as a device
    variables["ZE_AFFINITY_MASK"] = ",".join(_number(device) for device in xpu) or _NO_XPU
    return variables


def _rocr_name(device: Device) -> str:
    """Not all of AMD's have an id of their own; those go by where they stand."""
    return _number(device) if is_masked_by_number(device) else device.uuid


def _number(device: Device) -> str:
    return str(device.index if device.mask_index is None else device.mask_index)
