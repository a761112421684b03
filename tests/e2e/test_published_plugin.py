"""A published plugin works: built as a wheel, installed beside core in an empty environment, found, used, removed.

torch is not installed there: the launcher needs none, and the job here only prints its variables.
"""

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.e2e.fresh import ROOT, FreshEnvironment

DEADLINE_S = 60.0

ONE_RANK = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "NODE_RANK": "0",
    "GROUP_RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "0",
    "OMP_NUM_THREADS": "1",
}


class User:
    """Of the program in a fresh environment, with folders of their own."""

    def __init__(self, folder: Path, fresh: FreshEnvironment) -> None:
        self.here = folder / "here"
        self.here.mkdir()
        self.state = folder / "state"
        self.fresh = fresh
        self.environment = {
            "PATH": f"{fresh.bin}:{os.environ['PATH']}",
            "HOME": str(folder),
            "GPULAYER_STATE_DIR": str(self.state),
            "GPULAYER_CONFIG_DIR": str(folder / "config"),
        }

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.fresh.bin / "gpulayer", *argv],
            cwd=self.here,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )

    def plugins(self) -> dict[tuple[str, str], dict[str, object]]:
        listed = self.run("plugins", "--json")
        assert listed.returncode == 0, listed.stderr
        return {(one["where"], one["name"]): one for one in json.loads(listed.stdout)["plugins"]}

    def processes(self) -> list[str]:
        """Command lines that name the state folder."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                line = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
            except OSError:
                continue
            if str(self.state).encode() in line:
                found.append(line.decode(errors="replace"))
        return found


@pytest.fixture(scope="module")
def user(tmp_path_factory):
    folder = tmp_path_factory.mktemp("published")
    user = User(folder, FreshEnvironment(folder))
    yield user
    ended = user.run("down")
    assert ended.returncode == 0, ended.stderr
    until = time.monotonic() + DEADLINE_S
    while user.processes():
        assert time.monotonic() < until, user.processes()
        time.sleep(0.05)


def test_only_what_the_wheels_require_is_there(user):
    code = "import gpulayer, importlib.util as u; print(gpulayer.__file__, u.find_spec('pytest'), u.find_spec('torch'))"
    python = [user.fresh.bin / "python", "-c", code]
    found = subprocess.run(python, env=user.environment, capture_output=True, text=True, check=True).stdout
    assert found == f"{user.fresh.packages}/gpulayer/__init__.py None None\n"


def test_a_published_plugin_is_found_used_and_removed(user):
    assert not any(name == "torch" for _, name in user.plugins())

    user.fresh.install_package(ROOT / "gpulayer-torch")
    torch = user.plugins()["here", "torch"]
    assert (torch["status"], torch["distribution"], torch["version"]) == ("ok", "gpulayer-torch", "0.1.0")
    assert torch["provides"] == ["launcher torch"]

    done = user.run("submit", "--launcher", "torch", "--", "env")
    assert done.returncode == 0, done.stderr
    variables = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    assert {name: variables.get(name) for name in ONE_RANK} == ONE_RANK
    assert variables["GPULAYER_JOB_ID"]
    assert user.run("down").returncode == 0

    user.fresh.uninstall("gpulayer-torch")
    assert not any(name == "torch" for _, name in user.plugins())
    refused = user.run("submit", "--launcher", "torch", "--", "env")
    assert refused.returncode == 3, refused.stdout + refused.stderr
    assert "launcher:torch" in refused.stderr or "launcher torch" in refused.stderr
    (job,) = [job for job in json.loads(user.run("job", "list", "--json").stdout)["jobs"] if job["state"] == "rejected"]
    shown = json.loads(user.run("job", "show", job["id"], "--json").stdout)
    assert {reason["code"] for verdict in shown["verdicts"] for reason in verdict["reasons"]} == {"capability"}
