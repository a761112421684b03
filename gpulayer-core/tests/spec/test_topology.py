"""What links are worth, and what is drawn of them; recorded machines are in plugins/test_topo."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulayer.spec.machine import Device
from gpulayer.spec.request import Accelerator
from gpulayer.spec.topology import best_sets, drawn, islands, link_between, strength, worth


def fleet(count, links, *, kind=Accelerator.CUDA, nodes=None):
    """links: words by pairs of indices; each is told by the lower one alone."""
    return [
        Device(
            uuid=f"{kind}-{index}",
            index=index,
            kind=kind,
            model="any",
            links=tuple((f"{kind}-{other}", word) for (one, other), word in links.items() if one == index),
            numa_node=None if nodes is None else nodes[index],
        )
        for index in range(count)
    ]


def indices(groups):
    return [[device.index for device in group] for group in groups]


PAIRS_OF_NVLINK = {pair: "NV12" if pair in [(0, 1), (2, 3)] else "SYS" for pair in combinations(range(4), 2)}


@pytest.mark.parametrize(
    ("word", "worth"),
    [
        *[("NV1", 101), ("NV4", 104), ("NV12", 112), ("NV18", 118), ("PIX", 50), ("PXB", 40), ("PHB", 30)],
        *[("NODE", 20), ("SYS", 10), ("SOC", 10)],
        *[(word, None) for word in ["X", "", "N/A", "NV#", "NV", "NV0", "NV-1", "nv12", "PSB", "XGMI", "NV12NV12"]],
    ],
)
def test_a_link_is_worth_what_its_word_says_and_an_unknown_word_nothing(word, worth):
    assert strength(word) == worth


def test_a_link_told_by_one_of_two_devices_holds_for_both():
    one, other, third = fleet(3, {(0, 1): "NV4"})
    assert link_between(one, other) == link_between(other, one) == "NV4"
    assert link_between(one, third) == ""


def test_islands_are_what_nvlinks_join():
    assert indices(islands(fleet(4, PAIRS_OF_NVLINK))) == [[0, 1], [2, 3]]


def test_a_device_that_is_reached_through_another_one_is_of_its_island():
    devices = fleet(5, {(0, 3): "NV1", (1, 3): "NV2", (0, 1): "SYS", (2, 4): "PIX"})
    assert indices(islands(devices)) == [[0, 1, 3]]


def test_devices_without_nvlinks_form_no_island():
    assert islands(fleet(3, {(0, 1): "PIX", (1, 2): "FUTURE"})) == ()
    assert islands([]) == ()


def test_a_set_is_worth_its_worst_link_and_then_all_together():
    devices = fleet(4, PAIRS_OF_NVLINK)
    assert worth(devices) == (10, 2 * 112 + 4 * 10)
    assert worth(devices[:2]) == (112, 112)
    assert worth(devices[:1]) == worth([]) == (0, 0)


def test_the_best_sets_have_the_best_of_worst_links_and_then_the_greatest_sum():
    devices = fleet(4, PAIRS_OF_NVLINK)
    assert indices(best_sets(devices, 2)) == [[0, 1], [2, 3]]
    assert indices(best_sets(devices, 3)) == [[0, 1, 2], [0, 1, 3], [0, 2, 3], [1, 2, 3]]
    assert indices(best_sets(devices, 5)) == []


def test_an_unknown_link_is_worse_than_the_worst_known_one():
    assert indices(best_sets(fleet(3, {(0, 1): "SYS", (1, 2): "FUTURE"}), 2)) == [[0, 1]]


def test_sets_of_more_devices_than_can_be_tried_are_refused():
    with pytest.raises(ValueError, match="17 devices"):
        best_sets(fleet(17, {}), 2)


words = st.sampled_from(["NV2", "NV12", "PIX", "PHB", "SYS", ""])


@given(st.integers(2, 6).flatmap(lambda n: st.tuples(st.just(n), st.lists(words, min_size=15, max_size=15))))
def test_no_set_is_worth_more_than_the_best_ones_and_none_as_good_is_left_out(shape):
    count, told = shape
    devices = fleet(count, dict(zip(combinations(range(count), 2), told, strict=False)))
    for size in range(1, count + 1):
        every = {chosen: worth(chosen) for chosen in combinations(devices, size)}
        assert list(best_sets(devices, size)) == [one for one in every if every[one] == max(every.values())]


def test_a_matrix_is_drawn_with_numa_nodes_and_the_words_that_occur():
    assert drawn(fleet(4, PAIRS_OF_NVLINK, nodes=[0, 0, 1, None])) == [
        "cuda    0    1    2    3  numa",
        "   0    - NV12  SYS  SYS     0",
        "   1 NV12    -  SYS  SYS     0",
        "   2  SYS  SYS    - NV12     1",
        "   3  SYS  SYS NV12    -",
        "NV# = # NVLinks",
        "SYS = PCIe, over the link between NUMA nodes",
    ]


def test_links_that_nobody_told_of_and_words_that_nobody_knows_are_drawn_as_such():
    assert drawn(fleet(3, {(0, 1): "NV\x1b[31mLINK", (1, 2): "PIX"})) == [
        "cuda    0    1    2",
        "   0    - NV …    ?",
        "   1 NV …    -  PIX",
        "   2    ?  PIX    -",
        "PIX = PCIe, at most one bridge",
        "NV [31mLINK = as the vendor names it",
        "? = not known",
    ]


def test_only_devices_with_links_are_drawn():
    assert drawn([]) == drawn(fleet(3, {})) == []
    only = Device("one", 0, Accelerator.CUDA, "any", links=(("gone", "NV4"),))
    assert drawn([only]) == []


def test_each_kind_of_device_has_its_own_matrix():
    lines = drawn([*fleet(2, {(0, 1): "NV4"}), *fleet(2, {(0, 1): "PIX"}, kind=Accelerator.ROCM)])
    assert lines[0].split() == ["cuda", "0", "1"]
    assert lines[3].split() == ["rocm", "0", "1"]
    assert lines[6:] == ["NV# = # NVLinks", "PIX = PCIe, at most one bridge"]


@pytest.mark.parametrize("count", [16, 17, 40])
def test_a_matrix_is_never_wider_than_a_terminal(count):
    links = dict.fromkeys(combinations(range(count), 2), "NODE") | {(0, 1): "A" * 4000}
    lines = drawn(fleet(count, links, nodes=[1_000_000] * count))
    assert max(map(len, lines)) <= 100
    heads = [line.split()[1:-1] for line in lines if line.lstrip().startswith("cuda")]
    assert [name for head in heads for name in head] == [str(index) for index in range(count)]
    assert len(heads) == -(-count // 16)
