"""What passes by itself keeps a job waiting, and is no reason to reject it."""

from dataclasses import replace

import pytest

from gpulayer.engine.events import NodePhase, NodeReport
from gpulayer.ids import Digest, WorkerId
from gpulayer.spec.job import Gang, JobState
from gpulayer.spec.machine import DeviceState, Framework
from gpulayer.spec.outcome import EndedBy
from gpulayer.spec.request import Accelerator, FrameworkNeed, Request

CUDA = Request(accelerators=(Accelerator.CUDA,), devices=1)
TORCH = Request(frameworks=(FrameworkNeed("torch"),))
PENDING = Framework("torch", "", Accelerator.CPU, usable=False, is_pending=True)
COMPUTES = Framework("torch", "2.6.0", Accelerator.CPU, usable=True)


def tell(plane, name="w1", *, boot=1, recovered=None, **changes):
    """The worker reports that its facts are these now."""
    facts = replace(plane.state.workers[WorkerId(name)].facts, **changes)
    digest = Digest(f"{hash(facts) & (2**64 - 1):064x}")
    plane.report(name, boot=boot, recovered=recovered, facts=facts, facts_digest=digest)


def turn_unhealthy(plane, name="w1", *, healthy=()):
    known = plane.state.workers[WorkerId(name)].facts.devices
    states = (DeviceState.USABLE if one.uuid in healthy else DeviceState.UNHEALTHY for one in known)
    tell(plane, name, devices=tuple(replace(one, state=state) for one, state in zip(known, states, strict=True)))


def test_a_job_waits_for_a_device_that_is_unhealthy_and_starts_when_it_is_back(plane):
    plane.join(gpus=1)
    turn_unhealthy(plane)
    plane.submit(request=CUDA)
    assert plane.job().state is JobState.QUEUED
    turn_unhealthy(plane, healthy=("GPU-w1-0",))
    assert plane.job().state is JobState.STAGING


def test_a_job_waits_for_a_framework_that_is_not_checked_and_starts_when_it_computes(plane):
    plane.join()
    tell(plane, frameworks=(PENDING,))
    plane.submit("plain")
    assert plane.job("plain").state is JobState.STAGING
    plane.submit(request=TORCH)
    assert plane.job().state is JobState.QUEUED
    tell(plane, frameworks=(COMPUTES,))
    assert plane.job().state is JobState.STAGING


@pytest.mark.parametrize("changes", [{"frameworks": ()}, {"frameworks": (replace(PENDING, is_pending=False),)}])
def test_once_the_check_has_failed_who_waited_for_it_is_rejected_as_who_comes_then(plane, changes):
    plane.submit("early", request=TORCH)
    plane.join()
    tell(plane, frameworks=(PENDING,))
    plane.submit("hopes", request=TORCH)
    plane.submit("too", request=TORCH)
    tell(plane, **changes)
    assert set(plane.last.rejected) == {"hopes", "too"}
    for name in ("hopes", "too"):
        assert (plane.job(name).state, plane.job(name).reason_code) == (JobState.REJECTED, "no_worker_fits")
    plane.submit("after", request=TORCH)
    assert plane.job("after").state is JobState.REJECTED
    assert plane.state.jobs["early"].state is JobState.QUEUED, "it waits for whatever worker comes"


@pytest.mark.parametrize(("why", "state"), [("no kernel image", JobState.REJECTED), ("", JobState.QUEUED)])
def test_a_device_that_a_framework_failed_on_before_is_waited_for_until_it_was_tried_again(plane, why, state):
    both = Request(accelerators=(Accelerator.CUDA,), devices=2, frameworks=TORCH.frameworks)
    some = replace(COMPUTES, accelerator=Accelerator.CUDA, failed_on=(("GPU-w1-1", ""),))
    plane.join(gpus=2)
    tell(plane, frameworks=(some,))
    plane.submit("both", request=both)
    plane.submit("one", request=replace(both, devices=1))
    assert plane.job("both").state is JobState.QUEUED
    assert plane.job("one").state is JobState.STAGING
    tell(plane, frameworks=(replace(some, failed_on=(("GPU-w1-1", why),) if why else ()),))
    assert plane.job("both").state is state
    assert plane.job("one").state is JobState.STAGING


def test_a_restart_of_the_control_plane_does_not_forget_who_waits_for_a_check(plane):
    plane.join()
    tell(plane, frameworks=(PENDING,))
    plane.submit("hopes", request=TORCH)
    assert plane.job("hopes").reason_code == "framework_unchecked"
    plane.state = plane.rebuilt()
    tell(plane, recovered=(), boot=2, frameworks=())
    assert plane.job("hopes").state is JobState.REJECTED


def test_after_a_restart_who_was_accepted_for_sure_is_not_taken_for_one_that_waits_for_a_check(plane):
    """Nor is one that hoped at first."""
    plane.join("other")
    tell(plane, "other", frameworks=(PENDING,))
    plane.submit("hopes", request=TORCH)
    plane.join("sure", cpus=1)
    plane.submit("fills", request=Request(worker="sure", cpus=1))
    tell(plane, "sure", frameworks=(COMPUTES,))
    plane.submit("accepted", request=TORCH)
    assert plane.job("hopes").reason_code == plane.job("accepted").reason_code == ""
    tell(plane, "sure", frameworks=())
    plane.state = plane.rebuilt()
    tell(plane, "other", recovered=(), boot=2, frameworks=())
    assert {name: plane.state.jobs[name].state for name in ("hopes", "accepted")} == {
        "hopes": JobState.QUEUED,
        "accepted": JobState.QUEUED,
    }


def test_who_waits_for_a_check_is_kept_while_another_worker_may_take_it(plane):
    plane.join("first")
    plane.join("second")
    tell(plane, "first", frameworks=(PENDING,))
    tell(plane, "second", frameworks=(PENDING,))
    plane.submit(request=TORCH)
    tell(plane, "first", frameworks=())
    assert plane.job().state is JobState.QUEUED
    tell(plane, "second", frameworks=(COMPUTES,))
    assert plane.job().state is JobState.STAGING


def test_who_was_accepted_by_a_worker_that_is_sure_is_not_rejected_when_checks_of_others_fail(plane):
    plane.join("sure", cpus=1)
    tell(plane, "sure", frameworks=(COMPUTES,))
    plane.submit("runs", request=TORCH)
    plane.submit(request=TORCH)
    plane.join("other")
    tell(plane, "other", frameworks=(PENDING,))
    tell(plane, "sure", frameworks=())
    tell(plane, "other", frameworks=())
    assert plane.job().state is JobState.QUEUED


def test_who_was_accepted_in_the_hope_of_checks_stays_so_once_another_worker_is_sure_and_so_does_who_comes_then(plane):
    plane.join("other")
    tell(plane, "other", frameworks=(PENDING,))
    plane.submit("hopes", request=TORCH)
    plane.join("sure", cpus=1)
    plane.submit("fills", request=Request(worker="sure", cpus=1))
    tell(plane, "sure", frameworks=(COMPUTES,))
    plane.submit("accepted", request=TORCH)
    tell(plane, "sure", frameworks=())
    plane.submit("hopes again", request=TORCH)
    tell(plane, "other", frameworks=())
    assert plane.state.jobs["hopes"].state is JobState.QUEUED
    assert plane.state.jobs["accepted"].state is JobState.QUEUED
    assert plane.job("hopes again").state is JobState.REJECTED


def test_who_has_run_already_is_not_rejected_when_a_check_fails(plane):
    plane.join()
    tell(plane, frameworks=(PENDING,))
    plane.submit(request=TORCH)
    tell(plane, frameworks=(COMPUTES,))
    epoch = plane.run("w1")
    tell(plane, frameworks=(PENDING,))
    plane.end("w1", epoch, EndedBy.DRIFT, exit_code=None)
    tell(plane, frameworks=())
    assert plane.state.jobs["j1"].state is JobState.QUEUED


def test_one_worker_where_it_may_pass_is_enough_and_none_is_too_few(plane):
    plane.join("bare")
    plane.submit("refused", request=CUDA)
    assert plane.job("refused").state is JobState.REJECTED
    plane.join("sick", gpus=1)
    turn_unhealthy(plane, "sick")
    plane.submit("waits", request=CUDA)
    assert plane.job("waits").state is JobState.QUEUED
    plane.submit("two", request=CUDA, shape=Gang(nodes=2))
    assert plane.job("two").state is JobState.REJECTED


def test_who_does_not_wait_is_turned_away_where_it_would_have_to(plane):
    plane.join(gpus=1)
    turn_unhealthy(plane)
    plane.submit(request=CUDA, wait=False)
    assert (plane.job().state, plane.job().reason_code) == (JobState.REJECTED, "no_capacity")


def test_nothing_is_lent_ahead_where_its_framework_is_not_checked_yet(plane):
    """Short jobs have made the worker quick; the next ones would be lent before there is room."""
    plane.join(cpus=1)
    tell(plane, frameworks=(COMPUTES,))
    for number in range(8):
        plane.submit(f"quick-{number}", request=TORCH)
    for number in range(4):
        epoch = plane.epoch(f"quick-{number}")
        plane.now_ms += 10
        plane.report("w1", NodeReport(epoch, 0, NodePhase.RUNNING))
        plane.now_ms += 10
        plane.end("w1", epoch)
    assert plane.state.ahead, "it is lent ahead"
    tell(plane, frameworks=(PENDING,))
    for number in range(8, 12):
        plane.submit(f"quick-{number}", request=TORCH)
    assert all(plane.state.jobs[f"quick-{number}"].state is JobState.QUEUED for number in range(8, 12))


def test_after_a_full_disk_nobody_waits_for_another_place_that_is_broken(plane):
    plane.join("full", gpus=1)
    plane.submit(request=CUDA)
    plane.join("other", gpus=1)
    plane.submit("holds", request=CUDA)
    first = plane.run("full")
    plane.end("full", first, EndedBy.DISK_FULL, exit_code=None)
    assert plane.state.jobs["j1"].state is JobState.QUEUED, "the other one can take it when it is free"
    turn_unhealthy(plane, "other")
    epoch = plane.epoch()
    assert plane.state.attempts[epoch].nodes[0].allocation.worker == "full", "what is broken may stay so for long"
