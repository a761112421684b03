"""``gpulayer resources detect`` on machines that are not here: `python -m tests.docs.machine_shapes` renews the pages.

Each machine is a fake ``nvidia-smi`` that answers what was recorded on a real one (``gpulayer-core/tests/data``); what
the report of a machine leaves out is made up, and said to be below. The program that looks is the real one.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gpulayer.cli.console import columns
from gpulayer.cli.offers import lines_below, worker_table
from tests.nvidia import FakeSmi, built_nvml, nvml_environment, row

__all__ = ["PAGE", "PAGE_OF_WORKERS", "SHAPES", "Shape", "detected", "names", "rewritten", "shown", "shown_together"]

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs/machine-examples.md"
PAGE_OF_WORKERS: Final = ROOT / "docs/machines.md"
DATA: Final = ROOT / "gpulayer-core/tests/data"
_BLOCK: Final = re.compile(r"<!-- not run: machine (\S+), [^\n]*-->\n```console\n.*?```\n", re.DOTALL)
_COMMAND: Final = "gpulayer resources detect"
# A device's cores are told as far as the worker may use them: here as on the machine that was recorded.
_PROGRAM: Final = """
import os, sys
os.sched_getaffinity = lambda _: set(range(1024))
from gpulayer.cli import main
sys.exit(main())
"""
_TOGETHER: Final = re.compile(
    r"(<!-- not run: these as workers, [^\n]*-->\n```console\n)\$ gpulayer resources\n.*?```\n", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Shape:
    """told: what its nvidia-smi answers, see ``FakeSmi``. environment: of who looks. nvml: what its NVML says, see
    ``nvml.c``; empty: it has none."""

    told: dict[str, Any]  # Any: texts, rows and numbers
    environment: tuple[tuple[str, str], ...] = ()
    nvml: dict[str, object] = field(default_factory=dict)


def _recorded(path: str) -> str:
    return (DATA / path).read_text(encoding="utf-8")


def _cards(count: int, model: str, memory_mib: int, **more: str) -> list[dict[str, str]]:
    """uuids and addresses are made up: reports leave them out."""
    return [
        row(number, f"GPU-{number:08x}", model, bus=f"{0x10 + number:02X}", memory_mib=memory_mib, **more)
        for number in range(count)
    ]


def _by_nvml(index: int, *, bus: str, **more: object) -> dict[str, object]:
    """An A100 as ``nvml.c`` is told of it; made up."""
    figures = {
        "uuid": f"GPU-{index:08x}",
        "name": "NVIDIA A100-PCIE-40GB",
        "pci": f"00000000:{bus}:00.0",
        "memory": "40960 40448",
        "capability": "8.0",
        "compute_mode": 0,
        "temperature": 34,
        "use": 0,
        "mig": 0,
        "recovery": 0,
        "remapped": "0 0 0 0",
        "compute": "",
        "graphics": "",
    }
    return {f"{index}.{name}": value for name, value in (figures | more).items()}


_EXCLUSIVE: Final = _by_nvml(0, bus="17", compute_mode=3)
_H100: Final = {"compute_cap": "9.0", "driver_version": "590.48.01"}
_MIG: Final = row(0, "GPU-00000000", "NVIDIA H100 80GB HBM3", bus="09", memory_mib=81559, mig__mode__current="Enabled")

SHAPES: Final = {
    "dgx-h100": Shape(
        {
            "rows": _cards(8, "NVIDIA H100 80GB HBM3", 81559, **_H100),
            "topo": _recorded("topo/dgx_h100_glued_cells_GPUrows.out"),
        }
    ),
    "power9": Shape(
        {
            "rows": _cards(4, "Tesla V100-SXM2-16GB", 16160, compute_cap="7.0", driver_version="440.33.01"),
            "topo": _recorded("topo/4x_power9_v100_nv3.out"),
        }
    ),
    "h100-mig": Shape(
        {
            "rows": [_MIG | _H100],
            "L": _recorded("nvidia-smi/L_h100_mig.out"),
            "table": _recorded("nvidia-smi/table_h100_mig.out"),
        }
    ),
    "gb10": Shape(
        {
            "rows": [
                row(0, "GPU-00000000", "NVIDIA GB10", bus="01", compute_cap="12.1", driver_version="580.95.05")
                | {"memory.total": "[N/A]", "memory.free": "[N/A]"}
            ]
        }
    ),
    "one-lost": Shape(
        {
            "rows": [_cards(2, "NVIDIA L40S", 46068)[0]],
            "before": _recorded("nvidia-smi/odd_device_handle_then_table.out").splitlines()[:1],
        }
    ),
    "exclusive": Shape(
        {}, nvml=_by_nvml(0, bus="17", compute_mode=3) | _by_nvml(1, bus="CA", recovery=1) | {"count": 2}
    ),
    "mismatch": Shape({"said": _recorded("nvidia-smi/odd_nvml_mismatch.out"), "code": 18}),
}


_WORKERS: Final = (
    # name, shape, cores, memory, versions of torch
    ("dgx", "dgx-h100", 224, 2_160_000_000_000, "2.9.0+cu128"),
    ("mig", "h100-mig", 64, 270_000_000_000, "2.9.0+cu128"),
    ("attic", "one-lost", 32, 135_000_000_000, "2.9.0+cu128"),
    ("updated", "mismatch", 32, 135_000_000_000, ""),
)

_LENT: Final = {"dgx": 4}  # devices that a job has


def shown(shape: Shape) -> str:
    """What it prints there, from the devices on: what stands above is of the machine that looks."""
    parts = detected(shape).split("\n\n")[1:]
    return "\n\n".join(part.rstrip("\n") for part in parts if not part.startswith("frameworks of"))


def shown_together() -> str:
    """What ``gpulayer resources`` prints of some of them; cores, memory, torch and a job are made up."""
    workers: list[Any] = []  # Any: records, as far as they are shown
    for name, shape, cpus, memory_bytes, torch in _WORKERS:
        facts = json.loads(detected(SHAPES[shape], "--json"))
        computing = {"name": "torch", "version": torch, "usable": True, "reason": ""}
        facts["frameworks"] = [{**computing, "accelerator": one} for one in ("cuda", "cpu") if torch]
        own: dict[str, Any] = {
            "name": name,
            "state": "ready",
            "cpus": cpus,
            "cpus_free": cpus,
            "memory_bytes": memory_bytes,
        }
        lent = facts["devices"][: _LENT.get(name, 0)]
        own["device_jobs"] = {device["uuid"]: "7f3a9c2e41d05b68" for device in lent}
        workers.append(facts | own | {"resources": {}})
    headers, rows = worker_table(workers)
    return "\n".join([*columns([[header.upper() for header in headers], *rows]), *lines_below(workers)])


def detected(shape: Shape, *options: str) -> str:
    with tempfile.TemporaryDirectory(prefix="machine-") as name:
        folder = Path(name)
        fake = FakeSmi(folder / "bin", **shape.told)
        # Of the machine that looks nothing shall be seen: this stands before its own NVML, and can't be loaded.
        (folder / "lib").mkdir()
        library = folder / "lib/libnvidia-ml.so.1"
        library.touch()
        by_nvml = nvml_environment(built_nvml(library.parent), folder / "nvml", shape.nvml) if shape.nvml else {}
        hidden = ("GPULAYER_", "CUDA_", "NVIDIA_", "LD_LIBRARY_PATH")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
        done = subprocess.run(
            [sys.executable, "-P", "-c", _PROGRAM, "resources", "detect", *options],
            env={
                **kept,
                "LD_LIBRARY_PATH": str(library.parent),
                **by_nvml,
                "PATH": str(fake.folder),
                "HOME": name,
                **dict(shape.environment),
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def names(page: str) -> Iterator[str]:
    """Of the machines that a page shows."""
    yield from (block[1] for block in _BLOCK.finditer(page))


def rewritten(page: str) -> str:
    """With what is printed now."""

    def block(found: re.Match[str]) -> str:
        printed = shown(SHAPES[found[1]])
        return f"{found[0].partition(chr(10))[0]}\n```console\n$ {_COMMAND}\n…\n\n{printed}\n```\n"

    together = f"$ gpulayer resources\n{shown_together()}\n```\n"
    return _TOGETHER.sub(lambda found: found[1] + together, _BLOCK.sub(block, page))


if __name__ == "__main__":
    for renewed in (PAGE, PAGE_OF_WORKERS):
        renewed.write_text(rewritten(renewed.read_text(encoding="utf-8")), encoding="utf-8")
