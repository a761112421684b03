"""The values of the test kit are as those that a control plane makes itself."""

from importlib import import_module

import pytest

from gpulayer.plugins import EventKind
from gpulayer.testing import an_event

KEEPER = """
from gpulayer.plugins import hookimpl

GPULAYER_API = "1.0"
seen = []

@hookimpl
def gpulayer_on_event(event):
    seen.append(event)
"""


class TestAnEvent:
    @pytest.fixture
    def seen(self, installed_plugin):
        installed_plugin("keeper", KEEPER)
        return import_module("gpulayer_keeper").seen

    @pytest.fixture
    def plane_plugins(self, seen):
        return {"keeper": "gpulayer_keeper"}

    def test_it_has_the_form_of_a_real_one_of_that_kind(self, plane, fleet, seen):
        first = fleet.add("first")
        job = plane.client.submit(["python", "train.py"], name="train", tags={"team": "vision"}, retries=1)
        first.lose(job)
        first.take(job)
        plane.advance(3_600_000)  # no retry is left
        plane.until(lambda: EventKind.JOB_UNREACHABLE in {event.kind for event in seen})
        first.finish(job, exit_code=3)
        plane.client.drain_worker("first")
        plane.client.resume_worker("first")
        plane.client.remove_worker("first", force=True)
        plane.until(lambda: {event.kind for event in seen} == set(EventKind))
        for real in seen:
            made = an_event(real.kind)
            assert form(made) == form(real), real.kind
        assert len({an_event(kind).id for kind in EventKind}) == len(EventKind)


def form(event):
    """What its fields are, without what differs from one event to the next."""
    job = event.job
    of_job = job and (type(job.tags), job.state, job.exit_code is None, job.signal is None, job.ended_by)
    if job is not None and event.kind is not EventKind.JOB_ENDED:
        of_job = (type(job.tags), job.signal is None)  # as the job is when it is told of
    details = {name: type(value) for name, value in event.details.items()}
    return len(event.id.split("-")), of_job, event.worker != "", details
