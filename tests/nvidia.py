"""NVIDIA machines that are not there: a program that answers as nvidia-smi, and a library that answers as NVML.

The library is compiled by gcc and stands under the real pynvml; see nvml.c for what it can be told.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

__all__ = ["FakeSmi", "built_nvml", "nvml_environment", "row"]

_SOURCE = Path(__file__).with_name("nvml.c")

_PROGRAM = """#!{python} -IS
import json, os, signal, sys, time
with open({told!r}) as file:
    told = json.load(file)
if told.get("note"):
    with open(told["note"], "a") as file:
        file.write(f"{{os.getpid()}} {{' '.join(sys.argv[1:])}}\\n")
asked = (sys.argv[1:] or ["table"])[0]
if told.get("hang") is not None and asked.startswith(told["hang"]):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
if told.get("said") is not None:
    print(told["said"], end="")
    sys.exit(told.get("code", 0))
name, _, fields = asked.partition("=")
fields = fields.split(",")
if name == "--query-gpu":
    for field in fields:
        if field in told.get("unknown", ()):
            print(f'Field "{{field}}" is not a valid field to query.\\n')
            sys.exit(2)
    for line in told.get("before", ()):
        print(line)
    for row in told["rows"]:
        print(", ".join(row.get(field, "[N/A]") for field in fields))
elif name == "--query-compute-apps":
    print(told.get("apps", ""), end="")
elif name in ("-L", "table", "topo", "nvlink"):
    print(told.get(name, ""), end="")
sys.exit(told.get("code", 0))
"""


class FakeSmi:
    """``nvidia-smi`` in a folder of its own, for a PATH. What it answers can be changed at any time."""

    def __init__(self, folder: Path, **told: object) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._told = folder / "told.json"
        self.tell(**told)
        program = folder / "nvidia-smi"
        program.write_text(_PROGRAM.format(python=sys.executable, told=str(self._told)))
        program.chmod(0o755)

    def tell(self, **told: object) -> None:
        """rows: of cards by the names of fields; apps, L, table, topo, nvlink: texts; said: what it prints whatever is
        asked; before: lines before the rows; unknown: fields that it refuses; hang: what it never answers ("":
        anything); code: its exit code; note: a file for what it was asked."""
        if "L" in told:
            told["-L"] = told.pop("L")
        self._told.write_text(json.dumps({"rows": []} | told))

    @property
    def environment(self) -> dict[str, str]:
        """Of a worker that finds it, and nothing else of the kind."""
        return {"PATH": str(self.folder)}


def row(index: int, uuid: str, model: str, *, bus: str, memory_mib: int = 24564, **more: str) -> dict[str, str]:
    """A card as ``--query-gpu`` tells of it. more: other fields, with ``__`` for their points."""
    cells = {
        "index": str(index),
        "uuid": uuid,
        "name": model,
        "pci.bus_id": f"00000000:{bus}:00.0",
        "memory.total": str(memory_mib),
        "memory.free": str(memory_mib - 64),
        "compute_cap": "8.9",
        "driver_version": "550.90.07",
        "compute_mode": "Default",
        "mig.mode.current": "[N/A]",
        "temperature.gpu": "40",
        "utilization.gpu": "0",
    }
    return cells | {name.replace("__", "."): value for name, value in more.items()}


def built_nvml(folder: Path, *, without: Sequence[str] = ()) -> Path:
    """``libnvidia-ml.so.1`` in this folder. without: parts that an old driver's has not, as nvml.c names them."""
    if shutil.which("gcc") is None:
        pytest.fail("gcc is not there, and the library that answers as NVML is made by it: see CONTRIBUTING.md")
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "libnvidia-ml.so.1"
    options = [f"-DWITHOUT_{part}" for part in without]
    command = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-Wl,-soname,libnvidia-ml.so.1", *options]
    subprocess.run([*command, "-o", str(library), str(_SOURCE)], check=True, timeout=60)
    return library


def nvml_environment(library: Path, told: Path, lines: Mapping[str, object]) -> dict[str, str]:
    """Of a worker that finds this library; lines: what it is to say, written to the file ``told``."""
    told.write_text("".join(f"{name} {value}\n" for name, value in lines.items()))
    return {"PATH": "", "LD_LIBRARY_PATH": str(library.parent), "FAKE_NVML": str(told)}
