"""A4: a secret reaches its job and nothing else. Looked for in bytes: every file, command line, answer and log."""

import contextlib
import hashlib
import json
import os
import signal
import sys
import urllib.request
from pathlib import Path

import pytest

VALUE = "abc123xyz"
DIGEST = hashlib.sha256(VALUE.encode()).hexdigest()

# Prints all it can in all ways, proves that it saw the value, waits for a word, and crashes with it in the traceback.
PROGRAM = """
import hashlib, os, pathlib, sys, time
value = os.environ["HF_TOKEN"]
print(dict(os.environ), flush=True)
pathlib.Path("digest").write_text(hashlib.sha256(value.encode()).hexdigest())
for out in (sys.stdout, sys.stderr):
    out.write("split: " + value[:5])
    out.flush()
    time.sleep(0.1)
    out.write(value[5:] + " end" + chr(10))
    out.flush()
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.02)
raise RuntimeError(f"no access with {value}")
"""


def found_in(folder: Path) -> list[str]:
    found = []
    for path in folder.rglob("*"):
        if VALUE in path.name:
            found.append(str(path))
        with contextlib.suppress(OSError):
            if path.is_file() and VALUE.encode() in path.read_bytes():
                found.append(str(path))
    return found


def in_command_lines() -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and VALUE.encode() in (entry / "cmdline").read_bytes():
                found.append(entry.name)
    return found


def answers(story, job_id: str) -> str:
    """Whatever the API says of it."""
    endpoint = json.loads((story.state / "endpoint.json").read_text())
    told = []
    paths = (f"jobs/{job_id}", "jobs", f"jobs/{job_id}/events", f"jobs/{job_id}/logs", f"jobs/{job_id}/outputs")
    for path in (*paths, f"jobs/{job_id}/logs?stream=stderr", "workers"):
        request = urllib.request.Request(f"{endpoint['url']}/v1/{path}")
        request.add_header("Authorization", f"Bearer {endpoint['token']}")
        with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(request, timeout=30) as answer:
            told.append(answer.read().decode())
    return "\n".join(told)


def first_job(story) -> str:
    return story.until(lambda: story.run("job", "list", "--json").json["jobs"], "there is a job")[0]["id"]


@pytest.fixture
def told(story):
    """A story in which nobody has said the value by its end."""
    story.environment["HF_TOKEN"] = VALUE
    yield story
    assert found_in(story.state) == []


@pytest.mark.parametrize("split", [(), ("--split-streams",)], ids=["one-log", "two-logs"])
def test_a4_a_secret_from_the_environment_is_seen_by_its_job_and_nowhere_else(told, split):
    go = told.here / "go"
    submit = ("submit", "--secret", "HF_TOKEN", "--retries", "0", *split)
    following = told.start(*submit, "--", sys.executable, "-c", PROGRAM, str(go))
    del told.environment["HF_TOKEN"]  # only this one command had it
    job_id = first_job(told)
    told.until(lambda: b"split: ********* end" in told.run("job", "logs", job_id).out, "its log has come")
    assert found_in(told.state) == []
    assert in_command_lines() == []
    for pid in (told.plane_pid(), told.agent_pid()):
        assert VALUE.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
    go.touch()
    ended = told.end(following)
    assert ended.code == 1
    assert VALUE not in ended.err
    assert VALUE.encode() not in ended.out
    both = ended.out.decode() + ended.err
    assert "'HF_TOKEN': '*********'" in both
    assert both.count("split: ********* end") == 2
    assert "RuntimeError: no access with *********" in both
    assert (told.here / "gpulayer_runs" / job_id / "digest").read_text() == DIGEST
    assert VALUE not in answers(told, job_id)
    for argv in (("job", "list"), ("job", "events", job_id, "--json"), ("job", "result", job_id), ("worker", "list")):
        shown = told.run(*argv)
        assert VALUE not in shown.out.decode() + shown.err, argv
    assert told.job(job_id)["secrets"] == ["HF_TOKEN"]
    assert "HF_TOKEN" in told.run("job", "show", job_id).out.decode()


def test_a4_a_retried_job_has_its_secret_again(told):
    go = told.here / "go"
    go.touch()
    ended = told.run("submit", "--secret", "HF_TOKEN", "--quiet", "--", sys.executable, "-c", PROGRAM, str(go))
    assert ended.code == 1
    first = first_job(told)
    del told.environment["HF_TOKEN"]
    again = told.run("job", "retry", first)
    assert again.code in (0, 1), again.err
    second = next(job["id"] for job in told.run("job", "list", "--json").json["jobs"] if job["id"] != first)
    assert told.run("job", "wait", second).code == 1
    assert b"split: ********* end" in told.run("job", "logs", second).out
    assert told.run("job", "result", second, "--download", "--dest", "second").code in (0, 1)
    assert (told.here / "second" / "digest").read_text() == DIGEST


def test_a4_an_agent_killed_in_the_middle_masks_what_it_finds(told):
    go = told.here / "go"
    following = told.start("submit", "--secret", "HF_TOKEN", "--", sys.executable, "-c", PROGRAM, str(go))
    job_id = first_job(told)
    told.until(lambda: b"'HF_TOKEN': '*********'" in told.run("job", "logs", job_id).out, "its log has begun")
    agent = told.agent_pid()
    os.kill(agent, signal.SIGKILL)
    told.until(lambda: told.agent_pid() != agent, "another agent")
    go.touch()
    ended = told.end(following)
    assert ended.code == 1
    assert VALUE not in ended.out.decode() + ended.err
    assert ended.out.decode().count("split: ********* end") == 2
    assert "RuntimeError: no access with *********" in ended.out.decode()
    assert len(told.job(job_id)["attempts"]) == 1


def test_a_secret_comes_from_a_file_or_standard_input(told):
    (told.here / "token").write_text(f"{VALUE}\n")
    command = ("--", "sh", "-c", 'printf %s "$A$B" | sha256sum; echo "$A $B"')
    process = told.start("submit", "--secret-file", "A=token", "--secret-file", "B=-", *command, stdin=-1)
    out, err = process.communicate(b"two2two2\n", timeout=90)
    assert process.returncode == 0, err
    assert out.decode().split()[0] == hashlib.sha256(f"{VALUE}two2two2".encode()).hexdigest()
    assert out.endswith(b"********* ********\n")


def test_what_can_not_be_a_secret_is_said_before_anything_starts(told):
    for argv, why in (
        (("--secret", "OTHER"), "OTHER is not set here"),
        (("--secret", f"A={VALUE}"), "a value in a command line"),
        (("--secret", "HF_TOKEN", "--env", "HF_TOKEN=1"), "variable of env, too"),
        (("--secret-file", "A=nowhere"), "can't be read"),
        (("--grant", "everything"), "unknown"),
    ):
        ended = told.run("submit", *argv, "--", "true")
        assert ended.code == 2
        assert why in ended.err
        assert VALUE not in ended.err
    assert not told.state.exists()


READS = """
import json, os, sys, urllib.error, urllib.request
def ask(job):
    request = urllib.request.Request(os.environ["GPULAYER_URL"] + "/v1/jobs/" + job)
    request.add_header("Authorization", "Bearer " + os.environ["GPULAYER_TOKEN"])
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)["state"]
    except urllib.error.HTTPError as error:
        return error.code
print(ask(os.environ["GPULAYER_JOB_ID"]), ask(sys.argv[1]), os.environ["GPULAYER_TOKEN"])
"""


def test_a_granted_job_reaches_the_control_plane_that_was_started_again_meanwhile(story):
    waits = "import os, sys, time\nwhile not os.path.exists(sys.argv[2]): time.sleep(0.01)\n"
    go = story.here / "go"
    submitted = story.run(
        *("submit", "--detach", "--grant", "own", "--", sys.executable, "-c", waits + READS, "no-such-job", str(go))
    )
    assert submitted.code == 0, submitted.err
    job_id = submitted.out.decode().strip()
    story.until(lambda: story.job(job_id)["state"] == "running", "the job runs")
    os.kill(story.plane_pid(), signal.SIGKILL)
    story.until(lambda: story.job(job_id)["state"] == "running", "the plane is there again")
    go.touch()
    waited = story.run("job", "wait", job_id)
    assert waited.code == 0, waited.err
    assert story.run("job", "logs", job_id).out.decode().split()[0] == "running"


def test_a_granted_token_reads_the_jobs_own_record_and_no_other(shared):
    other = shared.run("submit", "--detach", "--", "true").out.decode().strip()
    ended = shared.run("submit", "--grant", "own", "--", sys.executable, "-c", READS, other)
    assert ended.code == 0, ended.err
    state, refused, token = ended.out.decode().split()
    assert state in ("running", "staging")
    assert refused in ("403", "404")
    assert set(token) == {"*"}
    bare = "import os; print([name for name in os.environ if name in ('GPULAYER_URL', 'GPULAYER_TOKEN')])"
    assert shared.run("submit", "--", sys.executable, "-c", bare).out == b"[]\n"
