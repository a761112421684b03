"""What is said of a program that can't be started, by whose choice it is."""

import asyncio
import errno
from pathlib import Path

import pytest

from gpulayer.errors import TimedOut
from gpulayer.ids import Epoch, JobId
from gpulayer.plugins import LaunchPlan
from gpulayer.plugins.contracts.launcher import Launched, NotLaunched
from gpulayer.spawner.messages import Spawned, SpawnFailed
from gpulayer.spec.assignment import Assignment, NodeKey
from gpulayer.worker.starting import SpawnerStarter

KEY = NodeKey(Epoch(7), 0)


class Link:
    def __init__(self, exit_code: int, number: int) -> None:
        self._reply = SpawnFailed(1, str(KEY), number, "no such file", exit_code)

    async def spawn(self, **_: object) -> SpawnFailed:
        return self._reply


class StuckLink:
    """It heard the first request late, and answers the second one: it runs."""

    def __init__(self) -> None:
        self.asked = 0
        self.kill_by_ms: object = None

    async def spawn(self, **options: object) -> Spawned:
        self.asked += 1
        self.kill_by_ms = options["kill_by_ms"]
        if self.asked == 1:
            raise TimedOut("the spawner did not answer within 30 s")
        return Spawned(2, str(KEY), 4711, existing=True)


def plan_of(*argv: str) -> LaunchPlan:
    here = Path("/x")
    return LaunchPlan(str(KEY), argv, here, {}, here / "log", here / "exit")


def test_of_a_start_that_nobody_answered_it_is_asked_again_before_anything_is_said() -> None:
    link = StuckLink()
    assignment = Assignment(KEY, JobId("7f3a000000000001"), 1, ("true",))
    assert asyncio.run(SpawnerStarter(link, assignment, 0).start(plan_of("true"))) == Launched(4711)
    assert link.asked == 2


def test_what_was_called_off_is_never_asked_for_and_what_was_asked_for_is_not_called_off() -> None:
    link = StuckLink()
    starter = SpawnerStarter(link, Assignment(KEY, JobId("7f3a000000000001"), 1, ("true",)), 0)
    assert starter.call_off()
    assert isinstance(asyncio.run(starter.start(plan_of("true"))), NotLaunched)
    assert link.asked == 0
    starter = SpawnerStarter(link, Assignment(KEY, JobId("7f3a000000000001"), 1, ("true",)), 0)
    asyncio.run(starter.start(plan_of("true")))
    assert not starter.call_off()


def test_what_takes_long_to_be_launched_is_given_the_time_that_holds_by_then() -> None:
    """An exclusive job's launcher may take longer than its lease: all the same it begins, and is not over at once."""
    link = StuckLink()
    starter = SpawnerStarter(link, Assignment(KEY, JobId("7f3a000000000001"), 1, ("true",)), 19_000)
    assert starter.extend(49_000)
    asyncio.run(starter.start(plan_of("true")))
    assert link.kill_by_ms == 49_000
    assert not starter.extend(59_000), "the spawner is to be told"


def test_a_start_that_was_called_off_meanwhile_is_not_wanted_by_anybody() -> None:
    class Asks:
        async def spawn(self, *, is_wanted, **_: object) -> SpawnFailed:
            assert is_wanted()
            assert not starter.call_off()
            assert not is_wanted()
            return SpawnFailed(0, str(KEY), 0, "it was called off", None)

    starter = SpawnerStarter(Asks(), Assignment(KEY, JobId("7f3a000000000001"), 1, ("true",)), 0)
    assert asyncio.run(starter.start(plan_of("true"))) == NotLaunched(None, "it was called off", "")


def start(*argv: str, exit_code: int = 127, number: int = errno.ENOENT) -> NotLaunched:
    attempt = Assignment(KEY, JobId("7f3a000000000001"), 1, ("python", "train.py"), launcher="nicetime")
    found = asyncio.run(SpawnerStarter(Link(exit_code, number), attempt, 0).start(plan_of(*argv)))
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
