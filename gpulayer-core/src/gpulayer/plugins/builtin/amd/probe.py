"""AMD's GPUs: those that the kernel's compute driver lists, with what AMD's library or tools tell of them.

The kernel's list says what ROCm can use, and the ids that ROCm knows it by; it is read at every look, and without it
there is nothing to ask for. The rest is asked of ``amdsmi`` (Python, of ROCm), ``amd-smi`` or ``rocm-smi``, in
children, first of the one that answered last; what none of them tells the files of the driver may.

A GPU inside a processor is a device where ROCm is installed: elsewhere it draws, and nobody means jobs to run there.
"""

import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from gpulayer.plugins.builtin.amd.answers import Row, parsed_amd_smi, parsed_library, parsed_rocm_smi
from gpulayer.plugins.builtin.amd.topology import FILES, FOLDER, KfdGpu, KfdProcess, kfd_gpus, kfd_processes
from gpulayer.plugins.builtin.amd.visible import visible_positions
from gpulayer.plugins.builtin.believable import believable, percent, words
from gpulayer.plugins.builtin.child import Child, Said, Unanswered, found_program
from gpulayer.plugins.builtin.kernel_files import TEMPERATURES, number_of, read_device_files, read_files, temperature_of
from gpulayer.plugins.builtin.near import allowed_cores, with_near
from gpulayer.plugins.builtin.pci import ACCELERATOR, PciDevice, gpus_on_bus, read_text
from gpulayer.plugins.contracts.probe import Findings, ProbeSite, ProcessOnDevice
from gpulayer.spec.machine import Device, DeviceState
from gpulayer.spec.request import Accelerator

__all__ = ["AmdProbe"]

_log: Final = logging.getLogger(__name__)
_VENDOR: Final = 0x1002
_COMPUTE_KINDS: Final = (0x0380, 0x1200)  # cards without a display
_MI300A: Final = 0x74A0
# https://llvm.org/docs/AMDGPUUsage.html#processors, those that are "APU"
_INTEGRATED: Final = frozenset(
    ("gfx902", "gfx909", "gfx90c", "gfx1013", "gfx1033", "gfx1035", "gfx1036", "gfx1103")
).union(("gfx1150", "gfx1151", "gfx1152", "gfx1153"))
_FIGURES: Final = (
    "mem_info_vram_total",
    "mem_info_vram_used",
    "mem_info_gtt_total",
    "mem_info_gtt_used",
    "gpu_busy_percent",
    "product_name",
    TEMPERATURES,
)  # of the driver's, which may wait for the GPU
_BUDGET_S: Final = 8.0  # of the ten that a probe has; a child that dies hard takes one more
_LEAST_S: Final = 0.1
_LIST_S: Final = 2.0
_FIGURES_S: Final = 1.5
_FIRST_S: Final = 5.0
_LATER_S: Final = (3.0, 1.5)
_METRIC_S: Final = 2.0
_ROCM_SMI: Final = (
    "--showproductname",
    "--showmeminfo",
    "vram",
    "--showuniqueid",
    "--showbus",
    "--showtemp",
    "--showuse",
    "--showdriverversion",
    "--json",
)
_MAX_WORD: Final = 64


class AmdProbe:
    """Starts no program where the kernel lists no GPU of AMD's. Roots and Python are parameters for tests."""

    def __init__(
        self,
        *,
        sys_root: Path = Path("/sys"),
        dev_root: Path = Path("/dev"),
        rocm_root: Path = Path("/opt/rocm"),
        python: str = sys.executable,
        budget_s: float = _BUDGET_S,
        allowed: Callable[[], Collection[int] | None] = allowed_cores,
    ) -> None:
        self._allowed = allowed
        self._sys_root = sys_root
        self._dev_root = dev_root
        self._rocm_root = rocm_root
        self._python = python
        self._budget_s = budget_s
        self._children = {name: Child() for name in ("kfd", "library", "amd-smi", "rocm-smi", "figures")}
        self._answered = ""

    @property
    def name(self) -> str:
        return "amd"

    def look(self, site: ProbeSite) -> Findings:
        ends_s = time.monotonic() + self._budget_s
        on_bus = {pci.address: pci for pci in gpus_on_bus(self._sys_root, vendor=_VENDOR, also=ACCELERATOR)}
        folder = self._sys_root / FOLDER
        if not on_bus and not (folder / "topology/nodes").is_dir():
            return Findings()
        try:
            listed = read_files(
                self._children["kfd"],
                folder,
                FILES,
                environment=site.environment,
                deadline_s=self._left_s(_LIST_S, ends_s),
                python=self._python,
            )
        except Unanswered as error:
            return replace(_missing(f"the kernel's driver does not answer: {error}"), is_silent=True)
        every = self._given(kfd_gpus(listed))
        if not every and not on_bus:
            return Findings()
        has_rocm = self._has_rocm(site)
        if not every:
            return self._none(tuple(on_bus.values()), has_rocm=has_rocm)
        uuids = _uuids(every)
        visible = visible_positions(uuids, site.environment)
        wanted = [number for number in visible if has_rocm or not _is_inside(every[number])]
        if not wanted:
            return Findings()
        if not (self._dev_root / "kfd").exists():
            return _missing(f"/dev/kfd is not there, and AMD has {len(wanted)} GPUs here")
        rows, stuck, why = self._asked(site, ends_s)
        is_told = all(_row_of(every[number], rows) is not None for number in wanted)
        by_kernel = not is_told or any(uuid.startswith("ROCM-") for uuid in uuids)
        gpus = [every[number] for number in wanted]
        figures = {} if stuck else self._figures(gpus, rows, on_bus, site, ends_s)
        devices: list[Device] = []
        for number in wanted:
            gpu = every[number]
            row = _row_of(gpu, rows) or Row(number)
            device = self._device(gpu, figures.get(gpu.address, {}), row, runtime=self._runtime(site))
            reason = words(row.fault) or stuck or self._why_closed(gpu)
            devices.append(
                replace(
                    device,
                    uuid=uuids[number],
                    index=number if by_kernel else row.index,
                    state=DeviceState.UNHEALTHY if reason else DeviceState.USABLE,
                    reason=reason,
                    links=tuple((uuids[other], "XGMI") for other in wanted if every[other].number in gpu.links),
                )
            )
        processes = _processes(kfd_processes(listed), gpus, [uuids[number] for number in wanted], rows)
        unusable = all(device.state is not DeviceState.USABLE for device in devices)
        reason = stuck or why
        missing = ((str(Accelerator.ROCM), words(reason)),) if unusable and reason else ()
        near = with_near(devices, allowed=self._allowed(), sys_root=self._sys_root)
        return Findings(devices=near, processes=processes, missing=missing, is_silent=bool(stuck))

    def _left_s(self, at_most_s: float, ends_s: float) -> float:
        """Raises Unanswered where nothing is left."""
        left_s = ends_s - time.monotonic()
        if left_s < _LEAST_S:
            raise Unanswered(f"no time was left of the {self._budget_s:g} s that all of AMD's tools have together")
        return min(at_most_s, left_s)

    def _figures(
        self,
        gpus: Sequence[KfdGpu],
        rows: Sequence[Row],
        on_bus: Mapping[str, PciDevice],
        site: ProbeSite,
        ends_s: float,
    ) -> dict[str, dict[str, str]]:
        """The driver's files of those of which the tool has not told all, by address. Where it does not answer, what
        they would tell is not known."""
        addresses = [gpu.address for gpu in gpus if gpu.address in on_bus and _lacks(gpu, _row_of(gpu, rows))]
        if not addresses:
            return {}
        try:
            return read_device_files(
                self._children["figures"],
                self._sys_root,
                addresses,
                _FIGURES,
                environment=site.environment,
                deadline_s=self._left_s(_FIGURES_S, ends_s),
                python=self._python,
            )
        except Unanswered as error:
            _log.debug("figures of AMD's GPUs are not known: %s", error)
            return {}

    def _given(self, listed: Sequence[KfdGpu]) -> Sequence[KfdGpu]:
        """Without those whose files a container was not given, where it was given any."""
        dri = self._dev_root / "dri"
        return [gpu for gpu in listed if gpu.render_node and (dri / gpu.render_node).exists()] or listed

    def _none(self, on_bus: Sequence[PciDevice], *, has_rocm: bool) -> Findings:
        """Where the kernel lists none: is there one all the same that should be listed?"""
        meant = [pci for pci in on_bus if has_rocm or pci.kind in _COMPUTE_KINDS]
        if not meant:
            return Findings()
        first = meant[0]
        if first.driver != "amdgpu":
            return _missing(f"the GPU at {first.address} is not driven by amdgpu: {first.driver or 'no driver'}")
        return _missing(f"the kernel's compute driver (amdkfd) does not list the GPU at {first.address}")

    def _asked(self, site: ProbeSite, ends_s: float) -> tuple[Sequence[Row], str, str]:
        """What the first tool tells that answers; why the driver hangs; and why none of them told anything.

        One that answered last time and does not now has met a driver that hangs; the same goes for the first one that
        is asked at all. Then no other is asked.
        """
        tools = self._tools(site)
        names = sorted(tools, key=lambda name: name != self._answered)
        why = ""
        for place, name in enumerate(names):
            try:
                left_s = self._left_s(_FIRST_S if place == 0 else _LATER_S[place - 1], ends_s)
                rows = self._ask(name, tools[name], site, left_s, ends_s)
            except Unanswered as error:
                if place == 0:
                    return (), str(error), ""
                why = why or str(error)
            except ValueError as error:
                why = why or f"{name}: {str(error)[:200]}"
            else:
                if rows:
                    self._answered = name
                    return rows, "", ""
                why = why or f"{name} tells of no GPU"
        return (), "", why

    def _tools(self, site: ProbeSite) -> dict[str, list[str]]:
        """The commands that there are here to ask with, the best first."""
        root = self._rocm(site)
        tools: dict[str, list[str]] = {}
        folder = root / "share/amd_smi"
        is_rocms = (folder / "amdsmi").is_dir()
        if is_rocms or _is_installed("amdsmi"):
            script = str(Path(__file__).with_name("ask_library.py"))
            tools["library"] = [self._python, "-I", script, *([str(folder)] if is_rocms else [])]
        for name in ("amd-smi", "rocm-smi"):
            if program := found_program(name, environment=site.environment, also=[str(root / "bin")]):
                tools[name] = [program]
        return tools

    def _ask(
        self, name: str, command: Sequence[str], site: ProbeSite, deadline_s: float, ends_s: float
    ) -> Sequence[Row]:
        """What one of ``_tools`` tells. Raises Unanswered and ValueError."""
        if name == "library":
            return parsed_library(self._say(name, command, site, deadline_s).out)
        if name == "rocm-smi":
            return parsed_rocm_smi(self._say(name, [*command, *_ROCM_SMI], site, deadline_s).out)
        return self._ask_amd_smi(command, site, deadline_s, ends_s)

    def _ask_amd_smi(self, command: Sequence[str], site: ProbeSite, deadline_s: float, ends_s: float) -> Sequence[Row]:
        said = self._say("amd-smi", [*command, "static", "--json"], site, deadline_s)
        try:
            left_s = self._left_s(_METRIC_S, ends_s)
            flowing = self._say("amd-smi", [*command, "metric", "--json"], site, left_s).out
        except Unanswered:
            flowing = ""  # what flows stays unknown
        return parsed_amd_smi(said.out, flowing)

    def _say(self, name: str, command: Sequence[str], site: ProbeSite, deadline_s: float) -> Said:
        said = self._children[name].ask(command, environment=site.environment, deadline_s=deadline_s)
        if not said.out.strip():
            lines = said.err.strip().splitlines()
            raise ValueError(lines[-1] if lines else f"it ended with {said.code} and said nothing")
        return said

    def _device(self, gpu: KfdGpu, files: Mapping[str, str], row: Row, *, runtime: str) -> Device:
        """But for what it is called, what stands near, and whether it can be used. files: of the driver."""
        is_shared = _is_inside(gpu) or gpu.device == _MI300A
        total, used = _memory(gpu, files, row, is_shared=is_shared)
        driver = row.driver or read_text(self._sys_root / "module/amdgpu/version")
        heat, busy = row.temperature_c, row.use_percent
        return believable(
            Device(
                uuid="",
                index=row.index,
                kind=Accelerator.ROCM,
                model=row.model or files.get("product_name") or f"AMD GPU [{gpu.device:#06x}]",
                memory_bytes=total,
                memory_free_bytes=None if total is None or used is None else max(0, total - used),
                compute_capability=gpu.gfx or row.gfx,
                pci_address=gpu.address,
                driver=driver[:_MAX_WORD],
                runtime=runtime,
                is_memory_shared=is_shared,
                ecc=row.ecc,
                temperature_c=temperature_of(files) if heat is None else heat,
                use_percent=percent(number_of(files, "gpu_busy_percent")) if busy is None else busy,
            )
        )

    def _why_closed(self, gpu: KfdGpu) -> str:
        for name in ("kfd", f"dri/{gpu.render_node}"):
            path = self._dev_root / name
            if not path.exists():
                return f"/dev/{name} is not there"
            if not os.access(path, os.R_OK | os.W_OK):
                return f"/dev/{name} can't be opened; is the worker's user in the groups render and video?"
        return ""

    def _has_rocm(self, site: ProbeSite) -> bool:
        return self._rocm(site).is_dir() or bool(self._tools(site))

    def _runtime(self, site: ProbeSite) -> str:
        return read_text(self._rocm(site) / ".info/version").partition("-")[0][:_MAX_WORD]

    def _rocm(self, site: ProbeSite) -> Path:
        told = site.environment.get("ROCM_PATH", "")
        return Path(told) if told.startswith("/") else self._rocm_root


def _uuids(gpus: Sequence[KfdGpu]) -> tuple[str, ...]:
    """As ROCm knows them; ``ROCM-`` and the PCI address of those that have no id, or share one as partitions may."""
    counts = Counter(gpu.unique_id for gpu in gpus)
    return tuple(
        f"GPU-{gpu.unique_id:016x}" if gpu.unique_id and counts[gpu.unique_id] == 1 else f"ROCM-{gpu.address}"
        for gpu in gpus
    )


def _processes(
    listed: Sequence[KfdProcess] | None, gpus: Sequence[KfdGpu], uuids: Sequence[str], rows: Sequence[Row]
) -> tuple[ProcessOnDevice, ...] | None:
    if listed is not None:
        names = {gpu.gpu_id: uuid for gpu, uuid in zip(gpus, uuids, strict=True)}
        return tuple(
            ProcessOnDevice(names[one.gpu_id], one.pid, memory_bytes=one.memory_bytes)
            for one in listed
            if one.gpu_id in names
        )
    told = [(uuid, _row_of(gpu, rows)) for gpu, uuid in zip(gpus, uuids, strict=True)]
    if any(row is None or row.processes is None for _, row in told):
        return None
    return tuple(
        ProcessOnDevice(uuid, pid, memory_bytes=memory)
        for uuid, row in told
        for pid, memory in (row.processes if row is not None and row.processes is not None else ())
        if memory != 0
    )


def _row_of(gpu: KfdGpu, rows: Sequence[Row]) -> Row | None:
    by_address = [row for row in rows if row.address == gpu.address]
    by_id = [row for row in rows if not row.address and row.unique_id and row.unique_id == gpu.unique_id]
    return next(iter(by_address or by_id), None)


def _is_inside(gpu: KfdGpu) -> bool:
    """A GPU of a processor that is not made for computing."""
    return (gpu.gfx in _INTEGRATED or gpu.has_cores) and gpu.device != _MI300A


def _lacks(gpu: KfdGpu, row: Row | None) -> bool:
    """Something that the driver's files may tell."""
    if row is None or _is_inside(gpu) or gpu.device == _MI300A or not row.model:
        return True
    return None in (row.memory_bytes, row.memory_used_bytes, row.temperature_c, row.use_percent)


def _memory(gpu: KfdGpu, files: Mapping[str, str], row: Row, *, is_shared: bool) -> tuple[int | None, int | None]:
    """In all, and taken. Of shared memory the driver lets ROCm have the larger of what is set aside and the rest."""
    total, used = row.memory_bytes, row.memory_used_bytes
    if total is None:
        total, used = number_of(files, "mem_info_vram_total") or gpu.memory_bytes, None
    if used is None:
        used = number_of(files, "mem_info_vram_used")
    rest = number_of(files, "mem_info_gtt_total")
    if is_shared and rest is not None and rest > (total or 0):
        return rest, number_of(files, "mem_info_gtt_used")
    return total, used


def _missing(why: str) -> Findings:
    return Findings(missing=((str(Accelerator.ROCM), words(why)),))


def _is_installed(name: str) -> bool:
    """Without importing it."""
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False
