"""A worker's folder that was copied: two real agents with one key, of which the control plane serves one.

Nobody starts an agent again that was refused, as a service manager would not: its exit code says that it is no use.
"""

import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from gpulayer.client import calls
from tests.e2e.kills.scene import read

pytestmark = pytest.mark.timeout(600)

REFUSED = 4
WHY = "another agent runs with this worker's identity since "


def left_alone(worker):
    worker.mend = lambda: None
    return worker


def first(scene):
    worker = left_alone(scene.add_worker("box"))
    scene.until(lambda: ready(scene) == ["box"], "the worker has joined")
    return worker


def ready(scene):
    workers = scene.ask(lambda client: client.workers())
    return [worker["name"] for worker in workers if worker["state"] == "ready"]


def copied(scene, worker):
    folder = scene.folder / "copy"
    subprocess.run(["cp", "-a", str(worker.folder), str(folder)], check=True, timeout=30)
    (folder / "worker.log").unlink()
    argv = [word.replace(str(worker.folder), str(folder)) for word in worker.argv[3:]]
    copy = left_alone(type(worker)("box", folder, argv=argv, environment=worker.environment))
    scene.workers.append(copy)
    return copy


def as_of_another_machine(copy):
    """Nothing of what runs here is to be found by it: neither by the boot, nor by the control groups."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    for path in (copy.folder / "contact.json", copy.folder / "spawner" / "table"):
        path.write_text(path.read_text().replace(boot, "00000000-0000-4000-8000-000000000000"))
    (copy.folder / "spawner" / "groups").write_text("[]")
    return copy


def is_refused(scene, worker):
    """It has left, says why once, and nothing of it runs."""
    process = worker.process
    code = scene.until(lambda: None if process.poll() is None else (process.returncode,), "the agent has left")
    said = worker.log.read_text()
    assert code == (REFUSED,), said
    assert WHY in said
    assert "remove identity.json from one of the folders, and join that machine anew" in said
    worker.process = None


def is_served(scene, worker):
    """It runs jobs that may run once, one at a time and several, and each does, with its own log alone."""
    for options in ({"exclusive": True}, {}):
        scene.check(scene.submit(lines=3, retries=0, **options))
    for job in [scene.submit(lines=2, retries=0, cpus=1) for _ in range(3)]:
        scene.check(job)
    assert worker.process.poll() is None, worker.log.read_text()


def told(scene):
    page = scene.ask(lambda client: client.transport.send(calls.list_audit()))
    return [entry for entry in page["entries"] if entry["action"] == "worker.superseded"]


@pytest.mark.parametrize("is_older", [False, True])
def test_a_copy_that_starts_while_a_job_runs_takes_the_place_and_the_job_ends_once(scene, is_older):
    """is_older: it was made when the job had come, and had not begun."""
    worker = first(scene)
    job = scene.submit(lines=100_000, retries=0, exclusive=True)
    scene.until(lambda: b"line 3 " in scene.log(job, 1), "the job runs")
    copy = copied(scene, worker)
    if is_older:
        (node,) = (copy.folder / "attempts").glob("*.0")
        (node / "phase").write_text((node / "phase").read_text().splitlines(keepends=True)[0])
        (node / "log").unlink()
        shutil.rmtree(copy.folder / "spawner")
    copy.start()
    is_refused(scene, worker)
    record = scene.ended(job)
    assert (record["state"], record["ended_by"]) == ("lost", "worker_lost"), record
    assert job.starts.read_text().split() == ["1"]
    log = scene.log(job, 1)
    assert job.log.startswith(log), log[-200:]
    scene.until(lambda: not scene.left_of(job), "nothing of the job runs any more")
    is_served(scene, copy)
    assert len(told(scene)) == 1


def test_while_the_original_is_out_of_contact_a_copy_on_another_machine_does_not_get_its_exclusive_job(make_scene):
    """The copy finds it in its spawner's table, of another boot, and says that it is lost: it does not know that."""
    scene = make_scene(lease="6s")
    scene.plane.start()
    worker = first(scene)
    job = scene.submit(lines=100_000, retries=1, exclusive=True)
    scene.until(lambda: b"line 3 " in scene.log(job, 1), "the job runs")
    worker.kill(signal.SIGSTOP)
    as_of_another_machine(copied(scene, worker)).start()

    scene.until(lambda: (scene.record(job.id)["reason"] or {}).get("code") == "exclusive_held", "the job is held")
    assert job.starts.read_text().split() == ["1"]
    scene.until(lambda: job.starts.read_text().split() == ["1", "2"], "it runs again")
    assert not [pid for pid in scene.left_of(job) if b"GPULAYER_ATTEMPT=1\0" in read(pid, "environ")]
    worker.kill(signal.SIGCONT)
    is_refused(scene, worker)
    scene.ask(lambda client: client.job(job.id).cancel())
    scene.ended(job)


def test_of_two_copies_of_a_stopped_folder_one_is_served_whatever_is_started_again(scene):
    worker = first(scene)
    worker.end()
    copy = copied(scene, worker)
    worker.start()
    scene.until(lambda: ready(scene) == ["box"], "the first is served")
    copy.start()
    is_refused(scene, copy)
    is_served(scene, worker)

    scene.plane.die()
    scene.plane.start()
    scene.until(lambda: ready(scene) == ["box"], "the control plane is back, and so is its worker")
    copy.start()
    is_refused(scene, copy)
    is_served(scene, worker)

    worker.kill()
    scene.until(lambda: worker.process.poll() is not None, "it is dead")
    job = scene.submit(lines=40, retries=0)
    worker.start()
    scene.check(job)
    is_served(scene, worker)
    assert len(told(scene)) == 2  # the copy, twice


@pytest.mark.parametrize("is_restarted", [False, True])
def test_the_original_that_starts_again_beside_its_copy_is_refused(scene, is_restarted):
    worker = first(scene)
    copy = copied(scene, worker)
    copy.start()
    is_refused(scene, worker)
    job = scene.submit(lines=60, retries=0)
    scene.until(job.starts.exists, "the copy runs it")
    if is_restarted:
        scene.plane.die()
        scene.plane.start()
    for _ in range(3):  # whoever starts it again and again gets it no place
        worker.start()
        is_refused(scene, worker)
    scene.check(job)
    is_served(scene, copy)
