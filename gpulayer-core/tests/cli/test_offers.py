"""What machines offer, as lines for people: the same words once, and no name that pushes the rest off the screen."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from gpulayer.cli.detected import detected_lines
from gpulayer.cli.offers import device_text, pending_lines, said_of, unusable_lines
from gpulayer.spec.machine import Device, DeviceState, Framework, WorkerFacts
from gpulayer.spec.request import Accelerator
from gpulayer.wire.facts import facts_to_wire
from gpulayer.worker.detecting import Detected

CUDA, CPU = Accelerator.CUDA, Accelerator.CPU
BROKEN = "Driver/library version mismatch"
DEVICES = tuple(Device(f"GPU-{number}", number, CUDA, "NVIDIA L40S") for number in range(4))
FACTS = WorkerFacts(platform="linux-x86_64", version="0", cpus=8, memory_bytes=1, devices=DEVICES)


def broken(reason=BROKEN):
    devices = [replace(device, state=DeviceState.UNHEALTHY, reason=reason) for device in DEVICES]
    return replace(FACTS, devices=tuple(devices), missing=(("cuda", reason),))


def detected(facts):
    return detected_lines(Detected(facts, "/usr/bin/python3", ("jax", "torch"), ()))


KEYS = ("devices", "frameworks", "missing")


def of_worker(parts, facts):
    told = facts_to_wire(facts)
    return unusable_lines([parts.worker(name="box", **{key: told[key] for key in KEYS if key in told})])


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([3], "device 3"), ([0, 0], "device 0"), ([3, 0, 1], "devices 0-1, 3"), ([0, 2, 4], "devices 0, 2, 4")],
)
def test_devices_are_named_by_their_numbers(numbers, text):
    assert said_of(numbers) == text


def test_what_is_wrong_with_all_devices_is_said_once(parts):
    assert of_worker(parts, broken()) == ["", "can't be used", f"  box: devices 0-3 are unhealthy: {BROKEN}"]
    lines = detected(broken())
    assert [line for line in lines if BROKEN in line] == [f"    devices 0-3: {BROKEN}"]


def test_what_is_wrong_with_one_device_stands_below_it(parts):
    one = replace(FACTS, devices=(broken().devices[0], *DEVICES[1:]))
    assert of_worker(parts, one)[2:] == [f"  box: device 0 is unhealthy: {BROKEN}"]
    lines = detected(one)
    at = lines.index(f"    {BROKEN}")
    assert lines[at - 1].startswith("0  cuda")
    assert lines[at + 1].startswith("1  cuda")


def test_a_kind_without_a_device_is_told_of(parts):
    nothing = replace(FACTS, devices=(), missing=(("cuda", BROKEN),))
    assert of_worker(parts, nothing)[2:] == [f"  box: no cuda: {BROKEN}"]
    assert f"  no cuda: {BROKEN}" in detected(nothing)


def test_what_a_framework_says_of_several_kinds_is_said_once(parts):
    torch = [Framework("torch", "2.6.0", kind, usable=False, reason="no MPI") for kind in (CUDA, CPU)]
    facts = replace(FACTS, frameworks=tuple(torch))
    assert "  torch  2.6.0  cuda, cpu  no MPI" in detected(facts)
    assert of_worker(parts, facts)[2:] == ["  box: torch on cuda: no MPI"]


def test_what_is_not_checked_yet_is_told_apart_from_what_can_not_be_used(parts):
    pending = [Framework(name, "", kind, False, is_pending=True) for name in ("torch", "jax") for kind in (CUDA, CPU)]
    pending.append(Framework("cupy", "13", CUDA, False, "another process holds it", is_pending=True))
    facts = replace(FACTS, frameworks=tuple(pending))
    assert "  jax, torch: not checked yet" in detected(facts)
    assert "  cupy  13  cuda  not checked yet: another process holds it" in detected(facts)
    worker = parts.worker(devices=[], frameworks=facts_to_wire(facts)["frameworks"])
    assert pending_lines([worker]) == [
        "",
        "not checked yet",
        f"  {worker['name']}: torch, jax: the checks are under way",
        f"  {worker['name']}: cupy: another process holds it",
    ]
    assert unusable_lines([worker]) == []


def test_devices_on_which_a_framework_fails_are_named_and_it_computes_on_the_others(parts):
    old = DEVICES[0]
    torch = Framework("torch", "2.6.0", CUDA, usable=True, failed_on=((old.uuid, "no kernel image"),))
    facts = replace(FACTS, frameworks=(torch,))
    assert f"  torch  2.6.0  cuda  computes, but not on device {old.index}: no kernel image" in detected(facts)
    assert f"  box: torch on cuda {old.index}: no kernel image" in of_worker(parts, facts)


def test_what_no_framework_could_be_asked_for_is_said_once():
    frameworks = [
        Framework(name, "", kind, False, "python3 hangs") for name in ("torch", "jax") for kind in (CUDA, CPU)
    ]
    lines = detected(replace(FACTS, frameworks=tuple(frameworks)))
    assert [line for line in lines if "hangs" in line] == ["  jax, torch: python3 hangs"]


def test_a_long_name_of_a_device_is_cut():
    assert device_text(3, "cuda", "NVIDIA L40S") == "3 cuda NVIDIA L40S"
    assert len(device_text(3, "cuda", "x" * 200)) == len("3 cuda ") + 40
    assert "…" in device_text(3, "cuda", "x" * 200)
    long = replace(FACTS, devices=(replace(DEVICES[0], model="x" * 200), *DEVICES[1:]))
    assert max(map(len, detected(long))) < 100


def test_resources_tell_the_number_of_a_device(cli, plane, parts):
    worker = parts.worker(devices=facts_to_wire(FACTS)["devices"])
    plane.on("GET", "/v1/workers", [{"workers": [worker], "next": None}])
    assert b"3 cuda NVIDIA L40S" in cli("resources", plane=plane).out


# Which Python ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def program_of(tmp_path):
    """A program that answers so, whatever it is asked."""

    def program_of(script):
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return str(path)

    return program_of


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo I speak Perl >&2; exit 3", "it is no Python; asked for its version it said: I speak Perl"),
        ("exit 0", "it is no Python"),
        ("echo python 2 7", "it is Python 2.7; 3.8 is the oldest"),
        ("echo python 3 7", "it is Python 3.7; 3.8 is the oldest"),
    ],
)
def test_what_is_no_python_that_could_be_asked_is_refused_at_once_with_what_it_said(cli, program_of, script, said):
    answer = cli("resources", "detect", "--python", program_of(script))
    assert answer.code == 2
    assert said in answer.err
    assert answer.out == b""


@pytest.mark.parametrize(
    ("path", "said"), [("/etc/passwd", "it can't be run"), ("/no/such", "no program is there"), ("", "'': no program")]
)
def test_what_is_no_program_is_refused(cli, path, said):
    answer = cli("resources", "detect", "--python", path)
    assert answer.code == 2
    assert said in answer.err


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_look_that_is_told_to_end_takes_away_what_it_has_begun(program, program_of, tmp_path, monkeypatch):
    """As a Python hangs that has told its version."""
    (tmp_path / "temp").mkdir()
    hangs = program_of(f"""case "$2" in -S) echo python 3 12; exit;; esac
echo $$ > {tmp_path}/new && mv {tmp_path}/new {tmp_path}/pid
exec sleep 600""")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temp"))
    process = program("resources", "detect", "--python", hangs, stderr=subprocess.PIPE)
    ends = time.monotonic() + 60
    while not (tmp_path / "pid").exists():
        assert time.monotonic() < ends
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert list((tmp_path / "temp").iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_no_link_is_no_link_in_the_legend():
    two = (replace(DEVICES[0], links=(("GPU-1", "NV0"),)), DEVICES[1])
    assert "NV0 = no NVLink" in "\n".join(detected(replace(FACTS, devices=two)))
