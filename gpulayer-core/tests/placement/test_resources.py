"""Resources that workers count by name, and capabilities that their plugins give them: verdicts and changes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulayer.ids import JobId, WorkerId
from gpulayer.placement.capacity import Free, allocate, usable_capacity
from gpulayer.placement.change import smallest_change
from gpulayer.placement.eligibility import is_eligible, why_ineligible
from gpulayer.placement.explain import WorkerView, explain
from gpulayer.spec.machine import WorkerFacts
from gpulayer.spec.request import Request
from gpulayer.spec.verdict import FieldChange, Reason, ReasonCode, VerdictKind
from gpulayer.spec.worker import WorkerState

GB = 10**9
NAMES = ("licence", "seat", "token")
COUNTS = st.dictionaries(st.sampled_from(NAMES), st.integers(1, 4)).map(lambda counts: tuple(sorted(counts.items())))


def machine(*resources, capabilities=(), cpus=8):
    return WorkerFacts("linux-x86_64", "0.1.0", cpus, 64 * GB, resources=resources, capabilities=capabilities)


def wants(*resources, **more):
    return Request(resources=resources, **more)


BOX = machine(("licence", 2), ("seat", 1), capabilities=("environment:uv", "launcher:mlx", "stager:file"))
BARE = machine()


@pytest.mark.parametrize(
    ("request_", "facts", "reasons"),
    [
        (wants(("licence", 2)), BOX, []),
        (wants(("licence", 3)), BOX, [Reason(ReasonCode.RESOURCE, "has 2 × licence", "licence=3", "licence=2")]),
        (wants(("licence", 1)), BARE, [Reason(ReasonCode.RESOURCE, "has no licence", "licence=1", "")]),
        (wants(("licence", 1)), machine(("licence", 0)), [Reason("resource", "has no licence", "licence=1", "")]),
        (
            wants(("licence", 3), ("token", 1)),
            BOX,
            [
                Reason(ReasonCode.RESOURCE, "has 2 × licence", "licence=3", "licence=2"),
                Reason(ReasonCode.RESOURCE, "has no token", "token=1", ""),
            ],
        ),
        (Request(capabilities=("environment:uv", "stager:file")), BOX, []),
        (
            Request(capabilities=("launcher:torch",)),
            BOX,
            [Reason(ReasonCode.CAPABILITY, "has no launcher torch", "launcher:torch", "launcher:mlx")],
        ),
        (
            Request(capabilities=("launcher:torch",)),
            BARE,
            [Reason(ReasonCode.CAPABILITY, "has no launcher torch", "launcher:torch", "")],
        ),
        (
            Request(capabilities=("environment:conda", "stager:s3")),
            BOX,
            [
                Reason(ReasonCode.CAPABILITY, "has no environment conda", "environment:conda", "environment:uv"),
                Reason(ReasonCode.CAPABILITY, "can't fetch s3: URIs", "stager:s3", "stager:file"),
            ],
        ),
    ],
)
def test_a_machine_without_it_is_refused_with_what_was_wanted_and_what_is_there(request_, facts, reasons):
    assert list(why_ineligible(request_, facts)) == reasons
    assert is_eligible(request_, facts) is (not reasons)


@pytest.mark.parametrize(
    ("request_", "facts", "change"),
    [
        (wants(("licence", 3)), BOX, [("resources", "licence=2")]),
        (wants(("licence", 3), ("seat", 4)), BOX, [("resources", "licence=2,seat=1")]),
        (wants(("licence", 3), ("seat", 1), cpus=9), BOX, [("cpus", "8"), ("resources", "licence=2")]),
        (wants(("licence", 3), ("token", 1)), BOX, []),
        (wants(("licence", 1)), BARE, []),
        (Request(capabilities=("launcher:torch",)), BOX, []),
        (wants(("licence", 3), capabilities=("launcher:torch",)), BOX, []),
    ],
)
def test_resources_fall_to_what_there_is_and_what_makes_the_job_another_is_never_dropped(request_, facts, change):
    assert smallest_change(request_, facts, name="box") == tuple(FieldChange(*pair) for pair in change)


def test_the_change_is_told_as_the_flag_to_type():
    (change,) = smallest_change(wants(("licence", 9), ("seat", 9)), BOX, name="box")
    assert change.flag == "--resource licence=2,seat=1"


def view(facts, free, **more):
    return WorkerView(WorkerId("w"), "w", WorkerState.READY, facts, free, **more)


def test_a_busy_resource_is_told_with_who_holds_it_and_nobody_else():
    worker = view(
        BOX,
        Free(4, 64 * GB, frozenset(), (("licence", 1), ("seat", 1))),
        jobs=(JobId("0a"), JobId("7f3a")),
        resource_holders=(("licence", JobId("7f3a")),),
    )
    (verdict,) = explain(wants(("licence", 2)), [worker])
    assert verdict.kind is VerdictKind.BUSY
    message = "1 of 2 licence free (job 7f3a uses the rest)"
    assert verdict.reasons == (Reason(ReasonCode.RESOURCE_BUSY, message, "licence=2", "licence=1"),)
    assert verdict.busy_with == ("7f3a",)


def test_a_resource_and_cores_that_are_busy_are_two_reasons():
    worker = view(
        BOX,
        Free(0, 64 * GB, frozenset(), (("licence", -1), ("seat", 1))),
        jobs=(JobId("0a"), JobId("7f3a")),
        resource_holders=(("licence", JobId("7f3a")),),
    )
    (verdict,) = explain(wants(("licence", 1)), [worker])
    assert [reason.code for reason in verdict.reasons] == [ReasonCode.CPUS_BUSY, ReasonCode.RESOURCE_BUSY]
    assert verdict.reasons[1].has == "licence=0"
    assert verdict.busy_with == ("0a", "7f3a")


def test_free_devices_are_not_called_busy_for_want_of_a_resource():
    (verdict,) = explain(wants(("licence", 2)), [view(BOX, Free(8, 64 * GB, frozenset(), (("licence", 0),)))])
    assert [reason.code for reason in verdict.reasons] == [ReasonCode.RESOURCE_BUSY]


@given(wanted=COUNTS, there=COUNTS, cpus=st.integers(1, 10))
def test_a_worker_is_eligible_exactly_when_it_could_take_the_request_alone(wanted, there, cpus):
    facts, request = machine(*there, cpus=4), wants(*wanted, cpus=cpus)
    taken = allocate(request, WorkerId("w"), facts, usable_capacity(facts))
    assert is_eligible(request, facts) is (taken is not None)


@given(wanted=st.lists(COUNTS, max_size=8), there=COUNTS)
def test_no_series_of_allocations_takes_more_than_there_is(wanted, there):
    facts = machine(*there, cpus=100)
    free, taken = usable_capacity(facts), dict.fromkeys(NAMES, 0)
    for resources in wanted:
        share = allocate(wants(*resources), WorkerId("w"), facts, free)
        if share is None:
            assert any(taken[name] + count > dict(there).get(name, 0) for name, count in resources)
            continue
        free = free.less(share)
        for name, count in share.resources:
            taken[name] += count
    assert all(taken[name] <= dict(there).get(name, 0) for name in NAMES)
    assert all(free.count_of(name) == count - taken[name] for name, count in there)


@given(wanted=COUNTS, there=COUNTS, cpus=st.integers(1, 10))
def test_a_suggested_change_makes_the_worker_fit(wanted, there, cpus):
    facts, request = machine(*there, cpus=4), wants(*wanted, cpus=cpus)
    changes = {change.field: change.value for change in smallest_change(request, facts, name="w")}
    if not changes:
        assert is_eligible(request, facts) or set(dict(wanted)) - set(dict(there))
        return
    typed = dict(pair.split("=") for pair in changes.get("resources", "").split(",") if pair)
    smaller = {**dict(wanted), **{name: int(count) for name, count in typed.items()}}
    changed = wants(*sorted(smaller.items()), cpus=int(changes.get("cpus", cpus)))
    assert is_eligible(changed, facts)
