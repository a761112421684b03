"""C4: a job fills the disk of its worker, ends for that reason, and the worker goes on; then the control plane's."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest

from tests.e2e.kills.scene import scenes
from tests.e2e.kills.stirs import check_store

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


# The control plane's disk ---------------------------------------------------------------------------------------------


def command(scene, *argv):
    return subprocess.run(
        [sys.executable, "-m", "gpulayer.cli", *argv],
        cwd=scene.source,
        env=scene.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def refused(scene, *argv):
    """Said clearly, with a code for infrastructure, and not by a time that runs out."""
    ended = command(scene, *argv)
    assert ended.returncode == 6, ended.stderr
    assert "disk is full" in ended.stderr or "no room left" in ended.stderr, ended.stderr
    assert "hint: " in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("is_shared", [False, True], ids=["its own disk", "one disk with its worker"])
def test_c4_a_full_control_plane_refuses_submits_stops_no_job_and_recovers_by_itself(tmp_path, disk, fill, is_shared):
    with scenes(tmp_path) as make:
        scene = make(disk=disk)
        scene.plane.start()
        worker = scene.add_worker("one", disk=disk if is_shared else None)
        scene.check(scene.submit(lines=1))
        runs, go = scene.folder / "runs", scene.folder / "go"
        # What it says while the disk is full is less than the worker keeps back for an end.
        script = f"echo before; touch {runs}; until [ -e {go} ]; do echo while; sleep 0.1; done; echo after; exit 7"
        job = scene.ask(lambda client: client.submit(["sh", "-c", script], retries=0, idempotency_key="long"))
        scene.until(runs.exists, "it runs")
        fill(disk / "filler")
        refused(scene, "submit", "--detach", "--", "true")
        refused(scene, "submit", "--detach", "--source", str(scene.source), "--", "./job.sh")
        assert command(scene, "job", "list").returncode == 0, "what there is can be read"
        assert scene.ask(lambda client: client.plane())["read_only"] is True
        if not is_shared:
            go.touch()  # its end, its last words and its record need room, and find what was kept back for that
            scene.until(lambda: ended(scene, job.id), "its end has come while the disk is full")
            assert scene.ask(lambda client: client.plane())["read_only"] is True
            refused(scene, "submit", "--detach", "--", "true")
        (disk / "filler").unlink()
        go.touch()
        record = scene.until(lambda: ended(scene, job.id), "its end has come")
        scene.until(lambda: not scene.ask(lambda client: client.plane())["read_only"], "new work is taken in again")
        assert len(record["attempts"]) == 1
        assert (record["state"], record["ended_by"], record["exit_code"]) == ("failed", "program", 7)
        log = scene.ask(lambda client: b"".join(client.job(job.id).logs()))
        assert (log.split()[0], set(log.split()[1:-1]), log.split()[-1]) == (b"before", {b"while"}, b"after")
        scene.check_workers()
        assert (scene.plane.deaths, worker.deaths) == ([], []), "nothing was started again for it"
        worker.end()
        scene.plane.end()
        check_store(scene)


@pytest.mark.parametrize("what", ["files", "output"])
def test_c4_what_a_job_writes_fills_the_disk_of_its_worker_and_the_control_plane_and_both_recover_alone(
    tmp_path, disk_of, what
):
    """The disk stays full as long as what it wrote is there, and that stays as long as nobody takes it."""
    disk = disk_of(64 * 1024)
    with scenes(tmp_path) as make:
        scene = make(disk=disk)
        scene.plane.start()
        worker = scene.add_worker("one", disk=disk)
        scene.check(scene.submit(lines=1))
        script = {"files": "dd if=/dev/zero of=big bs=64k 2>/dev/null || exit 3", "output": "yes 0123456789abcde"}[what]
        job = scene.ask(lambda client: client.submit(["sh", "-c", script], retries=0, idempotency_key="fills"))
        record = scene.until(lambda: ended(scene, job.id), "its end has come", deadline_s=80)
        assert record["state"] == "failed", record
        if what == "files":
            assert "outputs could not be brought home" in record["reason"]["message"], record
        scene.until(lambda: not os.listdir(worker.folder / "attempts"), "nothing of it is left on the disk")
        scene.until(lambda: not scene.ask(lambda client: client.plane())["read_only"], "new work is taken in again")
        scene.check(scene.submit(lines=1))
        scene.check_workers()
        assert (scene.plane.deaths, worker.deaths) == ([], []), "nothing was started again for it"
        worker.end()
        scene.plane.end()
        check_store(scene)


def ended(scene, job_id):
    record = scene.record(job_id)
    return record if record["ended_at"] is not None else None
