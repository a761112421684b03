"""AMD's GPUs: the kernel's list as recorded elsewhere, and what AMD's tools printed: tests/data/amd/SOURCES.txt."""

import json
import os
import shutil
import sys
import time
from pathlib import Path

import pytest

from gpulayer.plugins.builtin.amd import AmdProbe
from gpulayer.plugins.builtin.amd.answers import Row, parsed_amd_smi, parsed_library, parsed_rocm_smi
from gpulayer.plugins.builtin.amd.topology import (
    FILES,
    FOLDER,
    gfx_name,
    kfd_gpus,
    kfd_processes,
    parsed_properties,
)
from gpulayer.plugins.builtin.amd.visible import visible_positions
from gpulayer.plugins.builtin.child import Child
from gpulayer.plugins.builtin.kernel_files import read_files
from gpulayer.plugins.contracts.probe import Findings, ProbeSite, ProcessOnDevice
from gpulayer.spec.machine import DeviceState
from gpulayer.spec.request import Accelerator
from gpulayer.testing import ProbeContract

DATA = Path(__file__).parents[1] / "data" / "amd"
MI210 = ("GPU-1901ead3a2ecd4a6", "GPU-51276ac12ce05db3")
CARD = {"simd_count": 240, "drm_render_minor": 128, "location_id": 0x0300, "gfx_target_version": 110001}
STAND_IN = """
class AmdSmiTemperatureType: HOTSPOT, EDGE = 1, 0
class AmdSmiTemperatureMetric: CURRENT = 0
class AmdSmiLibraryException(Exception): pass
BUSES = ["0000:63:00.0", "0000:43:00.0"]
def amdsmi_init(): print("noise of a library")
def amdsmi_get_processor_handles(): return [0, 1]
def amdsmi_get_gpu_device_bdf(handle): return BUSES[handle]
def amdsmi_get_gpu_asic_info(handle):
    return {"market_name": "AMD Instinct MI210", "asic_serial": "0x1901ead3a2ecd4a6",
            "target_graphics_version": "gfx90a"}
def amdsmi_get_gpu_driver_info(handle): return {"driver_name": "amdgpu", "driver_version": "6.8.5"}
def amdsmi_get_gpu_vram_info(handle): return {"vram_size": 65520}
def amdsmi_get_gpu_vram_usage(handle): return {"vram_total": 65520, "vram_used": 10}
def amdsmi_get_gpu_activity(handle): return {"gfx_activity": 7, "umc_activity": "N/A"}
def amdsmi_get_temp_metric(handle, kind, metric):
    if kind == 1: raise AmdSmiLibraryException("AMDSMI_STATUS_NOT_SUPPORTED")
    return 36
def amdsmi_get_gpu_process_list(handle):
    return [{"pid": 4711, "memory_usage": {"vram_mem": 2**30}}, {"pid": 4712, "memory_usage": {"vram_mem": 0}}]
"""


class Machine:
    """The files of a kernel, the devices below /dev, ROCm's folder, and programs on a PATH."""

    def __init__(self, root):
        self.root = root
        self.calls = root / "calls"
        self.budget_s = 8.0
        self.allowed = None
        self.nodes = root / "sys/class/kfd/kfd/topology/nodes"
        for folder in ("bin", "dev/dri", "sys"):
            (root / folder).mkdir(parents=True)

    def mi210(self):
        shutil.copytree(DATA / "mi210/nodes", self.nodes)
        for number, node in ((2, "renderD128"), (3, "renderD129")):
            (self.nodes / str(number) / "gpu_id").write_text(f"{number}000\n")
            (self.root / "dev/dri" / node).touch()
        (self.root / "dev/kfd").touch()
        self.card("0000:63:00.0", numa_node="0", mem_info_vram_total=str(64 * 2**30), mem_info_vram_used="1024")
        self.card("0000:43:00.0")
        return self

    def node(self, number=1, **properties):
        known = CARD | properties
        (self.nodes / str(number)).mkdir(parents=True)
        text = "".join(f"{name} {value}\n" for name, value in known.items())
        (self.nodes / str(number) / "properties").write_text(text)
        (self.root / "dev/dri" / f"renderD{known['drm_render_minor']}").touch()
        (self.root / "dev/kfd").touch()
        return self

    def card(self, address, *, kind="0x038000", driver="amdgpu", **files):
        folder = self.root / "sys/bus/pci/devices" / address
        folder.mkdir(parents=True)
        for name, text in {"vendor": "0x1002", "device": "0x740f", "class": kind, **files}.items():
            (folder / name).write_text(f"{text}\n")
        if driver:
            (folder / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")

    def process(self, pid, *, queues=(), **memory):
        folder = self.root / f"sys/class/kfd/kfd/proc/{pid}"
        folder.mkdir(parents=True)
        for number, gpu_id in enumerate(queues):
            (folder / f"queues/{number}").mkdir(parents=True)
            (folder / f"queues/{number}/gpuid").write_text(f"{gpu_id}\n")
        for name, size in memory.items():
            (folder / name).write_text(f"{size}\n")

    def library(self, source=STAND_IN):
        folder = self.root / "rocm/share/amd_smi/amdsmi"
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(f"open({str(self.calls)!r}, 'a').write('library\\n')\n{source}")

    def program(self, name, body):
        path = self.root / "bin" / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >> {self.calls}\n{body}\n')
        path.chmod(0o755)

    def asked(self):
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        return [" ".join(line.split()[:2]) for line in lines]

    def probe(self):
        root = self.root
        return AmdProbe(
            sys_root=root / "sys",
            dev_root=root / "dev",
            rocm_root=root / "rocm",
            python=sys.executable,
            budget_s=self.budget_s,
            allowed=lambda: self.allowed,
        )

    def kfd(self):
        """What the probe reads of the compute driver."""
        return read_files(Child(), self.root / "sys" / FOLDER, FILES, environment={}, deadline_s=20)

    def site(self, **environment):
        return ProbeSite(self.root, {"PATH": f"{self.root / 'bin'}:/usr/bin:/bin", **environment})

    def look(self, **environment):
        return self.probe().look(self.site(**environment))


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path / "machine")


def test_gpus_are_told_of_by_the_kernel_alone_where_there_is_no_tool(machine):
    first, second = machine.mi210().look().devices
    assert (first.kind, first.uuid, first.index) == (Accelerator.ROCM, MI210[0], 0)
    assert (second.uuid, second.index) == (MI210[1], 1)
    assert (first.compute_capability, first.pci_address, first.model) == ("gfx90a", "0000:63:00.0", "AMD GPU [0x740f]")
    assert (first.memory_bytes, first.memory_free_bytes) == (64 * 2**30, 64 * 2**30 - 1024)
    assert (second.memory_bytes, second.memory_free_bytes, second.numa_node) == (None, None, None)
    assert (first.links, second.links) == (((MI210[1], "XGMI"),), ((MI210[0], "XGMI"),))
    assert (first.state, first.numa_node, first.is_memory_shared) == (DeviceState.USABLE, 0, False)


def test_an_id_is_written_as_rocm_reads_it(machine):
    """16 digits, with zeros in front."""
    machine.node(unique_id=0xABC)
    assert [device.uuid for device in machine.look().devices] == ["GPU-0000000000000abc"]


def test_the_library_is_asked_first_and_each_of_its_figures_stands_by_itself(machine):
    machine.mi210()
    machine.library()
    machine.program("amd-smi", "exit 1")
    (machine.root / "rocm/.info").mkdir()
    (machine.root / "rocm/.info/version").write_text("6.4.0-47\n")
    found = machine.look()
    first, second = found.devices
    assert (first.model, first.driver, first.runtime) == ("AMD Instinct MI210", "6.8.5", "6.4.0")
    assert (first.memory_bytes, first.memory_free_bytes) == (65520 * 2**20, 65510 * 2**20)
    assert (first.temperature_c, first.use_percent, first.ecc) == (36, 7, None)
    assert [device.uuid for device in (first, second)] == list(MI210)
    assert machine.asked() == ["library"]
    processes = [ProcessOnDevice(uuid, 4711, memory_bytes=2**30) for uuid in MI210]
    assert found.processes == tuple(processes)


@pytest.mark.parametrize(
    "source",
    [
        "raise ImportError('libamd_smi.so: cannot open shared object file')",
        STAND_IN + "\ndef amdsmi_init(): raise AmdSmiLibraryException('AMDSMI_STATUS_INIT_ERROR')",
        "import os; os.kill(os.getpid(), 9)",
    ],
)
def test_where_the_library_can_not_be_asked_the_tools_are(machine, source):
    machine.node(unique_id=0x4162405E51BB99B0)
    machine.library(source)
    static, metric = DATA / "amd-smi-static-rx7800xt.json", DATA / "amd-smi-metric-rx7800xt.json"
    machine.program("amd-smi", f"case $1 in static) cat {static};; *) cat {metric};; esac")
    probe = machine.probe()
    [device] = probe.look(machine.site()).devices
    assert (device.uuid, device.model, device.index) == ("GPU-4162405e51bb99b0", "AMD Radeon RX 7800 XT", 0)
    assert (device.memory_bytes, device.memory_free_bytes) == (16368 * 2**20, 1799 * 2**20)
    assert (device.temperature_c, device.use_percent, device.compute_capability) == (41, 2, "gfx1101")
    probe.look(machine.site())
    assert machine.asked() == ["library", *["amd-smi static", "amd-smi metric"] * 2]  # then what answered last


def test_a_gpu_of_which_the_library_can_read_nothing_is_unhealthy_and_the_others_stay(machine):
    machine.mi210()
    broken = "if handle == 1: raise AmdSmiLibraryException('AMDSMI_STATUS_NO_DATA')"
    source = STAND_IN
    for name in ("asic_info", "vram_info", "vram_usage"):
        head = f"def amdsmi_get_gpu_{name}(handle):"
        source = source.replace(head, f"{head}\n    {broken}\n    return _{name}(handle)\ndef _{name}(handle):")
    machine.library(source)
    good, bad = machine.look().devices
    assert (good.state, good.memory_bytes) == (DeviceState.USABLE, 65520 * 2**20)
    assert (bad.state, bad.uuid) == (DeviceState.UNHEALTHY, MI210[1])
    assert bad.reason == "AmdSmiLibraryException: AMDSMI_STATUS_NO_DATA"


def test_rocm_smi_is_asked_last(machine):
    machine.node(location_id=0x2900, unique_id=0x1F9DE0957D137942, gfx_target_version=90010)
    machine.program("amd-smi", "echo 'ModuleNotFoundError: amdsmi' >&2; exit 1")
    machine.program("rocm-smi", f"cat {DATA}/rocm-smi-6-mi250.json; exit 2")  # so it ends where it lacks one figure
    [device] = machine.look().devices
    assert (device.uuid, device.driver) == ("GPU-1f9de0957d137942", "6.2.4")
    assert device.model == "AMD INSTINCT MI250 (MCM) OAM AC MBA"
    assert (device.temperature_c, device.use_percent, device.compute_capability) == (44, 0, "gfx90a")
    assert machine.asked() == ["amd-smi static", "rocm-smi --showproductname"]


def test_a_driver_that_hangs_is_named_no_other_tool_is_asked_and_nothing_is_lent(machine, monkeypatch):
    monkeypatch.setattr("gpulayer.plugins.builtin.amd.probe._FIRST_S", 0.3)
    machine.mi210()
    machine.program("amd-smi", "exec sleep 600")
    machine.program("rocm-smi", f"cat {DATA}/rocm-smi-6-mi250.json")
    found = machine.look()
    assert [device.state for device in found.devices] == [DeviceState.UNHEALTHY] * 2
    assert [device.uuid for device in found.devices] == list(MI210)
    assert found.missing == (("rocm", "amd-smi did not answer within 0.3 s"),)
    assert found.is_silent
    assert machine.asked() == ["amd-smi static"]


def test_a_file_of_the_driver_that_hangs_costs_its_figures_and_no_device(machine, monkeypatch):
    """As its figures do while a GPU is being reset."""
    monkeypatch.setattr("gpulayer.plugins.builtin.amd.probe._FIGURES_S", 0.3)
    machine.mi210()
    os.mkfifo(machine.root / "sys/bus/pci/devices/0000:43:00.0/gpu_busy_percent")  # nobody ever writes to it
    found = machine.look()
    assert [(device.uuid, device.state) for device in found.devices] == [(uuid, DeviceState.USABLE) for uuid in MI210]
    assert [device.memory_bytes for device in found.devices] == [None, None], "unknown meanwhile"
    assert found.devices[0].numa_node == 0


def test_where_the_tool_tells_all_no_file_is_read_for_it(machine, monkeypatch):
    machine.node(unique_id=0x4162405E51BB99B0)
    machine.card("0000:03:00.0", kind="0x030000")
    os.mkfifo(machine.root / "sys/bus/pci/devices/0000:03:00.0/gpu_busy_percent")
    static, metric = DATA / "amd-smi-static-rx7800xt.json", DATA / "amd-smi-metric-rx7800xt.json"
    machine.program("amd-smi", f"case $1 in static) cat {static};; *) cat {metric};; esac")
    [device] = machine.look().devices
    assert (device.use_percent, device.temperature_c) == (2, 41)


def test_a_compute_driver_that_does_not_list_its_gpus_is_named_and_nobody_else_is_asked(machine, monkeypatch):
    monkeypatch.setattr("gpulayer.plugins.builtin.amd.probe._LIST_S", 0.3)
    machine.mi210()
    machine.program("amd-smi", "exit 1")
    (machine.nodes / "3/properties").unlink()
    os.mkfifo(machine.nodes / "3/properties")
    [(kind, why)] = machine.look().missing
    assert kind == "rocm"
    assert why.startswith("the kernel's driver does not answer: reading ")
    assert machine.asked() == []


def test_all_that_is_asked_has_one_time_together(machine, monkeypatch):
    """A tool that fails late leaves less to the next one."""
    given = []

    def ask(child, command, *, environment, deadline_s, called=""):
        given.append(deadline_s)
        if called:
            return real(child, command, environment=environment, deadline_s=20.0, called=called)
        now[0] += deadline_s - 0.01
        raise ValueError("nothing of use")

    real, now, start_s = Child.ask, [0.0], time.monotonic()
    monkeypatch.setattr(Child, "ask", ask)
    monkeypatch.setattr("gpulayer.plugins.builtin.amd.probe.time.monotonic", lambda: start_s + now[0])
    machine.mi210()
    machine.library()
    machine.program("amd-smi", "exit 1")
    machine.program("rocm-smi", "exit 1")
    machine.budget_s = 6.0
    found = machine.look()
    assert len(found.devices) == 2
    assert given == pytest.approx([2.0, 5.0, 1.01])  # and nothing is left to the third, and to the driver's files
    assert sum(given[1:]) <= 6.02


def test_of_the_near_cores_those_that_the_worker_may_run_on_are_told(machine):
    machine.node(location_id=0x6300, unique_id=1)
    machine.card("0000:63:00.0", local_cpulist="0-7,16")
    machine.allowed = {2, 3, 16, 20}
    assert machine.look().devices[0].cores == "2-3,16"


@pytest.mark.parametrize("body", ["exit 1", "echo nonsense", "echo '{}'", "echo '[7]'", "kill -9 $$"])
def test_tools_that_fail_leave_what_the_kernel_tells(machine, body):
    machine.mi210()
    machine.program("amd-smi", body)
    machine.program("rocm-smi", body)
    found = machine.look()
    assert [(device.uuid, device.state) for device in found.devices] == [(uuid, DeviceState.USABLE) for uuid in MI210]
    assert found.missing == ()
    assert machine.asked()[-1] == "rocm-smi --showproductname", "each of them is asked"


def test_a_gpu_that_the_tool_does_not_list_is_there_all_the_same(machine):
    machine.mi210()
    one = json.dumps([{"gpu": 5, "bus": {"bdf": "0000:63:00.0"}, "asic": {"market_name": "MI210"}}])
    machine.program("amd-smi", f"echo '{one}'")
    devices = machine.look().devices
    assert [(device.model, device.index) for device in devices] == [("MI210", 0), ("AMD GPU [0x740f]", 1)]


def test_one_without_an_id_goes_by_its_address_and_by_where_rocm_counts_it(machine):
    machine.node(1, location_id=0x0300, drm_render_minor=128)
    machine.node(2, location_id=0x8300, drm_render_minor=129, unique_id=7)
    rows = [{"gpu": 0, "bus": {"bdf": "0000:83:00.0"}}, {"gpu": 1, "bus": {"bdf": "0000:03:00.0"}}]
    machine.program("amd-smi", f"echo '{json.dumps(rows)}'")
    devices = machine.look().devices
    assert [(device.uuid, device.index) for device in devices] == [
        ("ROCM-0000:03:00.0", 0),
        ("GPU-0000000000000007", 1),
    ]


def test_two_of_one_id_go_by_their_addresses(machine):
    machine.node(1, location_id=0x0300, unique_id=7)
    machine.node(2, location_id=0x0301, unique_id=7)
    assert [device.uuid for device in machine.look().devices] == ["ROCM-0000:03:00.0", "ROCM-0000:03:00.1"]


def test_one_inside_a_processor_is_a_device_where_rocm_is_and_has_what_memory_the_driver_lets_it(machine):
    machine.node(location_id=0xC400, gfx_target_version=110003)
    sizes = {"mem_info_vram_total": 2**30, "mem_info_gtt_total": 2**34, "mem_info_gtt_used": 2**20}
    machine.card("0000:c4:00.0", kind="0x030000", **sizes)
    assert machine.look() == Findings()
    machine.program("rocm-smi", f"cat {DATA}/rocm-smi-6-780m.json")
    [device] = machine.look().devices
    assert (device.uuid, device.is_memory_shared, device.model) == ("ROCM-0000:c4:00.0", True, "Phoenix3")
    assert (device.memory_bytes, device.memory_free_bytes) == (2**34, 2**34 - 2**20)
    assert (device.temperature_c, device.use_percent, device.compute_capability) == (31, 19, "gfx1103")


def test_an_mi300a_has_the_memory_of_its_processor_and_is_made_for_computing(machine):
    machine.node(device_id=0x74A0, gfx_target_version=90402, unique_id=1, cpu_cores_count=24)
    [device] = machine.look().devices
    assert (device.is_memory_shared, device.compute_capability) == (True, "gfx942")


def test_without_amds_hardware_no_program_is_asked(machine):
    machine.program("amd-smi", "exit 1")
    machine.card("0000:01:00.0", vendor="0x10de")
    assert machine.look() == Findings()
    assert machine.asked() == []


def test_graphics_that_nobody_means_for_computing_are_quietly_left(machine):
    machine.card("0000:0b:00.0", kind="0x030000")
    assert machine.look() == Findings()


@pytest.mark.parametrize(
    ("driver", "why"),
    [
        ("vfio-pci", "the GPU at 0000:63:00.0 is not driven by amdgpu: vfio-pci"),
        ("", "the GPU at 0000:63:00.0 is not driven by amdgpu: no driver"),
        ("amdgpu", "the kernel's compute driver (amdkfd) does not list the GPU at 0000:63:00.0"),
    ],
)
def test_a_card_that_is_there_and_can_not_be_used_says_why(machine, driver, why):
    machine.card("0000:63:00.0", kind="0x120000", driver=driver)
    assert machine.look() == Findings(missing=(("rocm", why),))


def test_a_container_without_the_compute_device_says_so(machine):
    machine.mi210()
    (machine.root / "dev/kfd").unlink()
    assert machine.look().missing == (("rocm", "/dev/kfd is not there, and AMD has 2 GPUs here"),)


def test_a_container_has_those_gpus_that_it_was_given(machine):
    machine.mi210()
    (machine.root / "dev/dri/renderD128").unlink()
    assert [(device.uuid, device.state) for device in machine.look().devices] == [(MI210[1], DeviceState.USABLE)]
    (machine.nodes / "2/properties").unlink()  # the kernel lets a container read none but its own
    assert [device.uuid for device in machine.look().devices] == [MI210[1]]


def test_gpus_whose_files_are_not_there_or_not_to_be_opened_say_so(machine):
    machine.mi210()
    for number in (128, 129):
        (machine.root / f"dev/dri/renderD{number}").unlink()
    found = machine.look()
    assert [device.reason for device in found.devices] == [
        "/dev/dri/renderD128 is not there",
        "/dev/dri/renderD129 is not there",
    ]
    assert {device.state for device in found.devices} == {DeviceState.UNHEALTHY}


def test_processes_are_on_the_gpus_that_they_have_queues_or_memory_on(machine):
    machine.mi210()
    assert machine.look().processes is None
    machine.process(4711, queues=[2000], vram_2000=0, vram_3000=48_000)
    machine.process(4712, vram_2000=0, vram_3000=2**30)
    machine.process(4713, vram_2000=0, vram_3000=0)  # it only opened /dev/kfd
    machine.process(4714, queues=[9000], vram_9000=2**30)
    assert machine.look().processes == (
        ProcessOnDevice(MI210[0], 4711, memory_bytes=0),
        ProcessOnDevice(MI210[1], 4712, memory_bytes=2**30),
    )
    assert len(kfd_processes(machine.kfd())) == 3


@pytest.mark.parametrize(
    ("environment", "positions"),
    [
        ({}, (0, 1, 2)),
        ({"ROCR_VISIBLE_DEVICES": ""}, ()),
        ({"ROCR_VISIBLE_DEVICES": "2,0"}, (0, 2)),
        ({"ROCR_VISIBLE_DEVICES": "0,7,1"}, (0,)),
        ({"ROCR_VISIBLE_DEVICES": "1,1,0"}, (1,)),
        ({"ROCR_VISIBLE_DEVICES": "-1"}, ()),
        ({"ROCR_VISIBLE_DEVICES": "GPU-BB00000000000002"}, (1,)),
        ({"ROCR_VISIBLE_DEVICES": "GPU-bb, 2"}, (1, 2)),
        ({"ROCR_VISIBLE_DEVICES": "GPU-, 2"}, ()),
        ({"HIP_VISIBLE_DEVICES": "1"}, (1,)),
        ({"HIP_VISIBLE_DEVICES": ""}, (0, 1, 2)),
        ({"HIP_VISIBLE_DEVICES": "-1"}, ()),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, (0, 1)),
        ({"CUDA_VISIBLE_DEVICES": ""}, (0, 1, 2)),
        ({"CUDA_VISIBLE_DEVICES": "GPU-aa00000000000001"}, (0,)),
        ({"CUDA_VISIBLE_DEVICES": "GPU-1d8b6e02-3cc3-48ea-8d4c-0d5e1b8a2c11"}, (0, 1, 2)),
        ({"CUDA_VISIBLE_DEVICES": "MIG-1d8b6e02-3cc3-48ea-8d4c-0d5e1b8a2c11"}, (0, 1, 2)),
        ({"CUDA_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "2"}, (2,)),
        ({"ROCR_VISIBLE_DEVICES": "2,1", "HIP_VISIBLE_DEVICES": "0"}, (2,)),
    ],
)
def test_the_workers_own_variables_are_read_as_rocm_and_hip_read_them(environment, positions):
    uuids = ["GPU-aa00000000000001", "GPU-bb00000000000002", "ROCM-0000:03:00.0"]
    assert visible_positions(uuids, environment) == positions


def test_of_the_gpus_those_that_the_worker_may_see_are_devices(machine):
    machine.mi210()
    [device] = machine.look(ROCR_VISIBLE_DEVICES="1").devices
    assert (device.uuid, device.index, device.links) == (MI210[1], 1, ())
    assert machine.look(HIP_VISIBLE_DEVICES="-1") == Findings()


def test_figures_of_older_tools_are_read_too():
    [row] = parsed_rocm_smi((DATA / "rocm-smi-5-mi250.json").read_text())
    assert (row.address, row.unique_id, row.driver) == ("0000:2f:00.0", 0x719D230578348E8C, "6.2.4")
    assert (row.model, row.temperature_c, row.use_percent) == ("AMD INSTINCT MI250 (MCM) OAM AC MBA", 35, 10)
    assert (row.memory_bytes, row.memory_used_bytes, row.gfx) == (None, None, "")
    [row] = parsed_rocm_smi((DATA / "rocm-smi-6-rx7900xt.json").read_text())
    assert (row.memory_bytes, row.memory_used_bytes, row.gfx) == (21458059264, 27856896, "gfx1100")
    [row] = parsed_rocm_smi((DATA / "rocm-smi-text.txt").read_text())
    assert row == Row(0, model="Fiji [Radeon R9 FURY / NANO Series]")


def test_flowing_figures_may_be_of_another_release_or_not_there():
    static = (DATA / "amd-smi-static-rx7800xt.json").read_text()
    [row] = parsed_amd_smi(static, (DATA / "amd-smi-metric-w7700.json").read_text())
    assert (row.use_percent, row.temperature_c, row.memory_used_bytes) == (42, None, None)
    [row] = parsed_amd_smi("amdsmi_interface.py:3569: SyntaxWarning: 'return' in a block\n" + static, "?")
    assert (row.memory_bytes, row.use_percent) == (16368 * 2**20, None)


def test_what_is_not_told_is_unknown_and_never_0():
    told = '[{"gpu": 0, "vram": {"size": "N/A"}, "asic": {"market_name": "N/A", "asic_serial": "N/A"}, "bus": 7}]'
    metric = '[{"gpu": 0, "usage": "N/A", "mem_usage": {"used_vram": "N/A"}, "temperature": {"hotspot": "N/A"}}]'
    assert parsed_amd_smi(told, metric) == (Row(0),)
    assert parsed_amd_smi('[{"gpu": 0, "vram": {"size": {"value": 0, "unit": "MB"}}}]') == (Row(0),)
    assert parsed_rocm_smi('{"card3": {"VRAM Total Memory (B)": "N/A", "GPU use (%)": "101"}}') == (Row(3),)
    assert parsed_library('x\n{"gpus": [{"asic": 1, "processes": "N/A", "hotspot": true}]}\n') == (Row(0),)


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"system": {}}', '{"card0": 7}', "GPU[x] : a: b"])
def test_an_answer_without_a_gpu_is_an_error_whatever_the_exit_code(text):
    with pytest.raises(ValueError):  # noqa: PT011 - json's own, or ours
        parsed_rocm_smi(text)
    with pytest.raises(ValueError):  # noqa: PT011
        parsed_library(text)


def test_an_older_kernel_tells_less(machine):
    (machine.nodes / "1").mkdir(parents=True)
    shutil.copy(DATA / "vega20-properties.txt", machine.nodes / "1/properties")
    [gpu] = kfd_gpus(machine.kfd())
    assert (gpu.address, gpu.gfx, gpu.memory_bytes) == ("0000:19:00.0", "", 17163091968)


@pytest.mark.parametrize(
    ("version", "name"),
    [(90010, "gfx90a"), (90402, "gfx942"), (110001, "gfx1101"), (100306, "gfx1036"), (90012, "gfx90c"), (0, "")],
)
def test_a_target_is_named_as_compilers_name_it(version, name):
    assert gfx_name(version) == name


def test_lines_that_are_no_property_are_left_out():
    assert parsed_properties("a 1\nb\n c 2 \nd x\n-1\n") == {"a": 1, "c": 2}


class TestAmdProbe(ProbeContract):
    @pytest.fixture
    def probe(self, machine):
        machine.mi210()
        machine.library()
        machine.process(4711, queues=[2000])
        return machine.probe()


class TestAmdProbeByItsTools(ProbeContract):
    @pytest.fixture
    def probe(self, machine):
        machine.node(unique_id=0x4162405E51BB99B0)
        static, metric = DATA / "amd-smi-static-rx7800xt.json", DATA / "amd-smi-metric-rx7800xt.json"
        machine.program("amd-smi", f"case $1 in static) cat {static};; *) cat {metric};; esac")
        return machine.probe()

    @pytest.fixture
    def environment(self, machine):
        return {"PATH": f"{machine.root / 'bin'}:/usr/bin:/bin"}


class TestAmdProbeHere(ProbeContract):
    @pytest.fixture
    def probe(self):
        return AmdProbe()
