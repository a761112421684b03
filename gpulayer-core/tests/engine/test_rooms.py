"""What is remembered of where a request fits gives the same as a look at every worker."""

from itertools import count

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpulayer.engine import rooms
from gpulayer.engine.invariants import check
from gpulayer.engine.state import RequestClass
from gpulayer.ids import JobId
from gpulayer.placement.capacity import allocate
from gpulayer.spec.job import Gang
from gpulayer.spec.request import Accelerator, Request

REQUESTS = st.builds(
    Request,
    accelerators=st.just((Accelerator.CUDA,)),
    devices=st.integers(0, 3),
    cpus=st.integers(1, 3),
    memory_bytes=st.sampled_from([0, 10**9]),
)
QUIET = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)


@given(data=st.data())
@QUIET
def test_a_class_that_remembers_its_room_places_as_one_that_looks_at_all(plane, data):
    """Two planes get the same events, one of which forgets what it knows before each."""
    quick, slow = type(plane)(), type(plane)()
    names = [f"w{number}" for number in range(data.draw(st.integers(1, 5)))]
    for name in names:
        cpus, gpus = data.draw(st.integers(1, 6)), data.draw(st.integers(0, 4))
        for one in (quick, slow):
            one.join(name, cpus=cpus, gpus=gpus)
    numbers = count()
    requests = data.draw(st.lists(REQUESTS, min_size=1, max_size=5))
    for _ in range(data.draw(st.integers(1, 25))):
        for known in slow.state.classes.values():
            rooms.forget(known)
            known.is_blocked = False
        live = sorted(quick.state.attempts)
        if live and data.draw(st.booleans()):
            epoch = data.draw(st.sampled_from(live))
            for one in (quick, slow):
                one.now_ms += 2_000
                for node in list(one.state.attempts[epoch].nodes):
                    one.end(str(node.allocation.worker), epoch)
        else:
            shape = {"shape": Gang(nodes)} if (nodes := data.draw(st.sampled_from([1, 1, 2, 3]))) > 1 else {}
            request, owner = data.draw(st.sampled_from(requests)), data.draw(st.sampled_from("ab"))
            name = f"j{next(numbers):03}"
            for one in (quick, slow):
                one.submit(name, owner=owner, request=request, **shape)
        assert quick.state.attempts == slow.state.attempts
        check(quick.state)


@given(data=st.data())
@QUIET
def test_a_request_fits_exactly_where_a_share_is_found(plane, data):
    plane = type(plane)()
    plane.join(cpus=data.draw(st.integers(1, 6)), gpus=data.draw(st.integers(0, 4)))
    for number in range(data.draw(st.integers(0, 3))):
        plane.submit(f"j{number}", request=data.draw(REQUESTS))
    (worker,) = plane.state.workers.values()
    request = data.draw(REQUESTS)
    share = allocate(request, worker.id, worker.facts, worker.free)
    is_found = rooms.fits(RequestClass(request, 1), worker, rooms.free_devices(worker))
    assert is_found == (rooms.is_eligible_for(RequestClass(request, 1), worker) and share is not None)


def test_a_gang_whose_second_worker_gets_room_begins(plane):
    plane.join("w1", cpus=1)
    plane.join("w2", cpus=1)
    plane.submit("one", request=Request(cpus=1))
    plane.submit("gang", request=Request(cpus=1), shape=Gang(2))
    assert len(plane.state.attempts) == 1
    (known,) = plane.state.classes.values()
    assert known.is_blocked
    assert len(known.room) == 1
    (attempt,) = plane.state.attempts.values()
    plane.end(str(attempt.nodes[0].allocation.worker), attempt.epoch)
    assert [attempt.job_id for attempt in plane.state.attempts.values()] == [JobId("gang")]


def test_a_worker_that_joins_is_looked_at(plane):
    plane.join("w1", cpus=1)
    plane.submit("one", request=Request(cpus=1))
    plane.submit("two", request=Request(cpus=1))
    plane.join("w2", cpus=1)
    assert {attempt.nodes[0].worker_name for attempt in plane.state.attempts.values()} == {"w1", "w2"}
