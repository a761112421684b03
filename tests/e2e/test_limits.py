"""Limits, what a job sees of its worker, and devices, through the real program (a test's name begins with its case).

What this machine can't enforce is asserted as well: the record says so, and the job runs without.
"""

import os
import socket
import subprocess
import sys

import pytest

from gpulayer.testing.distribution import install_plugin

ALLOCATE = "kept = [bytearray(b'x' * (1 << 20)) for _ in range(300)]"


def enforced(story):
    """What the story's only worker holds jobs to."""
    (worker,) = story.run("worker", "list", "--json").json["workers"]
    return worker["enforces"]


def test_x4_out_of_memory_kill_minus_9_and_exit_137_are_three_ends(shared):
    ended = [
        shared.run("submit", "--memory", "64MB", "--json", "--", *command)
        for command in (
            (sys.executable, "-c", ALLOCATE),
            ("bash", "-c", "kill -9 $$"),
            ("bash", "-c", "exit 137"),
            ("bash", "-c", f'{sys.executable} -c "{ALLOCATE}"; exit $?'),
        )
    ]
    seen = [tuple(one.json[name] for name in ("ended_by", "exit_code", "signal")) for one in ended]
    evidence = [one.json["attempts"][-1]["evidence"] for one in ended]
    if "memory" in enforced(shared):
        assert seen[:3] == [("out_of_memory", None, 9), ("signal", None, 9), ("program", 137, None)]
        assert seen[3] in [("out_of_memory", 137, None), ("out_of_memory", None, 9)]
        for text in (evidence[0], evidence[3]):
            assert "out of memory: 1 process killed by the kernel (oom_kill), limit 64 MB, peak 6" in text
        assert not [text for text in evidence[1:3] if "memory" in text]
        assert [one.code for one in ended] == [137] * 4
    else:
        assert [ended_by for ended_by, *_ in seen] == ["program", "signal", "program", "program"]
        words = "--memory 64 MB was not enforced: its worker has no memory control group"
        assert all(words in text for text in evidence)


def test_a_fork_bomb_within_its_limit_is_ended_by_its_timeout_and_nothing_else_is_touched(shared):
    bomb = "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass"
    assert shared.run("submit", "--", "true").code == 0
    if "pids" not in enforced(shared):
        bomb = "import time; time.sleep(600)"  # unlimited it would take the machine along
    bombing = shared.start(
        "submit", "--pids", "30", "--timeout", "3s", "--grace", "0s", "--json", "--", sys.executable, "-c", bomb
    )
    assert shared.run("submit", "--", "echo", "alive").out == b"alive\n"
    record = shared.end(bombing).json
    assert (record["state"], record["ended_by"]) == ("timed_out", "timeout")
    is_told = "it reached its --pids of 30" in record["attempts"][0]["evidence"]
    assert is_told is ("pids" in enforced(shared))


def test_a_job_that_stops_itself_is_ended_by_cancel(shared):
    started = (
        shared.run("submit", "--detach", "--", "bash", "-c", "echo up; kill -STOP $$; exit 1").out.decode().strip()
    )
    shared.until(lambda: shared.run("job", "logs", started).out == b"up\n", "it is about to stop")
    assert shared.run("job", "cancel", started).code == 0
    record = shared.until(lambda: (job := shared.job(started))["state"] == "cancelled" and job, "it has ended")
    assert (record["ended_by"], record["signal"]) == ("cancel", 15)


def test_nice_and_cores_are_as_asked(shared):
    look = "import os; print(os.getpriority(os.PRIO_PROCESS, 0), len(os.sched_getaffinity(0)))"
    ended = shared.run("submit", "--nice", "7", "--pin-cores", "--", sys.executable, "-c", look)
    assert ended.out.split() == [b"7", b"1" if "cores" in enforced(shared) else str(os.cpu_count()).encode()]


def test_worker_show_tells_which_limits_it_holds_jobs_to(shared):
    assert shared.run("submit", "--", "true").code == 0
    (worker,) = shared.run("worker", "list", "--json").json["workers"]
    assert "cores" in worker["enforces"]
    shown = shared.run("worker", "show", worker["name"]).out.decode()
    assert ", ".join(worker["enforces"]) in " ".join(shown.split())


WORKER = """
import os, sys
from pathlib import Path
from gpulayer.worker import WorkerSettings, run

folder = Path(sys.argv[1])
sys.exit(run(WorkerSettings(
    work_dir=folder, urls=(sys.argv[2],), token=sys.argv[3], name=folder.name,
    environment=dict(os.environ), lock_folders=(str(folder.parent / "locks"),),
)))
"""

# Finds the devices that the worker's environment names.
PROBE = """
from gpulayer.plugins import Findings, hookimpl
from gpulayer.spec.machine import Device
from gpulayer.spec.request import Accelerator

GPULAYER_API = "1.0"

class Injected:
    name = "injected"
    def look(self, site):
        uuids = site.environment.get("TEST_DEVICES", "").split()
        return Findings(devices=tuple(Device(uuid, n, Accelerator.CUDA, "H100") for n, uuid in enumerate(uuids)))

@hookimpl
def gpulayer_register_probes(ctx):
    return [Injected()]
"""


@pytest.fixture
def fleet(story):
    """``fleet(name, *uuids)`` starts a worker whose probe finds those devices; it knows no ``gpulayer`` state."""
    port = free_port()
    assert story.run("up", "--detach", "--no-worker", "--host", "127.0.0.1", "--port", port).code == 0
    started = []
    install_plugin(story.here.parent / "plugins", "injected", PROBE)
    path = os.pathsep.join(filter(None, (str(story.here.parent / "plugins"), story.environment.get("PYTHONPATH"))))

    def start(name, *uuids, **environment):
        words = story.run("up", "--detach").out.decode().split()
        token = words[words.index("--token") + 1]
        argv = [sys.executable, "-P", "-c", WORKER, str(story.here / name), f"http://127.0.0.1:{port}", token]
        environment |= {"TEST_DEVICES": " ".join(uuids), "PYTHONPATH": path}
        with open(story.here / f"{name}.log", "wb") as log:
            started.append(
                subprocess.Popen(argv, env={**story.environment, **environment}, stdout=log, stderr=log, cwd=story.here)
            )
        story.until(lambda: f'"{name}"' in story.run("worker", "list", "--json").out.decode(), f"{name} has joined")

    yield start
    for process in started:
        process.terminate()
    for process in started:
        assert process.wait(timeout=60) == 0


def test_e3_jobs_see_their_own_devices_by_uuid_and_a_cpu_job_sees_none(story, fleet):
    fleet("box", "GPU-aa", "GPU-bb", CUDA_VISIBLE_DEVICES="2,3")
    show = ("bash", "-c", 'echo "<$CUDA_VISIBLE_DEVICES>"; sleep "$0"')
    seen = [story.start("submit", "--accelerator", "cuda", "--devices", "1", "--", *show, "1") for _ in range(2)]
    assert {story.end(one).out for one in seen} == {b"<GPU-aa>\n", b"<GPU-bb>\n"}
    assert story.run("submit", "--accelerator", "cuda", "--devices", "2", "--", *show, "0").out == b"<GPU-aa,GPU-bb>\n"
    assert story.run("submit", "--", *show, "0").out == b"<>\n"
    assert story.run("submit", "--env", "CUDA_VISIBLE_DEVICES=0", "--", *show, "0").out == b"<>\n"


def test_a_device_that_two_workers_offer_is_lent_to_one_job_at_a_time(story, fleet):
    """Two workers on one machine see the same device: the host's lock tells them apart, and the job finds its place."""
    fleet("one", "GPU-aa")
    fleet("two", "GPU-aa")
    use = "set -C; echo $$ > held || exit 9; sleep 0.3; rm held"
    lent = [
        story.start(
            "submit", "--quiet", "--accelerator", "cuda", "--retries", "50", "--", "sh", "-c", f"cd {story.here}; {use}"
        )
        for _ in range(3)
    ]
    assert [story.end(one).code for one in lent] == [0, 0, 0]


CANARIES = {
    "GPULAYER_TOKEN": "glc_canary-client",
    "AWS_SECRET_ACCESS_KEY": "canary-cloud",
    "HF_TOKEN": "canary-hub",
    "GPULAYER_SECRET": "canary-ours",
}
LOOK = """
import os, sys
print(dict(os.environ))
for name in os.listdir("/proc"):
    if name.isdigit():
        try:
            line = open(f"/proc/{name}/cmdline", "rb").read()
            words = line.split(bytes(1))
            is_worker = b"worker" in words or any(word.startswith(b"import sys; sys.path") for word in words)
            if is_worker and sys.argv[1].encode() in line:
                print(name, line.replace(bytes(1), b" "), open(f"/proc/{name}/environ", "rb").read())
        except OSError:
            pass
"""


@pytest.mark.parametrize("way", ["embedded", "joined"])
def test_a_job_finds_no_token_or_credential_in_its_environment_or_its_workers(story, way):
    port = free_port()
    plain = dict(story.environment)
    if way == "joined":
        up = story.run("up", "--detach", "--no-worker", "--host", "127.0.0.1", "--port", port)
        words = up.out.decode().split()
        token = words[words.index("--token") + 1]
        story.environment |= CANARIES
        joined = story.start("join", f"http://127.0.0.1:{port}", "--token", token, "--name", "box", "--once")
        story.environment = plain
        story.until(lambda: '"box"' in story.run("worker", "list", "--json").out.decode(), "it has joined")
    else:
        story.environment |= {name: value for name, value in CANARIES.items() if name != "GPULAYER_TOKEN"}
    ended = story.run("submit", "--", sys.executable, "-c", LOOK, str(story.state))
    story.environment = plain
    assert ended.code == 0, ended.err
    text = ended.out.decode()
    assert "GPULAYER_JOB_ID" in text
    assert "--work-dir" in text, "the worker was looked at"
    assert "canary" not in text
    for prefix in ("glc_", "gle_", "glw_"):
        assert prefix not in text
    ours = {word.split("'")[0] for word in text.splitlines()[0].split("'") if word.startswith("GPULAYER_")}
    assert ours == {"GPULAYER_JOB_ID", "GPULAYER_ATTEMPT", "GPULAYER_OUTPUT_DIR"}
    if way == "joined":
        assert story.end(joined).code == 0


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])
