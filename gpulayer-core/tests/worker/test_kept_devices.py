"""Over a restart devices keep their numbers, and one that is missing is missed: for a week, and by the same worker."""

import json
from dataclasses import replace

import pytest

from gpulayer.clock import ManualClock
from gpulayer.spec.machine import Device, DeviceState
from gpulayer.spec.request import Accelerator
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
        lambda said: json.dumps(said | {"devices": [["x", said["devices"][0][1]]]}),
        lambda said: json.dumps(said | {"devices": [[0, said["devices"][0][1] | {"index": -1}]]}),
        lambda said: json.dumps(said | {"devices": [[0, said["devices"][0][1] | {"colour": "red"}]]}),
    ],
)
def test_a_file_that_can_not_be_read_kept_nothing(life, tmp_path, damage):
    life(THREE)
    (tmp_path / "known").write_text(damage(json.loads((tmp_path / "known").read_text())))
    assert life(LEFT) == LEFT


def test_a_folder_that_can_not_be_written_costs_nothing_but_that(tmp_path, clock):
    kept = KeptDevices(tmp_path / "nowhere" / "known", clock, environment={}, host="h", probes=["nvidia"])
    known = kept.read()
    assert known.settle(THREE, {}) == THREE
    kept.write(known)
