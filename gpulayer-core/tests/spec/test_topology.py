"""What links are worth, and what is drawn of them; recorded machines are in plugins/test_topo."""

from itertools import combinations

import pytest

from gpulayer.spec.machine import Device
from gpulayer.spec.request import Accelerator
from gpulayer.spec.topology import drawn, islands, strength


def fleet(count, links, *, kind=Accelerator.CUDA):
    """links: words by pairs of indices; each is told by the lower one alone."""
    return [
        Device(
            uuid=f"{kind}-{index}",
            index=index,
            kind=kind,
            model="any",
            links=tuple((f"{kind}-{other}", word) for (one, other), word in links.items() if one == index),
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
        *[("XGMI", 101), ("NODE", 20), ("SYS", 10), ("SOC", 10)],
        *[(word, None) for word in ["X", "", "N/A", "NV#", "NV", "NV0", "NV-1", "nv12", "PSB", "NV12NV12"]],
    ],
)
def test_a_link_is_worth_what_its_word_says_and_an_unknown_word_nothing(word, worth):
    assert strength(word) == worth


def test_islands_are_what_nvlinks_join():
    assert indices(islands(fleet(4, PAIRS_OF_NVLINK))) == [[0, 1], [2, 3]]


def test_a_device_that_is_reached_through_another_one_is_of_its_island():
    devices = fleet(5, {(0, 3): "NV1", (1, 3): "NV2", (0, 1): "SYS", (2, 4): "PIX"})
    assert indices(islands(devices)) == [[0, 1, 3]]


def test_a_hive_of_xgmi_is_an_island():
    devices = fleet(4, {(0, 1): "XGMI", (2, 3): "XGMI"}, kind=Accelerator.ROCM)
    assert indices(islands(devices)) == [[0, 1], [2, 3]]


def test_devices_without_nvlinks_form_no_island():
    assert islands(fleet(3, {(0, 1): "PIX", (1, 2): "FUTURE"})) == ()
    assert islands([]) == ()


def test_a_matrix_is_drawn_with_the_words_that_occur():
    assert drawn(fleet(4, PAIRS_OF_NVLINK)) == [
        "cuda    0    1    2    3",
        "   0    - NV12  SYS  SYS",
        "   1 NV12    -  SYS  SYS",
        "   2  SYS  SYS    - NV12",
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
    lines = drawn(fleet(count, links))
    assert max(map(len, lines)) <= 100
    heads = [line.split()[1:] for line in lines if line.lstrip().startswith("cuda")]
    assert [name for head in heads for name in head] == [str(index) for index in range(count)]
    assert len(heads) == -(-count // 16)
