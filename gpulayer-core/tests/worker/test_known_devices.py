"""A device that a worker has met stays known: its uuid, its number, and the reason why it can't be used now."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulayer.spec.machine import Device, DeviceState
from gpulayer.spec.request import Accelerator
from gpulayer.worker.devices import device_variables
from gpulayer.worker.findings import MAX_DEVICES
from gpulayer.worker.known_devices import KnownDevices


def gpu(index, uuid="", **fields):
    return Device(uuid or f"GPU-{index}", index, fields.pop("kind", Accelerator.CUDA), "H100", **fields)


FOUR = tuple(gpu(index) for index in range(4))


def test_one_that_vanishes_is_unhealthy_and_the_others_keep_their_numbers_though_the_tool_counts_anew():
    known = KnownDevices()
    assert known.settle(FOUR, {}) == FOUR
    left = [replace(FOUR[2], index=1, temperature_c=40), replace(FOUR[3], index=2), FOUR[0]]
    settled = known.settle(left, {})
    assert [(device.uuid, device.index) for device in settled] == [(device.uuid, device.index) for device in FOUR]
    assert [device.state is DeviceState.UNHEALTHY for device in settled] == [False, True, False, False]
    assert settled[1].reason == "it is not found any more"
    assert known.settle(FOUR, {}) == FOUR, "and it comes back by itself"


def test_when_their_driver_does_not_answer_all_say_so_and_come_back():
    known = KnownDevices()
    known.settle(FOUR, {})
    settled = known.settle((), {"cuda": "the driver does not answer"})
    assert {(device.state, device.reason) for device in settled} == {
        (DeviceState.UNHEALTHY, "the driver does not answer")
    }
    assert known.settle(FOUR, {}) == FOUR


def test_a_card_that_replaces_another_gets_a_number_that_nobody_has():
    known = KnownDevices()
    known.settle(FOUR, {})
    settled = known.settle([*FOUR[:1], gpu(1, "GPU-new"), replace(FOUR[2], index=2), FOUR[3]], {})
    assert {device.uuid: device.index for device in settled} == {
        "GPU-0": 0, "GPU-1": 1, "GPU-2": 2, "GPU-3": 3, "GPU-new": 4,
    }  # fmt: skip


def test_a_card_that_is_cut_into_slices_or_made_whole_again_has_not_vanished():
    known = KnownDevices()
    whole = gpu(0)
    slices = tuple(gpu(0, f"MIG-{number}", parent=whole.uuid) for number in range(2))
    known.settle([whole], {})
    assert [device.uuid for device in known.settle(slices, {})] == ["MIG-0", "MIG-1"]
    assert {device.index for device in known.settle(slices, {})} == {0}
    assert [device.uuid for device in known.settle(slices[:1], {})] == ["MIG-0"], "slices are unmade on purpose"
    assert known.settle((), {"cuda": "it hangs"})[0].reason == "it hangs"
    assert [device.uuid for device in known.settle([whole], {})] == [whole.uuid]


def test_slices_of_a_card_that_vanishes_vanish_with_it_and_say_so():
    known = KnownDevices()
    slices = tuple(gpu(0, f"MIG-{number}", parent="GPU-a", pci_address="0000:01:00.0") for number in range(2))
    other = gpu(1, "GPU-b", pci_address="0000:02:00.0")
    known.settle([*slices, other], {})
    settled = {device.uuid: device for device in known.settle([other], {})}
    assert settled["GPU-b"].state is DeviceState.USABLE
    assert [settled[one.uuid].reason for one in slices] == ["it is not found any more"] * 2
    card = gpu(0, "GPU-a", pci_address="0000:01:00.0", state=DeviceState.UNHEALTHY, reason="no MIG device was made")
    assert {device.uuid for device in known.settle([card, other], {})} == {"GPU-a", "GPU-b"}, "unmade, on a card"


def test_what_can_be_read_at_last_and_what_replaces_another_take_its_place():
    known = KnownDevices()
    known.settle([gpu(0, "CUDA-0000:02:00.0", pci_address="0000:02:00.0", state=DeviceState.UNHEALTHY)], {})
    readable = gpu(0, pci_address="0000:02:00.0")
    assert known.settle([readable], {}) == (readable,)


PLACED = tuple(replace(device, pci_address=f"0000:0{device.index}:00.0") for device in FOUR)


def unread(index, pci_address=""):
    uuid = f"CUDA-{pci_address or index}"
    return gpu(index, uuid, pci_address=pci_address, state=DeviceState.UNHEALTHY, reason="it is lost")


def test_slices_keep_the_number_of_their_card_when_another_one_vanishes():
    known = KnownDevices()
    slices = tuple(gpu(1, f"MIG-{number}", parent="GPU-b") for number in range(2))
    known.settle([gpu(0), *slices], {})
    settled = known.settle([replace(one, index=0) for one in slices], {})
    assert [(device.uuid, device.index) for device in settled] == [("GPU-0", 0), ("MIG-0", 1), ("MIG-1", 1)]


def test_one_that_can_not_be_read_is_who_was_met_at_its_address_whatever_the_tool_counts():
    known = KnownDevices()
    known.settle(PLACED, {})
    settled = known.settle([replace(PLACED[3], index=0), unread(1, PLACED[2].pci_address)], {})
    assert [(device.uuid, device.index, device.reason) for device in settled] == [
        ("GPU-0", 0, "it is not found any more"),
        ("GPU-1", 1, "it is not found any more"),
        ("GPU-2", 2, "it is lost"),
        ("GPU-3", 3, ""),
    ]
    assert settled[2].model == "H100"
    assert known.settle(PLACED, {}) == PLACED


def test_slices_of_a_card_that_can_not_be_read_say_so():
    known = KnownDevices()
    slices = tuple(gpu(1, f"MIG-{number}", parent="GPU-a", pci_address="0000:01:00.0") for number in range(2))
    assert known.settle([gpu(0), *slices], {}) == (gpu(0), *slices)
    settled = known.settle([gpu(0), unread(1, "0000:01:00.0")], {})
    assert [(device.uuid, device.index, device.reason) for device in settled] == [
        ("GPU-0", 0, ""), ("MIG-0", 1, "it is lost"), ("MIG-1", 1, "it is lost"),
    ]  # fmt: skip


def test_without_an_address_it_is_the_one_that_has_gone():
    known = KnownDevices()
    known.settle(FOUR, {})
    settled = known.settle([FOUR[0], unread(1), FOUR[2], FOUR[3]], {})
    assert [(device.uuid, device.reason) for device in settled] == [
        ("GPU-0", ""), ("GPU-1", "it is lost"), ("GPU-2", ""), ("GPU-3", ""),
    ]  # fmt: skip


def test_where_more_have_gone_than_can_not_be_read_nobody_says_which_it_is_and_it_is_not_missed_later():
    """Card 0 has fallen off, and what was card 1 is counted first now."""
    known = KnownDevices()
    known.settle(FOUR[:2], {})
    settled = known.settle([unread(0)], {})
    assert [(device.uuid, device.index, device.reason) for device in settled] == [
        ("GPU-0", 0, "it is not found any more"),
        ("GPU-1", 1, "it is not found any more"),
        ("CUDA-0", 2, "it is lost"),
    ]
    assert known.settle(FOUR[:2], {}) == FOUR[:2]


@pytest.mark.parametrize(
    ("kind", "variable"), [(Accelerator.XPU, "ZE_AFFINITY_MASK"), (Accelerator.ROCM, "ROCR_VISIBLE_DEVICES")]
)
def test_devices_that_are_masked_by_number_are_shown_with_their_first_one_and_masked_by_that_of_now(kind, variable):
    known = KnownDevices()
    found = tuple(gpu(index, f"{kind.upper()}-0000:0{index}:00.0", kind=kind) for index in range(3))
    assert known.settle(found, {}) == found
    left = known.settle([replace(found[1], index=0), replace(found[2], index=1)], {})
    assert [device.index for device in left] == [0, 1, 2], "no two share one"
    assert [device_variables([device])[variable] for device in left[1:]] == ["0", "1"]
    assert known.settle(found, {}) == found


def test_a_probe_that_finds_others_each_time_fills_nothing():
    known = KnownDevices()
    for look in range(5):
        settled = known.settle([gpu(at, f"GPU-{look}-{at}") for at in range(500)], {})
    assert len(settled) == MAX_DEVICES
    assert sum(device.state is DeviceState.USABLE for device in settled) == 500


@given(st.lists(st.sets(st.integers(0, 6)), max_size=6))
def test_whatever_comes_and_goes_nobody_changes_numbers_and_no_two_share_one(looks):
    known, numbers = KnownDevices(), {}
    for look in looks:
        found = [gpu(at, f"GPU-{one}") for at, one in enumerate(sorted(look))]
        settled = known.settle(found, {})
        assert {device.uuid for device in found} == {d.uuid for d in settled if d.state is DeviceState.USABLE}
        for device in settled:
            assert numbers.setdefault(device.uuid, device.index) == device.index
        assert len({device.index for device in settled}) == len(settled)
