"""What can't be meant is refused before anything is sent or placed: by its flag, with a right example."""

import pytest

from gpulayer.cli.flags import by_flag
from gpulayer.errors import BadRequest, UsageError
from gpulayer.sdk.options import plan_request
from gpulayer.wire.convert import request_from_wire


@pytest.mark.parametrize(
    ("flags", "said", "hint"),
    [
        (["--device-memory", "24 gigs"], "--device-memory: '24 gigs' is not a size", "24GB, 24GiB"),
        (["--device-memory", "1e9"], "--device-memory: '1e9' is not a size", "24GB, 24GiB"),
        (["--memory", "lots"], "--memory: 'lots' is not a size", "24GB, 24GiB"),
        (["--disk", "5QB"], "--disk: '5QB' is not a size", "24GB, 24GiB"),
        (["--accelerator", "cuda,gpu"], "--accelerator: 'gpu' is unknown", "cuda, rocm"),
        (["--devices", "-1"], "--devices -1: less than 0", "--devices 1"),
        (["--cpus", "0"], "--cpus 0: less than 1", "--cpus 1"),
        (["--label", "team"], "--label team: not of the form KEY=VALUE", "--label key=value"),
        (["--label", "a=1", "--label", "a=2"], "--label a=2: a is given twice", "--label a="),
        (["--resource", "licence=two"], "--resource licence=two: not of the form", "--resource licence=1"),
        (["--resource", "licence=0"], "--resource.licence: 0 is less than 1", "1 or more"),
    ],
)
@pytest.mark.parametrize("command", ["explain", "submit"])
def test_a_value_is_refused_at_once_by_its_flag(cli, job_plane, command, flags, said, hint):
    ended = cli(command, *flags, *(["--", "true"] if command == "submit" else []), plane=job_plane)
    first, second = ended.err.splitlines()[:2]
    assert (ended.code, first.partition(": ")[2][: len(said)]) == (2, said)
    assert hint in second
    assert job_plane.created == []


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"accelerators": ["cpu"], "devices": 2}, "--devices: accelerator cpu has no devices, but 2 devices wanted"),
        ({"compute_capability": ">=x"}, "--compute-capability: '>=x' is not a version range"),
        ({"compute_capability": "8.0"}, "--compute-capability: '8.0' is not a version range"),
        ({"compute_capability": ">=9,<8"}, "--compute-capability: no version is >=9,<8"),
        ({"frameworks": ["torch=2"]}, "--framework: 'torch=2' is not a framework"),
        ({"frameworks": ["torch>=3,<2"]}, "--framework: torch: no version is <2,>=3"),
        ({"frameworks": ["torch>=3", "torch<2"]}, "--framework: torch: no version is >=3,<2"),
        ({"accelerators": ["gpu"]}, "--accelerator: "),
        ({"devices": 0, "device_memory_bytes": 1}, "the request names properties of a device but asks for no device"),
    ],
)
def test_what_contradicts_itself_is_refused_by_the_control_plane_with_a_right_example(fields, said):
    with pytest.raises(BadRequest) as caught:
        request_from_wire(fields)
    assert by_flag(caught.value.message).startswith(said)
    assert caught.value.hint


@pytest.mark.parametrize("text", ["24GB", "24gb", "24 GB", "24g", "24G", "24000MB", "24000000000"])
def test_sizes_are_read_as_people_write_them(text):
    assert plan_request({"device_memory": text})["device_memory_bytes"] == 24 * 10**9


def test_binary_sizes_are_binary():
    assert plan_request({"memory": "24GiB"})["memory_bytes"] == 24 * 2**30


def test_in_python_it_is_said_by_the_keyword():
    with pytest.raises(UsageError, match=r"^device_memory: '24 gigs' is not a size") as caught:
        plan_request({"device_memory": "24 gigs"})
    assert "24GB" in caught.value.hint


@pytest.mark.parametrize("message", ["no job 7f3a", "odd: no field", "worker: silent", ""])
def test_other_messages_stay(message):
    assert by_flag(message) == message
