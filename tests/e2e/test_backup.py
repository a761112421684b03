"""A control plane is backed up while a job runs, goes on, dies, and is made again in another folder: the worker comes
back by itself, its attempt of before is ended, and the job runs again. And what a user sees of a damaged store."""

import os
import shutil
import signal
import socket
import stat


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def test_a_worker_comes_back_to_a_restored_control_plane_and_its_job_runs_again(story, tmp_path) -> None:
    port = free_port()
    up = ("up", "--detach", "--host", "127.0.0.1", "--port", port, "--no-worker")
    assert story.run(*up).code == 0
    token = story.run("token", "create", "--role", "join").out.decode().split()
    (join_token,) = {word for word in token if word.startswith("gle_")}
    desk = tmp_path / "desk"
    worker = story.start(
        "join", f"http://127.0.0.1:{port}", "--token", join_token, "--name", "desk", "--work-dir", str(desk)
    )
    try:
        marks = tmp_path / "marks"
        marks.mkdir()
        script = (
            f"echo $$ > {marks}/$GPULAYER_ATTEMPT; echo begun $GPULAYER_ATTEMPT; "
            "[ $GPULAYER_ATTEMPT -gt 1 ] || sleep 600; echo out > made.txt; echo done"
        )
        job = story.run("submit", "--detach", "--output", "made.txt", "--", "sh", "-c", script).out.decode().strip()
        story.until(lambda: (marks / "1").exists() and (marks / "1").read_text().strip(), "the job runs")
        story.until(lambda: story.job(job)["state"] == "running", "and is known to run")
        backup = story.here / "kept"
        kept = story.run("backup", str(backup))
        assert kept.code == 0, kept.err
        assert stat.S_IMODE(backup.stat().st_mode) == 0o600
        again = story.run("backup", str(backup))
        assert (again.code, "is there already" in again.err) == (2, True)
        late = story.run("submit", "--detach", "--", "true").out.decode().strip()
        story.run("job", "wait", late)

        os.kill(story.plane_pid(), signal.SIGKILL)
        refused = story.run("restore", str(backup))
        assert refused.code == 2
        assert "is not empty" in refused.err
        story.state.rename(tmp_path / "lost")
        restored = story.run("restore", str(backup))
        assert restored.code == 0, restored.err
        assert "1 attempt that ran when the backup was made is lost" in restored.err
        assert story.run(*up).code == 0
        record = story.run("job", "wait", job, "--timeout", "60s", "--json").json
        assert record["state"] == "succeeded", record
        assert [attempt["ended_by"] for attempt in record["attempts"]] == ["worker_lost", "program"]
        assert "restored from a backup" in record["attempts"][0]["evidence"]
        assert story.run("job", "logs", job).out == b"begun 2\ndone\n"
        assert story.run("job", "logs", job, "--attempt", "1").out == b"begun 1\n"
        assert story.run("job", "result", job, "--download", "--dest", "home").code == 0
        assert (story.here / "home" / "made.txt").read_text() == "out\n"
        old = int((marks / "1").read_text())
        story.until(lambda: not os.path.exists(f"/proc/{old}"), "the program of the old attempt is ended")
        unknown = story.run("job", "show", late)
        assert unknown.code == 2
        assert "was restored on" in unknown.err
    finally:
        worker.send_signal(signal.SIGTERM)
        story.end(worker)


def test_a_damaged_store_is_named_by_up_submit_and_doctor_and_restored(story, tmp_path) -> None:
    assert story.run("submit", "--", "true").code == 0
    assert story.run("down").code == 0
    assert story.run("backup", "kept").code == 0  # nothing runs
    assert not (story.state / "endpoint.json").exists()
    whole = story.run("doctor")
    assert whole.code == 0, whole.out
    assert b"store.db is whole" in whole.out
    store = story.state / "store.db"
    with open(store, "r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * 4096)
    damaged = store.read_bytes()
    up = story.run("up", "--host", "127.0.0.1", "--port", "0")
    assert up.code == 6
    assert f"error: the control plane's store {store} is damaged" in up.err
    assert f"gpulayer restore FILE --state {story.state}" in up.err
    for code, command in ((5, ("submit", "--", "true")), (6, ("up", "--detach", "--host", "127.0.0.1", "--port", "0"))):
        ended = story.run(*command)
        assert ended.code == code
        assert f"{store} is damaged" in ended.err
        assert "Traceback" not in ended.err
    doctor = story.run("doctor")
    assert doctor.code == 6
    assert b"FAIL" in doctor.out
    assert b"is damaged" in doctor.out
    assert b"none starts on such a store" in doctor.out
    assert b"starts it" not in doctor.out
    assert b"gpulayer doctor" not in doctor.out, "it is what was asked"
    assert b"***" not in doctor.out
    refused = story.run("backup", "another")
    assert refused.code == 6
    assert sorted(path.name for path in story.here.iterdir() if path.is_file()) == ["kept"]
    assert store.read_bytes() == damaged
    shutil.move(story.state, tmp_path / "damaged")
    elsewhere = story.run("restore", "kept", "--state", f"{tmp_path}/else where")
    assert elsewhere.err.endswith(f"this one: gpulayer up --state '{tmp_path}/else where'\n"), elsewhere.err
    here = story.run("restore", "kept")
    assert here.code == 0
    assert here.err.endswith("before you start this one: gpulayer up\n"), "this user's own"
    refused = story.run("job", "list")
    assert (refused.code, "was restored from a backup" in refused.err) == (2, True), "a look starts none"
    assert b"is not started yet: gpulayer up" in story.run("status").out
    assert story.run("up", "--detach", "--host", "127.0.0.1", "--port", "0").code == 0
    jobs = story.run("job", "list", "--json").json["jobs"]
    assert [job["state"] for job in jobs] == ["succeeded"]
    assert story.run("submit", "--", "echo", "again").out == b"again\n"
