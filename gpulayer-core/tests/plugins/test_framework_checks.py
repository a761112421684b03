"""Core's framework checks over packages that mimic good and broken builds: who computes is usable, and who does not
says why in the library's own words.

The words were said by the real ones, as public reports have them:
driver too old: https://github.com/weaviate/Verba/issues/72; held: https://github.com/pytorch/pytorch/issues/100691;
no driver, no kernel image, out of memory: PyTorch's sources (c10/cuda); jax and cuDNN:
https://github.com/rgommers/pixi-dev-scipystack/issues/1;
tensorflow: https://github.com/tensorflow/tensorflow/issues/66750 and https://github.com/JdeRobot/BehaviorMetrics/issues/385;
onnxruntime, jax and cupy without a driver, and what CPU-only builds say: the real packages (`make frameworks`;
onnxruntime-gpu 1.31.1 and jax 0.10.2 with jax-cuda12-plugin).
"""

import asyncio
import json
import shutil
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from gpulayer.placement.eligibility import is_eligible, why_ineligible
from gpulayer.plugins.builtin.frameworks import CHECKS
from gpulayer.spec.machine import Device, WorkerFacts
from gpulayer.spec.request import FRAMEWORKS, Accelerator, FrameworkNeed, Request
from gpulayer.spec.verdict import ReasonCode
from gpulayer.worker.check_answers import read_answer
from gpulayer.worker.check_script import run_script

FAKES = Path(__file__).parents[1] / "data" / "fake_frameworks"
BY_NAME = {check.name: check for check in CHECKS}
CUDA, ROCM, XPU, MPS, MLX, CPU = (Accelerator(kind) for kind in ("cuda", "rocm", "xpu", "mps", "mlx", "cpu"))

TOO_OLD = (
    "CUDA initialization: The NVIDIA driver on your system is too old (found version 11040). Please update your GPU "
    "driver by downloading and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx "
    "Alternatively, go to: https://pytorch.org to install a PyTorch version that has been compiled with your version "
    "of the CUDA driver."
)
NO_DRIVER = "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver"
NO_KERNEL = "CUDA error: no kernel image is available for execution on the device"
HELD = "CUDA error: CUDA-capable device(s) is/are busy or unavailable"
FULL = "CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of 23.64 GiB"
TAIL = "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be"
INSUFFICIENT = "cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version"
CUDNN = "Unable to use CUDA because of the following issues with CUDA components:\nOutdated cuDNN installation found."
MISSING = "libcublasLt.so.12: cannot open shared object file: No such file or directory"


@pytest.fixture
def ask(tmp_path):
    """What the check of a framework says where a build as ``fake`` says is installed."""

    def ask(name, *, packages=(), deadline_s=60.0, variables=(), seen=(), **fake):
        site = tmp_path / "site"
        site.mkdir()
        for one in ("fakes", "numpy", name):
            if (FAKES / one).is_dir():
                shutil.copytree(FAKES / one, site / one)
            else:
                shutil.copy(FAKES / f"{one}.py", site)
        for package, version in packages:
            info = site / f"{package}-{version}.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        check = BY_NAME[name]
        given = {"PYTHONPATH": str(site), "FAKE": json.dumps(fake), **dict(variables)}
        ran = asyncio.run(
            run_script(
                check.script().source, tmp_path / "run", python=sys.executable, variables=given, deadline_s=deadline_s
            )
        )
        if not ran.is_late:
            assert not ran.failure
        return read_answer(name, check.accelerators, ran.out, seen={CUDA: seen})

    return ask


def reasons(answer):
    return {one.accelerator: one.reason for one in answer.frameworks}


GOOD = {
    "torch for CUDA": ("torch", {"cuda": "12.6", "devices": ["", ""]}, {CUDA, CPU}, "cuda 12.6", ("sm_80", "sm_90")),
    "torch for ROCm": ("torch", {"hip": "6.2.41134", "devices": [""]}, {ROCM, CPU}, "rocm 6.2", ("sm_80", "sm_90")),
    "torch on a Mac": ("torch", {"mps": True, "devices": [""]}, {MPS, CPU}, "mps", ()),
    "torch for Intel": ("torch", {"xpu": "20250000", "devices": [""]}, {XPU, CPU}, "xpu 20250000", ()),
    "torch for the CPU": ("torch", {}, {CPU}, "cpu", ()),
    "jax for CUDA": (
        "jax",
        {"packages": [("jax-cuda12-plugin", "0.6.0")], "platform": "cuda", "devices": [""]},
        {CUDA, CPU},
        "cuda 12",
        (),
    ),
    "jax as it was": (
        "jax",
        {"packages": [("jaxlib", "0.4.26+cuda12.cudnn89")], "platform": "cuda", "devices": [""]},
        {CUDA, CPU},
        "cuda 12",
        (),
    ),
    "jax for ROCm": (
        "jax",
        {"packages": [("jax_rocm60_plugin", "0.6.0")], "platform": "rocm", "devices": [""]},
        {ROCM, CPU},
        "rocm 60",
        (),
    ),
    "jax on a Mac": (
        "jax",
        {"packages": [("jax-metal", "0.1.1")], "platform": "METAL", "devices": [""]},
        {MPS, CPU},
        "mps",
        (),
    ),
    "jax for the CPU": ("jax", {}, {CPU}, "cpu", ()),
    "cupy for CUDA": ("cupy", {"devices": ["", ""]}, {CUDA}, "cuda 12.8", ()),
    "cupy for ROCm": ("cupy", {"is_hip": True, "devices": [""]}, {ROCM}, "rocm", ()),
    "mlx on a Mac": ("mlx", {"devices": [""]}, {MLX, CPU}, "mlx", ()),
    "mlx for the CPU": ("mlx", {}, {CPU}, "cpu", ()),
    "tensorflow": ("tensorflow", {"cuda": True, "devices": [""]}, {CUDA, CPU}, "cuda 12.5.1", ("sm_60", "compute_90")),
    "tensorflow for the CPU": ("tensorflow", {}, {CPU}, "cpu", ()),
    "onnxruntime": ("onnxruntime", {"cuda": True, "devices": [""]}, {CUDA, CPU}, "cuda", ()),
    "onnxruntime for the CPU": ("onnxruntime", {}, {CPU}, "cpu", ()),
}


@pytest.mark.parametrize(("name", "fake", "computes", "build", "architectures"), GOOD.values(), ids=GOOD)
def test_what_computes_is_usable_and_says_what_it_was_built_for(ask, name, fake, computes, build, architectures):
    answer = ask(name, **fake)
    assert {one.accelerator for one in answer.frameworks if one.usable} == computes
    assert {one.build for one in answer.frameworks} == {build}
    for one in answer.frameworks:
        assert one.version
        assert one.architectures == (() if one.accelerator is CPU else architectures)
        assert one.usable or "CPU-only" in one.reason or f"not for {one.accelerator}" in one.reason
    assert (answer.again, answer.is_whole) == (frozenset(), True)


BAD = {
    "torch, driver too old": (
        "torch",
        {"cuda": "12.6", "warning": f"{TOO_OLD} (Triggered internally at ../c10/cuda/CUDAFunctions.cpp:108.)"},
        f"the driver is too old: {TOO_OLD}",
    ),
    "torch, no driver": ("torch", {"cuda": "12.6", "init": NO_DRIVER}, f"no driver: {NO_DRIVER}"),
    "torch, CPU-only": ("torch", {}, "a CPU-only build: Torch not compiled with CUDA enabled"),
    "torch, no kernel": (
        "torch",
        {"cuda": "12.6", "devices": [NO_KERNEL + TAIL]},
        f"no code for this device in this build: {NO_KERNEL}",
    ),
    "torch, wrong": ("torch", {"cuda": "12.6", "devices": ["wrong"]}, "its answer is wrong: 0, not "),
    "jax, CPU-only": ("jax", {}, "a CPU-only build: Unknown backend cuda. Available backends are ['cpu']"),
    "jax, cuDNN": (
        "jax",
        {"packages": [("jax-cuda12-plugin", "0.6.0")], "failure": f"Backend 'cuda' failed to initialize: {CUDNN}"},
        f"Backend 'cuda' failed to initialize: {CUDNN}".replace("\n", " "),
    ),
    "jax, no driver": (
        "jax",
        {
            "packages": [("jax-cuda12-plugin", "0.10.2")],
            "said": "I0000 00:00:1796078707.727857   28028 cudart_stub.cc:31] Could not find cuda drivers on your "
            "machine, GPU will not be used.",
        },
        "no driver: Could not find cuda drivers on your machine, GPU will not be used.",
    ),
    "cupy, no driver": ("cupy", {"failure": INSUFFICIENT, "driver": 0}, f"no driver: {INSUFFICIENT}"),
    "cupy, driver too old": ("cupy", {"failure": INSUFFICIENT}, f"the driver is too old: {INSUFFICIENT}"),
    "tensorflow, no driver": (
        "tensorflow",
        {
            "cuda": True,
            "said": "2024-06-28 00:03:52.492725: I tensorflow/tsl/cuda/cudart_stub.cc:28] Could not find cuda drivers "
            "on your machine, GPU will not be used.",
        },
        "no driver: Could not find cuda drivers on your machine, GPU will not be used.",
    ),
    "tensorflow, library": (
        "tensorflow",
        {
            "cuda": True,
            "said": "2022-07-10 15:08:09.276131: W tensorflow/stream_executor/platform/default/dso_loader.cc:64] Could "
            "not load dynamic library 'libcusolver.so.11'; dlerror: libcusolver.so.11: cannot open shared object file",
        },
        "a shared library is missing: Could not load dynamic library 'libcusolver.so.11'; dlerror: libcusolver.so.11: "
        "cannot open shared object file",
    ),
    "tensorflow, elsewhere": (
        "tensorflow",
        {"cuda": True, "devices": [""], "instead": "CPU:0"},
        "it computed on /job:localhost/replica:0/task:0/device:CPU:0 instead",
    ),
    "onnxruntime, CPU-only": (
        "onnxruntime",
        {},
        "a CPU-only build: CUDAExecutionProvider is not among its providers",
    ),
    "onnxruntime, library": (
        "onnxruntime",
        {
            "cuda": True,
            "said": "\x1b[1;31m2026-11-30 22:45:05.381344232 [E:onnxruntime:Default, provider_bridge_ort.cc:2458 "
            "operator()] /onnxruntime_src/onnxruntime/core/session/provider_bridge_ort.cc:2043 onnxruntime::Provider& "
            "onnxruntime::ProviderLibrary::Get() [ONNXRuntimeError] : 1 : FAIL : Failed to load library "
            f"libonnxruntime_providers_cuda.so with error: {MISSING}\n\x1b[m",
        },
        f"a shared library is missing: Failed to load library libonnxruntime_providers_cuda.so with error: {MISSING}",
    ),
}


@pytest.mark.parametrize(("name", "fake", "reason"), BAD.values(), ids=BAD)
def test_what_does_not_compute_says_why_in_its_own_words(ask, name, fake, reason):
    answer = ask(name, **fake)
    assert reasons(answer)[CUDA].startswith(reason)
    assert reasons(answer).get(CPU, "") == ""
    assert answer.again == frozenset()


@pytest.mark.parametrize("case", ["torch, driver too old", "torch, no kernel", "torch, CPU-only"])
def test_p5_a_job_for_cuda_is_not_placed_there_and_is_told_the_librarys_words(ask, case):
    """A machine with a GPU, whose torch would fall back to the CPU, or fail at the first kernel."""
    name, fake, reason = BAD[case]
    gpu = Device("GPU-1", 0, CUDA, "NVIDIA GeForce GTX 1080")
    facts = WorkerFacts("linux-x86_64", "0", 8, 1 << 34, devices=(gpu,), frameworks=ask(name, **fake).frameworks)
    on_cuda = Request(accelerators=(CUDA,), devices=1, frameworks=(FrameworkNeed("torch", ">=2.4"),))
    (why,) = why_ineligible(on_cuda, facts)
    assert (why.code, why.message) == (ReasonCode.FRAMEWORK_UNUSABLE, f"torch 2.6.0: {reason}")
    wherever = Request(devices=1, frameworks=(FrameworkNeed("torch"),))
    assert [one.code for one in why_ineligible(wherever, facts)] == [ReasonCode.FRAMEWORK_UNUSABLE]
    assert is_eligible(Request(frameworks=(FrameworkNeed("torch"),)), facts)  # who asks for no device gets the CPU


def on_cuda(answer):
    return next(one for one in answer.frameworks if one.accelerator is CUDA)


def test_where_some_devices_fail_and_one_computes_each_that_fails_is_told_by_its_uuid(ask):
    fake = {"cuda": "12.6", "devices": ["", NO_KERNEL, "an illegal memory access was encountered", HELD]}
    told = on_cuda(ask("torch", seen=("GPU-a", "GPU-b", "GPU-c", "GPU-d"), **fake))
    assert (told.usable, told.reason) == (True, "")
    assert told.failed_on == (
        ("GPU-b", f"no code for this device in this build: {NO_KERNEL}"),
        ("GPU-c", "an illegal memory access was encountered"),
    )


def test_where_all_devices_fail_each_is_named(ask):
    visible = {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}
    fake = {"cuda": "12.6", "devices": [NO_KERNEL, "an illegal memory access was encountered"]}
    told = on_cuda(ask("torch", variables=visible, **fake))
    assert (told.usable, told.is_pending) == (False, False)
    assert told.reason == (
        f"device GPU-a: no code for this device in this build: {NO_KERNEL}; "
        "device GPU-b: an illegal memory access was encountered"
    )


def test_devices_without_names_are_counted(ask):
    told = reasons(ask("torch", cuda="12.6", devices=[NO_KERNEL] * 10))[CUDA]
    assert told.startswith("device 0: no code")
    assert told.endswith("; and 2 more")


@pytest.mark.parametrize(("words", "cause"), [(HELD, "another process holds it"), (FULL, "its memory is full")])
def test_what_others_use_just_now_is_asked_again(ask, words, cause):
    answer = ask("torch", cuda="12.6", devices=[words + TAIL])
    assert reasons(answer)[CUDA] == f"{cause}: {words}"
    assert answer.again == {CUDA}
    assert on_cuda(answer).is_pending, "it is not checked yet, and has not failed"


def test_a_device_that_is_held_says_nothing_against_the_others(ask):
    answer = ask("torch", cuda="12.6", devices=[HELD, ""])
    assert reasons(answer)[CUDA] == ""
    assert answer.again == frozenset()


def test_what_fails_on_all_that_are_free_may_compute_on_the_one_that_is_held(ask):
    answer = ask("torch", cuda="12.6", devices=[HELD, NO_KERNEL], seen=("GPU-a", "GPU-b"))
    assert answer.again == {CUDA}
    told = on_cuda(answer)
    assert told.is_pending
    assert [uuid for uuid, _ in told.failed_on] == ["GPU-b"]


def test_a_device_that_hangs_takes_not_the_processor_away(ask):
    answer = ask("torch", cuda="12.6", devices=["hang"], deadline_s=5.0)
    assert reasons(answer) == {CPU: ""}
    assert not answer.is_whole


@pytest.mark.parametrize("index", [0, 1])
def test_onnxruntime_computes_on_each_device_that_it_may_see(ask, index):
    devices = ["", ""]
    devices[index] = NO_KERNEL
    visible = ("GPU-a", "GPU-b")
    variables = {"CUDA_VISIBLE_DEVICES": ",".join(visible)}
    answer = ask("onnxruntime", cuda=True, devices=devices, seen=visible, variables=variables)
    ((uuid, why),) = on_cuda(answer).failed_on
    assert (uuid, why.partition(":")[0]) == (f"GPU-{'ab'[index]}", "no code for this device in this build")


def test_placement_knows_what_is_checked_without_a_plugin():
    assert sorted(BY_NAME) == list(FRAMEWORKS)


def test_what_can_not_be_imported_is_the_reason_on_all_accelerators(ask):
    """As of plain mlx on Linux."""
    words = "libmlx.so: cannot open shared object file: No such file or directory"
    answer = ask("mlx", failure=words, packages=[("mlx", "0.25.0")])
    assert reasons(answer) == dict.fromkeys((MLX, CPU), f"it can't be imported: a shared library is missing: {words}")
    assert {one.version for one in answer.frameworks} == {"0.25.0"}


def test_a_folder_that_was_left_behind_is_no_framework(tmp_path):
    (tmp_path / "site" / "torch" / "lib").mkdir(parents=True)
    source, variables = BY_NAME["torch"].script().source, {"PYTHONPATH": str(tmp_path / "site")}
    ran = asyncio.run(run_script(source, tmp_path / "run", python=sys.executable, variables=variables))
    assert json.loads(ran.out) == {"version": None}


def test_scripts_are_text_in_the_package_and_one_for_each_check():
    scripts = {file.name for file in (files("gpulayer.plugins.builtin.frameworks") / "scripts").iterdir()}
    assert {f"{name}.py" for name in (*BY_NAME, "answer")} == scripts - {"__pycache__"}
    for name, check in BY_NAME.items():
        assert check.script().modules == (name,)
