"""What GPUlayer finds on a machine with a GPU, against the vendor's own words: `make gpu`, there."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.words import (
    CARD_FIELDS,
    card_differences,
    link_differences,
    links_told,
    nvlink_differences,
    slice_differences,
)

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session", autouse=True)
def listed() -> str:
    """What ``nvidia-smi -L`` lists. Ends the run where there is nothing to compare with."""
    if shutil.which("nvidia-smi") is None:
        why = "nvidia-smi is not on the PATH"
    else:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=120, check=False)
        if done.returncode == 0 and "GPU-" in done.stdout:
            return done.stdout
        why = f"nvidia-smi -L said: {(done.stdout + done.stderr).strip() or 'nothing'}"
    pytest.exit(f"there is no GPU of NVIDIA's here: {why}", returncode=1)


@pytest.fixture(scope="module")
def detected() -> Any:  # Any: a JSON document
    gpulayer = str(Path(sys.executable).with_name("gpulayer"))
    print(run(gpulayer, "resources", "detect", "--python", sys.executable))
    return json.loads(run(gpulayer, "resources", "detect", "--python", sys.executable, "--json"))


@pytest.fixture(scope="module")
def cuda(detected: Any) -> list[Any]:
    return [device for device in detected["devices"] if device["kind"] == "cuda"]


def test_every_gpu_that_nvidia_smi_knows_is_a_device_or_its_slices_are(cuda: list[Any]) -> None:
    told = run("nvidia-smi", f"--query-gpu={','.join(CARD_FIELDS)}", "--format=csv,noheader,nounits")
    print(told)
    assert card_differences(cuda, told) == []


def test_no_gpu_is_unhealthy_and_one_that_is_busy_says_why(cuda: list[Any]) -> None:
    states = [(device["uuid"], device["state"], device["reason"]) for device in cuda]
    assert all(state == "usable" or (state == "busy" and reason) for _, state, reason in states), states


def test_the_cuda_that_the_driver_supports_is_told(cuda: list[Any]) -> None:
    assert all(float(device["runtime"]) >= 11 for device in cuda)


def test_slices_are_those_that_nvidia_smi_lists(listed: str, cuda: list[Any]) -> None:
    """Where MIG is off there is none, and none may be found."""
    modes = run("nvidia-smi", "--query-gpu=index,mig.mode.current", "--format=csv,noheader")
    print(f"{listed}MIG mode by card:\n{modes}{sum('MIG-' in line for line in listed.splitlines())} slices compared")
    assert slice_differences(cuda, listed) == []


def test_links_are_those_of_the_matrix_of_nvidia_smi(cuda: list[Any]) -> None:
    matrix = run("nvidia-smi", "topo", "-m")
    print(f"{matrix}\n{len(links_told(matrix))} links compared")
    assert link_differences(cuda, matrix) == []


def test_no_more_nvlinks_are_told_of_than_are_active(cuda: list[Any]) -> None:
    done = subprocess.run(["nvidia-smi", "nvlink", "-s"], capture_output=True, text=True, timeout=120, check=False)
    print(f"{done.stdout}{done.stderr}nvidia-smi nvlink -s ended with {done.returncode}")  # not 0: it has none
    assert nvlink_differences(cuda, done.stdout if done.returncode == 0 else "") == []


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
