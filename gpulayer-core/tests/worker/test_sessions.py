"""Real workers whose signatures are lost, come too late, or are given out by two: none of it is taken for a removal."""

import json
import os

import pytest

UNKNOWN = "does not know this worker"


def test_a_signature_whose_answer_is_lost_is_not_sent_again_and_another_one_is(scene):
    async def main(plane, worker):
        worker.start()
        plane.assign(1, "sh", "-c", "while [ ! -e go ]; do sleep 0.01; done")
        await plane.until(lambda: plane.states.get(1))
        plane.lost_sessions = 3
        plane.tokens.clear()  # as if it had been started again: the session is minted on the connection that is open
        reports = len(plane.reports)
        await plane.until(lambda: len(plane.reports) > reports)
        (worker.folder / "attempts" / "1.0" / "work" / "go").touch()
        assert (await plane.end_of(1))["outcome"]["exit_code"] == 0
        await worker.stop()
        assert plane.lost_sessions == 0
        assert plane.signed == sorted(set(plane.signed))
        assert UNKNOWN not in worker.said

    scene(main)


def test_a_folder_restored_from_a_backup_signs_above_what_was_seen_and_keeps_its_job(scene):
    async def main(plane, worker):
        worker.start()
        plane.assign(1, "sh", "-c", "while [ ! -e go ]; do sleep 0.01; done")
        await plane.until(lambda: plane.states.get(1))
        plane.counters["w0"] = 1_000
        plane.tokens.clear()
        reports = len(plane.reports)
        await plane.until(lambda: len(plane.reports) > reports)
        (worker.folder / "attempts" / "1.0" / "work" / "go").touch()
        assert (await plane.end_of(1))["outcome"]["exit_code"] == 0
        assert plane.signed[-1] == plane.counters["w0"] == 1_001
        await worker.stop()
        plane.counters["w0"] = 2_000
        plane.assign(2, "true")
        worker.start(token="")
        assert (await plane.end_of(2))["outcome"]["exit_code"] == 0
        await worker.stop()
        assert json.loads((worker.folder / "identity.json").read_text())["counter"] == 2_001
        assert len(plane.enrolled) == 1
        assert UNKNOWN not in worker.said

    scene(main)


def test_a_key_with_which_somebody_else_always_signs_first_is_told_of_and_ends_no_job(scene):
    async def main(plane, worker):
        worker.start()
        plane.assign(1, "sh", "-c", "while [ ! -e go ]; do sleep 0.01; done")
        await plane.until(lambda: plane.states.get(1))
        plane.ahead = 10
        plane.tokens.clear()
        await plane.until(lambda: "somebody else signs with this worker's key" in worker.said)
        plane.ahead = 0
        (worker.folder / "attempts" / "1.0" / "work" / "go").touch()
        assert (await plane.end_of(1))["outcome"]["exit_code"] == 0
        await worker.stop()
        assert UNKNOWN not in worker.said

    scene(main)


@pytest.mark.parametrize("is_running", [True, False])
def test_an_agent_whose_place_another_has_ends_its_jobs_says_why_and_fails(scene, is_running):
    """Also one that was killed meanwhile: its start finds the jobs that it left."""

    async def main(plane, worker):
        worker.start()
        plane.assign(1, "sh", "-c", "trap '' TERM; echo $$; while :; do sleep 0.05; done")
        await plane.until(lambda: bytes(plane.logs.get(1, b"")).endswith(b"\n"))
        pid = int(bytes(plane.logs[1]))
        if not is_running:
            worker.kill()
        plane.is_superseded = True
        plane.tokens.clear()
        if not is_running:
            worker.start(token="")
        assert await worker.ended() == 1
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        assert worker.said.count("takes nothing more from this agent: another agent runs with this identity") == 1
        assert UNKNOWN not in worker.said
        assert worker.attempts() == []
        assert not (worker.folder / "spawner" / "spawner.sock").exists()

    scene(main)


def test_an_agent_with_nothing_to_end_says_why_it_has_no_place_and_fails(scene):
    async def main(plane, worker):
        worker.start()
        await plane.until(lambda: plane.reports)
        await worker.stop()
        plane.is_superseded = True
        worker.start()  # with a token that would join it again
        assert await worker.ended() == 1
        assert "another agent runs with this identity" in worker.said
        assert len(plane.enrolled) == 1

    scene(main)


def test_an_agent_in_a_folder_that_was_rolled_back_takes_the_place_of_one_that_is_not_heard_any_more(scene):
    async def main(plane, worker):
        worker.start()
        await plane.until(lambda: plane.reports)
        await worker.stop()
        plane.is_superseded = plane.is_place_free = True
        plane.tokens.clear()
        worker.start(token="")
        await plane.until(lambda: plane.reports[-1]["boot"] == 100)
        await worker.stop()
        worker.start(token="")
        await plane.until(lambda: plane.reports[-1]["boot"] == 101)
        assert worker.said.count("this one takes its place") == 1

    scene(main)


def test_each_start_signs_with_a_higher_boot_and_an_instance_of_its_own(scene):
    async def main(plane, worker):
        for _ in range(3):
            worker.start()
            reports = len(plane.reports)
            await plane.until(lambda reports=reports: len(plane.reports) > reports)
            worker.kill()
        boots = [boot for boot, _ in plane.starts]
        assert sorted(set(boots)) == boots == [1, 2, 3]
        assert len({instance for _, instance in plane.starts}) == 3
        assert plane.reports[-1]["boot"] == 3

    scene(main)
