"""Chains of lives: every point at which a program may die, each in a life of its own, under traffic that reaches it.

A *chain* is one program whose every life is armed with the next point; it goes on until every point has been died at.
So thirty deaths cost thirty starts and not thirty set-ups, and later deaths meet what earlier ones left. What a chain
goes through is looked up in ``gpulayer.faults.POINTS``: a point that nothing reaches ends it, with the point's name.
"""

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from gpulayer.faults import POINTS
from tests.e2e.kills.scene import Scene, scenes
from tests.e2e.kills.stirs import Traffic, check_store, hook_variables, sink

LIFE_S = 60.0

PLANE = ("plane.", "commit.", "blobs.", "sinks.")
SETUP = ("port", "lock", "certificate", "certificate_name", "token", "pepper", "endpoint")
"""Of a control plane before it can be found for the first time."""
SWEEP = ("log_removal", "compaction", "expiry")
"""What only time brings."""
KEEPS_NOTHING = ("--keep-logs-ms", "500", "--keep-events-ms", "500")
_BEFORE = {"plane.in_probe": "plane.in_transaction:2:enospc,", "plane.after_probe": "plane.in_transaction:2:enospc,"}
"""What must go wrong first."""


def thing_of(point: str) -> str:
    """``plane.before_log_end`` is about ``log_end``."""
    return point.partition(".")[2].partition("_")[2]


def is_setup(point: str) -> bool:
    return point.startswith("plane.") and thing_of(point) in SETUP


def setup_points() -> list[str]:
    return [point for point in POINTS if is_setup(point)]


def sweep_points() -> list[str]:
    return [point for point in POINTS if point.startswith(PLANE) and thing_of(point) in SWEEP]


def traffic_points() -> list[str]:
    """All others of the control plane."""
    return [
        point for point in POINTS if point.startswith(PLANE) and not is_setup(point) and thing_of(point) not in SWEEP
    ]


def life_of(point: str, count: int = 1) -> str:
    return f"{_BEFORE.get(point, '')}{point}:{1 if is_once(point) else count}"


def is_once(point: str) -> bool:
    """In one life it is reached once: a key is made until it is there, one failed commit is probed for once, and what
    a former life left is forgotten at the start."""
    thing = thing_of(point)
    return thing == "forgetting" or (point.startswith("plane.") and thing in ("key", "probe"))


def in_order(points: Sequence[str]) -> list[str]:
    """What is reached on the way to something that happens once and for all comes first, in the table's order; what
    needs a life before it comes last."""
    once = [point for point in traffic_points() if point in points and is_once(point)]
    first = [point for point in once if thing_of(point) != "forgetting"]
    return [*first, *(point for point in points if point not in once), *(one for one in once if one not in first)]


def die_at_each(
    scene: Scene,
    points: Sequence[str],
    died: Callable[[], list[str]],
    stir: Callable[[str], None],
    say: Callable[[str], None] = lambda _: None,
) -> None:
    """Stir until all of them were died at, in this order: ``stir`` is told the thing that is to happen."""
    since, seen = time.monotonic(), 0
    while (count := len(died())) < len(points):
        if count > seen:
            since, seen = time.monotonic(), count
            say(f"{count} of {len(points)} points")
        stir(thing_of(points[count]))
        assert time.monotonic() - since < LIFE_S, f"nothing reached {points[count]}\n{scene.story()}"
        scene.mend()
        time.sleep(0.02)
    assert died() == list(points), scene.story()


def die_in_setup(folder: Path, *, rng: random.Random, say: Callable[[str], None] = lambda _: None) -> int:
    """A control plane for other machines, with a worker of its own, dies again and again before it ever serves."""
    points = setup_points()
    with scenes(folder) as make:
        scene = make(options=("--host", "0.0.0.0"), rng=rng)
        scene.plane.lives.extend(life_of(point) for point in points)
        scene.plane.start()
        die_at_each(scene, points, lambda: scene.plane.fired, lambda _: None, say)
        sent = scene.submit(retries=0)
        scene.check(sent)
        scene.plane.end()
        check_store(scene)
        assert left_half_made(scene.state) == []
    return len(points)


def die_in_traffic(
    folder: Path,
    points: Sequence[str],
    *,
    rng: random.Random,
    count: Callable[[], int] = lambda: 1,
    say: Callable[[str], None] = lambda _: None,
) -> int:
    """A control plane dies at these points while jobs of all kinds run, each time at the ``count``-th reach."""
    with scenes(folder) as make, sink() as (url, told):
        scene = make(variables=hook_variables(url), rng=rng)
        scene.plane.lives.extend(life_of(point, count()) for point in points)
        scene.plane.start()
        scene.add_worker("steady")
        traffic = Traffic(scene, told=told)
        die_at_each(scene, points, lambda: scene.plane.fired, traffic.stir, say)
        traffic.check()
        scene.check_workers()
        for worker in scene.workers:
            worker.end()
        scene.plane.end()
        check_store(scene)
    return len(points)


def die_in_sweeps(folder: Path, *, rng: random.Random, say: Callable[[str], None] = lambda _: None) -> int:
    """A control plane that keeps logs and events for an instant, and hears of silent workers, dies over that."""
    points = sweep_points()
    with scenes(folder) as make:
        scene = make(options=("--no-worker", *KEEPS_NOTHING), lease="3s", rng=rng)
        scene.plane.lives.extend(life_of(point) for point in points)
        scene.plane.start()
        scene.add_worker("steady")
        traffic = Traffic(scene)
        die_at_each(scene, points, lambda: scene.plane.fired, traffic.stir, say)
        traffic.check(has_logs=False)
        for worker in scene.workers:
            worker.end()
        scene.plane.end()
        check_store(scene)
    return len(points)


def left_half_made(folder: Path) -> list[str]:
    """Files under a temporary name; the worker's folder is its own."""
    return [path.name for path in folder.iterdir() if path.suffix in (".part", ".new")]
