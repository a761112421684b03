"""AMD's GPUs as the kernel's compute driver lists them below /sys/class/kfd: what ROCm itself counts and opens.

Only small files are read. A container sees the nodes of all GPUs of its host, but may read those alone that it was
given; the others are none of ours. Formats: https://docs.kernel.org/gpu/amdgpu and the kernel's kfd_topology.c and
kfd_process.c.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpulayer.plugins.builtin.pci import read_number, read_text

__all__ = ["KfdGpu", "KfdProcess", "gfx_name", "kfd_gpus", "kfd_processes", "parsed_properties"]

_XGMI: Final = 11  # of kfd_topology.c: what a link is
_MEMORY_HEAPS: Final = (1, 2)  # public and private, of the GPU itself
_RUNTIMES_OWN: Final = 2**20


@dataclass(frozen=True, slots=True)
class KfdGpu:
    """number: of its node. gpu_id: as processes are listed by. unique_id: 0 where it has none. has_cores: it is one
    with a processor. links: nodes that it has an XGMI link to."""

    number: int
    gpu_id: int
    address: str
    unique_id: int
    gfx: str
    device: int
    render_node: str
    has_cores: bool
    memory_bytes: int | None
    links: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KfdProcess:
    """One process on one GPU."""

    pid: int
    gpu_id: int
    memory_bytes: int | None


def kfd_gpus(sys_root: Path) -> tuple[KfdGpu, ...]:
    """In the order of ROCm's indices. Empty where this kernel has no such driver."""
    nodes = sys_root / "class/kfd/kfd/topology/nodes"
    found: list[KfdGpu] = []
    for number in _numbers(nodes):
        known = parsed_properties(read_text(nodes / str(number) / "properties"))
        if known.get("simd_count", 0) > 0:
            found.append(_gpu(nodes / str(number), number, known))
    return tuple(found)


def kfd_processes(sys_root: Path) -> tuple[KfdProcess, ...] | None:
    """Of all users, by the pids of the host. None: this kernel does not tell.

    A process that ROCm runs in is listed for every GPU that it could see. It is on one where it has a queue, or more
    memory than ROCm itself puts there.
    """
    folder = sys_root / "class/kfd/kfd/proc"
    if not folder.is_dir():
        return None
    found: list[KfdProcess] = []
    for pid in _numbers(folder):
        if pid < 1:
            continue
        queues = {read_number(path) for path in (folder / str(pid)).glob("queues/*/gpuid")}
        memory = {
            int(path.name.removeprefix("vram_")): read_number(path)
            for path in (folder / str(pid)).glob("vram_*")
            if path.name.removeprefix("vram_").isdecimal()
        }
        found.extend(
            KfdProcess(pid, gpu_id, memory.get(gpu_id))
            for gpu_id in sorted({gpu_id for gpu_id in queues if gpu_id is not None} | memory.keys())
            if gpu_id in queues or (memory[gpu_id] or 0) > _RUNTIMES_OWN
        )
    return tuple(found)


def parsed_properties(text: str) -> dict[str, int]:
    """Lines of a name and a number; any other is left out."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        name, _, value = line.strip().partition(" ")
        if value.isdecimal():
            found[name] = int(value)
    return found


def gfx_name(version: int) -> str:
    """``gfx90a`` of 90010: two decimal digits each for minor and stepping, which the name has in base 16."""
    if version <= 0:
        return ""
    return f"gfx{version // 10_000}{version // 100 % 100:x}{version % 100:x}"


def _gpu(folder: Path, number: int, known: dict[str, int]) -> KfdGpu:
    minor = known.get("drm_render_minor", 0)
    banks = [parsed_properties(read_text(path)) for path in folder.glob("mem_banks/*/properties")]
    links = [parsed_properties(read_text(path)) for path in folder.glob("io_links/*/properties")]
    sizes = [bank.get("size_in_bytes", 0) for bank in banks if bank.get("heap_type") in _MEMORY_HEAPS]
    return KfdGpu(
        number=number,
        gpu_id=read_number(folder / "gpu_id") or 0,
        address=_address(known),
        unique_id=known.get("unique_id", 0),
        gfx=gfx_name(known.get("gfx_target_version", 0)),
        device=known.get("device_id", 0),
        render_node=f"renderD{minor}" if minor else "",
        has_cores=known.get("cpu_cores_count", 0) > 0,
        memory_bytes=sum(sizes) or known.get("local_mem_size") or None,
        links=tuple(sorted({link.get("node_to", number) for link in links if link.get("type") == _XGMI} - {number})),
    )


def _address(known: dict[str, int]) -> str:
    """location_id is bus, device and function in one number, as PCI has them."""
    where = known.get("location_id", 0)
    return f"{known.get('domain', 0):04x}:{where >> 8 & 0xFF:02x}:{where >> 3 & 0x1F:02x}.{where & 7:x}"


def _numbers(folder: Path) -> Iterable[int]:
    try:
        names = os.listdir(folder)
    except OSError:
        return ()
    return sorted(int(name) for name in names if name.isdecimal())
