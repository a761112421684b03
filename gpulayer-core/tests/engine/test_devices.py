"""Which devices of a worker a job is lent: those that are joined best, with the reason, on machines as recorded."""

from pathlib import Path

import pytest

from gpulayer.engine import check
from gpulayer.engine.events import WorkerJoined
from gpulayer.engine.invariants import InvariantViolated
from gpulayer.ids import Digest, WorkerId
from gpulayer.placement import capacity
from gpulayer.plugins.builtin.nvidia.topo import parse_topo, with_topology
from gpulayer.spec.job import Gang, JobState
from gpulayer.spec.machine import Device, WorkerFacts
from gpulayer.spec.request import Accelerator, Request

DATA = Path(__file__).parents[1] / "data" / "topo"
A100_IN_PAIRS = "8x_a100pcie_slurm_partial_affinity.out"  # NV12 in pairs, NODE between them, two NUMA nodes


def join(plane, recorded, name="w1", *, count=8):
    topology = parse_topo((DATA / recorded).read_text(encoding="utf-8"))
    cards = [Device(f"{name}-{index}", index, Accelerator.CUDA, "NVIDIA A100", 40 * 10**9) for index in range(count)]
    facts = WorkerFacts("linux-x86_64", "0.1.0", 64, 10**12, devices=with_topology(cards, topology))
    plane.step(WorkerJoined(plane.at, WorkerId(name), name, facts, Digest(f"{hash(facts) & (2**64 - 1):064x}")))
    plane.report(name, recovered=())


def wants(devices):
    return {"request": Request(accelerators=(Accelerator.CUDA,), devices=devices, cpus=1)}


def lent(plane, job):
    """Indices of each node, and what is said of it."""
    attempt = plane.state.attempts[plane.epoch(job)]
    nodes = [[int(uuid.rpartition("-")[2]) for uuid in node.allocation.devices] for node in attempt.nodes]
    return nodes[0] if len(nodes) == 1 else nodes, attempt.placement


def test_a_job_gets_a_pair_that_nvlinks_join_and_not_the_lowest_that_are_free(plane):
    join(plane, A100_IN_PAIRS)
    plane.submit("one", **wants(1))
    plane.submit("two", **wants(2))
    assert lent(plane, "one") == ([0], "w1: the only worker that fits and is free; device 0: the first that is free")
    said = "w1: the only worker that fits and is free; devices 2,3: NV12, the fastest pair free"
    assert lent(plane, "two") == ([2, 3], said)  # 4,5 would leave less in one node


def test_jobs_of_one_device_break_no_pair_as_long_as_a_broken_one_has_room(plane):
    join(plane, A100_IN_PAIRS)
    for name in ("first", "second"):
        plane.submit(name, **wants(1))
    assert [lent(plane, name)[0] for name in ("first", "second")] == [[0], [1]]
    plane.submit("four", **wants(4))
    assert lent(plane, "four")[0] == [4, 5, 6, 7]
    plane.end("w1", plane.run("w1", "four"))
    plane.submit("third", **wants(1))
    plane.end("w1", plane.run("w1", "first"))
    plane.submit("fourth", **wants(1))
    assert lent(plane, "fourth")[0] == [0]


def test_four_jobs_of_two_get_the_four_pairs(plane):
    join(plane, A100_IN_PAIRS)
    for number in range(4):
        plane.submit(f"j{number}", **wants(2))
    assert sorted(lent(plane, f"j{number}")[0] for number in range(4)) == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_where_all_links_are_alike_numa_decides_and_the_reason_says_so(plane):
    join(plane, "dgx_h100_glued_cells_GPUrows.out")
    plane.submit("three", **wants(3))
    plane.submit("two", **wants(2))
    assert lent(plane, "three")[0] == [0, 1, 2]
    assert lent(plane, "two")[0] == [4, 5]
    assert lent(plane, "two")[1].endswith("; devices 4,5: all links alike: both on NUMA node 1")


def test_every_node_of_a_gang_gets_the_best_of_its_own_worker(plane):
    for name in ("w1", "w2"):
        join(plane, A100_IN_PAIRS, name)
    plane.submit("blocker", **wants(1))
    plane.submit("gang", shape=Gang(2), **wants(2))
    assert sorted(lent(plane, "gang")[0]) == [[0, 1], [2, 3]]
    assert "device" not in lent(plane, "gang")[1]


def test_a_job_that_waited_gets_the_best_of_what_came_free(plane):
    join(plane, A100_IN_PAIRS)
    plane.submit("all", **wants(8))
    plane.submit("two", **wants(2))
    assert plane.job("two").state is JobState.QUEUED
    plane.end("w1", plane.run("w1", "all"))
    assert lent(plane, "two")[0] == [0, 1]


def test_a_worse_choice_is_noticed(plane, monkeypatch):
    """The rule that simulated fleets are held to as well."""
    join(plane, A100_IN_PAIRS)
    plane.submit("one", **wants(1))
    check(plane.state, plane.last.effects)
    monkeypatch.setattr(capacity, "_chosen", lambda request, devices, there: there[: request.devices])
    with pytest.raises(InvariantViolated, match=r"on w1 device [23] was free, and better than device [12]"):
        plane.submit("two", **wants(2))


def test_a_device_that_breaks_a_pair_is_noticed(plane, monkeypatch):
    join(plane, A100_IN_PAIRS)
    plane.submit("one", **wants(1))
    monkeypatch.setattr(capacity, "_chosen", lambda request, devices, there: there[-request.devices :])
    with pytest.raises(InvariantViolated, match="device 1 was free, and better than device 7"):
        plane.submit("other", **wants(1))
