"""AMD's GPUs as the kernel's compute driver lists them below /sys/class/kfd: what ROCm itself counts and opens.

Pure: the files are read by whoever asks. A container sees the nodes of all GPUs of its host, but may read those alone
that it was given; the others are none of ours. Formats: https://docs.kernel.org/gpu/amdgpu and the kernel's
kfd_topology.c and kfd_process.c.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from gpulayer.plugins.builtin.kernel_files import number_of

__all__ = ["FILES", "FOLDER", "KfdGpu", "KfdProcess", "gfx_name", "kfd_gpus", "kfd_processes", "parsed_properties"]

FOLDER: Final = "class/kfd/kfd"
"""Below /sys."""

FILES: Final = (
    "topology/nodes/*/properties",
    "topology/nodes/*/gpu_id",
    "topology/nodes/*/mem_banks/*/properties",
    "topology/nodes/*/io_links/*/properties",
    "proc",
    "proc/*/queues/*/gpuid",
    "proc/*/vram_*",
)
"""What is to be read there. The kernel's driver has a lock on some, and its processes come and go."""

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


def kfd_gpus(files: Mapping[str, str]) -> tuple[KfdGpu, ...]:
    """In the order of ROCm's indices. Empty where this kernel has no such driver. files: ``FILES``, by their paths."""
    found: list[KfdGpu] = []
    for number in sorted({int(parts[2]) for parts in _below(files, "topology/nodes") if parts[2].isdecimal()}):
        known = parsed_properties(files.get(f"topology/nodes/{number}/properties", ""))
        if known.get("simd_count", 0) > 0:
            found.append(_gpu(files, number, known))
    return tuple(found)


def kfd_processes(files: Mapping[str, str]) -> tuple[KfdProcess, ...] | None:
    """Of all users, by the pids of the host. None: this kernel does not tell.

    A process that ROCm runs in is listed for every GPU that it could see. It is on one where it has a queue, or more
    memory than ROCm itself puts there.
    """
    if "proc" not in files:
        return None
    queues: dict[int, set[int]] = {}
    memory: dict[int, dict[int, int | None]] = {}
    for _, pid, *rest in _below(files, "proc"):
        name = "/".join(("proc", pid, *rest))
        if not pid.isdecimal() or int(pid) < 1:
            continue
        number = number_of(files, name)
        if rest[-1] == "gpuid" and number is not None:
            queues.setdefault(int(pid), set()).add(number)
        elif (gpu_id := rest[-1].removeprefix("vram_")).isdecimal():
            memory.setdefault(int(pid), {})[int(gpu_id)] = number
    return tuple(
        KfdProcess(pid, gpu_id, memory.get(pid, {}).get(gpu_id))
        for pid in sorted(queues.keys() | memory.keys())
        for gpu_id in sorted(queues.get(pid, set()) | memory.get(pid, {}).keys())
        if gpu_id in queues.get(pid, ()) or (memory[pid][gpu_id] or 0) > _RUNTIMES_OWN
    )


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


def _gpu(files: Mapping[str, str], number: int, known: dict[str, int]) -> KfdGpu:
    node = f"topology/nodes/{number}"
    minor = known.get("drm_render_minor", 0)
    banks = [parsed_properties(text) for name, text in files.items() if name.startswith(f"{node}/mem_banks/")]
    links = [parsed_properties(text) for name, text in files.items() if name.startswith(f"{node}/io_links/")]
    sizes = [bank.get("size_in_bytes", 0) for bank in banks if bank.get("heap_type") in _MEMORY_HEAPS]
    return KfdGpu(
        number=number,
        gpu_id=number_of(files, f"{node}/gpu_id") or 0,
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


def _below(files: Mapping[str, str], folder: str) -> Iterator[list[str]]:
    """The parts of the paths that lie deeper than in it."""
    return (name.split("/") for name in files if name.startswith(f"{folder}/"))
