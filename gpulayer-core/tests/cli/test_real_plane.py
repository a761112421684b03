"""The program with nothing configured: a real control plane, worker and jobs behind it."""

import json
import os
import signal
import socket
import subprocess
import time

import pytest

from tests.together import is_alive


@pytest.fixture
def run(program, away):
    """Run the program to its end: (exit code, stdout, stderr)."""

    def call(*argv):
        process = program(*argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, err = process.communicate(timeout=90)
        return process.returncode, out, err.decode()

    yield call
    code, _, err = call("down")
    assert code == 0, err


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def until(condition, timeout=30):
    ends = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < ends
        time.sleep(0.02)
    return found


COUNT = "for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.3; done"
COUNTED = b"1\n2\n3\n4\n5\n6\n7\n8\n"


def test_a_bare_submit_runs_streams_and_brings_files_home(run, away):
    (away / "app").mkdir()
    (away / "app" / "work.py").write_text(
        "import sys\nopen('made.txt', 'w').write('made')\nprint('out', flush=True)\nprint('err', file=sys.stderr)\n"
        "sys.stdout.buffer.write(bytes(range(256)))\nsys.exit(int(sys.argv[1]))\n"
    )
    code, out, err = run("submit", "--", "python3", "app/work.py", "200")
    assert code == 200, err
    assert out == b"out\nerr\n" + bytes(range(256))
    assert "failed (exit code 200)" in err
    (home,) = (away / "gpulayer_runs").glob("[0-9a-f]*")
    assert (home / "made.txt").read_text() == "made"
    assert (away / "gpulayer_runs" / ".gitignore").exists()

    code, out, _ = run("submit", "--detach", "--", "sh", "-c", "kill -9 $$")
    job = out.decode().strip()
    assert (code, len(job)) == (0, 16)
    assert run("job", "wait", job[:8])[0] == 137
    record = json.loads(run("job", "show", job, "--json")[1])
    assert (record["state"], record["signal"], record["ended_by"]) == ("failed", 9, "signal")
    code, _, err = run("submit", "--accelerator", "cuda", "--", "true")
    assert code == 3
    assert err.startswith("no worker fits: 1 × cuda\n")
    keyed = ["submit", "--detach", "--idempotency-key", "once", "--"]
    first, again, other = run(*keyed, "true"), run(*keyed, "true"), run(*keyed, "false")
    assert first == again
    assert (other[0], other[1]) == (2, b"")
    assert run("submit", "--timeout", "0.2s", "--", "sleep", "60")[0] == 8
    assert run("submit", "--quiet", "--", "no-such-program-anywhere")[0] == 127


def test_a_follower_outlives_the_death_of_the_control_plane(run, program, away):
    process = program("submit", "--", "sh", "-c", COUNT, stdin=subprocess.DEVNULL, stdout=-1, stderr=-1)
    first = process.stdout.readline()
    endpoint = json.loads((away.parent / "state" / "endpoint.json").read_text())
    os.kill(endpoint["pid"], signal.SIGKILL)
    rest, err = process.communicate(timeout=90)
    assert process.returncode == 0, err
    assert first + rest == COUNTED


@pytest.mark.parametrize("was", ["nothing", "killed", "the background one"])
def test_several_that_start_one_at_once_all_find_it_running(run, program, away, was):
    port = str(free_port())
    wanted = ("up", "--detach", "--no-worker", "--host", "127.0.0.1", "--port", port)
    if was == "killed":
        code, _, err = run(*wanted)
        assert code == 0, err
        os.kill(json.loads((away.parent / "state" / "endpoint.json").read_text())["pid"], signal.SIGKILL)
    ups = [program(*wanted, stdin=subprocess.DEVNULL, stdout=-1, stderr=-1) for _ in range(3)]
    if was == "the background one":
        ups.append(program("submit", "--detach", "--", "true", stdin=subprocess.DEVNULL, stdout=-1, stderr=-1))
    said = [each.communicate(timeout=120)[1].decode() for each in ups]
    assert [each.returncode for each in ups] == [0] * len(ups), said
    assert json.loads(run("status", "--json")[1])["url"] == f"http://127.0.0.1:{port}"
    log = (away.parent / "state" / "plane.log").read_text()
    assert "error:" not in log
    assert "Traceback" not in log


def test_down_ends_the_worker_of_an_earlier_control_plane_too(run, away):
    code, _, err = run("submit", "--detach", "--", "sleep", "100")
    assert code == 0, err
    lock = away.parent / "state" / "worker" / "agent.lock"
    until(lambda: lock.exists() and lock.read_text().strip())
    pid = int(lock.read_text().split()[0])
    code, _, err = run("up", "--detach", "--no-worker", "--host", "127.0.0.1", "--port", str(free_port()))
    assert code == 0, err
    assert is_alive(pid), "what it runs goes on"
    code, _, err = run("down")
    assert code == 0, err
    until(lambda: not is_alive(pid))


def test_up_takes_over_under_a_running_job_and_others_join(run, program, away):
    process = program("submit", "--", "sh", "-c", COUNT, stdin=subprocess.DEVNULL, stdout=-1, stderr=-1)
    first = process.stdout.readline()
    port = free_port()
    code, out, err = run("up", "--detach", "--port", str(port))
    assert code == 0, err
    words = out.decode().splitlines()[0].split()
    assert words[:2] == ["gpulayer", "join"]
    rest, err = process.communicate(timeout=90)
    assert process.returncode == 0, err
    assert first + rest == COUNTED
    status = json.loads(run("status", "--json")[1])
    assert status["mode"] == "standing"
    assert words[2] == (status["urls"] or [status["url"]])[0]

    joined = program(
        *(*words[1:], "--name", "second", "--label", "kind=spare", "--once"),
        stdin=subprocess.DEVNULL, stdout=-1, stderr=-1,
    )  # fmt: skip
    until(lambda: '"second"' in run("worker", "list", "--json")[1].decode())
    code, out, err = run("submit", "--label", "kind=spare", "--", "echo", "here")
    assert (code, out) == (0, b"here\n"), err
    assert "on second" in err
    _, err = joined.communicate(timeout=60)
    assert joined.returncode == 0, err
    first, started, ended = err.decode().splitlines()
    assert first.startswith(f"joined {words[2]} as second (")
    assert started.endswith(" attempt 1 started: echo here")
    assert " attempt 1 ended: exit code 0 after " in ended


def test_up_in_the_foreground_tells_of_its_worker_and_a_removed_worker_leaves(run, program, away):
    port = free_port()
    plane = program("up", "--host", "127.0.0.1", "--port", str(port), stdin=subprocess.DEVNULL, stdout=-1, stderr=-1)
    words = plane.stdout.readline().decode().split()
    token = words[words.index("--token") + 1]
    joined = program("join", words[2], "--token", token, "--name", "second", stdin=subprocess.DEVNULL, stderr=-1)
    until(lambda: '"second"' in run("worker", "list", "--json")[1].decode())
    assert run("submit", "--quiet", "--worker", "second", "--detach", "--retries", "0", "--", "sleep", "60")[0] == 0
    until(lambda: b"running" in run("job", "list", "--state", "running")[1])
    assert run("worker", "remove", "second", "--force")[0] == 0
    _, err = joined.communicate(timeout=60)
    assert joined.returncode == 4
    assert b"it was ended\nerror: this worker is not known to the control plane any more" in err
    assert run("submit", "--", "bash", "-c", "exit 5")[0] == 5
    plane.send_signal(signal.SIGINT)
    _, err = plane.communicate(timeout=60)
    assert plane.returncode == 0
    lines = err.decode().splitlines()
    assert any(line.startswith(f"joined http://127.0.0.1:{port} as ") for line in lines)
    assert any(line.endswith(" started: bash -c 'exit 5'") for line in lines)
    assert lines[-2:] == ["stopping", "the control plane has ended"]


def test_an_array_exits_as_the_first_element_that_failed_and_brings_all_files_home(run, away):
    script = (
        "i=$GPULAYER_ARRAY_INDEX; echo element $i of $GPULAYER_ARRAY_COUNT; echo err >&2; echo x > made-$i;"
        " echo $i > same; exit $((i > 1 ? i + 40 : 0))"
    )
    code, out, err = run("submit", "--split-streams", "--array", "4%2", "--", "sh", "-c", script)
    assert code == 42, err
    assert out == b"".join(b"[%d] element %d of 4\n" % (index, index) for index in range(4))
    assert [line for line in err.splitlines() if line.startswith("[")] == [f"[{index}] err" for index in range(4)]
    assert "note: 3 files have the name of an earlier element's" in err
    assert "failed (element 2: exit code 42; 2 of 4 succeeded)" in err
    (home,) = (away / "gpulayer_runs").glob("[0-9a-f]*")
    assert sorted(file.name for file in home.iterdir()) == ["made-0", "made-1", "made-2", "made-3", "same"]
    assert (home / "same").read_text() == "0\n"
    assert run("job", "result", home.name, "--index", "3", "--dest", "three")[0] == 43
    assert (away / "three" / "same").read_text() == "3\n"
    assert run("job", "logs", home.name, "--index", "1")[1] == b"element 1 of 4\n"
    assert b"3        failed     1" in run("job", "show", home.name)[1]
    code, _, err = run("submit", "--after", home.name, "--", "true")
    assert code == 7
    assert f"it was to run after the success of job {home.name}, which failed" in err
    assert run("submit", "--after", f"{home.name}:any", "--", "true")[0] == 0


def test_an_interrupt_cancels_the_whole_array(program, run):
    command = ["sh", "-c", "echo begun; sleep $((GPULAYER_ARRAY_INDEX * 600))"]
    process = program(
        "submit",
        "--array",
        "50%2",
        "--",
        *command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout.readline() == b"[0] begun\n"
    assert process.stdout.readline() == b"[1] begun\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 7, err
    assert out in (b"", b"[2] begun\n")
    (job,) = json.loads(run("job", "list", "--json")[1])["jobs"]
    assert job["array"]["states"] == {"succeeded": 1, "cancelled": 49}


def test_why_is_told_of_a_job_that_waits_runs_or_has_ended(run):
    """``job why`` says where the job is, and of each attempt how it was decided."""
    whole = ("--cpus", str(len(os.sched_getaffinity(0))))
    code, first, err = run("submit", "--detach", *whole, "--", "sleep", "300")
    assert code == 0, err
    first = first.decode().strip()
    until(lambda: json.loads(run("job", "show", first, "--json")[1])["state"] == "running")
    waiting = run("submit", "--detach", *whole, "--", "true")[1].decode().strip()
    code, out, err = run("job", "why", first)
    assert (code, err) == (0, "")
    said = out.decode().splitlines()
    assert said[0] == f"job {first} running"
    assert "attempt 1: " in said[2]
    assert said[3].split() == ["worker", "devices", "left", "cpus", "left", "mark"]
    code, out, err = run("job", "why", waiting)
    assert (code, err) == (0, "")
    assert f"job {waiting} queued" in out.decode()
    assert "busy" in out.decode()
    assert "attempt" not in out.decode()
    assert run("job", "cancel", first)[0] == 0
    assert run("job", "wait", waiting)[0] == 0
    for job, state in ((first, "cancelled"), (waiting, "succeeded")):
        code, out, err = run("job", "why", job)
        assert (code, err) == (0, "")
        assert out.decode().startswith(f"job {job} {state}")
        assert "attempt 1: " in out.decode()
