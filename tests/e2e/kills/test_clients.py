"""A foreground submit that dies: its job goes on without it, and the same key finds it again."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from gpulayer.faults import POINTS
from gpulayer.server.tokens import TokenKind, make_token
from tests.e2e.kills.chains import life_of, thing_of

pytestmark = pytest.mark.timeout(600)

CONTEXTS = [point for point in POINTS if point.startswith("client.") and thing_of(point) == "contexts"]
CLIENT = [point for point in POINTS if point.startswith("client.") and point not in CONTEXTS]

# A submit of a source that is there asks what is missing, and then sends the job: the second request that leaves.
BEFORE = ["client.after_send:1", "client.before_submit"]
MAYBE = ["client.after_send:2"]
LATER = {"client.in_home": 2, "client.before_file": 2}
AFTER = [life_of(point, LATER.get(point, 1)) for point in CLIENT if point not in {*BEFORE, "client.after_send"}]


def submit(scene, here, env, key, faults=""):
    here.mkdir(exist_ok=True)
    variables = [word for name, value in env.items() for word in ("--env", f"{name}={value}")]
    argv = [
        "submit",
        "--source",
        str(scene.source),
        "--idempotency-key",
        key,
        "--name",
        key,
        *variables,
        "--",
        "./job.sh",
    ]
    return subprocess.run(
        [sys.executable, "-m", "gpulayer.cli", *argv],
        cwd=here,
        env={**scene.environment, **({"GPULAYER_FAULTS": faults} if faults else {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=90,
        check=False,
    )


@pytest.fixture(scope="module")
def ready(shared_scene):
    shared_scene.add_worker("steady")
    shared_scene.check(shared_scene.submit())
    return shared_scene


def test_a_submit_killed_at_every_named_point_leaves_its_job_running_and_its_key_finds_it_again(ready):
    scene = ready

    def one(fault):
        sent, env = scene.plan()
        here = scene.folder / sent.mark
        killed = submit(scene, here, env, sent.mark, fault)
        assert (killed.returncode, b"fault point" in killed.stderr) == (-9, True), killed.stderr.decode()
        found = scene.ask(lambda client: client.jobs(name=sent.mark))
        assert len(found) in (0 if fault in BEFORE else 1, 0 if fault in MAYBE else 1), fault
        again = submit(scene, here, env, sent.mark)
        assert (again.returncode, again.stdout) == (7, sent.log), again.stderr.decode()
        return found, sent, here

    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(one, [*BEFORE, *MAYBE, *AFTER]))
    for found, sent, here in outcomes:
        (job,) = scene.ask(lambda client, name=sent.mark: client.jobs(name=name))
        assert [before["id"] for before in found] in ([], [job["id"]])
        scene.check(replace(sent, id=job["id"]))
        home = here / "gpulayer_runs"
        assert sorted(os.listdir(home)) == [".gitignore", job["id"]]
        came = {str(path.relative_to(home / job["id"])) for path in (home / job["id"]).rglob("*") if path.is_file()}
        assert came == set(sent.outputs)


def test_a_client_and_the_control_plane_that_die_together_lose_nothing(ready):
    scene = ready
    sent, env = scene.plan(lines=10)
    scene.plane.lives.append("plane.after_commit")
    killed = submit(scene, scene.folder / "here", env, sent.mark, "client.following:2")
    assert killed.returncode == -9
    scene.plane.kill()
    scene.ask(lambda client: client.plane())
    again = submit(scene, scene.folder / "here", env, sent.mark)
    assert (again.returncode, again.stdout) == (7, sent.log), again.stderr.decode()
    (job,) = scene.ask(lambda client: client.jobs(name=sent.mark))
    scene.check(replace(sent, id=job["id"]))


def test_a_command_that_dies_while_it_writes_the_contexts_leaves_the_old_ones_or_the_new_ones(tmp_path):
    pin, token = "sha256:" + "ab" * 32, make_token(TokenKind.CLIENT)
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "GPULAYER_CONFIG_DIR": str(tmp_path / "config")}
    environment |= {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}

    def context(*words, faults=""):
        return subprocess.run(
            [sys.executable, "-m", "gpulayer.cli", "context", *words],
            env={**environment, **({"GPULAYER_FAULTS": faults} if faults else {})},
            input=token.encode(),
            capture_output=True,
            timeout=90,
            check=False,
        )

    def add(name, faults=""):
        words = ("--token-file", "-", "--fingerprint", pin, "--no-check")
        return context("add", name, f"https://{name}:1", *words, faults=faults)

    first = add("first")
    assert first.returncode == 0, first.stderr
    for count, point in enumerate(CONTEXTS):
        name = f"next{count}"
        killed = add(name, point)
        assert (killed.returncode, b"fault point" in killed.stderr) == (-9, True), killed.stderr
        listed = context("list").stdout.decode()
        assert "first" in listed, listed
        assert (name in listed) is (point == "client.after_contexts"), listed
        again = add(name)
        assert again.returncode == 0, again.stderr
        assert name in context("list").stdout.decode()
