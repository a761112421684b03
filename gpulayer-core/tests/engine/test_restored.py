"""A state that comes from a backup: whatever was lent before is nobody's, and no number is given out again."""

import random

import pytest

from gpulayer.engine.effects import Assign, Void
from gpulayer.engine.events import NodePhase, NodeReport, PlaneRestored
from gpulayer.spec.job import JobState
from gpulayer.spec.outcome import EndedBy, Outcome

FIRST = 10**12


def restore(plane) -> None:
    plane.step(PlaneRestored(plane.at, FIRST))


def test_what_was_live_is_lost_and_runs_again_where_it_may(plane) -> None:
    plane.join(cpus=4)
    plane.submit("twice", retries=1)
    plane.submit("once", retries=0)
    for job in ("twice", "once"):
        plane.run("w1", job)
    restore(plane)
    assert not plane.state.attempts
    plane.submit("next")
    assert not plane.state.attempts  # nobody has reported yet
    assert plane.job("once").state is JobState.LOST
    assert plane.job("once").outcome.ended_by is EndedBy.WORKER_LOST
    assert "restored from a backup" in plane.job("once").reason_message
    assert plane.job("twice").state is JobState.QUEUED
    plane.report("w1")
    assert plane.epoch("twice") >= FIRST


def test_a_job_whose_retries_were_used_up_is_lost(plane) -> None:
    plane.join()
    plane.submit(retries=1)
    plane.end("w1", plane.run("w1"), EndedBy.STAGING)
    plane.run("w1")
    restore(plane)
    assert plane.job().state is JobState.LOST


def test_a_job_that_was_being_cancelled_is_cancelled(plane) -> None:
    plane.join()
    plane.submit()
    plane.run("w1")
    plane.cancel()
    restore(plane)
    assert plane.job().state is JobState.CANCELLED


def test_numbers_never_go_back(plane) -> None:
    plane.state.next_epoch = plane.state.next_seq = FIRST + 7
    restore(plane)
    assert (plane.state.next_epoch, plane.state.next_seq) == (FIRST + 7, FIRST + 7)


@pytest.mark.parametrize("seed", range(40))
def test_no_epoch_of_before_is_accepted_after_nor_given_out_again(plane, seed) -> None:
    chance = random.Random(seed)
    for number in range(3):
        plane.join(f"w{number}", cpus=chance.randrange(1, 4))
    _live(plane, chance, range(8))
    lost_time = set(range(plane.state.next_epoch, plane.state.next_epoch + 50))
    old = {*plane.state.attempts, *lost_time}
    restore(plane)
    assert not plane.state.attempts
    jobs = {job.entry.id: job.state for job in plane.state.jobs.values()}
    for worker in list(plane.state.workers):
        outcome = Outcome(EndedBy.PROGRAM, 0)
        items = tuple(NodeReport(epoch, 0, NodePhase.ENDED, outcome) for epoch in sorted(old))
        plane.report(worker, *items, holding=sorted(old))
        (void,) = [effect for effect in plane.last.effects if isinstance(effect, Void)]
        assert set(void.epochs) == old
        lent = [effect.epoch for effect in plane.last.effects if isinstance(effect, Assign)]
        assert all(epoch >= FIRST for epoch in lent)
    assert all(state is not JobState.SUCCEEDED for state in jobs.values())
    assert set(jobs) == set(plane.state.jobs)  # nothing that they said has ended any
    _live(plane, chance, range(8, 16))
    assert min(plane.state.attempts, default=FIRST) >= FIRST


def _live(plane, chance, jobs) -> None:
    for number in jobs:
        plane.submit(f"j{number}", retries=chance.choice((0, 1, 3)))
        for worker in plane.state.workers.values():
            for epoch in [epoch for epoch in worker.leases if not plane.state.attempts[epoch].is_ahead]:
                match chance.randrange(4):
                    case 0:
                        plane.report(worker.id, NodeReport(epoch, 0, NodePhase.RUNNING))
                    case 1:
                        plane.end(worker.id, epoch)
                    case _:
                        pass
