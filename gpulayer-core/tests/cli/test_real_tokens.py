"""People with different rights on a real control plane, through the program alone."""

import json
import os
import signal
import socket
import subprocess
import time

import pytest


@pytest.fixture
def run(program, cli, monkeypatch):
    """Run a command in this process, as somebody with a token: (exit code, stdout, stderr)."""

    def call(*argv, token=""):
        with monkeypatch.context() as patch:
            if token:
                patch.setenv("GPULAYER_URL", call.url)
                patch.setenv("GPULAYER_TOKEN", token)
            said = cli(*argv)
        return said.code, said.out.decode(), said.err

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    call.url = f"http://127.0.0.1:{port}"
    up = program("up", "--detach", "--no-worker", "--host", "127.0.0.1", "--port", str(port), stdout=-1, stderr=-1)
    _, err = up.communicate(timeout=60)
    assert up.returncode == 0, err
    yield call
    code, _, err = call("down")
    assert code == 0, err


def _json(found):
    code, out, err = found
    assert code == 0, err
    return json.loads(out)


def test_people_get_tokens_lose_them_and_the_trail_tells(run):
    code, out, err = run("token", "create", "--role", "submitter", "--name", "alice")
    assert (code, out[:4], len(out.splitlines())) == (0, "glc_", 1), err
    alice = out.strip()
    assert f"export GPULAYER_URL={run.url} GPULAYER_TOKEN=TOKEN" in err
    job = run("submit", "--detach", "--", "true", token=alice)[1].strip()
    assert _json(run("job", "show", job, "--json"))["submitted_by"]["name"] == "alice"
    assert run("job", "list")[1].splitlines()[1].split()[2] == "alice"
    assert [each["id"] for each in _json(run("job", "list", "--mine", "--json", token=alice))["jobs"]] == [job]
    assert _json(run("job", "list", "--mine", "--json"))["jobs"] == []

    code, _, err = run("token", "list", token=alice)
    assert code == 4
    assert "has the role submitter; this needs admin" in err

    code, out, err = run("token", "rotate", token=alice)
    assert code == 0, err
    newer = out.strip()
    assert newer != alice
    assert [each["id"] for each in _json(run("job", "list", "--mine", "--json", token=newer))["jobs"]] == [job]
    code, _, err = run("token", "rotate")
    assert code == 2
    assert "each start makes a new one" in err

    code, out, _ = run("token", "revoke", "alice", "--all")
    assert (code, len(out.splitlines())) == (0, 2)
    for token in (alice, newer):
        code, _, err = run("job", "list", token=token)
        assert code == 4
        assert "was revoked" in err

    entries = _json(run("audit", "--json"))["entries"]
    told = [each["action"] for each in entries if json.loads(each["details"]).get("name") != "client"]
    assert told[0] == "plane.start"
    assert [each for each in told if each.startswith("token.")][-4:] == [
        "token.create", "token.rotate", "token.revoke", "token.revoke",
    ]  # fmt: skip
    code, kept, err = run("audit", "--verify")
    assert code == 0, err
    assert run("audit", "--verify", "--kept", kept.strip())[0] == 0
    assert alice.rpartition("_")[2] not in json.dumps(entries)


def test_of_two_machines_that_rotate_one_token_the_second_is_refused_and_the_first_keeps_its_own(run):
    code, out, err = run("token", "create", "--role", "submitter", "--name", "alice")
    assert code == 0, err
    shared = out.strip()
    code, out, err = run("token", "rotate", token=shared)
    assert code == 0, err
    code, _, err = run("token", "rotate", token=shared)
    assert code == 2
    assert "was rotated already" in err
    code, _, err = run("job", "list", token=out.strip())
    assert code == 0, err


def test_a_pool_token_joins_three_machines_and_refuses_the_fourth(run, program, away):
    code, out, err = run("token", "create", "--role", "join", "--name", "rack", "--uses", "3")
    assert (code, out[:4]) == (0, "gle_"), err
    (away / "token").write_text(out)
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}

    def join(name):
        return program("join", run.url, "--token-file", "token", "--name", name, **quiet)

    joined = [join(name) for name in ("one", "two", "three")]
    ends = time.monotonic() + 90
    while len(_json(run("worker", "list", "--json"))["workers"]) < 3:
        assert time.monotonic() < ends
        assert [each.poll() for each in joined] == [None] * 3
        time.sleep(0.05)
    fourth = join("four")
    _, err = fourth.communicate(timeout=60)
    assert fourth.returncode == 4, err
    assert b"used" in err
    records = _json(run("token", "list", "--json"))["tokens"]
    (rack,) = [record for record in records if record["name"] == "rack"]
    assert (rack["uses"], rack["max_uses"], rack["state"]) == (3, 3, "used up")
    entries = _json(run("audit", "--json"))["entries"]
    enrolled = [each for each in entries if each["action"] == "worker.enrol"]
    assert {json.loads(each["details"])["name"] for each in enrolled} == {"one", "two", "three"}
    assert {each["actor"] for each in enrolled} == {f"join token rack ({rack['id']})"}
    for each in joined:
        os.kill(each.pid, signal.SIGTERM)
    for each in joined:
        each.communicate(timeout=60)
