"""Intel GPUs: found on the PCI bus, and told of by ``xpu-smi`` where the machine has it.

Graphics inside a processor are no devices for jobs: they have no memory of their own, and Intel's frameworks are made
for the discrete ones. A device's index is where it stands among all of Intel's by PCI address, as xpu-smi counts them
and as Level Zero does when it is told to (``ZE_ENABLE_PCI_ID_DEVICE_ORDER=1``). Its uuid is made of its PCI address:
the one that Intel gives was the same for all cards of a model in older releases, and only the tool knows it.
"""

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from gpulayer.plugins.builtin.believable import believable, words
from gpulayer.plugins.builtin.child import Child, Unanswered, found_program
from gpulayer.plugins.builtin.intel.answers import DETAILS, Listed, Mask, affinity_mask, parsed_list, with_details
from gpulayer.plugins.builtin.kernel_files import TEMPERATURES, read_device_files, temperature_of
from gpulayer.plugins.builtin.near import allowed_cores, with_near
from gpulayer.plugins.builtin.pci import PciDevice, gpus_on_bus
from gpulayer.plugins.contracts.probe import Findings, ProbeSite
from gpulayer.spec.machine import Device, DeviceState
from gpulayer.spec.request import Accelerator

__all__ = ["IntelProbe"]

_VENDOR: Final = 0x8086
_DRIVERS: Final = ("i915", "xe")
_OTHER_DISPLAY: Final = 0x0380  # data center cards have no display: their class is not that of VGA
_BUDGET_S: Final = 8.0  # of the ten that a probe has; a child that dies hard takes one more
_LEAST_S: Final = 0.1
_FILES_S: Final = 1.0
_LIST_S: Final = 5.0
_DETAILS_S: Final = 2.5


class IntelProbe:
    """Starts no program where the bus has no discrete GPU of Intel's. The roots are parameters for tests."""

    def __init__(
        self,
        *,
        sys_root: Path = Path("/sys"),
        dev_root: Path = Path("/dev"),
        allowed: Callable[[], Collection[int] | None] = allowed_cores,
    ) -> None:
        self._sys_root = sys_root
        self._dev_root = dev_root
        self._allowed = allowed
        self._child = Child()
        self._reading = Child()

    @property
    def name(self) -> str:
        return "intel"

    def look(self, site: ProbeSite) -> Findings:
        every = gpus_on_bus(self._sys_root, vendor=_VENDOR)
        if not any(is_discrete(pci) for pci in every):
            return Findings()
        ends_s = time.monotonic() + _BUDGET_S
        listed, stuck, why = self._listed(site, ends_s)
        mask = affinity_mask(site.environment)
        offered: list[tuple[PciDevice, Listed]] = []
        hidden: list[str] = []
        for number, pci in enumerate(every):
            told = listed.get(pci.address)
            index = number if told is None else told.index
            if not is_discrete(pci):
                continue
            if mask is not None and index not in mask.whole:
                hidden.append(_why_hidden(index, mask))
                continue
            offered.append((pci, told or Listed(index, pci.address)))
        files = {} if stuck else self._files([pci.address for pci, _ in offered], site, ends_s)
        found = [self._device(pci, told, stuck, files.get(pci.address, {})) for pci, told in offered]
        devices = with_near(found, allowed=self._allowed(), sys_root=self._sys_root)
        if any(device.state is DeviceState.USABLE for device in devices):
            return Findings(devices=devices)
        reason = words(why or "; ".join(dict.fromkeys(word for word in hidden if word)))
        missing = ((str(Accelerator.XPU), reason),) if reason else ()
        return Findings(devices=devices, missing=missing, is_silent=bool(stuck))

    def _files(self, addresses: Sequence[str], site: ProbeSite, ends_s: float) -> dict[str, dict[str, str]]:
        """What their driver tells of them by itself, by address; where it does not answer that is not known."""
        try:
            return read_device_files(
                self._reading,
                self._sys_root,
                addresses,
                [TEMPERATURES],
                environment=site.environment,
                deadline_s=_left_s(_FILES_S, ends_s),
            )
        except Unanswered:
            return {}

    def _listed(self, site: ProbeSite, ends_s: float) -> tuple[dict[str, Listed], str, str]:
        """By address; with why the driver hangs, and why the tool gave nothing."""
        program = found_program("xpu-smi", environment=site.environment)
        if not program:
            return {}, "", ""
        try:
            said = self._child.ask([program, "discovery", "-j"], environment=site.environment, deadline_s=_LIST_S)
        except Unanswered as why:
            return {}, str(why), str(why)
        try:
            devices = parsed_list(said.out)
        except ValueError as why:
            return {}, "", f"xpu-smi: {(said.err.strip().splitlines() or [str(why)])[0][:200]}"
        try:
            command = [program, "discovery", "--dump", DETAILS]
            details = self._child.ask(command, environment=site.environment, deadline_s=_left_s(_DETAILS_S, ends_s))
            devices = with_details(devices, details.out)
        except Unanswered:
            pass  # its figures stay unknown
        return {device.address: device for device in devices}, "", ""

    def _device(self, pci: PciDevice, told: Listed, stuck: str, files: Mapping[str, str]) -> Device:
        reason = stuck or self._why_closed(pci)
        return believable(
            Device(
                uuid=f"XPU-{pci.address}",
                index=told.index,
                kind=Accelerator.XPU,
                model=told.model or f"Intel Graphics [{pci.device:#06x}]",
                memory_bytes=told.memory_bytes,
                memory_free_bytes=told.memory_free_bytes,
                state=DeviceState.UNHEALTHY if reason else DeviceState.USABLE,
                reason=reason,
                pci_address=pci.address,
                driver=told.driver[:64],
                ecc=told.ecc,
                temperature_c=temperature_of(files),
            )
        )

    def _why_closed(self, pci: PciDevice) -> str:
        if pci.driver not in _DRIVERS:
            return f"no driver of Intel's has it: {pci.driver or 'none'}"
        node = pci.render_node
        path = self._dev_root / "dri" / node
        if not node or not path.exists():
            return f"/dev/dri/{node or 'renderD…'} is not there"
        if not os.access(path, os.R_OK | os.W_OK):
            return f"/dev/dri/{node} can't be opened; is the worker's user in the group render?"
        return ""


def _left_s(at_most_s: float, ends_s: float) -> float:
    return max(_LEAST_S, min(at_most_s, ends_s - time.monotonic()))


def is_discrete(pci: PciDevice) -> bool:
    """Graphics inside a processor stand at 00:02.0 since there are any; a card that a virtual machine was given could
    stand there too, and shows by its class, or by the memory that the kernel's drivers tell of."""
    if pci.address.rsplit(":", 2)[-2:] != ["00", "02.0"] or pci.kind == _OTHER_DISPLAY:
        return True
    of_xe = (pci.folder / "vram_d3cold_threshold").exists()
    return of_xe or any(True for _ in pci.folder.glob("drm/card*/lmem_total_bytes"))


def _why_hidden(index: int, mask: Mask) -> str:
    if index in mask.parts:
        return f"ZE_AFFINITY_MASK gives a tile of device {index}, and devices are lent as a whole"
    return ""
