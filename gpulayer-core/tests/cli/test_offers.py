"""What machines offer, as lines for people: the same words once, and no name that pushes the rest off the screen."""

import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from gpulayer.cli.detected import detected_lines
from gpulayer.cli.machine import link_lines, memory_text, near_lines, said_of
from gpulayer.cli.offers import device_rows, lines_below
from gpulayer.cli.records import devices_text, worker_fields
from gpulayer.spec.machine import Device, DeviceState, Framework, WorkerFacts
from gpulayer.spec.request import Accelerator
from gpulayer.wire.facts import facts_to_wire
from gpulayer.worker.detecting import Detected
from tests.together import is_alive

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


def of_worker(parts, facts, name="box"):
    told = facts_to_wire(facts)
    return parts.worker(name=name, **{key: told[key] for key in KEYS if key in told})


def unusable(parts, facts):
    return lines_below([of_worker(parts, facts)])


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([3], "device 3"), ([0, 0], "device 0"), ([3, 0, 1], "devices 0-1, 3"), ([0, 2, 4], "devices 0, 2, 4")],
)
def test_devices_are_named_by_their_numbers(numbers, text):
    assert said_of([Device("", number, CUDA, "") for number in numbers]) == text


def test_what_is_wrong_with_all_devices_is_said_once(parts):
    assert unusable(parts, broken()) == ["", "can't be used", f"  box: each of devices 0-3 is unhealthy: {BROKEN}"]
    lines = detected(broken())
    assert [line for line in lines if BROKEN in line] == [f"    devices 0-3: {BROKEN}"]


def test_what_is_wrong_with_one_device_stands_below_it(parts):
    one = replace(FACTS, devices=(broken().devices[0], *DEVICES[1:]))
    assert unusable(parts, one)[2:] == [f"  box: device 0 is unhealthy: {BROKEN}"]
    lines = detected(one)
    at = lines.index(f"    {BROKEN}")
    assert lines[at - 1].startswith("0  cuda")
    assert lines[at + 1].startswith("1  cuda")


def test_a_kind_without_a_device_is_told_of(parts):
    nothing = replace(FACTS, devices=(), missing=(("cuda", BROKEN),))
    assert unusable(parts, nothing)[2:] == [f"  box: no cuda: {BROKEN}"]
    assert f"  no cuda: {BROKEN}" in detected(nothing)


def test_what_a_framework_says_of_several_kinds_is_said_once(parts):
    torch = [Framework("torch", "2.6.0", kind, usable=False, reason="no MPI") for kind in (CUDA, CPU)]
    facts = replace(FACTS, frameworks=tuple(torch))
    assert "  torch  2.6.0  cuda, cpu  no MPI" in detected(facts)
    assert unusable(parts, facts)[2:] == ["  box: torch on cuda: no MPI"]


def test_what_is_not_checked_yet_is_told_apart_from_what_can_not_be_used(parts):
    pending = [Framework(name, "", kind, False, is_pending=True) for name in ("torch", "jax") for kind in (CUDA, CPU)]
    pending.append(Framework("cupy", "13", CUDA, False, "another process holds it", is_pending=True))
    facts = replace(FACTS, frameworks=tuple(pending))
    assert "  jax, torch: not checked yet" in detected(facts)
    assert "  cupy  13  cuda  not checked yet: another process holds it" in detected(facts)
    assert unusable(parts, facts) == [
        "",
        "not checked yet",
        "  box: torch, jax: the checks are under way",
        "  box: cupy: another process holds it",
    ]
    assert "jax, torch: not checked yet" in dict(worker_fields(of_worker(parts, facts)))["frameworks"]


def test_devices_on_which_a_framework_fails_are_named_and_it_computes_on_the_others(parts):
    torch = Framework("torch", "2.6.0", CUDA, usable=True, failed_on=(("GPU-3", "no kernel image"),))
    facts = replace(FACTS, frameworks=(torch,))
    assert "  torch  2.6.0  cuda  computes, but not on device 3: no kernel image" in detected(facts)
    assert "  box: torch on device 3: no kernel image" in unusable(parts, facts)


def test_a_device_is_called_the_same_wherever_it_is_told_of(parts):
    """By its number, with its kind where the machine has several; slices, which share their card's, by uuid."""
    other = Device("ROCM-0", 0, Accelerator.ROCM, "AMD Instinct MI300X")
    slices = tuple(Device(f"MIG-{number}", 0, CUDA, "NVIDIA H100 MIG 1g.10gb", parent="GPU-0") for number in range(2))
    for devices, uuid, name in (
        (DEVICES, "GPU-1", "device 1"),
        ((*DEVICES, other), "GPU-1", "cuda device 1"),
        (slices, "MIG-1", "MIG-1"),
        (DEVICES, "GPU-gone", "GPU-gone"),
    ):
        torch = Framework("torch", "2.6.0", CUDA, usable=True, failed_on=((uuid, "no kernel image"),))
        facts = replace(FACTS, devices=devices, frameworks=(torch,))
        shown = dict(worker_fields(of_worker(parts, facts)))
        assert shown["frameworks"] == f"torch  2.6.0  cuda  computes, but not on {name}: no kernel image"
        if uuid != "GPU-gone":
            assert unusable(parts, facts)[-1] == f"  box: torch on {name}: no kernel image"
        rows = [row[0] for row in device_rows(of_worker(parts, facts))]
        for title in (row.split(" ", 1)[1].removesuffix(" × 2") for row in rows):
            assert title in shown["devices"]
            assert any(title in line for line in detected(facts))


def test_of_accelerators_that_a_machine_neither_has_nor_should_have_only_json_tells(parts):
    kinds = (CUDA, Accelerator.ROCM, Accelerator.XPU, CPU)
    torch = [Framework("torch", "2.6.0", kind, kind in (CUDA, CPU), f"no {kind} build") for kind in kinds]
    facts = replace(FACTS, frameworks=tuple(torch))
    assert dict(worker_fields(of_worker(parts, facts)))["frameworks"] == "torch  2.6.0  cuda, cpu  computes"
    missing = replace(facts, missing=(("rocm", "no /dev/kfd"),))
    assert [line for line in detected(missing) if "build" in line] == ["                rocm       no rocm build"]
    cupy = Framework("cupy", "14.2", CUDA, usable=False, reason="no driver")
    alone = replace(FACTS, devices=(), frameworks=(cupy,))
    assert "  cupy  14.2  cuda  no driver" in detected(alone), "nothing else is known of it"


def test_what_is_wrong_with_a_kind_is_said_once_of_a_worker(parts):
    fields = dict(worker_fields(of_worker(parts, broken())))
    assert BROKEN in fields["devices"]
    assert fields["missing"] == ""


def test_what_jobs_have_is_told_apart_from_what_is_free_with_the_job(parts):
    lent = {"GPU-0": "job-a", "GPU-1": "job-a", "GPU-3": "job-b", "GPU-gone": "job-c"}
    worker = of_worker(parts, FACTS) | {"device_jobs": lent, "leases": [7, 8]}
    assert device_rows(worker) == [["0-1, 3 cuda L40S", "unknown", "in use"], ["2 cuda L40S", "unknown", "usable"]]
    assert lines_below([worker]) == ["", "in use", "  box: devices 0-1 by job job-a", "  box: device 3 by job job-b"]
    fields = dict(worker_fields(worker))
    assert [line.split()[-3:] for line in fields["devices"].splitlines()[1:]] == [
        ["use", "job-a", "GPU-0"],
        ["use", "job-a", "GPU-1"],
        ["unknown", "usable", "GPU-2"],
        ["use", "job-b", "GPU-3"],
    ]
    assert fields["attempts"] == "2"
    assert devices_text(worker) == "3 × NVIDIA L40S (in use), 1 × NVIDIA L40S"
    two = (*DEVICES, Device("ROCM-0", 0, Accelerator.ROCM, "AMD Instinct MI300X"))
    worker = of_worker(parts, replace(FACTS, devices=two)) | {"device_jobs": {"ROCM-0": "job-d"}}
    assert lines_below([worker])[-1] == "  box: rocm device 0 by job job-d"


def test_a_broken_device_that_a_job_still_has_is_broken(parts):
    worker = of_worker(parts, broken()) | {"device_jobs": {"GPU-0": "job-a"}}
    assert {row[2] for row in device_rows(worker)} == {"unhealthy"}
    assert "  box: device 0 by job job-a" in lines_below([worker])


def test_what_no_framework_could_be_asked_for_is_said_once():
    frameworks = [
        Framework(name, "", kind, False, "python3 hangs") for name in ("torch", "jax") for kind in (CUDA, CPU)
    ]
    lines = detected(replace(FACTS, frameworks=tuple(frameworks)))
    assert [line for line in lines if "hangs" in line] == ["  jax, torch: python3 hangs"]


def test_a_long_name_of_a_device_and_a_long_reason_are_cut(parts):
    long = replace(DEVICES[0], model="x" * 200, state=DeviceState.UNHEALTHY, reason="why " * 200)
    facts = replace(FACTS, devices=(long, *DEVICES[1:]), missing=(("rocm", "why not " * 200),))
    assert all(len(line) < (320 if "why" in line else 100) for line in detected(facts))
    assert sum("…" in line for line in detected(facts)) == 3
    assert all(len(line) < 340 for line in unusable(parts, facts))
    assert device_rows(of_worker(parts, facts))[0][0] == "0 cuda " + "x" * 39 + "…"


# Many machines at a glance --------------------------------------------------------------------------------------------


def test_devices_that_are_alike_are_one_row_and_what_differs_has_its_own(parts):
    lent = replace(DEVICES[1], memory_bytes=48 * 10**9, memory_free_bytes=10**9)
    idle = [replace(device, memory_bytes=48 * 10**9, memory_free_bytes=47 * 10**9) for device in DEVICES]
    worker = of_worker(parts, replace(FACTS, devices=(idle[0], lent, *idle[2:])))
    assert device_rows(worker) == [
        ["0, 2-3 cuda L40S", "47/48 GB", "usable"],
        ["1 cuda L40S", "1/48 GB", "usable"],
    ]


def test_slices_that_are_alike_are_counted(parts):
    slices = [Device(f"MIG-{number}", 0, CUDA, "NVIDIA H100 MIG 1g.10gb", parent="GPU-0") for number in range(3)]
    worker = of_worker(parts, replace(FACTS, devices=tuple(slices)))
    assert device_rows(worker) == [["0 cuda H100 MIG 1g.10gb × 3", "unknown", "usable"]]


def test_a_worker_without_devices_has_a_row(parts):
    assert device_rows(parts.worker()) == [["no device", "", ""]]


def test_what_a_newer_worker_names_is_shown_in_its_words(parts):
    device = facts_to_wire(FACTS)["devices"][0] | {"kind": "npu", "state": "asleep", "reason": "it is night"}
    worker = parts.worker(name="box", devices=[device])
    assert device_rows(worker) == [["0 npu NVIDIA L40S", "unknown", "asleep"]]
    assert lines_below([worker])[-1] == "  box: device 0 is asleep: it is night"
    assert "it is night" in dict(worker_fields(worker))["devices"]


@pytest.mark.parametrize(
    ("total", "free", "is_shared", "text"),
    [
        (80 * 10**9, 79_200_000_000, False, "79.2/80 GB"),
        (2 * 10**12, 10**9, False, "1 GB/2 TB"),
        (80 * 10**9, None, False, "?/80 GB"),
        (None, None, False, "unknown"),
        (None, None, True, "the machine's"),
    ],
)
def test_memory_is_told_as_far_as_it_is_known(total, free, is_shared, text):
    device = replace(DEVICES[0], memory_bytes=total, memory_free_bytes=free, is_memory_shared=is_shared)
    assert memory_text(device) == text


def test_what_computes_is_told_with_where_once_for_workers_that_are_alike(parts):
    torch = [Framework("torch", "2.9.0", kind, usable=True) for kind in (CUDA, CPU)]
    jax = [Framework("jax", "0.10.2", CUDA, usable=False, reason="no"), Framework("jax", "0.10.2", CPU, usable=True)]
    facts = replace(FACTS, frameworks=(*torch, *jax), devices=())
    lines = lines_below([of_worker(parts, facts, "a"), parts.worker(name="b"), of_worker(parts, facts, "c")])
    assert lines == ["", "frameworks", "  a, c: torch 2.9.0 on cuda, cpu; jax 0.10.2 on cpu"]


def test_links_of_many_workers_that_are_alike_are_drawn_once(parts):
    workers = [of_worker(parts, replace(FACTS, devices=linked({(0, 1): "NV4"}))) | {"name": f"w{n}"} for n in range(10)]
    lines = lines_below(workers)
    assert lines[1] == "links of w0, w1, w2, w3, w4, w5, w6, w7 and 2 more"
    assert sum("NV# =" in line for line in lines) == 1


def test_a_row_of_the_everyday_table_fits_into_eighty_columns(cli, plane, parts):
    eight = [replace(DEVICES[0], uuid=f"GPU-{n}", index=n, model="NVIDIA H100 80GB HBM3") for n in range(8)]
    eight = [replace(device, memory_bytes=85_520_000_000, memory_free_bytes=85_400_000_000) for device in eight]
    worker = of_worker(parts, replace(FACTS, devices=tuple(eight)))
    plane.on("GET", "/v1/workers", [{"workers": [worker], "next": None}])
    head, row = cli("resources", plane=plane).out.decode().splitlines()
    assert "0-7 cuda H100 80GB HBM3  85.4/85.5 GB  usable" in row
    assert max(len(head), len(row)) <= 80


# One machine ----------------------------------------------------------------------------------------------------------


def linked(links, devices=DEVICES):
    """links: words by pairs of numbers."""
    return tuple(
        replace(one, links=tuple((devices[to].uuid, word) for (of, to), word in links.items() if of == one.index))
        for one in devices
    )


def all_pairs(word):
    return {(one, other): word for one in range(4) for other in range(one)}


@pytest.mark.parametrize(
    ("links", "said"),
    [
        (all_pairs("NV18"), "islands: one, all 4 of them"),
        (all_pairs("SYS") | {(1, 0): "NV4", (3, 2): "NV4"}, "islands: 0 1 | 2 3"),
        (all_pairs("PIX"), "islands: none, no NVLink or XGMI joins any"),
    ],
)
def test_islands_are_told_in_one_line(links, said):
    assert link_lines(linked(links))[-1] == said


def test_that_there_is_no_island_is_not_told_where_a_link_is_not_known():
    assert "island" not in "".join(link_lines(linked({(0, 1): "PIX"})))


def test_islands_of_two_kinds_are_told_apart():
    amd = [Device(f"ROCM-{n}", n, Accelerator.ROCM, "MI300X") for n in range(2)]
    two = linked(all_pairs("NV18")) + linked({(0, 1): "XGMI"}, amd)
    assert link_lines(two)[-2:] == ["cuda islands: one, all 4 of them", "rocm islands: one, all 2 of them"]


def test_cores_that_are_nearest_are_told_once_for_devices_that_share_them():
    near = [replace(device, numa_node=device.index // 2, cores=f"{device.index // 2}-9") for device in DEVICES]
    assert near_lines(near) == ["devices 0-1: NUMA node 0, cores 0-9", "devices 2-3: NUMA node 1, cores 1-9"]
    assert near_lines([replace(device, numa_node=0) for device in DEVICES]) == ["all devices: NUMA node 0"]
    assert near_lines([replace(DEVICES[0], cores="0-7"), *DEVICES[1:]]) == ["device 0: cores 0-7"]
    assert near_lines(DEVICES) == []
    assert near_lines([replace(near[0], kind=Accelerator.ROCM), *near[1:3]])[:1] == [
        "rocm device 0 and cuda device 1: NUMA node 0, cores 0-9"
    ]
    assert "  device 0: NUMA node 0" in detected(replace(FACTS, devices=(replace(DEVICES[0], numa_node=0),)))


def test_a_worker_shows_all_that_it_reports_of_its_devices(parts):
    devices = [
        replace(one, driver="550.90", runtime="12.4", compute_capability="8.9", numa_node=0, cores="0-7")
        for one in linked(all_pairs("NV4"))
    ]
    torch = Framework("torch", "2.9.0", CUDA, usable=False, reason="no driver", build="cuda 12.8")
    facts = replace(FACTS, devices=tuple(devices), missing=(("rocm", "no /dev/kfd"),), frameworks=(torch,))
    fields = dict(worker_fields(of_worker(parts, facts) | {"cpu_model": "EPYC", "python": "/opt/venv/bin/python3"}))
    assert (fields["processor"], fields["jobs' python"]) == ("EPYC", "/opt/venv/bin/python3")
    told = of_worker(parts, facts) | {"python": "/bin/python3", "python_version": "3.12.4"}
    assert dict(worker_fields(told))["jobs' python"] == "/bin/python3 (3.12.4)"
    assert fields["drivers"] == "cuda 550.90 (up to 12.4)"
    assert [line.split()[-1] for line in fields["devices"].splitlines()[1:]] == [one.uuid for one in DEVICES]
    assert "8.9" in fields["devices"]
    assert fields["nearest"] == "all devices: NUMA node 0, cores 0-7"
    assert fields["links"].splitlines()[-1] == "islands: one, all 4 of them"
    assert fields["missing"] == "no rocm: no /dev/kfd"
    assert fields["frameworks"] == "torch  2.9.0 (cuda 12.8)  cuda  no driver"


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


def test_what_goes_wrong_is_said_once(program, program_of, tmp_path):
    (tmp_path / "torch.py").write_text("import os\nos._exit(3)\n")
    python = program_of(f'PYTHONPATH={tmp_path} exec {sys.executable} "$@"')
    process = program("resources", "detect", "--python", python, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.communicate(timeout=100)
    assert out.count(b"exit code 3") == 1
    assert err == b""


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
    assert not is_alive(int((tmp_path / "pid").read_text())), "what it has begun goes on"
    assert process.returncode == 128 + signal.SIGTERM
    assert list((tmp_path / "temp").iterdir()) == []


INTERRUPTED = """
import os, signal, subprocess, sys
import psutil
from gpulayer.cli.ending import told_to_end
from gpulayer.plugins.settings import PluginSettings
from gpulayer.worker.detecting import detect

class Interrupted(subprocess.Popen):
    def __init__(self, command, *more, **options):
        super().__init__(command, *more, **options)
        if sys.argv[1] in command:
            os.kill(os.getpid(), signal.SIGTERM)

subprocess.Popen = Interrupted
try:
    with told_to_end():
        detect(environment=dict(os.environ), plugins=PluginSettings.of(os.environ), python=sys.argv[1])
except SystemExit as ended:
    print(ended.code, [child.cmdline() for child in psutil.Process().children()])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_look_that_is_told_to_end_in_the_middle_of_a_start_takes_that_away_too(program_of):
    hangs = program_of("exec sleep 600")
    argv = [sys.executable, "-c", INTERRUPTED, hangs]
    said = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=100)
    assert said.stdout == f"{128 + signal.SIGTERM} []\n", said.stderr


def test_no_link_is_no_link_in_the_legend():
    two = (replace(DEVICES[0], links=(("GPU-1", "NV0"),)), DEVICES[1])
    assert "NV0 = no NVLink" in "\n".join(detected(replace(FACTS, devices=two)))
