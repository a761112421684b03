"""Every write that a disk may refuse: each point of ``gpulayer.faults.WRITES``, with no room and with a bad disk.

What was to be written is written later, or whoever asked is told; a program that can't begin says so and is started
again. Nothing is lost, and nothing is left broken. A write fails once here; that a disk stays full is C4.
"""

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from gpulayer.client.embedded import find_plane
from gpulayer.faults import WRITES
from tests.e2e.kills import chains
from tests.e2e.kills.scene import DEADLINE_S, Scene, Sent, scenes
from tests.e2e.kills.stirs import Traffic, check_store, hook_variables, sink

ACTIONS = ("enospc", "eio")
SAYS_WHY = ("No space left on device", "Input/output error", "no space left", "input/output error")
ENDS = frozenset({2, 6})
"""Exit codes of a start that failed: what was given can't be used (a certificate that can't be made), or the disk."""

AT_START = ("commit.in_forgetting",)
"""Of a further start alone."""
ONCE = ("plane.before_key",)
"""Reached until it is written, and not again."""
EXCUSED = frozenset({"disk_full", "staging", "start_failed", "worker_lost"})


def of(points: Sequence[str]) -> list[str]:
    return [point for point in points if point in WRITES and point not in AT_START]


def setup_writes() -> list[str]:
    """What a control plane can do without comes last: one that serves has its worker, and needs no token for it."""
    return [*sorted(of(chains.setup_points()), key=lambda point: point == "plane.before_port"), *AT_START]


def worker_writes(*prefixes: str) -> list[str]:
    """Those of an environment are a plugin's business as well."""
    names = sorted(point for point in WRITES if point.startswith(prefixes))
    return [point for point in names if chains.thing_of(point) != "environment"]


def armed(points: Sequence[str], count: Callable[[], int]) -> tuple[str, list[str]]:
    """All of them in one life, each failing in either way; and what that life will say."""
    faults, said = [], []
    for point in points:
        first = 1 if point in ONCE else count()
        for place, action in enumerate(ACTIONS):
            faults.append(f"{point}:{first + place}:{action}")
            said.append(f"{point}:{action}")
    return ",".join(faults), said


def fail_in_setup(folder: Path, *, rng: random.Random, say: Callable[[str], None] = lambda _: None) -> int:
    """A control plane that can't write what it needs says so and ends; what it can do without, it does without."""
    with scenes(folder) as make:
        scene = make(options=("--host", "0.0.0.0"), rng=rng)
        lives = [f"{point}:1:{action}" for point in setup_writes() for action in ACTIONS]
        scene.plane.lives.extend(lives)
        for count, life in enumerate(lives):
            scene.plane.start()
            _until_it_serves_or_ends(scene)
            assert scene.plane.failed[count:] == [life.replace(":1:", ":")], scene.story()
            say(f"{count + 1} of {len(lives)} writes")
        scene.plane.start()
        scene.check(scene.submit(retries=0))
        log = scene.plane.log.read_text()
        assert "Traceback" not in log, log
        assert sum(any(why in line for why in SAYS_WHY) for line in log.splitlines()) >= len(lives), log
        scene.plane.end()
        check_store(scene)
        assert chains.left_half_made(scene.state) == []
    return len(lives)


def _until_it_serves_or_ends(scene: Scene) -> None:
    process, ends = scene.plane.process, time.monotonic() + DEADLINE_S
    assert process is not None
    while process.poll() is None:
        if find_plane(scene.state) is not None:
            scene.plane.die()
            return
        assert time.monotonic() < ends, scene.story()
        time.sleep(0.02)
    assert process.returncode in ENDS, f"it ended with {process.returncode}\n{scene.story()}"


def fail_in_traffic(
    folder: Path,
    *,
    rng: random.Random,
    count: Callable[[], int] = lambda: 2,
    say: Callable[[str], None] = lambda _: None,
) -> int:
    """Each write of a control plane fails in either way, in one life of it, while jobs of all kinds run."""
    with scenes(folder) as make, sink() as (url, told):
        scene = make(variables=hook_variables(url), rng=rng)
        faults, said = armed(of(chains.traffic_points()), count)
        return _fail(scene, faults, said, told, say)


def fail_in_sweeps(folder: Path, *, rng: random.Random, say: Callable[[str], None] = lambda _: None) -> int:
    """The same of what only time brings."""
    with scenes(folder) as make:
        scene = make(options=("--no-worker", *chains.KEEPS_NOTHING), lease="3s", rng=rng)
        faults, said = armed(of(chains.sweep_points()), lambda: 1)
        return _fail(scene, faults, said, None, say)


def _fail(
    scene: Scene, faults: str, said: Sequence[str], told: set[tuple[str, str]] | None, say: Callable[[str], None]
) -> int:
    scene.plane.lives.append(faults)
    scene.plane.start()
    worker = scene.add_worker("steady")
    traffic = Traffic(scene, told=told)
    _until_failed(scene, lambda: scene.plane.failed, said, traffic.stir, say)
    traffic.check(has_logs=told is not None)
    assert (scene.plane.deaths, worker.deaths) == ([], []), scene.story()
    assert "Traceback" not in scene.plane.log.read_text(), scene.story()
    worker.end()
    scene.plane.end()
    check_store(scene)
    return len(said)


def _until_failed(
    scene: Scene,
    failed: Callable[[], list[str]],
    said: Sequence[str],
    stir: Callable[[str], None],
    say: Callable[[str], None],
) -> None:
    since, seen = time.monotonic(), 0
    while left := [one for one in said if one not in failed()]:
        if len(left) != seen:
            since, seen = time.monotonic(), len(left)
            say(f"{len(said) - len(left)} of {len(said)} writes")
        stir(chains.thing_of(left[0].partition(":")[0]))
        assert time.monotonic() - since < chains.LIFE_S, f"nothing reached {left}\n{scene.story()}"
        scene.mend()
        time.sleep(0.02)


def fail_on_worker(
    folder: Path,
    *,
    rng: random.Random,
    count: Callable[[], int] = lambda: 2,
    say: Callable[[str], None] = lambda _: None,
) -> int:
    """Each write of an agent, its spawner and its watchdog fails: the write is made again, or the attempt ends."""
    with scenes(folder) as make:
        scene = make(rng=rng)
        scene.plane.start()
        starts = [f"agent.before_identity:1:{action}" for action in ACTIONS]
        own = [point for point in worker_writes("agent.") if point != "agent.before_identity"]
        agent, of_agent = armed([*own, "blobs.before_write"], count)
        spawner, of_spawner = armed(worker_writes("spawner."), count)
        # A spawner that dies has its watchdog beside it, which can't save what the pipes hold; the third one lives on.
        deaths = [f"spawner.in_output:3,watchdog.before_saving:1:{action}" for action in ACTIONS]
        worker = scene.add_worker("one", *starts, ";".join([f"{agent},{deaths[0]}", deaths[1], spawner]))
        brought = scene.folder / "brought"
        brought.write_text("an input")
        jobs: list[Sent] = []
        options = {"retries": 20, "inputs": {"brought": f"file://{brought}"}}

        def stir(_thing: str) -> None:
            scene.jobs_to_come(jobs, width=1, **options)

        _until_failed(scene, lambda: worker.failed, [one.replace(":1:", ":") for one in starts] + of_agent, stir, say)
        below = [*(f"watchdog.before_saving:{action}" for action in ACTIONS), *of_spawner]
        _until_failed(scene, lambda: worker.failed_below, below, stir, say)
        for job in jobs:
            if not _is_disk_full(scene, job):
                scene.check(job, attempts=range(1, 21), excused=EXCUSED)
        scene.check_workers()
        assert worker.deaths == [6, 6], scene.story()
        worker.end()
        scene.plane.end()
        check_store(scene)
    return len(starts) + len(of_agent) + len(below)


def _is_disk_full(scene: Scene, job: Sent) -> bool:
    """Whether it ended because of that, as a job does whose worker is the only one; then nothing of it runs."""
    record = scene.ended(job)
    if record["ended_by"] != "disk_full":
        return False
    assert "the disk of worker one " in record["reason"]["message"], record
    scene.until(lambda: not scene.left_of(job), f"the tree of {job.id} is gone")
    return True
