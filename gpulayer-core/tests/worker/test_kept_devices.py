"""Over a restart devices keep their numbers, and one that is missing is missed: for a week, and by the same worker."""

import json
from dataclasses import replace

import pytest

from gpulayer.clock import ManualClock
from gpulayer.spec.machine import Device, DeviceState
from gpulayer.spec.request import Accelerator
from gpulayer.variables import DEVICE_VARIABLES
from gpulayer.worker.kept_devices import KeptDevices

DAY_MS = 86_400_000
THREE = tuple(
    Device(f"GPU-{index}", index, Accelerator.CUDA, "H100", pci_address=f"0000:0{index}:00.0", links=(("x", "NV4"),))
    for index in range(3)
)
LEFT = (THREE[0], replace(THREE[2], index=1))


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def life(tmp_path, clock):
    """What is told of these at a worker's start."""

    def start(found, *, missing=(), host="node-1", probes=("nvidia",), **environment):
        kept = KeptDevices(tmp_path / "known", clock, environment=environment, host=host, probes=probes)
        known = kept.read()
        settled = known.settle(found, dict(missing))
        kept.write(known)
        return settled

    return start


def test_numbers_and_who_is_missing_survive_a_restart(life):
    assert life(THREE) == THREE
    settled = life(LEFT)
    assert [(device.uuid, device.index, device.state is DeviceState.UNHEALTHY) for device in settled] == [
        ("GPU-0", 0, False), ("GPU-1", 1, True), ("GPU-2", 2, False),
    ]  # fmt: skip
    assert settled[1].reason == "it is not found any more"
    assert life(THREE) == THREE


def test_where_the_driver_does_not_answer_after_a_restart_all_are_there_with_its_words(life):
    life(THREE)
    assert {device.reason for device in life((), missing=[("cuda", "version mismatch")])} == {"version mismatch"}
    assert life(THREE) == THREE


def test_one_that_was_taken_out_is_forgotten_after_a_week_and_the_others_are_counted_anew(life, clock):
    life(THREE)
    clock.advance(DAY_MS)
    life(LEFT)
    clock.advance(6 * DAY_MS - 1)
    assert [device.index for device in life(LEFT)] == [0, 1, 2], "a week less a moment since it was found last"
    clock.advance(1)
    assert life(LEFT) == LEFT
    assert life(LEFT) == LEFT


def test_a_machine_that_was_off_for_more_than_a_week_has_lost_none(life, clock, caplog):
    caplog.set_level("INFO")
    life(LEFT)
    life(THREE)
    before = life(THREE)
    assert [device.index for device in before] == [0, 1, 2]
    clock.advance(9 * DAY_MS)
    assert life(THREE) == before
    assert caplog.messages == []


def test_what_is_overdue_is_not_forgotten_before_it_could_be_looked_for(life, clock, caplog):
    caplog.set_level("INFO")
    life(THREE)
    clock.advance(9 * DAY_MS)
    assert len(life((), missing=[("cuda", "version mismatch")])) == 3
    assert caplog.messages == []
    assert life(LEFT) == LEFT
    assert caplog.messages == ["device 1 (GPU-1) has not been found for a week, and is forgotten"]


def test_a_time_that_is_still_to_come_keeps_nothing_longer_than_a_week(life, clock):
    clock.wall_offset_ms += 400 * DAY_MS
    life(THREE)
    clock.wall_offset_ms -= 400 * DAY_MS
    assert len(life(LEFT)) == 3
    clock.advance(8 * DAY_MS)
    assert life(LEFT) == LEFT


def test_the_file_of_another_machine_of_that_name_is_missed_by_nobody(life):
    life(THREE[:2])
    ours = (replace(THREE[0], uuid="GPU-30", pci_address="0000:30:00.0"),)
    assert life(ours) == ours
    assert life(ours) == ours


def test_a_card_that_can_not_be_read_is_no_sign_of_another_machine(life):
    life(THREE)
    unread = Device("CUDA-0", 0, Accelerator.CUDA, "", state=DeviceState.UNHEALTHY, reason="Unknown Error")
    assert {device.uuid for device in life((unread,))} > {device.uuid for device in THREE}


def test_what_holds_no_longer_is_gone_from_the_file(life):
    life(THREE)
    assert life((), CUDA_VISIBLE_DEVICES="") == ()
    assert life(()) == ()


def test_a_worker_that_goes_on_keeps_saying_that_they_are_there(tmp_path, clock):
    def kept():
        return KeptDevices(tmp_path / "known", clock, environment={}, host="h", probes=["nvidia"])

    running = kept()
    known = running.read()
    for _ in range(9 * 24):
        known.settle(THREE, {})
        running.write(known)
        clock.advance(3_600_000)
    assert len(kept().read().settle(LEFT, {})) == 3


@pytest.mark.parametrize(
    "other",
    [
        {"CUDA_VISIBLE_DEVICES": "0"},
        {"CUDA_VISIBLE_DEVICES": ""},
        {"NVIDIA_VISIBLE_DEVICES": "GPU-0"},
        {"SLURM_JOB_ID": "7"},
        {"host": "node-2"},
        {"probes": ["amd"]},
    ],
)
def test_who_is_given_other_devices_on_purpose_misses_none(life, other):
    life(THREE)
    assert life(LEFT, **other) == LEFT


def test_what_else_changes_about_a_worker_forgets_none(life):
    life(THREE)
    assert len(life(LEFT, PATH="/elsewhere", probes=["nvidia", "more"])) == 3


@pytest.mark.parametrize(
    "damage",
    [
        lambda said: "",
        lambda said: "[" * 100_000,
        lambda said: "[1]",
        lambda said: json.dumps(said | {"devices": [[0]]}),
        *(
            lambda said, what=what: json.dumps(said | {"devices": [[what, said["devices"][0][1]]]})
            for what in ("x", None, 1e999, -1e999, float("nan"), 1.5, [])
        ),
        lambda said: json.dumps(said | {"devices": [[0, said["devices"][0][1] | {"index": -1}]]}),
        lambda said: json.dumps(said | {"devices": [[0, said["devices"][0][1] | {"colour": "red"}]]}),
    ],
)
def test_a_file_that_can_not_be_read_kept_nothing(life, tmp_path, damage):
    life(THREE)
    (tmp_path / "known").write_text(damage(json.loads((tmp_path / "known").read_text())))
    assert life(LEFT) == LEFT


def test_a_folder_that_can_not_be_written_costs_nothing_but_that_and_is_written_when_it_can_be(tmp_path, clock, caplog):
    def kept():
        return KeptDevices(tmp_path / "nowhere" / "known", clock, environment={}, host="h", probes=["nvidia"])

    running = kept()
    known = running.read()
    assert known.settle(THREE, {}) == THREE
    for _ in range(3):
        running.write(known)
    assert len(caplog.messages) == 1
    (tmp_path / "nowhere").mkdir()
    running.write(known)
    assert len(kept().read().settle(LEFT, {})) == 3


@pytest.mark.parametrize("name", sorted(DEVICE_VARIABLES))
def test_whatever_hides_devices_says_which_a_worker_is_given(life, name):
    life(THREE)
    assert life(LEFT, **{name: "0"}) == LEFT
