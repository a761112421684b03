"""What GPUlayer finds on a machine with a GPU, against the vendor's own words: `make gpu`, there."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def detected() -> Any:  # Any: a JSON document
    gpulayer = str(Path(sys.executable).with_name("gpulayer"))
    print(run(gpulayer, "resources", "detect"))
    return json.loads(run(gpulayer, "resources", "detect", "--python", sys.executable, "--json"))


@pytest.fixture(scope="module")
def cuda(detected: Any) -> list[Any]:
    return [device for device in detected["devices"] if device["kind"] == "cuda"]


def test_every_gpu_that_nvidia_smi_lists_is_a_device_by_its_uuid(cuda: list[Any]) -> None:
    listed = run("nvidia-smi", "--query-gpu=uuid,memory.total,compute_cap,pci.bus_id", "--format=csv,noheader,nounits")
    told = [line.split(", ") for line in listed.splitlines()]
    assert {device["uuid"] for device in cuda if not device.get("parent")} == {uuid for uuid, *_ in told}
    for uuid, mib, capability, bus in told:
        (device,) = [device for device in cuda if device["uuid"] == uuid]
        assert abs(device["memory_bytes"] - int(mib) * 2**20) < 2**30
        assert device["compute_capability"] == capability
        assert device["pci_address"].lower().endswith(bus.lower()[-7:])
        assert (device["state"], device["reason"]) in (("usable", ""), ("busy", device["reason"]))


def test_the_driver_and_the_cuda_that_it_supports_are_told(cuda: list[Any]) -> None:
    driver = run("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").splitlines()[0]
    assert {device["driver"] for device in cuda} == {driver}
    assert all(float(device["runtime"]) >= 11 for device in cuda)


def test_torch_is_offered_on_the_gpus_where_it_computes_there(detected: Any, cuda: list[Any]) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed here")
    found = [one for one in detected["frameworks"] if (one["name"], one["accelerator"]) == ("torch", "cuda")]
    if any(device["state"] == "busy" for device in cuda):
        pytest.skip("somebody computes on a GPU here")
    assert [one["usable"] for one in found] == [torch.cuda.is_available()], found


def test_a_job_sees_the_device_that_it_was_given_and_no_other(cuda: list[Any], tmp_path: Path) -> None:
    gpulayer = str(Path(sys.executable).with_name("gpulayer"))
    script = "echo $CUDA_VISIBLE_DEVICES"
    said = subprocess.run(
        [gpulayer, "submit", "--quiet", "--accelerator", "cuda", "--", "sh", "-c", script],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "GPULAYER_STATE_DIR": str(tmp_path / "state")},
    )
    try:
        assert said.returncode == 0, said.stderr
        assert said.stdout.strip() in {device["uuid"] for device in cuda}
    finally:
        subprocess.run(
            [gpulayer, "down"],
            timeout=100,
            check=False,
            env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "GPULAYER_STATE_DIR": str(tmp_path / "state")},
        )
