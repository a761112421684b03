"""C4, the worker's part: a job fills the disk of its worker; the job ends for that reason, and the worker goes on."""

import json
import os
import re
import signal
import socket
import subprocess
from contextlib import contextmanager

import pytest

FILL = "echo begun; dd if=/dev/zero of=big bs=1M count=50 2>/dev/null || { echo no room; exit 3; }; rm big"


@pytest.fixture
def disk(disk_of):
    return disk_of(20 * 1024)


@contextmanager
def joined(story, disk, *options):
    """A control plane, and a worker ``a-small`` whose folder is on that disk."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    up = story.run("up", "--detach", "--host", "127.0.0.1", "--port", port, *options)
    assert up.code == 0, up.err
    token = re.search(r"--token (\S+)", up.out.decode() + up.err)[1]
    url = f"http://127.0.0.1:{port}"
    argv = ("join", url, "--token", token, "--name", "a-small", "--work-dir", str(disk / "w"))
    worker = story.start(*argv, stdout=subprocess.DEVNULL)
    try:
        story.until(lambda: worker.poll() is not None or "a-small" in ready(story), "the worker has joined")
        assert worker.poll() is None, story.end(worker).err
        yield worker
    finally:
        worker.send_signal(signal.SIGTERM)
        ended = story.end(worker)
    assert ended.code == 0, ended.err
    assert "Traceback" not in ended.err


def ready(story):
    workers = story.run("worker", "list", "--json").json["workers"]
    return [worker["name"] for worker in workers if worker["state"] == "ready"]


def test_c4_a_job_that_fills_its_workers_disk_ends_as_disk_full_and_the_worker_takes_the_next(story, disk):
    with joined(story, disk, "--no-worker"):
        ended = story.run("submit", "--json", "--", "sh", "-c", FILL)
        job = ended.json
        assert ended.code == 6, ended.err
        assert (job["state"], job["ended_by"], job["exit_code"]) == ("failed", "disk_full", 3)
        assert "the disk of worker a-small is full" in job["reason"]["message"]
        assert [attempt["blame"] for attempt in job["attempts"]] == ["infrastructure"], "and it did not try again there"
        assert story.run("job", "logs", job["id"]).out == b"begun\nno room\n"
        ended = story.run("submit", "--", "sh", "-c", "dd if=/dev/zero of=big bs=1M count=5 2>&-; rm big; echo fine")
        assert (ended.code, ended.out) == (0, b"fine\n"), ended.err
        assert os.listdir(disk / "w" / "attempts") == []
        ended = story.run("submit", "--quiet", "--", "yes", "0123456789abcde")
        assert ended.code == 6, ended.err
        assert len(ended.out) > 10_000_000, "output alone fills it too"
        assert ended.out == (b"0123456789abcde\n" * (len(ended.out) // 16 + 1))[: len(ended.out)]


def test_c4_it_is_placed_once_more_on_another_worker_and_never_there_again(story, disk):
    with joined(story, disk):
        story.until(lambda: len(ready(story)) == 2, "both workers are ready")
        ended = story.run("submit", "--json", "--", "sh", "-c", FILL)
        assert ended.code == 0, ended.err
        first, second = json.loads(ended.out)["attempts"]
        assert (first["nodes"][0]["worker"], first["ended_by"]) == ("a-small", "disk_full")
        assert (second["nodes"][0]["worker"] == "a-small", second["ended_by"]) == (False, "program")
