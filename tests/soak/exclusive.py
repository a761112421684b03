"""Promises 2 and 3 with real processes: one tree a device, one worker an ``--exclusive`` job, nothing stale accepted.

Programs write beats: lines ``WHO SECONDS`` by the clock that goes on in sleep. Two owners overlap when one beats after
another has begun. What is accepted is asked of the API, and compared byte by byte.
"""

import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from gpulayer.testing.distribution import install_plugin
from tests.e2e.kills.scene import KeptWorker, Scene, processes_of, read
from tests.soak.frame import Proof, Say, Tally
from tests.together import kill_together, stop_together

A_SCENE: Final = 25  # rounds; then a new control plane and new workers
LEASE: Final = "3s"

Json = Any  # a record as the API gives it


class Beat(NamedTuple):
    """Of ``who``, at ``at_s``."""

    who: str
    at_s: float


def read_beats(path: Path) -> list[Beat]:
    """Whole lines only: a program is killed at any moment."""
    if not path.exists():
        return []
    lines = [line.split() for line in path.read_text().rpartition("\n")[0].splitlines()]
    return [Beat(words[0], float(words[1])) for words in lines if len(words) == 2]


def overlaps(beats: Iterable[Beat]) -> list[str]:
    """Who beats after another has begun; a sentence each. At one and the same tick of the clock two may."""
    spans: dict[str, tuple[float, float]] = {}
    for who, at_s in beats:
        first_s, last_s = spans.get(who, (at_s, at_s))
        spans[who] = min(first_s, at_s), max(last_s, at_s)
    in_order = sorted(spans.items(), key=lambda item: item[1])
    return [
        f"{one} beats {last_s - next_s:.2f} s after {other} began"
        for (one, (_, last_s)), (other, (next_s, _)) in pairwise(in_order)
        if last_s > next_s
    ]


# Past the lease -------------------------------------------------------------------------------------------------------


class Stop(NamedTuple):
    """What stands still for longer than the lease, and whether its job is ``--exclusive``."""

    who: tuple[str, ...]
    is_exclusive: bool


# A machine that stands still with its watchdog keeps no promise to anybody while it does, nor in the instant in which
# it wakes; what it says then is stale all the same.
STOPS: Final = (
    Stop(("agent", "spawner"), is_exclusive=True),
    Stop(("agent",), is_exclusive=True),
    Stop(("agent", "spawner", "watchdog", "job"), is_exclusive=False),
    Stop(("agent",), is_exclusive=False),
    Stop(("agent", "spawner"), is_exclusive=False),
)

# The first attempt succeeds as soon as it may, which is while nobody hears it.
PROGRAM: Final = """
n=$GPULAYER_ATTEMPT
beat() { read up rest < /proc/uptime; echo "attempt-$n $up" >> "$PLACE/beats"; }
echo "attempt $n"
until [ -e "$PLACE/end.$n" ]; do beat; sleep 0.03; done
beat; echo "by $n" > result.txt; echo $n > "only.$n"; echo "end of $n"
"""


def prove_stopped(runs: int, *, seed: int, say: Say) -> Tally:
    """Stop a worker past its lease, wake it, and compare what is kept with what was before."""
    rng, tally = random.Random(seed), Tally()
    stops = [STOPS[number % len(STOPS)] for number in range(runs)]
    for start in range(0, runs, A_SCENE):
        with _scene() as scene:
            scene.rng.seed(rng.random())
            for name in ("left", "right"):
                scene.add_worker(name)
            for stop in stops[start : start + A_SCENE]:
                tally.violations += [
                    f"{what}\nagain: python -m tests.soak --only 3 --seed {seed}" for what in _stand_still(scene, stop)
                ]
                tally.runs += 1
                tally.faults += len(stop.who)
                say(f"{tally.runs} of {runs} rounds, {len(tally.violations)} violations")
    return tally


def _stand_still(scene: Scene, stop: Stop) -> Iterator[str]:
    scene.until(lambda: _idle(scene), "both workers are there and hold nothing")
    place = scene.folder / f"{scene.rng.getrandbits(64):016x}"
    place.mkdir()
    job_id = scene.ask(
        lambda client: client.submit(
            ["sh", "-c", PROGRAM],
            env={"PLACE": str(place)},
            retries=3,
            exclusive=stop.is_exclusive,
            grace=0.5,
            idempotency_key=place.name,
        )
    ).id
    scene.until(lambda: read_beats(place / "beats"), "it runs")
    first = scene.until(lambda: _worker_of(scene, job_id), "it is known where")
    pids = _pids(first, place, stop.who)
    stop_together(pids)
    scene.until(lambda: any(beat.who == "attempt-2" for beat in read_beats(place / "beats")), "it runs again")
    before = _log(scene, job_id, 1)
    (place / "end.1").touch()
    if not stop.is_exclusive and "job" not in stop.who:
        scene.until(lambda: not _runs(place, 1), "the first attempt has ended where nobody hears it")
    for pid in pids:
        _wake(pid)
    scene.until(lambda: not first.known(), "its worker has been told, and forgets")
    (place / "end.2").touch()
    record = scene.until(lambda: _ended(scene, job_id), "it ends")
    tries = [(attempt["number"], attempt["ended_by"]) for attempt in record["attempts"]]
    names = f"{'+'.join(stop.who)} stopped, {'exclusive' if stop.is_exclusive else 'shared'}: job {job_id}"
    if (record["state"], tries) != ("succeeded", [(1, "worker_lost"), (2, "program")]):
        yield f"{names} ended as {record['state']}, {tries}"
    if _log(scene, job_id, 1) != before:
        yield f"{names}: bytes of the log of a stale attempt were accepted"
    if _log(scene, job_id, 2) != b"attempt 2\nend of 2\n":
        yield f"{names}: the log of the second attempt is not its own"
    if [(each["path"], each["size"]) for each in record["outputs"]] != [("only.2", 2), ("result.txt", 5)]:
        yield f"{names}: its files are {record['outputs']}"
    events = Counter(event["event"] for event in scene.ask(lambda client: client.job(job_id).events()))
    if (events["job_succeeded"], events["attempt_ended"]) != (1, 2):
        yield f"{names}: its events are {dict(events)}"
    if stop.is_exclusive:
        yield from (f"{names}: {what}" for what in overlaps(read_beats(place / "beats")))


def _idle(scene: Scene) -> bool:
    workers = scene.ask(lambda client: client.workers())
    is_ready = [worker["state"] for worker in workers] == ["ready", "ready"]
    return is_ready and not any(worker.known() for worker in scene.workers)


def _worker_of(scene: Scene, job_id: str) -> KeptWorker | None:
    attempts = scene.record(job_id)["attempts"]
    names = [node["worker"] for attempt in attempts for node in attempt["nodes"]]
    is_running = bool(names) and scene.record(job_id)["state"] == "running"
    return next((worker for worker in scene.workers if is_running and worker.name == names[0]), None)


def _pids(worker: KeptWorker, place: Path, who: Sequence[str]) -> list[int]:
    """Watchdog first: it may act on what it sees of the others."""
    assert worker.process is not None
    found = worker.floor(*(name for name in ("watchdog", "spawner") if name in who))
    found += [worker.process.pid] if "agent" in who else []
    return found + (processes_of(place) if "job" in who else [])


def _runs(place: Path, attempt: int) -> bool:
    mark = f"GPULAYER_ATTEMPT={attempt}".encode()
    return any(mark in read(pid, "environ") for pid in processes_of(place))


def _wake(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        pass  # its watchdog has ended it


def _log(scene: Scene, job_id: str, attempt: int) -> bytes:
    return scene.ask(lambda client: b"".join(client.job(job_id).logs(attempt=attempt)))


def _ended(scene: Scene, job_id: str) -> Json:
    record = scene.record(job_id)
    return record if record["ended_at"] is not None else None


# One tree a device ----------------------------------------------------------------------------------------------------

DEVICES: Final = ("GPU-soak-1", "GPU-soak-2")

PROBE: Final = """
from gpulayer.plugins import Findings, hookimpl
from gpulayer.spec.machine import Device
from gpulayer.spec.request import Accelerator

GPULAYER_API = "1.0"

class Shared:
    name = "shared"
    def look(self, site):
        uuids = site.environment.get("TEST_DEVICES", "").split()
        return Findings(devices=tuple(Device(uuid, n, Accelerator.CUDA, "H100") for n, uuid in enumerate(uuids)))

@hookimpl
def gpulayer_register_probes(ctx):
    return [Shared()]
"""

# As the command line does it, with locks of its own: those of the host are not for tests.
WORKER: Final = """
import os, sys
from pathlib import Path
from gpulayer.worker import WorkerSettings, run

folder = Path(sys.argv[1])
sys.exit(run(WorkerSettings(
    work_dir=folder, endpoint_file=Path(sys.argv[2]), token_file=folder / "token", name=folder.name,
    environment=dict(os.environ), lock_folders=(sys.argv[3],),
)))
"""

# Both the program and what it leaves in a session of its own hold the device, for as long as they beat.
HOLDS: Final = """
beats() {
    until [ $1 -gt $2 ]; do
        set -- $(($1 + 1)) $2
        read up rest < /proc/uptime; echo "$GPULAYER_JOB_ID.$GPULAYER_ATTEMPT $up" >> "$BEATS/$CUDA_VISIBLE_DEVICES"
        sleep 0.02
    done
}
if [ "$1" = daemon ]; then beats 0 100000; fi
setsid sh "$0" daemon & beats 0 25
"""

VICTIMS: Final = (
    ("watchdog", "spawner"),
    ("watchdog", "spawner", "agent"),
    ("spawner",),
    ("watchdog", "spawner"),
    ("agent",),
)


def prove_devices(runs: int, *, seed: int, say: Say) -> Tally:
    """Two workers offer the same two devices; whatever looks after the programs is killed, and they are left over."""
    tally = kill_over_devices(runs, seed=seed, say=say, share_locks=True)
    if runs >= A_SCENE:
        unlocked = kill_over_devices(5, seed=seed, say=say, share_locks=False)
        tally.mutants = int(bool(unlocked.violations)), 1
    return tally


def kill_over_devices(runs: int, *, seed: int, say: Say, share_locks: bool) -> Tally:
    """share_locks False: a host on which the workers don't know each other, to see that this would be found."""
    rng, tally = random.Random(seed), Tally()
    for start in range(0, runs, A_SCENE):
        with _scene() as scene:
            rounds = min(A_SCENE, runs - start)
            scene.rng.seed(rng.random())
            beats = scene.folder / "beats"
            beats.mkdir()
            (scene.source / "holds.sh").write_text(HOLDS)
            for name in ("left", "right"):
                _add_worker(scene, name, locks="locks" if share_locks else f"locks-{name}")
            jobs: list[str] = []
            for number in range(rounds):
                victims = VICTIMS[(start + number) % len(VICTIMS)]
                _keep_busy(scene, jobs, beats, for_s=rng.uniform(0.0, 0.8))
                pids = _pids(rng.choice(_busy(scene, jobs, beats)), beats, victims)
                kill_together(pids)
                tally.runs, tally.faults = tally.runs + 1, tally.faults + len(pids)
                say(f"{tally.runs} of {runs} rounds, {len(jobs)} jobs in this scene")
            found = []
            for job_id in jobs:
                record = scene.until(lambda job_id=job_id: _ended(scene, job_id), f"job {job_id} ends")
                if record["state"] != "succeeded":
                    found.append(f"job {job_id} ended as {record['state']}")
            found += [f"{uuid}: {what}" for uuid in DEVICES for what in overlaps(read_beats(beats / uuid))]
            tally.violations += [f"{what}\nagain: python -m tests.soak --only 2 --seed {seed}" for what in found]
    return tally


def _busy(scene: Scene, jobs: list[str], beats: Path) -> list[KeptWorker]:
    """The workers whose spawner and watchdog live, and which run something; as soon as there are any."""

    def look() -> list[KeptWorker]:
        _keep_busy(scene, jobs, beats, for_s=0.05)
        return [worker for worker in scene.workers if worker.is_running_jobs()]

    return scene.until(look, "a job runs")


def _keep_busy(scene: Scene, jobs: list[str], beats: Path, *, for_s: float) -> None:
    """Four jobs in flight, twice what the devices can hold."""
    until_s = time.monotonic() + for_s
    while time.monotonic() < until_s:
        scene.mend()
        live = [job_id for job_id in jobs[-6:] if scene.record(job_id)["ended_at"] is None]
        if len(live) < 4:
            settings = {"source": str(scene.source), "env": {"BEATS": str(beats)}, "retries": 1000, "cpus": 1}
            key = f"{scene.rng.getrandbits(64):016x}"
            jobs.append(
                scene.ask(
                    lambda client, settings=settings, key=key: client.submit(
                        ["sh", "holds.sh", "run"], accelerator="cuda", devices=1, idempotency_key=key, **settings
                    )
                ).id
            )
        time.sleep(0.05)


def _add_worker(scene: Scene, name: str, *, locks: str) -> None:
    worker = scene.add_worker(name, starts=False)
    install_plugin(scene.folder / f"plugins-{name}", "shared", PROBE)
    path = os.pathsep.join(filter(None, (str(scene.folder / f"plugins-{name}"), os.environ.get("PYTHONPATH"))))
    worker.argv = [sys.executable, "-P", "-c", WORKER, str(worker.folder), str(scene.state / "endpoint.json")]
    worker.argv.append(str(scene.folder / locks))
    worker.environment = {**scene.environment, "PYTHONPATH": path, "TEST_DEVICES": " ".join(DEVICES)}
    worker.start()


@contextmanager
def _scene() -> Iterator[Scene]:
    with tempfile.TemporaryDirectory(prefix="gpulayer-soak-") as folder:
        scene = Scene(Path(folder) / "scene", lease=LEASE)
        with closing(scene):
            scene.plane.start()
            try:
                yield scene
            except BaseException:  # what stands still or runs on would keep it from closing
                kill_together(processes_of(scene.folder))
                raise


PROOFS: Final = [
    Proof(2, "two workers, killed over shared devices", prove_devices, 6, 200, "rounds"),
    Proof(3, "a worker stopped past its lease", prove_stopped, 3, 100, "stops"),
]
