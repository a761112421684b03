"""A sync that fails ends the control plane at once, and what it had answered is there when it is started again."""

import pytest

from gpulayer.syncing import SYNC_FAILED_EXIT

pytestmark = pytest.mark.timeout(600)  # quick where nothing else runs; a machine may be busy

LIVES = (
    "plane.in_sync:1:eio",  # of its pepper: it has told nobody anything
    "plane.in_store_sync:12:eio",
    "plane.in_sync:3:eio",  # of a blob
    "plane.in_store_sync:25:enospc",  # where room is only found at the sync
    "plane.in_sync:9:eio",  # of a log
)


def test_a_control_plane_whose_disk_does_not_sync_ends_by_a_code_of_its_own_and_loses_no_job(make_scene):
    scene = make_scene()
    scene.plane.lives.extend(LIVES)
    scene.plane.start()
    scene.add_worker("w1")
    jobs = scene.traffic(lambda: len(scene.plane.deaths) == len(LIVES), retries=0)
    assert scene.plane.deaths == [SYNC_FAILED_EXIT] * len(LIVES)
    assert scene.plane.failed == [f"{point}:{action}" for point, _, action in (life.split(":") for life in LIVES)]
    for job in jobs:
        scene.check(job)
    lines = [line for line in scene.plane.log.read_text().splitlines() if "could not be synced" in line]
    assert len(lines) == len(LIVES)
    assert all("ends at once, with exit code 74; nothing that was answered is lost" in line for line in lines)
    assert "store.db could not be synced: Input/output error" in lines[1]
    assert "store.db could not be synced: No space left on device" in lines[3]
