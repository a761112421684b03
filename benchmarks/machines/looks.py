"""One look of each probe, in this process: where its vendor has nothing there, and over machines that are made up.

No look of one object is like the first, which every worker pays for at its start: each figure is of a new one.
"""

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from benchmarks.harness import OURS, Contestant, Row, compare
from gpulayer.plugins.builtin.amd.probe import AmdProbe
from gpulayer.plugins.builtin.apple.probe import AppleProbe
from gpulayer.plugins.builtin.cloud import CloudProbe
from gpulayer.plugins.builtin.host import HostProbe
from gpulayer.plugins.builtin.intel.probe import IntelProbe
from gpulayer.plugins.builtin.nvidia.probe import NvidiaProbe
from gpulayer.plugins.contracts.probe import Probe, ProbeSite
from tests.nvidia import FakeSmi, built_nvml, nvml_environment, row

__all__ = ["of_nothing", "of_stubs"]

_PROBES: Mapping[str, Callable[[], Probe]] = MappingProxyType(
    {
        "host": HostProbe,
        "nvidia": NvidiaProbe,
        "amd": AmdProbe,
        "intel": IntelProbe,
        "apple": AppleProbe,
        "cloud": CloudProbe,
    }
)
_CARDS = 8


def of_nothing(rounds: int) -> list[Row]:
    """On the machine that measures, with nothing on its PATH."""
    rows = []
    for name, probe in _PROBES.items():
        row_of = Row(f"a look of the {name} probe, no hardware", "ms", "lower", goal="≤ 5 ms", limit=5)
        if name == "host":
            row_of.notes.append("the disk's room is asked for in a child that can be ended: two starts of Python")
        rows.append(compare(row_of, [Contestant(OURS, _timed(probe, {"PATH": ""}))], rounds=rounds))
    return rows


def of_stubs(rounds: int) -> list[Row]:
    """Of eight cards that do not cost their driver a moment: what is left is ours."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        library = built_nvml(folder / "lib")
        lines = {"count": _CARDS} | {f"{number}.uuid": f"GPU-{number}" for number in range(_CARDS)}
        nvml = nvml_environment(library, folder / "told", lines)
        cards = [row(number, f"GPU-{number}", "NVIDIA H100", bus=f"{number + 1:02X}") for number in range(_CARDS)]
        smi = FakeSmi(folder / "bin", rows=cards)
        (folder / "none").mkdir()
        (folder / "none/libnvidia-ml.so.1").touch()
        rows = []
        for what, environment in (
            ("NVML (a stub)", nvml),
            ("nvidia-smi (a fake)", {**smi.environment, "LD_LIBRARY_PATH": str(folder / "none")}),
        ):
            row_of = Row(f"the first look of the nvidia probe, {_CARDS} cards, {what}", "ms", "lower")
            rows.append(compare(row_of, _contestants(environment), rounds=rounds))
        return rows


def _contestants(environment: Mapping[str, str]) -> Sequence[Contestant]:
    return [Contestant(OURS, _timed(NvidiaProbe, environment, devices=_CARDS))]


def _timed(probe: Callable[[], Probe], environment: Mapping[str, str], *, devices: int = 0) -> Callable[[], float]:
    """The milliseconds of the first look of a new one. Raises ValueError where it did not find so many devices."""

    def once() -> float:
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            site = ProbeSite(Path(folder), MappingProxyType(dict(environment)))
            thing = probe()
            started = time.perf_counter()
            found = thing.look(site)
            taken = (time.perf_counter() - started) * 1000
        if len(found.devices) < devices:
            raise ValueError(f"{len(found.devices)} devices instead of {devices}: {found.missing}")
        return taken

    return once
