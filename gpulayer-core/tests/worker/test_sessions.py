"""Real workers whose signatures are lost, come too late, or are given out by two: none of it is taken for a removal."""

import json

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
