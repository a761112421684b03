"""The comparisons of ``make gpu``, over machines that are not here: that they find nothing wrong where nothing is, and
see what is. Recordings have their sources beside them; the rest is made up in the form of public reports."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs.machine_shapes import DATA, SHAPES
from tests.gpu.words import (
    CARD_FIELDS,
    card_differences,
    link_differences,
    links_told,
    nvlink_differences,
    slice_differences,
)
from tests.nvidia import FakeSmi, built_nvml, nvml_environment

ROOT = Path(__file__).parents[2]
QUERY = f"--query-gpu={','.join(CARD_FIELDS)}"
POWER9 = (DATA / "topo/4x_power9_v100_nv3.out").read_text(encoding="utf-8")


def stand_in(folder: Path, told: dict[str, Any], nvml: dict[str, object] | None = None) -> dict[str, str]:
    """The variables of whoever is to see this machine, and nothing of the one that is here."""
    fake = FakeSmi(folder / "bin", **told)
    (folder / "lib").mkdir()
    (folder / "lib/libnvidia-ml.so.1").touch()  # stands before this machine's own, and can't be loaded
    by_nvml = nvml_environment(built_nvml(folder / "lib"), folder / "told", nvml) if nvml else {}
    return {"LD_LIBRARY_PATH": str(folder / "lib"), **by_nvml, "PATH": str(fake.folder), "HOME": str(folder)}


class Machine:
    """What its nvidia-smi says, and the devices that are found there."""

    def __init__(self, folder: Path, told: dict[str, Any], nvml: dict[str, object] | None = None) -> None:
        env = stand_in(folder, told, nvml) | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self._program = str(Path(env["PATH"]) / "nvidia-smi")
        command = [sys.executable, "-P", "-m", "gpulayer.cli", "resources", "detect", "--json"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, done.stderr
        self.devices: list[dict[str, Any]] = json.loads(done.stdout)["devices"]

    def says(self, *asked: str) -> str:
        return subprocess.run([self._program, *asked], capture_output=True, text=True, timeout=60, check=True).stdout


def status(cards: list[str], links: int, *, inactive: int = 0) -> str:
    """As ``nvidia-smi nvlink -s`` prints it, see https://github.com/NVIDIA/nccl-tests/issues/228"""
    lines = [f"\t Link {number}: 25 GB/s\n" for number in range(links)]
    lines += [f"\t Link {links + number}: <inactive>\n" for number in range(inactive)]
    return "".join(f"GPU {at}: Tesla V100 (UUID: {uuid})\n{''.join(lines)}" for at, uuid in enumerate(cards))


@pytest.fixture(scope="module")
def power9(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return Machine(tmp_path_factory.mktemp("power9"), SHAPES["power9"].told)


@pytest.fixture(scope="module")
def sliced(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return Machine(tmp_path_factory.mktemp("sliced"), SHAPES["h100-mig"].told)


@pytest.fixture(scope="module")
def sliced_by_nvml(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """The same machine, of which a library tells that stands in for NVML."""
    listed = SHAPES["h100-mig"].told["L"]
    lines: dict[str, object] = {
        "count": 1,
        "driver": "590.48.01",
        "0.uuid": "GPU-00000000-0000-0000-0000-000000000000",
        "0.name": "NVIDIA H100 80GB HBM3",
        "0.pci": "00000000:09:00.0",
        "0.memory": "81559 81000",
        "0.capability": "9.0",
        "0.mig": 1,
    }
    for number, line in enumerate(line for line in listed.splitlines() if "MIG-" in line):
        lines[f"0.{number}.uuid"] = line.rpartition("(UUID: ")[2].rstrip(")")
        lines[f"0.{number}.name"] = f"NVIDIA H100 80GB HBM3 MIG {line.split()[1]}"
    return Machine(tmp_path_factory.mktemp("nvml"), SHAPES["h100-mig"].told, lines)


def test_cards_are_compared_with_what_a_query_says_of_them(power9: Machine) -> None:
    told = power9.says(QUERY)
    assert len(told.splitlines()) == len(power9.devices) == 4
    assert card_differences(power9.devices, told) == []
    first, *rest = power9.devices
    assert card_differences(rest, told) == [f"card {first['uuid']} is no device"]
    assert card_differences(power9.devices, told.partition("\n")[2]) == [f"device {first['uuid']} is no card"]
    for name, wrong in (
        ("index", 7),
        ("compute_capability", "1.0"),
        ("driver", "1"),
        ("pci_address", "0000:ff:00.0"),
        ("memory_bytes", 2**20),
        ("memory_bytes", None),
    ):
        (said,) = card_differences([{**first, name: wrong}, *rest], told)
        assert first["uuid"] in said


def test_a_figure_that_the_tool_does_not_tell_is_compared_with_nothing(tmp_path: Path) -> None:
    machine = Machine(tmp_path, SHAPES["gb10"].told)
    assert "[N/A]" in machine.says(QUERY)
    assert card_differences(machine.devices, machine.says(QUERY)) == []


def test_a_card_in_slices_is_known_by_them(sliced_by_nvml: Machine) -> None:
    told = "0, GPU-00000000-0000-0000-0000-000000000000, 81559, 9.0, 00000000:09:00.0, 590.48.01\n"
    assert card_differences(sliced_by_nvml.devices, told) == []


@pytest.mark.parametrize("told_by", ["sliced", "sliced_by_nvml"])
def test_slices_are_compared_with_those_that_are_listed(told_by: str, request: pytest.FixtureRequest) -> None:
    machine = request.getfixturevalue(told_by)
    listed = machine.says("-L")
    if told_by == "sliced":  # the fake's rows have a shorter name of the card
        listed = listed.replace("GPU-00000000-0000-0000-0000-000000000000", "GPU-00000000")
    assert len(machine.devices) == 4
    assert slice_differences(machine.devices, listed) == []
    first, *rest = machine.devices
    assert slice_differences(rest, listed) == [f"slice {first['uuid']} is no device"]
    assert slice_differences(machine.devices, "\n".join(listed.splitlines()[:-1]))[0].endswith(
        "no slice that is listed"
    )
    assert "is of GPU-" in slice_differences([{**first, "parent": "GPU-other"}, *rest], listed)[0]
    assert "is a 3g.40gb" in slice_differences([{**first, "model": "NVIDIA H100 MIG 1g.10gb"}, *rest], listed)[0]
    whole = {**first, "uuid": first["parent"], "parent": ""}
    assert slice_differences([*machine.devices, whole], listed) == [f"{whole['uuid']} is in slices, and a device"]


def test_a_machine_without_slices_is_compared_too(power9: Machine) -> None:
    cards = "".join(f"GPU {one['index']}: Tesla V100 (UUID: {one['uuid']})\n" for one in power9.devices)
    assert slice_differences(power9.devices, cards) == []


@pytest.mark.parametrize(
    ("recorded", "links"),
    [
        ("4x_power9_v100_nv3", ["NV3", "SYS", "SYS", "SYS", "SYS", "NV3"]),
        ("dgx_a100_12nic_mlx5names", ["NV12"] * 28),
        ("raw_ansi_1xH100_driver590", []),
    ],
)
def test_a_matrix_is_read_as_it_is_printed(recorded: str, links: list[str]) -> None:
    assert list(links_told((DATA / f"topo/{recorded}.out").read_text(encoding="utf-8")).values()) == links


def test_links_are_compared_with_the_matrix(power9: Machine) -> None:
    assert link_differences(power9.devices, POWER9) == []
    first, second, *rest = power9.devices
    assert link_differences([{**first, "links": {}}, {**second, "links": {}}, *rest], POWER9)
    assert link_differences(power9.devices, "") != []
    fewer = POWER9.replace("NV3", "NV2")
    assert link_differences(power9.devices, fewer) == [
        "link of 0 and 1 is NV3, not NV2",
        "link of 2 and 3 is NV3, not NV2",
    ]


def test_links_are_not_asked_of_slices(sliced: Machine) -> None:
    assert link_differences(sliced.devices, "") == []
    slice_ = {**sliced.devices[0], "links": {"GPU-1": "NV4"}}
    assert link_differences([slice_], "") == [f"slice {slice_['uuid']} has links"]


def test_nvlinks_are_compared_with_those_that_are_active(power9: Machine) -> None:
    uuids = [device["uuid"] for device in power9.devices]
    assert nvlink_differences(power9.devices, status(uuids, 6)) == []
    assert nvlink_differences(power9.devices, status(uuids, 3, inactive=3)) == []
    assert len(nvlink_differences(power9.devices, status(uuids, 2, inactive=4))) == 4
    assert nvlink_differences(power9.devices, "")[0] == f"{uuids[0]} is joined by 3 NVLinks, and has 0"


def run_there(environment: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    """The tests of ``make gpu``."""
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-m", "gpu", "-p", "no:cacheprovider", *options]
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment}
    return subprocess.run(
        [*command, "tests/gpu"], env=env, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False
    )


def test_the_tests_of_make_gpu_run_on_a_machine_that_is_made_up_and_see_what_is_wrong_there(tmp_path: Path) -> None:
    """Its NVLinks are fewer than its matrix has."""
    told = SHAPES["power9"].told
    uuids = [cells["uuid"] for cells in told["rows"]]
    listing = "".join(f"GPU {at}: Tesla V100-SXM2-16GB (UUID: {uuid})\n" for at, uuid in enumerate(uuids))
    env = stand_in(tmp_path, told | {"L": listing, "nvlink": status(uuids, 2)})
    done = run_there(env, "-k", "every_gpu or unhealthy or slices or links")
    failed = [line.split("::")[1].split(" ")[0] for line in done.stdout.splitlines() if line.startswith("FAILED")]
    assert failed == ["test_no_more_nvlinks_are_told_of_than_are_active"], done.stdout
    assert "4 passed" in done.stdout
    assert "0 slices compared" in done.stdout
    assert "6 links compared" in done.stdout


def test_without_a_gpu_make_gpu_says_so_and_fails(tmp_path: Path) -> None:
    done = run_there({"PATH": str(tmp_path)})
    assert done.returncode not in (0, 5), done.stdout
    assert "there is no GPU of NVIDIA's here: nvidia-smi is not on the PATH" in done.stdout + done.stderr
    assert "passed" not in done.stdout
