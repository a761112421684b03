"""Every write that a disk may refuse, with no room and with a bad disk, in real processes; see ``writes``."""

import random
import subprocess
import sys

import pytest

from gpulayer.faults import WRITES
from gpulayer.server.tokens import TokenKind, make_token
from tests.e2e.kills import chains, writes

pytestmark = pytest.mark.timeout(600)


def test_a_control_plane_that_can_not_write_at_its_start_says_so_and_starts_when_it_can(tmp_path):
    writes.fail_in_setup(tmp_path, rng=random.Random(0))


def test_a_control_plane_that_can_not_write_refuses_loses_nothing_and_goes_on_by_itself(tmp_path):
    writes.fail_in_traffic(tmp_path, rng=random.Random(0))


def test_a_control_plane_that_can_not_write_what_time_brings_does_it_later(tmp_path):
    writes.fail_in_sweeps(tmp_path, rng=random.Random(0))


def test_a_worker_that_can_not_write_ends_the_attempt_or_writes_later_and_takes_the_next_job(tmp_path):
    writes.fail_on_worker(tmp_path, rng=random.Random(0))


@pytest.mark.parametrize("action", writes.ACTIONS)
def test_a_command_that_can_not_write_says_so_and_leaves_what_there_was(shared_scene, action):
    scene = shared_scene
    if not scene.workers:
        scene.add_worker("steady")
    sent, env = scene.plan()
    words = [word for name, value in env.items() for word in ("--env", f"{name}={value}")]
    here = scene.folder / sent.mark
    here.mkdir()
    submits = [sys.executable, "-m", "gpulayer.cli", "submit"]

    def submit(faults=""):
        return subprocess.run(
            [*submits, "--source", str(scene.source), "--idempotency-key", sent.mark, *words, "--", "./job.sh"],
            cwd=here,
            env={**scene.environment, **({"GPULAYER_FAULTS": faults} if faults else {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )

    failed = submit(f"client.before_file:2:{action}")
    assert any(why in failed.stderr for why in writes.SAYS_WHY), failed.stderr
    assert "Traceback" not in failed.stderr, failed.stderr
    assert failed.returncode == 6, failed.stderr
    again = submit()
    assert (again.returncode, again.stdout.encode()) == (7, sent.log), again.stderr
    (home,) = (path for path in (here / "gpulayer_runs").iterdir() if path.is_dir())
    assert {str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()} == set(sent.outputs)


@pytest.mark.parametrize("action", writes.ACTIONS)
def test_contexts_that_can_not_be_written_stay_as_they_were(action, tmp_path, shared_scene):
    pin, token = "sha256:" + "ab" * 32, make_token(TokenKind.CLIENT)
    environment = {**shared_scene.environment, "GPULAYER_CONFIG_DIR": str(tmp_path)}

    def add(name, faults=""):
        words = ["add", name, f"https://{name}:1", "--token-file", "-", "--fingerprint", pin, "--no-check"]
        return subprocess.run(
            [sys.executable, "-m", "gpulayer.cli", "context", *words],
            env={**environment, **({"GPULAYER_FAULTS": faults} if faults else {})},
            input=token,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )

    assert add("first").returncode == 0
    (before,) = (path.read_bytes() for path in tmp_path.iterdir() if path.suffix != ".lock")
    failed = add("next", f"client.before_contexts:1:{action}")
    assert failed.returncode == 2, failed.stderr
    assert "can't be written" in failed.stderr
    assert any(why in failed.stderr for why in writes.SAYS_WHY), failed.stderr
    assert [path.read_bytes() for path in tmp_path.iterdir() if path.suffix != ".lock"] == [before]
    assert add("next").returncode == 0


def test_every_write_fails_in_a_test():
    plane = writes.of([*chains.setup_points(), *chains.traffic_points(), *chains.sweep_points()])
    worker = writes.worker_writes("agent.", "spawner.", "watchdog.")
    client = ["client.before_contexts", "client.before_file"]
    # What a builder's disk does to an environment is in the tests of environments.
    assert sorted([*plane, *writes.AT_START, *worker, *client, "agent.before_environment"]) == sorted(WRITES)
