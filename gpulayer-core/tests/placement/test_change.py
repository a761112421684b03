"""The smallest change against all changes there are; "eligible" against placing alone."""

from dataclasses import replace
from itertools import chain, combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulayer.ids import WorkerId
from gpulayer.placement.capacity import allocate, usable_capacity
from gpulayer.placement.change import FIELDS, IDENTITY, apply_changes, size_of_change, smallest_change
from gpulayer.placement.eligibility import can_compute_now, is_eligible, memory_for_jobs, without_unread
from gpulayer.placement.explain import WorkerView, choice, explain
from gpulayer.spec.machine import Device, DeviceState, Framework, Locality, WorkerFacts
from gpulayer.spec.request import Accelerator, FrameworkNeed, Request
from gpulayer.spec.verdict import FieldChange, VerdictKind
from gpulayer.spec.worker import WorkerState

GB = 10**9
NAME = "box"
KINDS = (Accelerator.CUDA, Accelerator.ROCM, Accelerator.MPS)
MODELS = ("A100", "T4", "M3")
SIZES = (8 * GB, 16 * GB, 24 * 2**30 - 7, 80 * GB)
RANGES = (">=8.0", ">=9.0")


@st.composite
def machines(draw, states=tuple(DeviceState)):
    devices = tuple(
        Device(
            f"GPU-{index}",
            index,
            draw(st.sampled_from(KINDS)),
            draw(st.sampled_from((*MODELS, ""))),
            draw(st.sampled_from((None, *SIZES))),
            compute_capability=draw(st.sampled_from(("", "7.5", "8.0", "9.0"))),
            state=draw(st.sampled_from(states)),
            is_memory_shared=draw(st.booleans()),
        )
        for index in range(draw(st.integers(0, 4)))
    )
    frameworks = tuple(
        Framework(name, draw(st.sampled_from(("2.3.0", "2.6.0"))), kind, draw(st.booleans()), "no kernel")
        for name, kind in product(("torch", "jax"), (*KINDS, Accelerator.CPU))
        if draw(st.booleans())
    )
    return WorkerFacts(
        "linux-x86_64",
        "0.1.0",
        cpus=draw(st.integers(1, 4)),
        memory_bytes=draw(st.sampled_from(SIZES)),
        disk_bytes=draw(st.sampled_from((None, *SIZES))),
        devices=devices,
        frameworks=frameworks,
        labels=tuple((key, draw(st.sampled_from(("1", "2 x")))) for key in ("a", "b") if draw(st.booleans())),
        locality=Locality(zone=draw(st.sampled_from(("", "z")))),
        resources=tuple((key, draw(st.integers(1, 3))) for key in ("licence", "seat") if draw(st.booleans())),
    )


@st.composite
def requests(draw):
    devices = draw(st.integers(0, 3))
    kinds = (*KINDS, Accelerator.ANY)
    rarely = st.sampled_from((False, False, False, True))
    return Request(
        accelerators=tuple(draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=3, unique=True))),
        devices=devices,
        device_models=tuple(draw(st.lists(st.sampled_from(MODELS), max_size=2, unique=True))) if devices else (),
        device_memory_bytes=draw(st.sampled_from((0, *SIZES))) if devices else 0,
        compute_capability=draw(st.sampled_from(("", *RANGES))) if devices else "",
        frameworks=tuple(
            FrameworkNeed(name, draw(st.sampled_from(("", ">=2.4", "<2.4"))))
            for name in ("torch", "jax")
            if draw(rarely)
        ),
        cpus=draw(st.integers(1, 5)),
        memory_bytes=draw(st.sampled_from((0, *SIZES))),
        disk_bytes=draw(st.sampled_from((0, *SIZES))),
        labels=tuple((key, "2 x") for key in ("a", "b") if draw(rarely)),
        worker=draw(st.sampled_from(("", "", "", NAME, "other"))),
        zone=draw(st.sampled_from(("", "", "", "z", "y"))),
        resources=tuple((key, draw(st.integers(1, 4))) for key in ("licence", "seat") if draw(rarely)),
    )


def subsets(items):
    return chain.from_iterable(combinations(items, size) for size in range(len(items) + 1))


def all_changes(request, facts):
    """Each field as it is, or as any change of it might be: nothing of what the search knows is used."""
    there = dict(facts.resources)
    levels = {
        min(request.device_memory_bytes, size)
        for device in facts.devices
        if (size := memory_for_jobs(device, facts)) is not None
    }
    frameworks = [
        tuple(FrameworkNeed(need.name) if need in loosened else need for need in request.frameworks)
        for loosened in subsets(request.frameworks)
    ]
    coupled = [
        replace(
            request,
            device_memory_bytes=memory,
            devices=devices,
            device_models=models,
            compute_capability=range_,
            frameworks=needs,
        )
        for memory, devices, models, range_, needs in product(
            {request.device_memory_bytes} | levels,
            range(min(1, request.devices), request.devices + 1),
            {request.device_models, ()},
            {request.compute_capability, ""},
            frameworks,
        )
    ]
    for one in coupled:
        # The rest is searched only where the devices do: every field by itself is in the way or not.
        yield one
    for cpus, memory, disk, labels, worker, zone, fewer in product(
        {request.cpus, min(request.cpus, facts.cpus)},
        {request.memory_bytes, min(request.memory_bytes, facts.memory_bytes)},
        {
            request.disk_bytes,
            request.disk_bytes if facts.disk_bytes is None else min(request.disk_bytes, facts.disk_bytes),
        },
        subsets(request.labels),
        {request.worker, ""},
        {request.zone, ""},
        subsets(request.resources),
    ):
        resources = tuple(
            (key, min(count, there.get(key, 0)) if (key, count) in fewer else count) for key, count in request.resources
        )
        if any(count < 1 for _, count in resources):
            continue
        rest = {
            "cpus": cpus,
            "memory_bytes": memory,
            "disk_bytes": disk,
            "labels": labels,
            "worker": worker,
            "zone": zone,
            "resources": resources,
        }
        if not is_eligible(replace(BARE, **rest), facts, name=NAME):
            continue  # no change of devices mends it
        for one in coupled:
            yield replace(one, **rest)


BARE = Request(cpus=1)


@settings(deadline=None, max_examples=150)
@given(requests(), machines())
def test_no_change_that_makes_a_machine_fit_is_smaller_than_the_one_that_is_told(request, facts):
    told = smallest_change(request, facts, name=NAME)
    if is_eligible(request, facts, name=NAME):
        assert told == ()
        return
    facts = without_unread(request, facts)
    fitting = [one for one in all_changes(request, facts) if is_eligible(one, facts, name=NAME)]
    if not told:
        assert not fitting
        return
    changed = apply_changes(request, told)
    assert is_eligible(changed, facts, name=NAME), "what is told works"
    best = min(size_of_change(request, one) for one in fitting)
    size = size_of_change(request, changed)
    assert (size[:2], size[3:]) == (best[:2], best[3:])
    assert best[2] <= size[2] <= best[2] + 0.02 * len(told), "but for what is rounded down to be typed"
    assert [change.field for change in told] == [FIELDS[position] for position in size[3]]


@settings(deadline=None)
@given(requests(), machines())
def test_each_change_that_is_told_of_a_worker_makes_it_fit(request, facts):
    (verdict,) = explain(request, [view_of(facts)])
    if verdict.fits_with:
        (after,) = explain(apply_changes(request, verdict.fits_with), [view_of(facts)])
        wanted = VerdictKind.INELIGIBLE if verdict.kind is VerdictKind.INELIGIBLE else VerdictKind.BUSY
        assert after.kind is not wanted


@settings(deadline=None)
@given(requests(), machines())
def test_a_worker_is_eligible_exactly_where_placing_alone_succeeds(request, facts):
    share = None
    if request.worker in ("", NAME) and is_eligible(request, facts, name=NAME):
        share = allocate(request, WorkerId("w1"), facts, usable_capacity(facts))
    verdicts = explain(request, [view_of(facts)])
    assert (verdicts[0].kind is VerdictKind.ELIGIBLE) is (share is not None)
    assert choice(verdicts) == (NAME if share else None)
    if share:
        assert can_compute_now(request, facts)


@settings(deadline=None)
@given(requests(), machines(states=(DeviceState.USABLE,)))
def test_where_all_works_and_nothing_is_leased_what_is_eligible_can_be_placed(request, facts):
    share = allocate(request, WorkerId("w1"), facts, usable_capacity(facts))
    if is_eligible(request, facts, name=NAME):
        assert share is not None
        assert len(share.devices) == request.devices
    (verdict,) = explain(request, [view_of(facts)])
    assert verdict.kind is not VerdictKind.BUSY


def view_of(facts):
    return WorkerView(WorkerId("w1"), NAME, WorkerState.READY, facts, usable_capacity(facts))


MIXED = WorkerFacts(
    "linux-x86_64",
    "0.1.0",
    cpus=8,
    memory_bytes=64 * GB,
    devices=(
        *(Device(f"GPU-{n}", n, Accelerator.CUDA, "NVIDIA A100", 40 * GB, compute_capability="8.0") for n in (0, 1)),
        Device("GPU-2", 2, Accelerator.CUDA, "Tesla T4", 16 * GB, compute_capability="7.5"),
    ),
    frameworks=(
        Framework("torch", "2.3.0", Accelerator.CUDA, usable=True),
        Framework("torch", "2.6.0", Accelerator.CPU, usable=True),
    ),
    labels=(("team", "vision"),),
    locality=Locality(zone="a"),
)
CUDA = (Accelerator.CUDA,)


@pytest.mark.parametrize(
    ("request_", "flags"),
    [
        (Request(CUDA, 3, device_memory_bytes=40 * GB), "--devices 2"),
        (Request(CUDA, 3, device_memory_bytes=20 * GB), "--device-memory 16GB"),
        (Request(CUDA, 4, device_memory_bytes=40 * GB), "--devices 2"),
        (Request(CUDA, 3, device_models=("A100",)), "--devices 2"),
        (Request(CUDA, 4, device_models=("H100",)), "--devices 3 without --device-model"),
        (Request(CUDA, 1, device_models=("H100",), compute_capability=">=7.0"), "without --device-model"),
        (Request(CUDA, 1, device_models=("T4",), compute_capability=">=8.0"), "without --device-model"),
        (Request(CUDA, 1, device_models=("T4",), device_memory_bytes=40 * GB), "--device-memory 16GB"),
        (Request(CUDA, 1, frameworks=(FrameworkNeed("torch", ">=2.4"),)), "--framework torch"),
        (Request(CUDA, 1, frameworks=(FrameworkNeed("torch", ">=2.9"),)), "--framework torch"),
        (Request(CUDA, 1, frameworks=(FrameworkNeed("jax"),)), ""),
        (Request((Accelerator.ROCM,), 1), ""),
        (Request(labels=(("team", "vision"), ("os", "old"))), "--label team=vision"),
        (Request(labels=(("os", "old"),)), "without --label"),
        (Request(zone="b", cpus=9), "--cpus 8 without --zone"),
        (Request(capabilities=("launcher:mpi",), cpus=9), ""),
    ],
)
def test_the_smallest_change_is(request_, flags):
    told = smallest_change(request_, MIXED, name=NAME)
    assert " ".join(change.flag for change in told) == flags


def test_words_of_a_shell_stay_whole():
    change = FieldChange("label", "'team=computer vision' a=b")
    assert change.flag == "--label 'team=computer vision' --label a=b"
    both = Request(labels=(("a", "b"), ("c", "d"), ("team", "computer vision")))
    assert apply_changes(both, [change]).labels == (("a", "b"), ("team", "computer vision"))


def test_a_field_that_no_change_has_is_refused():
    with pytest.raises(ValueError, match="accelerator"):
        apply_changes(Request(), [FieldChange("accelerator", "cuda")])


def test_every_identity_field_is_a_field():
    assert set(FIELDS) > IDENTITY
