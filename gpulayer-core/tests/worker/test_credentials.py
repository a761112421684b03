"""Real workers and a scripted control plane: what a job may know reaches its program alone, and logs are masked."""

import contextlib
import hashlib
import sys

VALUE = "abc123xyz"
TOKEN = "glj_" + "0" * 12 + "_" + "t" * 49
SECRETS = (200, {"secrets": {"HF_TOKEN": VALUE}, "token": None})
PRINTS = "import os; print(os.environ['HF_TOKEN'], flush=True)"


def refusal(status, code, message="no"):
    return status, {"error": {"code": code, "message": message, "hint": "", "blame": "user", "details": {}}}


def files_with(folder, value):
    """Whether the program itself made them or not, by name or content."""
    found = [path for path in folder.rglob("*") if value in path.name]
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            if path.is_file() and value.encode() in path.read_bytes():
                found.append(path)
    return found


def asked(plane):
    return [path for method, path in plane.requests if path.endswith("/credentials")]


def test_the_program_has_its_secret_the_log_is_masked_and_no_file_has_it(scene, tmp_path):
    go = tmp_path / "go"
    program = f"""
import hashlib, os, pathlib, sys, time
value = os.environ["HF_TOKEN"]
for out in (sys.stdout, sys.stderr):
    out.write(value[:4])
    out.flush()
    time.sleep(0.05)
    out.write(value[4:] + "|")
    out.flush()
while not pathlib.Path({str(go)!r}).exists():
    time.sleep(0.02)
sys.exit(hashlib.sha256(value.encode()).hexdigest() != sys.argv[1])
"""

    async def main(plane, worker):
        plane.credentials[1] = SECRETS
        digest = hashlib.sha256(VALUE.encode()).hexdigest()
        plane.assign(1, sys.executable, "-c", program, digest, has_credentials=True, split_streams=True)
        worker.start()
        await plane.until(lambda: b"|" in plane.logs.get((1, "stderr"), b""))
        assert files_with(worker.folder, VALUE) == []
        go.touch()
        item = await plane.end_of(1)
        assert item["outcome"]["exit_code"] == 0
        assert bytes(plane.logs[1]) == b"*********|"
        assert bytes(plane.logs[1, "stderr"]) == b"*********|"
        assert len(asked(plane)) == 1
        assert VALUE not in worker.said
        await worker.stop()
        assert files_with(worker.folder, VALUE) == []

    scene(main)


def test_a_granted_token_comes_with_the_way_to_use_it_and_is_masked(scene):
    program = "import os; print({k: v for k, v in os.environ.items() if k in ('GPULAYER_URL', 'GPULAYER_TOKEN')})"

    async def main(plane, worker):
        plane.credentials[1] = (200, {"secrets": {}, "token": TOKEN})
        plane.assign(1, sys.executable, "-c", program, has_credentials=True, env={"GPULAYER_URL": "http://other"})
        worker.start()
        await plane.end_of(1)
        shown = f"{{'GPULAYER_URL': '{plane.url}', 'GPULAYER_TOKEN': '{'*' * len(TOKEN)}'}}\n"
        assert sorted(plane.logs[1].decode()) == sorted(shown)
        assert TOKEN.encode() not in plane.logs[1]

    scene(main)


def test_without_credentials_nobody_asks(scene):
    async def main(plane, worker):
        plane.assign(1, "echo", VALUE)
        worker.start()
        await plane.end_of(1)
        assert bytes(plane.logs[1]) == VALUE.encode() + b"\n"
        assert asked(plane) == []

    scene(main)


def test_credentials_that_are_refused_for_good_end_the_job_as_staging(scene):
    async def main(plane, worker):
        plane.credentials[1] = refusal(409, "conflict", "secrets.key is missing")
        plane.assign(1, "true", has_credentials=True)
        worker.start()
        outcome = (await plane.end_of(1))["outcome"]
        assert (outcome["ended_by"], outcome["blame"]) == ("staging", "infrastructure")
        assert "secrets.key is missing" in outcome["evidence"]

    scene(main)


def test_an_outage_at_the_start_is_waited_out(scene):
    async def main(plane, worker):
        plane.credentials[1] = refusal(503, "storage_unavailable")
        plane.assign(1, sys.executable, "-c", PRINTS, has_credentials=True)
        worker.start()
        await plane.until(lambda: len(asked(plane)) >= 3)
        assert 1 not in plane.ended
        plane.credentials[1] = SECRETS
        assert (await plane.end_of(1))["outcome"]["exit_code"] == 0
        assert bytes(plane.logs[1]) == b"*********\n"

    scene(main)


def test_a_job_that_waits_for_its_credentials_can_be_cancelled(scene):
    async def main(plane, worker):
        plane.credentials[1] = refusal(503, "storage_unavailable")
        plane.assign(1, sys.executable, "-c", PRINTS, has_credentials=True)
        worker.start()
        await plane.until(lambda: asked(plane))
        plane.stop(1)
        assert (await plane.end_of(1))["outcome"]["ended_by"] == "cancel"

    scene(main)


def test_an_attempt_that_was_lent_to_another_meanwhile_never_starts(scene, tmp_path):
    mark = tmp_path / "ran"

    async def main(plane, worker):
        plane.credentials[1] = refusal(409, "stale_attempt")
        plane.assign(1, "touch", str(mark), has_credentials=True)
        plane.assign(2, "true")
        worker.start()
        await plane.end_of(2)
        await plane.until(lambda: worker.attempts() == [])
        assert 1 not in plane.ended
        assert not mark.exists()

    scene(main)


def test_an_agent_that_was_killed_fetches_them_again_before_it_sends_a_byte(scene, tmp_path):
    go = tmp_path / "go"
    program = f"""
import os, pathlib, sys, time
value = os.environ["HF_TOKEN"]
sys.stdout.write("first " + value[:5])
sys.stdout.flush()
while not pathlib.Path({str(go)!r}).exists():
    time.sleep(0.02)
sys.stdout.write(value[5:] + " last " + value)
"""

    async def main(plane, worker):
        plane.credentials[1] = SECRETS
        plane.assign(1, sys.executable, "-c", program, has_credentials=True)
        worker.start()
        await plane.until(lambda: plane.logs.get(1) == b"first ")
        worker.kill()
        plane.credentials[1] = refusal(503, "storage_unavailable")
        worker.start()
        go.touch()
        await plane.until(lambda: len(asked(plane)) >= 3)
        assert bytes(plane.logs[1]) == b"first "
        plane.credentials[1] = SECRETS
        assert (await plane.end_of(1))["outcome"]["exit_code"] == 0
        assert bytes(plane.logs[1]) == b"first ********* last *********"

    scene(main)


def test_a_log_that_can_not_be_masked_any_more_stays_where_it_is_and_the_record_says_so(scene, tmp_path):
    go = tmp_path / "go"
    program = f"""
import os, pathlib, time
print("begun", flush=True)
while not pathlib.Path({str(go)!r}).exists():
    time.sleep(0.02)
print(os.environ["HF_TOKEN"])
"""

    async def main(plane, worker):
        plane.credentials[1] = SECRETS
        plane.assign(1, sys.executable, "-c", program, has_credentials=True)
        worker.start()
        await plane.until(lambda: plane.logs.get(1) == b"begun\n")
        worker.kill()
        plane.credentials[1] = refusal(409, "conflict", "secrets.key is missing")
        worker.start()
        await plane.until(lambda: len(asked(plane)) >= 2)
        go.touch()
        outcome = (await plane.end_of(1))["outcome"]
        assert outcome["exit_code"] == 0
        assert "its log did not come home whole: secrets in it can't be masked" in outcome["evidence"]
        assert bytes(plane.logs[1]) == b"begun\n"

    scene(main)


def test_notes_on_what_a_program_made_are_masked(scene):
    program = "import os, socket; socket.socket(socket.AF_UNIX).bind(os.environ['HF_TOKEN'])"

    async def main(plane, worker):
        plane.credentials[1] = SECRETS
        plane.assign(1, sys.executable, "-c", program, has_credentials=True)
        worker.start()
        outcome = (await plane.end_of(1))["outcome"]
        assert "*********" in outcome["evidence"]
        assert VALUE not in str(plane.reports)

    scene(main)
