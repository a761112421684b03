"""Faults that users met elsewhere (a test's name begins with its case), and the first page's promises, end to end."""

import hashlib
import json
import os
import signal
import socket
import socketserver
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from gpulayer.spawner.state import StateDir
from tests.together import kill_together


def write(path, text, mode=0o644):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def test_s4_sockets_and_fifos_in_the_folder_are_named_once_and_block_nothing(story):
    app = story.here / "app"
    write(app / "main.sh", "#!/bin/sh\nls\n", 0o755)
    os.mkfifo(app / "pipe")
    with socket.socket(socket.AF_UNIX) as unix:
        before = os.getcwd()
        os.chdir(app)
        unix.bind("run.sock")
        os.chdir(before)
        ended = story.run("submit", "--source", "app", "--", "./main.sh")
    assert (ended.code, ended.out) == (0, b"main.sh\n"), ended.err
    (warning,) = [line for line in ended.err.splitlines() if "pipe" in line]
    assert "run.sock" in warning


def test_s7_modes_and_empty_folders_arrive_whatever_the_umask(story):
    app = story.here / "app"
    write(app / "run.sh", "#!/bin/sh\nstat -c '%a %n' run.sh plain.txt\n", 0o755)
    write(app / "plain.txt", "plain", 0o600)
    (app / "out").mkdir()
    assert story.run("up", "--detach", "--port", free_port(), umask=0o077).code == 0
    ended = story.run("submit", "--source", "app", "--", "sh", "-c", "./run.sh && test -d out")
    assert ended.code == 0, ended.err
    run_mode, plain_mode = (line.split()[0] for line in ended.out.decode().splitlines())
    assert run_mode == "755"
    assert int(plain_mode, 8) & 0o400


def test_s7_a_script_without_the_bit_is_126_with_a_hint(story):
    write(story.here / "app" / "plain.sh", "#!/bin/sh\n", 0o644)
    ended = story.run("submit", "--source", "app", "--", "./plain.sh")
    assert ended.code == 126
    assert "chmod +x" in ended.err


FIVE_MB = "import sys; sys.stdout.write('x' * 5_000_000); sys.stdout.flush()"


def test_l3_a_line_of_five_megabytes_arrives_and_the_worker_lives_on(story):
    ended = story.run("submit", "--", sys.executable, "-c", FIVE_MB)
    assert ended.code == 0, ended.err
    assert ended.out == b"x" * 5_000_000
    both = "import sys\nfor stream in (sys.stdout, sys.stderr):\n    stream.write('x' * 5_000_000); stream.flush()"
    ended = story.run("submit", "--", sys.executable, "-c", both)
    assert ended.code == 0, ended.err
    assert ended.out == b"x" * 10_000_000
    assert story.run("submit", "--", "echo", "alive").out == b"alive\n"


def test_c2_simultaneous_submits_with_one_key_are_one_job(story):
    assert story.run("submit", "--", "true").code == 0
    keyed = ("submit", "--detach", "--idempotency-key", "once", "--", "sh", "-c", "echo ran >> $0", "/dev/null")
    with ThreadPoolExecutor(4) as pool:
        ids = {ended.out for ended in pool.map(lambda _: story.run(*keyed), range(4))}
    assert len(ids) == 1
    assert len(story.run("job", "list", "--json").json["jobs"]) == 2
    other = story.run("submit", "--detach", "--idempotency-key", "once", "--", "false")
    assert other.code == 2
    assert "idempotency" in other.err


def test_c2_a_key_is_remembered_over_the_death_of_the_control_plane(story):
    keyed = ("submit", "--detach", "--idempotency-key", "once", "--", "true")
    first = story.run(*keyed)
    os.kill(story.plane_pid(), signal.SIGKILL)
    assert story.run(*keyed).out == first.out != b""


def test_c2_a_key_that_comes_again_leaves_its_job_as_it_has_become(story):
    keyed = ("submit", "--detach", "--idempotency-key", "once", "--", "sh", "-c", "exit 3")
    first = story.run(*keyed).out
    assert story.run("job", "wait", first.decode().strip()).code == 3
    before = story.job(first.decode().strip())
    assert story.run(*keyed).out == first
    assert story.job(first.decode().strip()) == before


def test_c2_a_submit_whose_answer_was_lost_is_not_made_twice(story):
    """A proxy hands the first submission on, and drops the answer."""
    assert story.run("submit", "--", "true").code == 0
    with dropping_proxy(story) as (url, token, dropped):
        story.environment |= {"GPULAYER_URL": url, "GPULAYER_TOKEN": token}
        ended = story.run("submit", "--detach", "--", "true")
        del story.environment["GPULAYER_URL"], story.environment["GPULAYER_TOKEN"]
    assert ended.code == 0, ended.err
    assert dropped == ["POST /v1/jobs HTTP/1.1"]
    jobs = story.run("job", "list", "--json").json["jobs"]
    assert len(jobs) == 2
    assert jobs[0]["id"] == ended.out.decode().strip()


@pytest.mark.parametrize("code", [0, 1, 126, 127, 200, 255])
def test_the_exit_code_is_the_programs_own(shared, code):
    assert shared.run("submit", "--quiet", "--", "sh", "-c", f"exit {code}").code == code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
def test_death_by_signal_is_128_and_the_signal(shared, number):
    ended = shared.run("submit", "--quiet", "--", "sh", "-c", f"kill -{int(number)} $$")
    assert ended.code == 128 + number


def test_every_byte_is_the_programs_own(shared):
    program = "import sys; sys.stdout.buffer.write(bytes(range(256)) + b'\\rno newline')"
    ended = shared.run("submit", "--quiet", "--", sys.executable, "-c", program)
    assert ended.out == bytes(range(256)) + b"\rno newline"


TICK = "i=0; while [ $i -lt 20 ]; do i=$((i+1)); echo $i; sleep 0.1; done; exit 7"
TICKED = b"".join(b"%d\n" % number for number in range(1, 21))


def test_an_agent_killed_in_mid_job_comes_back_and_the_exit_code_still_arrives(story):
    process = story.start("submit", "--", "sh", "-c", TICK)
    first = process.stdout.readline()
    killed = story.agent_pid()
    os.kill(killed, signal.SIGKILL)
    ended = story.end(process)
    assert ended.code == 7, ended.err
    assert first + ended.out == TICKED
    assert story.agent_pid() != killed
    (job,) = story.run("job", "list", "--json").json["jobs"]
    assert len(job["attempts"]) == 1


def test_a_control_plane_killed_in_mid_job_comes_back_with_every_line_once(story):
    process = story.start("submit", "--", "sh", "-c", TICK)
    first = process.stdout.readline()
    os.kill(story.plane_pid(), signal.SIGKILL)
    ended = story.end(process)
    assert ended.code == 7, ended.err
    assert first + ended.out == TICKED


def test_a_spawner_killed_in_mid_job_costs_an_attempt_and_the_job_runs_again(story):
    marker = story.here / "started"
    script = f"echo x >> {marker}; [ $(wc -l < {marker}) -gt 1 ] || sleep 600"
    process = story.start("submit", "--", "sh", "-c", script)
    story.until(marker.exists, "the job has started")
    kill_together(StateDir(str(story.state / "worker" / "spawner")).read_pids().values())
    ended = story.end(process)
    assert ended.code == 0, ended.err
    (job,) = story.run("job", "list", "--json").json["jobs"]
    assert [attempt["ended_by"] for attempt in job["attempts"]] == ["worker_lost", "program"]


def test_outputs_come_home_and_unchanged_files_do_not(story):
    write(story.here / "app" / "kept.txt", "as it was")
    write(story.here / "app" / "changed.txt", "before")
    script = (
        "echo after > changed.txt; mkdir -p deep/er; printf new > deep/er/new.bin; echo mine > $GPULAYER_OUTPUT_DIR/o"
    )
    ended = story.run("submit", "--json", "--source", "app", "--", "sh", "-c", script)
    assert ended.code == 0, ended.err
    home = story.here / "gpulayer_runs" / ended.json["id"]
    came = {str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()}
    assert came == {"changed.txt", "deep/er/new.bin", "o"}
    by_path = {output["path"]: output for output in ended.json["outputs"]}
    assert by_path["deep/er/new.bin"]["digest"] == hashlib.sha256(b"new").hexdigest()
    assert (home / "changed.txt").read_text() == "after\n"


def test_cancel_ends_a_running_job_and_keeps_what_it_wrote(story):
    script = "trap 'echo saved > ckpt.txt; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    process = story.start("submit", "--", "sh", "-c", script)
    assert process.stdout.readline() == b"ready\n"
    (job,) = story.run("job", "list", "--json").json["jobs"]
    assert story.run("job", "cancel", job["id"][:6]).code == 0
    ended = story.end(process)
    assert ended.code == 7
    assert (story.here / "gpulayer_runs" / job["id"] / "ckpt.txt").read_text() == "saved\n"
    assert story.job(job["id"])["state"] == "cancelled"


def test_two_workers_can_not_have_one_name(story):
    up = story.run("up", "--detach", "--port", free_port())
    assert up.code == 0, up.err
    join = up.out.decode().splitlines()[0].split()[1:]
    (held,) = story.run("worker", "list", "--json").json["workers"]
    ended = story.run(*join, "--name", held["name"], "--work-dir", str(story.state / "twin"))
    assert ended.code == 2
    assert f"another worker has the name {held['name']!r}" in ended.err


def test_a_lost_store_is_not_made_anew_in_silence_and_the_own_worker_comes_back_to_a_new_one(story):
    assert story.run("submit", "--", "true").code == 0
    assert story.run("down").code == 0
    store = story.state / "store.db"
    store.write_bytes(b"")
    refused = story.run("submit", "--", "true")
    assert refused.code == 5
    assert f"{store} is damaged: it is empty" in refused.err
    assert "gpulayer restore FILE" in refused.err
    store.unlink()
    refused = story.run("submit", "--", "true")
    assert refused.code == 5
    assert f"{store} is damaged: it is gone" in refused.err
    (story.state / "pepper").unlink()
    ended = story.run("submit", "--", "echo", "back")
    assert (ended.code, ended.out) == (0, b"back\n"), ended.err


def test_a_damaged_identity_of_the_own_worker_is_refused_by_name_until_it_is_moved_away(story):
    assert story.run("submit", "--", "true").code == 0
    assert story.run("down").code == 0
    identity = story.state / "worker" / "identity.json"
    identity.write_bytes(b"{garbage")
    refused = story.run("submit", "--", "true")
    assert refused.code != 0
    assert f"{identity} can't be read" in refused.err
    assert identity.read_bytes() == b"{garbage"
    identity.unlink()
    ended = story.run("submit", "--", "echo", "back")
    assert (ended.code, ended.out) == (0, b"back\n"), ended.err


def test_no_worker_fits_is_a_table_and_exit_code_3(shared):
    ended = shared.run("submit", "--accelerator", "cuda", "--devices", "2", "--", "true")
    assert ended.code == 3
    first, second = ended.err.splitlines()[:2]
    assert first == "no worker fits: 2 × cuda"
    assert second.split()[1:] == ["accelerator", "has", "no", "accelerator"]


# Parts ----------------------------------------------------------------------------------------------------------------


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@contextmanager
def dropping_proxy(story):
    """Hands every request on; the answer to the first submission is thrown away and the connection closed."""
    endpoint = json.loads((story.state / "endpoint.json").read_text())
    target = ("127.0.0.1", int(endpoint["url"].rpartition(":")[2]))
    dropped = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            while True:
                head = b""
                while not head.endswith(b"\r\n\r\n"):
                    line = self.rfile.readline()
                    if not line:
                        return
                    head += line
                length = next((int(h[15:]) for h in head.split(b"\r\n") if h.lower().startswith(b"content-length:")), 0)
                body = self.rfile.read(length)
                first = head.split(b"\r\n")[0].decode()
                with socket.create_connection(target, timeout=60) as onward:
                    onward.sendall(head.replace(b"\r\n", b"\r\nConnection: close\r\n", 1) + body)
                    answer = b"".join(iter(lambda: onward.recv(65536), b""))
                if first.startswith("POST /v1/jobs ") and not dropped:
                    dropped.append(first)
                    return
                self.wfile.write(answer)
                return

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", endpoint["token"], dropped
        finally:
            server.shutdown()
            thread.join(10)
