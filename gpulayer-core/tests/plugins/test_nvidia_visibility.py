"""Which devices the worker's own variables leave it."""

from dataclasses import replace

import pytest

from gpulayer.plugins.builtin.nvidia.cards import Card, Slice
from gpulayer.plugins.builtin.nvidia.visibility import Visible, offered

FOUR = tuple(Card(number, f"GPU-{letter}{number}{number}", "NVIDIA L40S") for number, letter in enumerate("abca"))
ALL = frozenset(card.uuid for card in FOUR)
A, B, C, A3 = (card.uuid for card in FOUR)
SLICES = (Slice(0, "MIG-a1", "", 1, 0), Slice(1, "MIG-a2", "", 2, 0))
SLICED = (Card(0, "GPU-p0", "NVIDIA H100", is_sliced=True, slices=SLICES), Card(1, "GPU-q1", "NVIDIA H100"))
MIXED = (Card(0, "GPU-a", "NVIDIA GeForce RTX 3060"), Card(1, "GPU-b", "NVIDIA GeForce RTX 4090"))


def kept(text, cards=FOUR, **more):
    return offered(cards, {"CUDA_VISIBLE_DEVICES": text, **more}).uuids


def test_without_a_variable_all_are_offered():
    assert offered(FOUR, {}).uuids is None
    assert offered(FOUR, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}).uuids is None


@pytest.mark.parametrize(
    ("text", "uuids"),
    [
        ("2,3", {C, A3}),
        (" 1 , 0 ", {A, B}),
        ("", set()),
        ("-1", set()),
        ("NoDevFiles", set()),
        ("1,-1,2", {B}),
        ("1,9,2", {B}),
        ("9,1", set()),
        ("0,,1", {A}),
        ("1,1", set()),
        ("0,1,0", set()),
        ("0,GPU-b", {A}),
        ("1gpu2,2ampere", {B, C}),
        ("0,1,2,3,4", {A, B, C, A3}),
        ("99999999999999999999", set()),
    ],
)
def test_numbers_are_read_as_cuda_reads_them(text, uuids):
    """E3: 2,3 of four."""
    assert kept(text) == uuids


@pytest.mark.parametrize(
    ("text", "uuids"),
    [
        (B, {B}),
        (f"{A3},{B}", {A3, B}),
        ("GPU-b", {B}),
        ("GPU-a", set()),  # two begin so
        ("GPU-a3,GPU-c", {A3, C}),
        ("GPU-c,GPU-x,GPU-b", {C}),
        ("GPU-c,1", {C}),
        ("GPU-c,GPU-c2", set()),
        ("gpu-c", set()),
        ("MIG-c", set()),
    ],
)
def test_uuids_and_prefixes_that_fit_one_only(text, uuids):
    assert kept(text) == uuids


@pytest.mark.parametrize(
    ("text", "uuids"),
    [
        ("MIG-a1", {"MIG-a1"}),
        ("MIG-a1,MIG-a2", {"MIG-a1", "MIG-a2"}),
        ("MIG-a", set()),
        ("MIG-GPU-p0/2/0", {"MIG-a2"}),
        ("MIG-GPU-p0/1/0,MIG-GPU-p0/2/0", {"MIG-a1", "MIG-a2"}),
        ("MIG-GPU-p0/9/0", set()),
        ("MIG-GPU-q1/1/0", set()),
        ("0", {"GPU-p0", "MIG-a1", "MIG-a2"}),
        ("1", {"GPU-q1"}),
        ("GPU-p", {"GPU-p0", "MIG-a1", "MIG-a2"}),
    ],
)
def test_slices_by_their_new_and_old_names_and_by_their_card(text, uuids):
    assert kept(text, SLICED) == uuids


def test_slices_of_a_driver_that_names_them_the_old_way():
    card = Card(0, "GPU-p", is_sliced=True, slices=(Slice(0, "MIG-GPU-p/7/0"), Slice(1, "MIG-GPU-p/8/0")))
    assert kept("MIG-GPU-p/8/0", [card]) == {"MIG-GPU-p/8/0"}


def test_numbers_of_different_cards_are_believed_in_the_order_of_the_bus_only():
    assert kept("1", MIXED, CUDA_DEVICE_ORDER="PCI_BUS_ID") == {"GPU-b"}
    assert kept("0,1", MIXED) == {"GPU-a", "GPU-b"}, "all of them, in whatever order"
    assert kept("GPU-b", MIXED) == {"GPU-b"}
    for order in ({}, {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}):
        found = offered(MIXED, {"CUDA_VISIBLE_DEVICES": "1", **order})
        assert found.uuids == frozenset()
        assert "set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name them by UUID" in found.why


def test_equal_cards_have_one_order():
    assert kept("2", CUDA_DEVICE_ORDER="FASTEST_FIRST") == {C}


@pytest.mark.parametrize(
    ("text", "uuids"),
    [
        (None, None),
        ("", None),
        ("all", None),
        ("void", None),
        ("none", set()),
        (f"{A3},{C}", {A3, C}),
        ("GPU-b", {B}),
        ("GPU-x", set()),
        ("GPU-x,GPU-b", {B}),
        ("1,3", {B, A3}),
        ("0,1,2,3", None),
        ("4,5,6,7", None),
        ("nvidia.com/gpu=1", {B}),
    ],
)
def test_the_container_runtimes_variable(text, uuids):
    """Numbers are the host's: where it names as many as are seen it was obeyed already."""
    environment = {} if text is None else {"NVIDIA_VISIBLE_DEVICES": text}
    assert offered(FOUR, environment).uuids == uuids


def test_the_container_runtimes_names_of_slices():
    assert offered(SLICED, {"NVIDIA_VISIBLE_DEVICES": "0:1"}).uuids == {"MIG-a2"}
    assert offered(SLICED, {"NVIDIA_VISIBLE_DEVICES": "MIG-a1"}).uuids == {"MIG-a1"}


def test_both_variables_must_leave_a_device():
    both = {"CUDA_VISIBLE_DEVICES": "1,2", "NVIDIA_VISIBLE_DEVICES": f"{A3},{C}"}
    assert offered(FOUR, both).uuids == {C}
    assert offered(FOUR, {**both, "NVIDIA_VISIBLE_DEVICES": "all"}).uuids == {B, C}


def test_why_nothing_is_left_is_told():
    assert offered(FOUR, {"CUDA_VISIBLE_DEVICES": ""}).why == (
        "CUDA_VISIBLE_DEVICES is empty: the worker may use none of its 4 NVIDIA GPUs"
    )
    assert offered(FOUR, {"CUDA_VISIBLE_DEVICES": "-1"}).why == (
        "CUDA_VISIBLE_DEVICES=-1: the worker may use none of its 4 NVIDIA GPUs"
    )
    assert offered(FOUR, {"NVIDIA_VISIBLE_DEVICES": "none"}).why.startswith("NVIDIA_VISIBLE_DEVICES=none: ")
    assert len(offered(FOUR, {"CUDA_VISIBLE_DEVICES": "x" * 10_000}).why) < 400


PLACED = tuple(replace(card, pci_address=f"0000:0{card.index}:00.0") for card in FOUR)


def left(*cards):
    """As the driver counts them now."""
    return tuple(replace(card, index=index) for index, card in enumerate(cards))


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"])
def test_numbers_mean_the_cards_that_they_meant_first_whoever_falls_off(name):
    visible, environment = Visible(), {name: "1,2"}
    assert visible.offered(PLACED, environment).uuids == {B, C}
    for there, uuids in (
        (left(*PLACED[1:]), {B, C}),
        (left(PLACED[0], *PLACED[2:]), {C}),
        (left(PLACED[0], PLACED[3]), set()),
        (PLACED, {B, C}),
    ):
        kept_now = visible.offered(there, environment)
        assert (kept_now.uuids, kept_now.why) == (uuids, ""), "no variable is to blame"


@pytest.mark.parametrize("text", ["1,2", f"{B},{C}", f"{B[:6]},{C[:6]}"])
def test_what_can_not_be_read_at_the_place_of_one_that_is_meant_is_meant(text):
    visible, environment = Visible(), {"CUDA_VISIBLE_DEVICES": text}
    visible.offered(PLACED, environment)
    unread = tuple(replace(card, uuid="") for card in PLACED)
    there = (unread[0], unread[1], PLACED[3])
    assert visible.offered(left(*there), environment).uuids == {unread[1].device_uuid}


def test_one_that_was_meant_before_it_could_be_read_is_meant_when_it_can():
    visible, environment = Visible(), {"CUDA_VISIBLE_DEVICES": "1"}
    unread = replace(PLACED[1], uuid="")
    assert visible.offered((PLACED[0], unread), environment).uuids == {unread.device_uuid}
    assert visible.offered(PLACED, environment).uuids == {B}


def test_slices_that_are_made_later_on_a_card_that_is_meant_are_meant():
    visible, environment = Visible(), {"CUDA_VISIBLE_DEVICES": "0"}
    whole = (replace(SLICED[0], is_sliced=False, slices=()), SLICED[1])
    assert visible.offered(whole, environment).uuids == {"GPU-p0"}
    assert visible.offered(SLICED, environment).uuids == {"GPU-p0", "MIG-a1", "MIG-a2"}
    assert Visible().offered(SLICED, {}).uuids is None


def test_slices_that_are_named_are_all_that_is_meant_of_their_card():
    visible, environment = Visible(), {"CUDA_VISIBLE_DEVICES": "MIG-a2"}
    assert visible.offered(SLICED, environment).uuids == {"MIG-a2"}
    assert visible.offered(SLICED, environment).uuids == {"MIG-a2"}


def test_where_nothing_was_ever_meant_the_variable_says_why():
    visible = Visible()
    assert "is empty" in visible.offered(FOUR, {"CUDA_VISIBLE_DEVICES": ""}).why
    assert "PCI_BUS_ID" in visible.offered(MIXED, {"CUDA_VISIBLE_DEVICES": "1"}).why
