"""How a job ends, end to end: real processes, told to end, told to hurry, lost, raced; X1, X5, X6 are cases by name."""

import json
import os
import signal
import struct
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from gpulayer import Client
from gpulayer.client import calls
from gpulayer.spawner import tree
from tests.together import kill_together


@pytest.fixture(autouse=True)
def nothing_runs_on(request):
    """What a test that failed left running at the shared story would make all after it wait."""
    yield
    if "shared" in request.fixturenames:
        story = request.getfixturevalue("shared")
        with api(story) as client:
            for job in client.jobs(state="queued,staging,running,ending"):
                assert story.run("job", "cancel", job["id"], "--grace", "0s").code == 0


def start_job(story, *argv):
    """Submit it in the background; returns the following command and the job's id once it says "up"."""
    process = story.start("submit", *argv)
    assert process.stdout.readline() == b"up\n"
    with api(story) as client:
        (job,) = client.jobs(state="running,staging")
    return process, job["id"]


def api(story):
    endpoint = json.loads((story.state / "endpoint.json").read_text())
    return Client(url=endpoint["url"], token=endpoint["token"])


def job_of(story, job_id):
    with api(story) as client:
        return client.job(job_id).record()


def worker_of(story, name=""):
    """The only one, or the one of that name; None where there is none."""
    with api(story) as client:
        return next((one for one in client.workers() if one["name"] == name or not name), None)


def marked(mark):
    """Live processes with ``mark`` in their command line; not the command that submitted them."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
            if mark.encode() in words and b"gpulayer.cli" not in words:
                one = tree.process(int(entry.name))
                found += [] if one is None or one.is_dead else [one.pid]
        except OSError:
            continue
    return found


def attempt_of(story, job_id):
    job = job_of(story, job_id)
    return job, job["attempts"][-1]


# Cancel ---------------------------------------------------------------------------------------------------------------


def test_x1_nothing_of_a_tree_is_left_after_a_cancel_and_only_then_is_its_place_free(shared):
    mark = f"mark = '{uuid.uuid4().hex}'"
    deaf = f"{mark}; import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(999)"
    process, job_id = start_job(shared, "--", "bash", "-c", f'{sys.executable} -c "{deaf}" & wait')
    before = worker_of(shared)
    assert before["cpus_free"] == before["cpus"] - 1
    assert shared.run("job", "cancel", job_id, "--grace", "2s").code == 0
    cancelled_at = time.monotonic()
    while marked(mark):  # as long as any of it lives, its place is taken
        worker = worker_of(shared)
        assert worker["cpus_free"] == before["cpus_free"] or not marked(mark)
        assert time.monotonic() < cancelled_at + 60
    ended = shared.end(process)
    assert ended.code == 7, ended.err
    shared.until(lambda: worker_of(shared)["cpus_free"] == before["cpus"], "the place is free")


SAVES = """
import os, signal, sys, time
heard = []
signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
print("up", flush=True)
while not heard:
    time.sleep(0.01)
time.sleep(1.0)
open("ckpt.txt", "w").write(f"{len(heard)} SIGTERM")
sys.exit(0)
"""


@pytest.mark.parametrize(
    "command", [["SAVES"], ["bash", "-c", "SAVES; echo unreached"]], ids=["alone", "under a shell"]
)
def test_x6_files_written_in_the_grace_time_come_home_and_sigterm_came_once(shared, command):
    app = shared.here / "app"
    app.mkdir(exist_ok=True)
    (app / "saves.py").write_text(SAVES)
    saves = f"{sys.executable} saves.py"
    argv = saves.split() if command == ["SAVES"] else [word.replace("SAVES", saves) for word in command]
    process, job_id = start_job(shared, "--source", "app", "--", *argv)
    assert shared.run("job", "cancel", job_id).code == 0
    ended = shared.end(process)
    assert (ended.code, ended.out) == (7, b""), ended.err
    assert (shared.here / "gpulayer_runs" / job_id / "ckpt.txt").read_text() == "1 SIGTERM"
    job, attempt = attempt_of(shared, job_id)
    assert (job["state"], job["ended_by"]) == ("cancelled", "cancel")
    assert job["reason"] == {"code": "cancel", "message": attempt["evidence"]}
    assert attempt["evidence"].startswith("cancelled by local (gpulayer/")
    assert attempt["evidence"].splitlines()[0] in ended.err
    assert attempt["log_tail"] == "up"


def test_a_second_cancel_with_a_shorter_grace_time_shortens_it(shared):
    deaf = "trap '' TERM; echo up; while :; do sleep 0.05; done"
    process, job_id = start_job(shared, "--", "bash", "-c", deaf)
    assert shared.run("job", "cancel", job_id, "--grace", "1h").out == f"job {job_id} ending\n".encode()
    assert shared.run("job", "cancel", job_id, "--grace", "100ms").code == 0
    assert shared.end(process).code == 7
    job, attempt = attempt_of(shared, job_id)
    assert (job["state"], job["signal"]) == ("cancelled", signal.SIGKILL)
    assert "did not end within its grace time of 100 ms and was killed" in attempt["evidence"]


# The daemon says "up" itself: before that its exec may be under way, in which no command line can be read.
DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve("/bin/sh", ["sh", "-c", "echo up; pwd; sleep 600; :", sys.argv[1]], {})
    os._exit(0)
os.wait()
time.sleep(600)
"""


def test_what_changed_its_session_is_ended_and_a_bystander_in_the_same_folder_is_not(shared):
    seconds = f"600.{uuid.uuid4().int}"
    process, job_id = start_job(shared, "--", sys.executable, "-c", DAEMON, seconds)
    folder = process.stdout.readline().decode().strip()
    bystander = subprocess.Popen(["sleep", "600"], cwd=folder)
    try:
        assert len(marked(seconds)) == 2
        assert shared.run("job", "cancel", job_id, "--grace", "2s").code == 0
        assert shared.end(process).code == 7
        assert not marked(seconds)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_program_that_stopped_itself_ends_by_sigterm(shared):
    script = "trap 'echo heard > heard.txt; exit 0' TERM; echo up; kill -STOP $$; sleep 600"
    process, job_id = start_job(shared, "--", "bash", "-c", script)
    assert shared.run("job", "cancel", job_id).code == 0
    assert shared.end(process).code == 7
    assert (shared.here / "gpulayer_runs" / job_id / "heard.txt").read_text() == "heard\n"


# Timeout --------------------------------------------------------------------------------------------------------------


def test_a_timeout_counts_from_the_programs_start_and_says_its_limit(shared):
    script = "trap 'echo late > late.txt; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    ended = shared.run("submit", "--json", "--timeout", "1s", "--", "bash", "-c", script)
    assert ended.code == 8, ended.err
    job = ended.json
    assert (job["state"], job["ended_by"], job["exit_code"]) == ("timed_out", "timeout", 0)
    assert job["reason"]["message"] == "it ran for longer than its --timeout of 1.0 s"
    assert [output["path"] for output in job["outputs"]] == ["late.txt"]


def test_a_timeout_ends_also_what_ignores_sigterm(shared):
    deaf = "trap '' TERM; echo up; while :; do sleep 0.05; done"
    ended = shared.run("submit", "--json", "--timeout", "500ms", "--grace", "300ms", "--", "bash", "-c", deaf)
    assert (ended.code, ended.json["signal"]) == (8, signal.SIGKILL)
    first, second = ended.json["reason"]["message"].splitlines()
    assert first == "it ran for longer than its --timeout of 500 ms"
    assert second == "it did not end within its grace time of 300 ms and was killed"


# The program's own end ------------------------------------------------------------------------------------------------


def test_a_program_that_leaves_a_nohup_child_ends_at_once_and_its_child_with_it(shared):
    seconds = f"600.{uuid.uuid4().int}"
    ended = shared.run("submit", "--", "bash", "-c", f"nohup sleep {seconds} & echo done")
    assert (ended.code, ended.out) == (0, b"done\n"), ended.err
    assert not marked(seconds)


def test_job_show_says_why_and_shows_the_logs_end_without_driving_the_terminal(shared):
    script = r"printf '10%%\r20%%\n\033[2Jred\t!\n'; kill -9 $$"
    ended = shared.run("submit", "--json", "--quiet", "--", "bash", "-c", script)
    assert ended.code == 137
    job = ended.json
    assert (job["signal"], job["reason"]["message"]) == (9, "killed by signal 9 (SIGKILL)")
    assert job["attempts"][0]["log_tail"] == "20%\n\x1b[2Jred\t!"
    shown = shared.run("job", "show", job["id"]).out.decode()
    assert "failed (killed by signal 9 (SIGKILL))" in shown
    at = [line.strip() for line in shown.splitlines()]
    assert at[-2:] == ["log's end  20%", r"\x1b[2Jred !"]
    assert "log_tail" not in json.dumps(shared.run("job", "list", "--json").json)


ELF = struct.pack(
    "<4s5B7xHHIQQQIHHHHHH",
    *(b"\x7fELF", 2, 1, 1, 0, 0, 2),
    *(62 if os.uname().machine == "aarch64" else 183, 1, 0, 64, 0, 0, 64, 56, 0, 64, 0, 0),
)


@pytest.mark.parametrize(
    ("name", "code", "words", "hint"),
    [
        ("nothing-has-this-name", 127, "nothing-has-this-name: not found on the PATH", "check its name"),
        ("./absent", 127, "./absent: not found in the work folder", "check its name"),
        ("./folder", 126, "./folder: is a folder", "name a program in it"),
        ("./plain", 126, "./plain: not executable (chmod +x it, or name its interpreter)", "chmod +x ./plain"),
        ("./lost", 127, "./lost: its interpreter is missing: /no/such/interpreter", "check its name"),
        ("./dos", 127, "Windows line ends", "check its name"),
        ("./other", 126, "./other: can't be executed here (a program for another machine: ", "build it for this"),
    ],
)
def test_what_can_not_be_executed_has_the_shells_code_and_a_hint(shared, name, code, words, hint):
    app = shared.here / "programs"
    if not app.exists():
        (app / "folder").mkdir(parents=True)
        for file, mode, content in (
            ("plain", 0o644, b"#!/bin/sh\n"),
            ("lost", 0o755, b"#!/no/such/interpreter\n"),
            ("dos", 0o755, b"#!/bin/sh\r\n"),
            ("other", 0o755, ELF + bytes(200)),
        ):
            (app / file).write_bytes(content)
            (app / file).chmod(mode)
    ended = shared.run("submit", "--source", "programs", "--", name)
    assert (ended.code, ended.out) == (code, b""), ended.err
    assert f"note: {words}" in ended.err or words in ended.err
    assert hint in ended.err
    assert ended.err.count(words) == 1


# The worker's end -----------------------------------------------------------------------------------------------------

SERVE = """
import sys
from pathlib import Path
from gpulayer.server import ServeSettings, serve
serve(ServeSettings(state_dir=Path(sys.argv[1]), port=0, lease_ttl_ms=2500))
"""


@pytest.fixture
def fleet(story):
    """A control plane with a short lease and no worker of its own; ``join`` makes workers of this machine."""
    processes = []
    (story.state).mkdir(mode=0o700, parents=True)
    with open(story.state / "plane.log", "wb") as log:
        plane = subprocess.Popen(
            [sys.executable, "-P", "-c", SERVE, str(story.state)], stdout=log, stderr=log, env=story.environment
        )
    processes.append(plane)
    story.until((story.state / "endpoint.json").exists, "it serves")

    def join(name):
        endpoint = json.loads((story.state / "endpoint.json").read_text())
        argv = ["join", endpoint["url"], "--name", name, "--work-dir", str(story.state / name)]
        if not (story.state / name).exists():
            with api(story) as client:
                argv += ["--token", client.transport.send(calls.create_token())["token"]]
        log = open(story.state / f"{name}.log", "ab")  # noqa: SIM115 - as long as the process
        process = story.start(*argv, stdout=log, stderr=log)
        log.close()
        processes.append(process)
        story.until(lambda: (worker_of(story, name) or {}).get("state") == "ready", f"{name} is ready")
        return process

    yield join
    for process in reversed(processes):
        if process.poll() is None:
            process.terminate()
        process.wait(60)


def test_x5_a_stopped_worker_interrupts_its_job_which_costs_no_try_and_runs_elsewhere(story, fleet):
    first = fleet("first")
    marker = story.here / "started"
    script = f"echo x >> {marker}; echo up; [ $(wc -l < {marker}) -gt 1 ] || sleep 600"
    process, job_id = start_job(story, "--retries", "1", "--", "sh", "-c", script)
    first.send_signal(signal.SIGTERM)
    assert first.wait(60) == 0
    story.until(lambda: job_of(story, job_id)["state"] == "queued", "the job waits for another worker")
    job, attempt = attempt_of(story, job_id)
    assert (attempt["ended_by"], attempt["blame"]) == ("worker_stopped", "infrastructure")
    assert attempt["evidence"].startswith("worker first was stopped (SIGTERM)")
    assert job["reason"]["message"].startswith("attempt 1 ended: worker first was stopped (SIGTERM)")
    fleet("second")
    ended = story.end(process)
    assert ended.code == 0, ended.err
    assert "worker first was stopped (SIGTERM)" in ended.err
    job, attempt = attempt_of(story, job_id)
    assert [node["worker"] for one in job["attempts"] for node in one["nodes"]] == ["first", "second"]


def test_x5_a_stopped_workers_job_without_retries_is_lost_and_not_the_programs_failure(story, fleet):
    worker = fleet("first")
    process, job_id = start_job(story, "--retries", "0", "--", "sh", "-c", "echo up; sleep 600")
    worker.send_signal(signal.SIGTERM)
    ended = story.end(process)
    assert ended.code == 6, ended.err
    job, attempt = attempt_of(story, job_id)
    assert (job["state"], job["ended_by"], attempt["blame"]) == ("lost", "worker_stopped", "infrastructure")
    assert "worker first was stopped (SIGTERM)" in ended.err


@pytest.mark.parametrize("retries", [0, 1])
def test_x5_power_off_loses_the_attempt_and_the_retry_policy_applies(story, fleet, retries):
    worker = fleet("first")
    marker = story.here / "started"
    script = f"echo x >> {marker}; echo up; [ $(wc -l < {marker}) -gt 1 ] || sleep 600"
    argv = ("--retries", str(retries), "--keep-for", "1s", "--grace", "100ms", "--", "sh", "-c", script)
    process, job_id = start_job(story, *argv)
    _power_off(story, worker)
    if retries:
        story.until(lambda: job_of(story, job_id)["state"] == "queued", "the lease has expired")
        fleet("second")
    ended = story.end(process)
    job = job_of(story, job_id)
    first = job["attempts"][0]
    assert (first["ended_by"], first["blame"]) == ("worker_lost", "infrastructure")
    assert first["evidence"].startswith("worker first ")
    if retries:
        assert (ended.code, job["state"], len(job["attempts"])) == (0, "succeeded", 2), ended.err
    else:
        assert (ended.code, job["state"], job["exit_code"]) == (6, "lost", None), ended.err


def test_x5_a_power_cut_in_the_middle_of_a_stop_is_no_failure_of_the_program(story, fleet):
    worker = fleet("first")
    stopping = story.here / "stopping"
    script = f"trap 'touch {stopping}' TERM; echo up; while :; do sleep 0.05; done"
    argv = ("--retries", "0", "--keep-for", "1s", "--grace", "20s", "--", "sh", "-c", script)
    process, job_id = start_job(story, *argv)
    worker.send_signal(signal.SIGTERM)
    story.until(stopping.exists, "the program was told to end")
    _power_off(story, worker)
    ended = story.end(process)
    assert ended.code == 6, ended.err
    job, attempt = attempt_of(story, job_id)
    assert (job["state"], job["exit_code"], attempt["blame"]) == ("lost", None, "infrastructure")
    assert attempt["ended_by"] in ("worker_stopped", "worker_lost")


def _power_off(story, worker):
    """Agent, spawner, watchdog and whatever they run: gone at once, and nobody starts them again."""
    pids = json.loads((story.state / "first" / "spawner" / "spawner.lock").read_text())
    seen = tree.processes()
    victims = [worker.pid, pids["watchdog"], pids["spawner"]]
    victims += tree.members(seen, roots=[pids["spawner"]], markers=[], spare=[])
    kill_together(victims)
    worker.wait(60)
    story.until(lambda: not any((one := tree.process(pid)) and not one.is_dead for pid in victims), "all are gone")


def test_a_drained_worker_lets_its_work_end_and_takes_nothing_new_until_it_is_resumed(story, fleet):
    fleet("first")
    go = story.here / "go"
    process, job_id = start_job(story, "--", "sh", "-c", f"echo up; until [ -e {go} ]; do sleep 0.05; done; exit 5")
    assert story.run("worker", "drain", "first").out == b"worker first draining\n"
    waiting = story.run("submit", "--detach", "--", "true").out.decode().strip()
    assert job_of(story, job_id)["state"] == "running"
    go.touch()
    assert story.end(process).code == 5
    assert job_of(story, waiting)["state"] == "queued"
    assert worker_of(story, "first")["state"] == "draining"
    assert story.run("worker", "resume", "first").out == b"worker first ready\n"
    assert story.run("job", "wait", waiting).code == 0


# The control plane's end ----------------------------------------------------------------------------------------------


def test_who_follows_while_the_control_plane_goes_down_is_told_and_goes_on_with_the_next(story):
    marker = story.here / "started"
    script = f"echo x >> {marker}; echo up; [ $(wc -l < {marker}) -gt 1 ] || sleep 600"
    process, job_id = start_job(story, "--", "sh", "-c", script)
    assert story.run("down").code == 0
    said = process.stderr.readline().decode()
    while "attempt 1" not in said:
        said = process.stderr.readline().decode()
    assert f"attempt 1 of job {job_id} ended (worker stopped: worker" in said
    assert "was stopped (SIGTERM)" in said
    told = process.stderr.readline().decode()
    assert told.startswith(f"the control plane has ended; job {job_id} is not lost")
    assert story.run("job", "list").code == 0
    ended = story.end(process)
    assert (ended.code, ended.out) == (0, b"up\n"), ended.err
