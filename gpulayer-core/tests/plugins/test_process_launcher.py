"""Launch plans by value: what a job is started with, and above all what it does not get."""

from dataclasses import replace
from pathlib import Path

from gpulayer.ids import Epoch, JobId
from gpulayer.plugins.builtin.process import ProcessLauncher, device_variables
from gpulayer.plugins.contracts import LaunchPlan, LaunchSite, Machine
from gpulayer.spec.assignment import Assignment, NodeKey
from gpulayer.spec.limits import DEFAULT_LOG_BYTES
from gpulayer.spec.machine import Device, WorkerFacts
from gpulayer.spec.request import Accelerator

SITE = LaunchSite(Path("/w/work"), Path("/w/out"), Path("/w/log"), Path("/w/exit.json"))
JOB = Assignment(key=NodeKey(Epoch(7), 0), job_id=JobId("abc"), attempt=2, command=("echo", "a b"))
FACTS = WorkerFacts(
    platform="linux-x86_64",
    version="0",
    cpus=8,
    memory_bytes=1,
    devices=(
        Device("GPU-1", 0, Accelerator.CUDA, "H100"),
        Device("GPU-2", 1, Accelerator.CUDA, "H100"),
        Device("AMD-1", 0, Accelerator.ROCM, "MI300"),
        Device("XPU-1", 3, Accelerator.XPU, "Max"),
    ),
)
HIDDEN = {
    "CUDA_VISIBLE_DEVICES": "",
    "ROCR_VISIBLE_DEVICES": "",
    "HIP_VISIBLE_DEVICES": "-1",
    "ZE_AFFINITY_MASK": "255",
}
OURS = {"GPULAYER_JOB_ID": "abc", "GPULAYER_ATTEMPT": "2", "GPULAYER_OUTPUT_DIR": "/w/out"}


def plan(job=JOB, **environment):
    return ProcessLauncher().plan(job, SITE, Machine(FACTS, environment))


def test_the_whole_plan_of_a_job_without_devices():
    assert plan(PATH="/bin", HOME="/h", LC_ALL="C") == LaunchPlan(
        key="7.0",
        argv=("echo", "a b"),
        cwd=Path("/w/work"),
        env={"PATH": "/bin", "PYTHONUNBUFFERED": "1", "HOME": "/h", "LC_ALL": "C", **OURS, **HIDDEN},
        log_path=Path("/w/log"),
        exit_path=Path("/w/exit.json"),
        log_bytes=DEFAULT_LOG_BYTES,
    )


def test_only_the_allow_list_of_the_workers_environment_is_handed_on():
    worker = {
        "GPULAYER_TOKEN": "glc_secret",
        "GPULAYER_URL": "http://x",
        "PYTHONPATH": "/p",
        "PYTHONHOME": "/p",
        "VIRTUAL_ENV": "/v",
        "AWS_SECRET_ACCESS_KEY": "s",
        "LD_PRELOAD": "/x.so",
        "INVOCATION_ID": "1",
        "SSL_CERT_FILE": "/c",
        "TZ": "UTC",
    }
    env = plan(**worker).env
    assert {name for name in env if name in worker} == {"SSL_CERT_FILE", "TZ"}
    assert "secret" not in str(env)


def test_the_jobs_own_variables_win_over_the_workers_and_ours_over_both():
    env = (("GPULAYER_JOB_ID", "forged"), ("HOME", "/mine"), ("VIRTUAL_ENV", "/v"), ("PYTHONPATH", "/mine"))
    made = plan(replace(JOB, env=env), HOME="/h").env
    assert made["HOME"] == "/mine"
    assert made["VIRTUAL_ENV"] == "/v"
    assert made["PYTHONPATH"] == "/mine"
    assert made["GPULAYER_JOB_ID"] == "abc"


def test_a_job_always_has_a_path():
    assert plan().env["PATH"] == "/usr/local/bin:/usr/bin:/bin"


def test_devices_are_handed_over_by_uuid_and_the_others_hidden():
    env = plan(replace(JOB, devices=("GPU-2", "GPU-1"))).env
    assert env["CUDA_VISIBLE_DEVICES"] == "GPU-1,GPU-2"
    assert env["HIP_VISIBLE_DEVICES"] == "-1"
    assert env["ZE_AFFINITY_MASK"] == "255"


def test_a_job_cannot_show_itself_a_device_it_did_not_ask_for():
    env = plan(replace(JOB, env=(("CUDA_VISIBLE_DEVICES", "0"), ("GPU_DEVICE_ORDINAL", "0")))).env
    assert env["CUDA_VISIBLE_DEVICES"] == ""
    assert "GPU_DEVICE_ORDINAL" not in env


def test_rocm_and_xpu_devices_use_their_vendors_variables():
    assert device_variables([FACTS.devices[2]]) == {"ROCR_VISIBLE_DEVICES": "AMD-1", "ZE_AFFINITY_MASK": "255"}
    assert device_variables([FACTS.devices[3]])["ZE_AFFINITY_MASK"] == "3"
    assert device_variables([]) == HIDDEN


def test_equal_inputs_give_equal_plans():
    assert plan(HOME="/h") == plan(HOME="/h")
