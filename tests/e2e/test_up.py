"""``gpulayer up`` for other machines: a pasted line, a pin, a job, a crash, a second line, an end."""

import json
import os
import signal
import socket

import pytest

DEADLINE = pytest.mark.timeout(300)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def exported(line):
    """The variables that a pasted line sets."""
    word, *pairs = line.split()
    assert word == "export"
    return dict(pair.split("=", 1) for pair in pairs)


@DEADLINE
def test_a_pasted_line_submits_over_tls_and_holds_after_a_crash(story):
    port = free_port()
    public = ("--public-url", f"https://127.0.0.1:{port}", "--public-url", f"https://[::1]:{port}")
    up = story.run("up", "--detach", "--port", str(port), *public)
    assert up.code == 0, up.err
    join, export = (line.strip() for line in up.out.decode().splitlines())
    laptop = exported(export)
    pin = laptop["GPULAYER_FINGERPRINT"]
    assert join.split()[:4] == ["gpulayer", "join", f"https://127.0.0.1:{port}", f"https://[::1]:{port}"]
    assert join.endswith(f" --fingerprint {pin}")

    plain = dict(story.environment)
    there = {**plain, **laptop, "GPULAYER_STATE_DIR": str(story.here / "laptop")}
    (story.here / "work.sh").write_text("echo out; echo made > made.txt; exit 3\n")
    story.environment = there
    ended = story.run("submit", "--source", ".", "--", "sh", "work.sh")
    assert (ended.code, ended.out) == (3, b"out\n"), ended.err
    (home,) = (story.here / "gpulayer_runs").glob("[0-9a-f]*/made.txt")
    assert home.read_text() == "made\n"
    assert not (story.here / "laptop").exists(), "nothing was started there"
    (mine,) = story.run("job", "list", "--json").json["jobs"]
    assert mine["submitted_by"]["name"] == "client"
    assert story.run("token", "list").code == 4, "the line is no administrator's"
    story.environment = {**there, "GPULAYER_URL": f"https://[::1]:{port}"}
    assert story.run("submit", "--", "echo", "six").out == b"six\n"
    story.environment = {**there, "GPULAYER_FINGERPRINT": "sha256:" + "0" * 64}
    refused = story.run("job", "list")
    assert refused.code == 5
    assert "is not the pinned one" in refused.err

    story.environment = plain
    before = json.loads((story.state / "endpoint.json").read_text())
    os.kill(before["pid"], signal.SIGKILL)
    assert len(story.run("job", "list", "--json").json["jobs"]) == 2  # starts it again
    after = json.loads((story.state / "endpoint.json").read_text())
    assert after["pid"] != before["pid"]
    for field in ("urls", "fingerprints", "restart", "embedded"):
        assert after[field] == before[field]
    story.environment = there
    assert story.run("submit", "--", "echo", "again").out == b"again\n"

    story.environment = plain
    assert story.run("up", "--detach").code == 0
    story.environment = there
    assert story.run("job", "list").code == 0, "it was used: a second line does not end it"
    story.environment = plain


@DEADLINE
def test_the_lines_for_one_machine_are_plain_and_say_so(story):
    port = free_port()
    up = story.run("up", "--detach", "--no-worker", "--host", "127.0.0.1", "--port", str(port))
    assert up.code == 0, up.err
    join, export = (line.strip() for line in up.out.decode().splitlines())
    assert join.startswith(f"gpulayer join http://127.0.0.1:{port} --token gle_")
    assert "--fingerprint" not in join
    assert exported(export).keys() == {"GPULAYER_URL", "GPULAYER_TOKEN"}
    assert "no other machine reaches it there" in up.err
    assert not (story.state / "tls").exists()
    status = story.run("status", "--json").json
    assert (status["url"], status["urls"], status["fingerprints"]) == (f"http://127.0.0.1:{port}", [], [])
