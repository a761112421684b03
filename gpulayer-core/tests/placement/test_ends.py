"""Until when a full worker stays so: by time limits, and only where they are sure to be enough."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulayer.ids import JobId, WorkerId
from gpulayer.placement.capacity import Allocation, allocate, usable_capacity
from gpulayer.placement.ends import Held, free_by
from gpulayer.placement.explain import WorkerView, explain, starts_by
from gpulayer.spec.machine import Device, DeviceState, WorkerFacts
from gpulayer.spec.request import Accelerator, Request
from gpulayer.spec.verdict import Verdict, VerdictKind
from gpulayer.spec.worker import WorkerState

GB = 10**9
W1 = WorkerId("w1")
GPUS = tuple(Device(f"GPU-{n}", n, Accelerator.CUDA, "NVIDIA A100", 40 * GB) for n in range(3))
BOX = WorkerFacts("linux-x86_64", "0.1.0", cpus=8, memory_bytes=64 * GB, devices=GPUS)


def held(job, ends, *devices, cpus=1):
    uuids = tuple(f"GPU-{number}" for number in devices)
    return Held(JobId(job), Allocation(W1, uuids, cpus, 0), ends)


FULL = (held("a", 100, 0), held("b", None, 1), held("c", 300, 2))


@pytest.mark.parametrize(
    ("devices", "cpus", "there", "until"),
    [
        (1, 1, FULL, (100, "a")),
        (2, 1, FULL, (300, "c")),
        (3, 1, FULL, None),
        (1, 7, FULL, (300, "c")),
        (1, 8, FULL, None),
        (1, 1, FULL[1:], None),
        (0, 8, (held("a", None, cpus=8),), None),
        (0, 8, (held("a", 50, cpus=4), held("b", 50, cpus=4)), (50, "b")),
        (0, 1, (), None),
    ],
    ids=str,
)
def test_a_worker_is_free_once_enough_has_reached_its_limit(devices, cpus, there, until):
    request = Request((Accelerator.CUDA,), devices, cpus=cpus)
    assert free_by(request, W1, BOX, there) == until


def test_what_a_stranger_has_comes_back_with_nobodys_end():
    taken = replace(BOX, devices=(replace(GPUS[0], state=DeviceState.BUSY), *GPUS[1:]))
    assert free_by(Request((Accelerator.CUDA,), 3), W1, taken, FULL[2:]) is None


@given(
    st.lists(st.tuples(st.sampled_from((None, 1, 2, 3, 4)), st.integers(1, 3)), max_size=6),
    st.integers(1, 8),
)
def test_it_is_the_earliest_moment_at_which_what_has_not_ended_leaves_enough(jobs, cpus):
    there = [held(str(number), ends, cpus=cores) for number, (ends, cores) in enumerate(jobs)]
    request = Request(cpus=cpus)

    def fits_at(moment):
        free = usable_capacity(BOX)
        for each in there:
            if each.ends_ms is None or each.ends_ms > moment:
                free = free.less(each.allocation)
        return allocate(request, W1, BOX, free) is not None

    wanted = next((moment for moment in (1, 2, 3, 4) if fits_at(moment)), None)
    found = free_by(request, W1, BOX, there)
    if fits_at(0):
        assert found is None, "it need not wait"
    else:
        assert (found[0] if found else None) == wanted


def test_the_verdict_of_a_busy_worker_has_it():
    free = usable_capacity(BOX)
    for each in FULL:
        free = free.less(each.allocation)
    view = WorkerView(W1, "box", WorkerState.READY, BOX, free, held=FULL)
    (verdict,) = explain(Request((Accelerator.CUDA,), 1), [view])
    assert (verdict.kind, verdict.until_ms) == (VerdictKind.BUSY, 100)
    (offline,) = explain(Request((Accelerator.CUDA,), 1), [replace(view, state=WorkerState.SILENT)])
    assert offline.until_ms is None


def busy(until):
    return Verdict("w", VerdictKind.BUSY, until_ms=until)


@pytest.mark.parametrize(
    ("verdicts", "nodes", "moment"),
    [
        ((busy(300), busy(100), busy(None)), 1, 100),
        ((busy(300), busy(100), busy(None)), 2, 300),
        ((busy(300), busy(100), busy(None)), 3, None),
        ((busy(300), Verdict("e", VerdictKind.ELIGIBLE)), 1, None),
        ((busy(300), Verdict("e", VerdictKind.ELIGIBLE)), 2, 300),
        ((), 1, None),
    ],
    ids=str,
)
def test_as_many_nodes_as_are_wanted_are_waited_for(verdicts, nodes, moment):
    assert starts_by(verdicts, nodes=nodes) == moment
