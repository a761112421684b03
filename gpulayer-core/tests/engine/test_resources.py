"""What workers count by name: lent like devices, never beyond what there is, and kept over a restart."""

from dataclasses import replace

import pytest

from gpulayer.engine import check, rebuild
from gpulayer.engine.effects import Assign
from gpulayer.engine.events import NodePhase, NodeReport
from gpulayer.engine.invariants import InvariantViolated
from gpulayer.engine.turn import attempt_image, job_image, task_image, worker_image
from gpulayer.ids import Digest, JobId, WorkerId
from gpulayer.placement.capacity import Free
from gpulayer.spec.job import Gang, JobState
from gpulayer.spec.request import Request

LICENCE = Request(resources=(("licence", 1),))
W1 = WorkerId("w1")


def facts_of(plane, *resources):
    facts = replace(plane.state.workers[W1].facts, resources=resources)
    return {"facts": facts, "facts_digest": Digest(f"{hash(facts) & (2**64 - 1):064x}")}


def test_of_two_jobs_with_one_licence_the_second_starts_when_the_first_ends(plane):
    plane.join(cpus=8, resources=[("licence", 1)])
    plane.submit("first", request=LICENCE)
    plane.submit("second", request=LICENCE)
    plane.submit("other")
    epoch = plane.run("w1", "first")
    assert plane.job("second").state is JobState.QUEUED
    assert plane.job("other").state is JobState.STAGING
    plane.end("w1", epoch)
    assert plane.job("second").state is JobState.STAGING
    assert plane.state.workers[W1].free.resources == (("licence", 0),)


def test_a_job_takes_as_many_as_it_asked_for(plane):
    plane.join(cpus=8, resources=[("licence", 3), ("seat", 1)])
    plane.submit("two", request=Request(resources=(("licence", 2),)))
    plane.submit("more", request=Request(resources=(("licence", 2),)))
    plane.submit("one", request=Request(resources=(("licence", 1), ("seat", 1))))
    assert plane.job("more").state is JobState.QUEUED
    assert plane.job("one").state is JobState.STAGING
    assert plane.state.workers[W1].free.resources == (("licence", 0), ("seat", 0))


@pytest.mark.parametrize("wanted", [(("licence", 2),), (("other", 1),)])
def test_a_job_is_rejected_where_no_worker_has_enough_and_runs_where_one_has(plane, wanted):
    plane.join(cpus=8, resources=[("licence", 1)])
    plane.submit(request=Request(resources=wanted))
    assert (plane.job().state, plane.job().reason_code) == (JobState.REJECTED, "no_worker_fits")
    plane.join("w2", resources=wanted)
    plane.submit("again", request=Request(resources=wanted))
    (node,) = plane.state.attempts[plane.epoch("again")].nodes
    assert (node.allocation.worker, node.allocation.resources) == ("w2", wanted)


def test_every_node_of_a_gang_takes_its_share_on_its_own_worker(plane):
    for name in ("w1", "w2"):
        plane.join(name, resources=[("licence", 1)])
    plane.submit("blocker", request=Request(worker="w2", resources=(("licence", 1),)))
    plane.submit("gang", shape=Gang(2), request=LICENCE)
    assert plane.job("gang").state is JobState.QUEUED
    plane.end("w2", plane.run("w2", "blocker"))
    assert plane.job("gang").state is JobState.STAGING
    assert [worker.free.resources for worker in plane.state.workers.values()] == [(("licence", 0),)] * 2


def test_a_job_that_takes_a_resource_is_never_lent_ahead(plane):
    plane.join(cpus=2, resources=[("licence", 1)])
    for number in range(8):
        plane.submit(f"warm{number}")
        epoch = plane.epoch(f"warm{number}")
        plane.now_ms += 5
        plane.end("w1", epoch)
    plane.submit("holds", request=LICENCE)
    plane.run("w1", "holds")
    plane.submit("waits", request=LICENCE)
    assert not [effect for effect in plane.last.effects if isinstance(effect, Assign)]
    assert plane.state.ahead == {}


def test_leases_stand_when_a_worker_counts_less_and_nothing_is_lent_until_there_is_room_again(plane):
    plane.join(cpus=8, resources=[("licence", 2)])
    plane.submit("a", request=LICENCE)
    plane.submit("b", request=LICENCE)
    first, second = plane.run("w1", "a"), plane.run("w1", "b")
    plane.report("w1", **facts_of(plane, ("licence", 1)))
    assert plane.state.workers[W1].free.resources == (("licence", -1),)
    plane.submit("c", request=LICENCE)
    plane.end("w1", first)
    assert plane.job("c").state is JobState.QUEUED
    plane.end("w1", second)
    assert plane.job("c").state is JobState.STAGING


def test_a_resource_that_is_gone_while_it_is_lent_comes_back_whole(plane):
    plane.join(cpus=8, resources=[("licence", 1)])
    plane.submit("a", request=LICENCE)
    epoch = plane.run("w1", "a")
    plane.submit("b", request=LICENCE)
    plane.report("w1", **facts_of(plane))
    plane.end("w1", epoch)
    assert plane.job("b").state is JobState.QUEUED
    plane.report("w1", **facts_of(plane, ("licence", 1)))
    assert plane.job("b").state is JobState.STAGING


def test_a_restart_keeps_what_is_lent(plane):
    plane.join(cpus=8, resources=[("licence", 1)])
    plane.submit("holds", request=LICENCE)
    epoch = plane.run("w1", "holds")
    plane.submit("waits", request=LICENCE)
    state = plane.state
    (counters,) = [record for (kind, _), record in plane.records.items() if kind == "CounterImage"]
    plane.state = rebuild(
        state.policy,
        counters,
        jobs=[(job.entry, job_image(job)) for job in state.jobs.values()],
        tasks=[task_image(job.entry.id, task) for job in state.jobs.values() for task in job.tasks.values()],
        attempts=[attempt_image(attempt) for attempt in state.attempts.values()],
        workers=[worker_image(worker) for worker in state.workers.values()],
        facts=[record for (kind, _), record in plane.records.items() if kind == "FactsImage"],
    )
    assert plane.state.workers[W1].free == Free(7, 8 * 10**9, frozenset(), (("licence", 0),))
    plane.report("w1", holding=(epoch,))
    assert plane.state.jobs[JobId("waits")].state is JobState.QUEUED
    plane.end("w1", epoch)
    assert plane.state.jobs[JobId("waits")].state is JobState.STAGING


def test_a_lost_attempt_gives_its_licence_back(plane):
    plane.join(cpus=8, resources=[("licence", 1)])
    plane.submit("holds", request=LICENCE, retries=0)
    plane.run("w1", "holds")
    plane.submit("waits", request=LICENCE)
    plane.report("w1", boot=2, recovered=(), holding=())
    assert plane.job("holds").state is JobState.LOST
    assert plane.job("waits").state is JobState.STAGING


def test_the_invariants_notice_what_is_lent_twice(plane):
    plane.join(cpus=8, resources=[("licence", 1)])
    plane.submit("a", request=LICENCE)
    plane.join("w2", cpus=8, resources=[("licence", 1)])
    plane.submit("b", request=LICENCE)
    lent = [effect for effect in plane.last.effects if isinstance(effect, Assign)]
    attempt = plane.state.attempts[plane.epoch("b")]
    (node,) = attempt.nodes
    node.allocation = replace(node.allocation, resources=(("licence", 2),))
    worker = plane.state.workers[node.allocation.worker]
    worker.free = replace(worker.free, resources=(("licence", -1),))
    with pytest.raises(InvariantViolated, match="is lent 2 × licence and has 1"):
        check(plane.state, lent)


def test_the_books_wait_for_the_end_and_not_for_the_programs_exit(plane):
    plane.join(cpus=8, resources=[("licence", 1)])
    plane.submit("a", request=LICENCE)
    epoch = plane.run("w1", "a")
    plane.submit("b", request=LICENCE)
    plane.report("w1", NodeReport(epoch, 0, NodePhase.ENDING))
    assert plane.job("b").state is JobState.QUEUED
