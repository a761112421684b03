"""What is said of a program that can't be started, by whose choice it is."""

import asyncio
import errno
from pathlib import Path

import pytest

from gpulayer.ids import Epoch, JobId
from gpulayer.plugins import LaunchPlan
from gpulayer.plugins.contracts.launcher import NotLaunched
from gpulayer.spawner.messages import SpawnFailed
from gpulayer.spec.assignment import Assignment, NodeKey
from gpulayer.worker.starting import SpawnerStarter

KEY = NodeKey(Epoch(7), 0)


class Link:
    def __init__(self, exit_code: int, number: int) -> None:
        self._reply = SpawnFailed(1, str(KEY), number, "no such file", exit_code)

    async def spawn(self, **_: object) -> SpawnFailed:
        return self._reply


def start(*argv: str, exit_code: int = 127, number: int = errno.ENOENT) -> NotLaunched:
    attempt = Assignment(KEY, JobId("7f3a000000000001"), 1, ("python", "train.py"), launcher="nicetime")
    here = Path("/x")
    plan = LaunchPlan(str(KEY), argv, here, {}, here / "log", here / "exit")
    found = asyncio.run(SpawnerStarter(Link(exit_code, number), attempt, 0).start(plan))
    assert isinstance(found, NotLaunched)
    return found


@pytest.mark.parametrize(
    ("exit_code", "number", "said"),
    [
        (127, errno.ENOENT, "launcher nicetime starts nicee, which is not on this worker: install it there"),
        (126, errno.EACCES, "launcher nicetime starts nicee, which this worker can't run: install it there"),
    ],
)
def test_a_program_that_the_launcher_put_in_front_is_not_the_users_to_mend(exit_code, number, said) -> None:
    found = start("nicee", "python", "train.py", exit_code=exit_code, number=number)
    assert found.hint.startswith(said)


def test_the_users_own_program_is() -> None:
    assert start("python", "train.py").hint.startswith("check its name, ship it with --source")
