"""Which devices a task gets: against exhaustive search, on recorded machines, and in words."""

import json
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulayer.ids import WorkerId
from gpulayer.placement.capacity import Free, allocate, usable_capacity, why_devices
from gpulayer.placement.subsets import EXACT_UP_TO, Topology, best_subset, forget, topology_of, why_these
from gpulayer.plugins.builtin.nvidia.topo import parse_topo, with_topology
from gpulayer.spec.machine import Device, WorkerFacts
from gpulayer.spec.request import Accelerator, Request

CUDA = (Accelerator.CUDA,)
DATA = Path(__file__).parents[1] / "data" / "topo"
EXPECTED = json.loads((DATA / "EXPECTED.json").read_text(encoding="utf-8"))


def cards(count, links=(), numa=(), *, model="any"):
    """links: words by pairs of indices, told by the lower one alone; numa: nodes by index."""
    return tuple(
        Device(
            f"GPU-{index}",
            index,
            Accelerator.CUDA,
            model,
            links=tuple((f"GPU-{other}", word) for (one, other), word in dict(links).items() if one == index),
            numa_node=numa[index] if numa else None,
        )
        for index in range(count)
    )


def recorded(name):
    text = (DATA / name).read_text(encoding="utf-8")
    return with_topology(cards(EXPECTED[name]["gpus"]), parse_topo(text))


def everything(devices):
    return (1 << len(devices)) - 1


def best(devices, count, free=None):
    """Indices."""
    topology = topology_of(devices)
    return best_subset(topology, free=everything(devices) if free is None else sum(1 << i for i in free), count=count)


def exhaustive(topology, free, count, required=(), allowed=None):
    """The formula as it is written, over every set there is."""

    def weight(one, other):
        node = topology.numa_nodes[one]
        return topology.links[one][other] * 256 + (node is not None and node == topology.numa_nodes[other])

    def total(among):
        return sum(weight(*pair) for pair in combinations(among, 2))

    def mark(chosen):
        least = min((topology.links[one][other] for one, other in combinations(chosen, 2)), default=0)
        return least, total(chosen), total([place for place in free if place not in chosen])

    allowed = free if allowed is None else sorted({*allowed, *required})
    sets = [chosen for chosen in combinations(allowed, count) if set(required) <= set(chosen)]
    return max(sets, key=lambda chosen: (mark(chosen), [-place for place in chosen]))


@st.composite
def topologies(draw, most):
    count = draw(st.integers(1, most))
    worth = draw(st.sampled_from([[0], [0, 10], [10, 112], [100, 101, 102], [10, 20, 30, 40, 50, 101, 104, 112, 118]]))
    links = [[0] * count for _ in range(count)]
    for one, other in combinations(range(count), 2):
        links[one][other] = links[other][one] = draw(st.sampled_from(worth))
    nodes = draw(st.lists(st.sampled_from([None, 0, 1, 2]), min_size=count, max_size=count))
    return Topology(tuple(map(tuple, links)), tuple(nodes))


@st.composite
def questions(draw, most=8):
    """A topology, what is free, how many are wanted, what is required, what is allowed."""
    topology = draw(topologies(most))
    places = list(range(len(topology.links)))
    free = sorted(draw(st.sets(st.sampled_from(places), min_size=1)))
    required = draw(st.sets(st.sampled_from(free), max_size=len(free) // 2))
    allowed = required | draw(st.sets(st.sampled_from(free)))
    count = draw(st.integers(max(1, len(required)), max(1, len(allowed))))
    if count > len(allowed):
        allowed = set(free)
    return topology, free, count, required, allowed


@settings(max_examples=400)
@given(questions())
def test_it_is_what_exhaustive_search_finds(question):
    topology, free, count, required, allowed = question
    masks = [sum(1 << place for place in places) for places in (free, required, allowed)]
    assert best_subset(topology, free=masks[0], count=count) == exhaustive(topology, free, count)
    found = best_subset(topology, free=masks[0], count=count, required=masks[1], allowed=masks[2])
    assert found == exhaustive(topology, free, count, required, allowed)


@settings(max_examples=15)
@given(topologies(12), st.integers(1, 12))
def test_it_is_what_exhaustive_search_finds_of_more_than_eight(topology, count):
    places = list(range(len(topology.links)))
    count = min(count, len(places))
    found = best_subset(topology, free=(1 << len(places)) - 1, count=count)
    assert found == exhaustive(topology, places, count)


def _islands_of_four(one, other):
    return 112 if one // 4 == other // 4 else 50 if one // 8 == other // 8 else 10


def _switched_pairs(one, other):
    return 104 if one ^ other == 8 else 40 if (one ^ other) % 4 == 0 else 20


def _mixed_up(one, other):
    return [10, 20, 50, 101, 102, 112][(one * one + other * other + 3 * one * other) % 6]


@pytest.mark.parametrize("link", [_islands_of_four, _switched_pairs, _mixed_up])
@pytest.mark.parametrize("count", [2, 5, 8, 13])
def test_it_is_what_exhaustive_search_finds_of_sixteen(link, count):
    links = tuple(
        tuple(0 if one == other else link(min(one, other), max(one, other)) for other in range(16)) for one in range(16)
    )
    topology = Topology(links, tuple(place // 8 for place in range(16)))
    assert best_subset(topology, free=(1 << 16) - 1, count=count) == exhaustive(topology, range(16), count)


@settings(max_examples=30)
@given(topologies(EXACT_UP_TO + 8), st.integers(1, EXACT_UP_TO + 8))
def test_of_many_devices_it_is_a_set_of_the_right_size_and_always_the_same(topology, count):
    size = len(topology.links)
    count = min(count, size)
    found = best_subset(topology, free=(1 << size) - 1, count=count)
    assert sorted(set(found)) == list(found)
    assert len(found) == count
    twin = Topology(tuple(tuple(row) for row in map(list, topology.links)), tuple(topology.numa_nodes))
    forget()
    assert best_subset(twin, free=(1 << size) - 1, count=count) == found


def test_of_forty_devices_in_islands_an_island_is_found():
    links = tuple(
        tuple(112 if one % 5 == other % 5 and one != other else 10 for other in range(40)) for one in range(40)
    )
    found = best_subset(Topology(links, (None,) * 40), free=(1 << 40) - 1 - 1, count=8)
    assert found == (1, 6, 11, 16, 21, 26, 31, 36)


def test_fifty_six_slices_without_links_are_taken_from_one_node():
    topology = Topology(((0,) * 56,) * 56, tuple(0 if place < 20 else 1 for place in range(56)))
    assert best_subset(topology, free=(1 << 56) - 1, count=24) == tuple(range(20, 44))


@pytest.mark.parametrize("name", [name for name in EXPECTED if EXPECTED[name]["best_pair"]])
@pytest.mark.parametrize(("count", "what"), [(2, "best_pair"), (4, "best_quad")])
def test_of_a_recorded_machine_the_best_pair_and_quad_are_taken(name, count, what):
    """Links alone decide there; among equals NUMA, and what is left, decide here."""
    expected = EXPECTED[name][what]
    if expected is None:
        return
    devices = recorded(name)
    found = best(devices, count)
    topology = topology_of(devices)
    links = [topology.links[one][other] for one, other in combinations(found, 2)]
    assert [min(links), sum(links)] == expected["bottleneck_then_sum"]
    if expected["count"] == len(expected["sets"]):
        assert list(found) in expected["sets"]
    assert found == exhaustive(topology, range(len(devices)), count)


@pytest.mark.parametrize(
    ("name", "free", "count", "chosen"),
    [
        ("4x_power9_v100_nv3.out", [1, 2, 3], 2, (2, 3)),
        ("8x_2080ti_pix_sys_mlx4.out", [0, 2, 4, 5, 6, 7], 4, (4, 5, 6, 7)),
        ("8x_a100pcie_slurm_partial_affinity.out", [0, 2, 4, 5], 2, (4, 5)),
        ("8x_a100pcie_slurm_partial_affinity.out", [0, 2, 3, 4, 5, 6, 7], 4, (4, 5, 6, 7)),
        ("8x_a100pcie_slurm_partial_affinity.out", [0, 1, 2, 4, 5], 1, (2,)),
        ("8x_h100_in_slurm_1cpu.out", [3, 4, 5], 2, (4, 5)),
        ("7x_gtx_old_SOC_driver.out", [0, 1, 2, 3, 4, 5, 6], 4, (3, 4, 5, 6)),
        ("7x_gtx_old_SOC_driver.out", [0, 1, 2, 3, 4, 5, 6], 3, (0, 1, 2)),
    ],
)
def test_of_what_is_free_on_a_recorded_machine_the_best_joined_are_taken(name, free, count, chosen):
    assert best(recorded(name), count, free) == chosen


def test_the_slowest_link_counts_before_the_sum():
    links = dict.fromkeys(combinations(range(3), 2), "PIX") | {(3, 4): "NV12", (4, 5): "NV12", (3, 5): "SYS"}
    assert best(cards(6, links), 3) == (0, 1, 2)


def test_numa_counts_where_links_are_equal_and_not_before():
    pairs = list(combinations(range(4), 2))
    assert best(cards(4, dict.fromkeys(pairs, "PHB"), [0, 1, 2, 1]), 2) == (1, 3)
    assert best(cards(4, dict.fromkeys(pairs, "SYS") | {(0, 1): "PHB"}, [0, 1, 2, 2]), 2) == (0, 1)


def test_a_node_that_is_not_known_is_nobodys():
    assert best(cards(4, numa=[None, None, 1, 1]), 2) == (2, 3)


def test_one_device_is_taken_where_it_leaves_the_best():
    assert best(cards(3, {(0, 1): "NV12", (0, 2): "SYS", (1, 2): "SYS"}), 1) == (2,)
    assert best(cards(5, numa=[0, 0, 1, 0, 0]), 1) == (2,)


def test_of_two_words_for_one_link_the_weaker_counts_and_an_unknown_word_is_worth_nothing():
    one, other = cards(2)
    devices = replace(one, links=(("GPU-1", "NV12"),)), replace(other, links=(("GPU-0", "SYS"), ("GPU-9", "NV12")))
    assert topology_of(devices).links == ((0, 10), (10, 0))
    assert topology_of(cards(2, {(0, 1): "WARP"})).links == ((0, 0), (0, 0))


def test_machines_that_are_built_alike_are_one_topology():
    again = tuple(
        replace(device, uuid=f"{device.uuid}-b", links=tuple((f"{peer}-b", word) for peer, word in device.links))
        for device in recorded("4x_power9_v100_nv3.out")
    )
    assert topology_of(again) == topology_of(recorded("4x_power9_v100_nv3.out"))


@pytest.mark.parametrize(
    ("free", "count", "required", "allowed"), [(0b11, 3, 0, None), (0b11, 1, 0b11, None), (1, 1, 2, None), (3, 2, 0, 1)]
)
def test_what_can_not_be_chosen_is_said(free, count, required, allowed):
    with pytest.raises(ValueError, match="no choice of"):
        best_subset(topology_of(cards(2)), free=free, count=count, required=required, allowed=allowed)


@pytest.mark.parametrize(
    ("devices", "count", "words"),
    [
        (recorded("4x_power9_v100_nv3.out")[1:], 2, "devices 2,3: NV3, the fastest pair free"),
        (recorded("8x_2080ti_pix_sys_mlx4.out")[2:], 4, "devices 4,5,6,7: PIX, the fastest 4 free"),
        (
            recorded("8x_a100pcie_slurm_partial_affinity.out"),
            4,
            "devices 0,1,2,3: NODE at the slowest, as in any 4 that are free; the highest sum of links",
        ),
        (
            cards(4, {(0, 2): "NV12", (0, 3): "PIX", (2, 3): "PIX"}),
            3,
            "devices 0,2,3: PIX and better, the fastest 3 free",
        ),
        (recorded("4gpu_cloud_vm_all_PHB.out"), 2, "devices 0,1: all links alike: both on NUMA node 0"),
        (recorded("8x_h100_in_slurm_1cpu.out")[1:], 4, "devices 4,5,6,7: all links alike: all on NUMA node 1"),
        (recorded("8x_h100_in_slurm_1cpu.out")[3:], 2, "devices 4,5: all links alike: both on NUMA node 1"),
        (recorded("dgx_a100_12nic_mlx5names.out")[1:], 2, "devices 2,3: all links alike: both on NUMA node 1"),
        (cards(3, numa=[0, 1, 2]), 2, "devices 0,1: all links alike: first by index"),
        (cards(4, numa=[0, 1, 1, 2]), 3, "devices 0,1,2: all links alike: the most pairs on one NUMA node"),
        (cards(3), 2, "devices 0,1: all links alike: first by index"),
        (cards(2), 2, "devices 0,1: all that are free"),
        (cards(1), 1, "device 0: all that are free"),
        (cards(3), 1, "device 0: the first that is free"),
        (cards(3, {(0, 1): "NV12"}), 1, "device 2: leaves those free that are joined best"),
    ],
)
def test_why_these_devices_is_said_in_words(devices, count, words):
    chosen = [devices[place] for place in best(devices, count)]
    assert why_these(devices, chosen) == words


def machine(*devices):
    return WorkerFacts("linux-x86_64", "0.1.0", 64, 10**12, devices=devices)


def share(request, facts, *taken):
    free = usable_capacity(facts)
    free = replace(free, devices=free.devices - set(taken))
    allocation = allocate(request, WorkerId("w"), facts, free)
    assert allocation is not None
    return allocation.devices, why_devices(request, facts, free, allocation)


def test_a_task_gets_the_best_joined_devices_with_the_reason():
    facts = machine(*recorded("4x_power9_v100_nv3.out"))
    pair = Request(accelerators=CUDA, devices=2)
    assert share(pair, facts, "GPU-0") == (("GPU-2", "GPU-3"), "devices 2,3: NV3, the fastest pair free")
    assert share(pair, facts, "GPU-0", "GPU-2") == (("GPU-1", "GPU-3"), "")
    assert share(Request(), facts) == ((), "")


def test_the_order_in_which_a_worker_lists_its_devices_decides_nothing():
    facts = machine(*reversed(cards(4)))
    assert share(Request(accelerators=CUDA, devices=2), facts)[0] == ("GPU-0", "GPU-1")


def test_models_named_first_come_before_links():
    links = dict.fromkeys(combinations(range(5), 2), "SYS") | {(0, 1): "NV12", (3, 4): "NV12"}
    models = ["A100", "A100", "H100", "A100", "A100"]
    facts = machine(*(replace(card, model=model) for card, model in zip(cards(5, links), models, strict=True)))
    two = Request(accelerators=CUDA, devices=2, device_models=("H100", "A100"))
    said = "devices 0,2: all that is free of the model named first, then the next"
    assert share(two, facts) == (("GPU-2", "GPU-0"), said)
    only = replace(two, device_models=("A100",))
    assert share(only, facts, "GPU-0") == (("GPU-3", "GPU-4"), "devices 3,4: NV12, the fastest pair free")
    one = replace(two, devices=1)
    assert share(one, facts) == (("GPU-2",), "")


def test_the_second_accelerator_is_chosen_from_as_well():
    cuda = cards(1)
    links = {(0, 1): "XGMI", (2, 3): "XGMI"}
    rocm = tuple(
        replace(
            card,
            uuid=f"R-{card.index}",
            kind=Accelerator.ROCM,
            links=tuple((f"R-{peer[4:]}", word) for peer, word in card.links),
        )
        for card in cards(4, links)
    )
    request = Request(accelerators=(Accelerator.CUDA, Accelerator.ROCM), devices=2)
    free = Free(64, 10**12, frozenset({"GPU-0", "R-1", "R-2", "R-3"}))
    allocation = allocate(request, WorkerId("w"), machine(*cuda, *rocm), free)
    assert allocation is not None
    assert allocation.devices == ("R-2", "R-3")


def test_of_a_thousand_devices_the_lowest_are_taken_whatever_joins_them():
    links = {(one, one + 1): "NV12" for one in range(0, 1024, 2)}
    facts = machine(*cards(1024, links))
    said = "the first that are free, as on any worker with over 64"
    chosen, words = share(Request(accelerators=CUDA, devices=2), facts, "GPU-1")
    assert (chosen, words) == (("GPU-0", "GPU-2"), f"devices 0,2: {said}")
    chosen, words = share(Request(accelerators=CUDA, devices=1000), facts)
    assert (len(chosen), words) == (1000, f"1000 devices: {said}")


def test_sixty_four_devices_are_still_chosen_from():
    links = {(one, one + 1): "NV12" for one in range(0, 64, 2)}
    facts = machine(*cards(64, links))
    pair = Request(accelerators=CUDA, devices=2)
    assert share(pair, facts, "GPU-0") == (("GPU-2", "GPU-3"), "devices 2,3: NV12, the fastest pair free")
    chosen, words = share(replace(pair, devices=50), facts)
    assert len(chosen) == 50
    assert words == "50 devices: links not known at the slowest, as in any 50 that are free; the highest sum of links"


def test_of_one_model_there_may_be_just_enough():
    facts = machine(*(replace(card, model="H100" if card.index > 1 else "A100") for card in cards(4)))
    two = Request(accelerators=CUDA, devices=2, device_models=("H100", "A100"))
    assert share(two, facts) == (("GPU-2", "GPU-3"), "")
