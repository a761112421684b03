"""Kill -9 at moments that a seed chooses, of every part alone and in pairs, under a stream of jobs."""

import signal
import time
from dataclasses import replace

import pytest

from gpulayer.faults import POINTS
from tests.together import kill_together

pytestmark = pytest.mark.timeout(600)

ALONE = ("agent", "spawner", "watchdog", "plane")
PAIRS = (
    ("agent", "spawner"),
    ("agent", "plane"),
    ("spawner", "plane"),
    ("spawner", "watchdog"),
    ("agent", "watchdog"),
    ("agent", "spawner", "watchdog"),
)

ONCE = frozenset({"plane.after_enrol", "watchdog.before_spawner"})  # reached at the very start of a scene alone


@pytest.fixture
def kills(pytestconfig, scaled):
    return pytestconfig.getoption("--kills") or scaled(1000)


def test_whatever_is_killed_at_whatever_moment_every_job_ends_as_its_program_did(scene, chance):
    mischief(scene, chance, kills=10)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_soak_of_kills_at_random_moments(make_scene, chance, kills):
    left = kills
    while left > 0:  # a new scene now and then, so that starting from nothing is hit as well
        scene = make_scene()
        scene.plane.start()
        mischief(scene, chance, kills=min(left, 100))
        scene.close()
        left -= 100


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_soak_of_named_points_at_random_and_together(scene, chance, kills):
    scene.rng.seed(chance.random())

    def lives(*prefixes):
        """Enough of them, each with a point of every prefix: whichever is reached first, others stay for the rest."""
        found = [[name for name in POINTS if name.startswith(prefix) and name not in ONCE] for prefix in prefixes]
        for _ in range(kills):
            yield ",".join(f"{chance.choice(names)}:{chance.randint(1, 4)}" for names in found)

    for name in ("left", "right"):
        scene.add_worker(name, *lives("agent.", "spawner.", "watchdog."))
    scene.plane.lives.extend(lives("plane.", "blobs."))
    scene.plane.kill()

    def deaths():
        return len(scene.plane.deaths) + sum(len(one.deaths) + len(one.fired_below) for one in scene.workers)

    jobs = scene.traffic(lambda: deaths() >= kills, width=3, retries=10 * kills, deadline_s=60 + 5 * kills)
    for kept in (scene.plane, *scene.workers):
        kept.lives.clear()
        kept.kill()  # what it is still armed with is not for the checks
    for worker in scene.workers:
        worker.kill_floor(spawner=True)
    for job in jobs:
        scene.check(job, attempts=range(1, 10 * kills), excused=frozenset({"worker_lost"}))
    scene.check_workers()


def mischief(scene, chance, *, kills):
    scene.rng.seed(chance.random())
    for name in ("left", "right"):
        scene.add_worker(name)
    victims = [(one,) for one in ALONE] + list(PAIRS)
    chance.shuffle(victims)
    schedule = [victims[number % len(victims)] for number in range(kills)]
    next_at = time.monotonic()

    def kill_when_due():
        nonlocal next_at
        if schedule and time.monotonic() >= next_at:
            kill(scene, chance.choice(scene.workers), schedule.pop())
            next_at = time.monotonic() + chance.uniform(0.05, 1.0)
        return not schedule

    jobs = scene.traffic(kill_when_due, width=3, lines=6, retries=kills, deadline_s=60 + 5 * kills)
    for job in jobs:
        scene.check(job, attempts=range(1, kills + 2), excused=frozenset({"worker_lost"}))
    scene.check_workers()


def kill(scene, worker, victims):
    pids = worker.floor(*(name for name in ("watchdog", "spawner") if name in victims))
    for kept, name in ((worker, "agent"), (scene.plane, "plane")):
        if name in victims and kept.process is not None and kept.process.poll() is None:
            pids.append(kept.process.pid)
    kill_together(pids)


# Silence --------------------------------------------------------------------------------------------------------------


def test_c5_a_control_plane_that_comes_back_long_after_the_lease_finds_its_job_going_on(make_scene):
    """What an hour is to ``--keep-for`` is shown with seconds in ``test_process_lives``."""
    scene = make_scene(lease="3s")
    scene.plane.start()
    scene.add_worker("one")
    job = scene.submit(lines=60, pause_s=0.2, retries=3)
    scene.until(job.starts.exists, "it runs")
    scene.plane.die()
    back_at = time.monotonic() + 8
    while time.monotonic() < back_at:
        time.sleep(0.05)
    scene.plane.start()
    scene.check(job, attempts=[1])
    scene.check_workers()


TICKS = """
while [ "$(cat $GO)" = wait ] && [ $GPULAYER_ATTEMPT = 1 ]; do
    read up rest < /proc/uptime; echo "$GPULAYER_ATTEMPT $up" >> $STARTS; echo tick; sleep 0.05
done
read up rest < /proc/uptime; echo "$GPULAYER_ATTEMPT $up" >> $STARTS
echo "attempt $GPULAYER_ATTEMPT"; echo "by $GPULAYER_ATTEMPT" > out.txt; exit 3
"""


@pytest.mark.parametrize("is_exclusive", [False, True], ids=["shared", "exclusive"])
def test_a_worker_that_stands_still_past_its_lease_is_fenced_and_its_job_runs_on_another(make_scene, is_exclusive):
    scene = make_scene(lease="3s")
    scene.plane.start()
    first = scene.add_worker("first")
    go = scene.folder / "go"
    go.write_text("wait")
    sent, env = scene.plan()
    command = ["sh", "-c", TICKS]
    options = {"env": {**env, "GO": str(go)}, "exclusive": is_exclusive, "grace": 0.5, "idempotency_key": sent.mark}
    sent = replace(sent, id=scene.ask(lambda client: client.submit(command, **options)).id)
    scene.until(sent.starts.exists, "it has begun")
    second = scene.add_worker("second")
    first.kill(signal.SIGSTOP)
    record = scene.ended(sent)
    first.kill(signal.SIGCONT)
    workers = [attempt["nodes"][0]["worker"] for attempt in record["attempts"]]
    assert workers == ["first", "second"], scene.story()
    # What the first one still says is not accepted, and its program goes: it waits for a word that never comes.
    scene.until(lambda: not scene.left_of(sent), "the stale program is gone")
    after = scene.record(sent.id)
    assert (after["exit_code"], after["outputs"]) == (3, record["outputs"])
    assert after["outputs"][0]["size"] == len("by 2\n")
    assert scene.log(sent, 2) == b"attempt 2\n"
    ticks = [line.split() for line in sent.starts.read_text().splitlines()]
    if is_exclusive:
        last_of_first = max(float(at) for attempt, at in ticks if attempt == "1")
        assert last_of_first < min(float(at) for attempt, at in ticks if attempt == "2")
    assert second.deaths == first.deaths == []
    scene.check_workers()
