"""Intel's GPUs on made-up buses, with what xpu-smi printed elsewhere: tests/data/intel/SOURCES.txt."""

import os
from pathlib import Path

import pytest

from gpulayer.plugins.builtin.intel import IntelProbe
from gpulayer.plugins.builtin.intel.answers import Mask, affinity_mask, parsed_list, with_details
from gpulayer.plugins.contracts.probe import Findings, ProbeSite
from gpulayer.spec.machine import DeviceState
from gpulayer.spec.request import Accelerator
from gpulayer.testing import ProbeContract

DATA = Path(__file__).parents[1] / "data" / "intel"


class Machine:
    """A bus, the devices below /dev, and programs on a PATH."""

    def __init__(self, root):
        self.root = root
        self.calls = root / "calls"
        self.allowed = None
        (root / "bin").mkdir(parents=True)
        (root / "dev/dri").mkdir(parents=True)

    def card(self, address, *, device="0xe211", kind="0x030000", vendor="0x8086", driver="xe", node="", files=()):
        folder = self.root / "sys/bus/pci/devices" / address
        folder.mkdir(parents=True)
        for name, text in {"vendor": vendor, "device": device, "class": kind, **dict(files)}.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(f"{text}\n")
        if driver:
            (folder / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")
        if node:
            (folder / "drm" / node).mkdir(parents=True)
            (self.root / "dev/dri" / node).touch()
        return folder

    def program(self, name, body):
        path = self.root / "bin" / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >> {self.calls}\n{body}\n')
        path.chmod(0o755)

    def asked(self):
        return self.calls.read_text().splitlines() if self.calls.exists() else []

    def probe(self):
        return IntelProbe(sys_root=self.root / "sys", dev_root=self.root / "dev", allowed=lambda: self.allowed)

    def look(self, **environment):
        return self.probe().look(ProbeSite(self.root, {"PATH": f"{self.root / 'bin'}:/usr/bin:/bin", **environment}))


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path / "machine")


def printing(listed, details=""):
    shown = f"exec cat {details}" if details else "exit 1"
    return f'if [ "$2" = -j ]; then exec cat {listed}; fi\n{shown}'


def test_a_card_is_told_of_by_the_tool_and_by_the_kernel(machine):
    files = {"numa_node": "1", "local_cpulist": "24-47,72-95", "hwmon/hwmon3/temp2_input": "41000"}
    machine.card("0000:97:00.0", node="renderD128", files=files)
    machine.program("xpu-smi", printing(DATA / "discovery-b60.json"))
    [device] = machine.look().devices
    assert device.kind is Accelerator.XPU
    assert (device.uuid, device.index, device.model) == ("XPU-0000:97:00.0", 0, "Intel(R) Graphics [0xe211]")
    assert (device.memory_bytes, device.memory_free_bytes) == (25669140480, 25447604224)
    assert (device.driver, device.ecc) == ("7B7A46009E666C4D10E1134", False)
    assert (device.pci_address, device.numa_node, device.cores) == ("0000:97:00.0", 1, "24-47,72-95")
    assert (device.temperature_c, device.use_percent, device.state) == (41, None, DeviceState.USABLE)
    assert machine.asked() == ["xpu-smi discovery -j", "xpu-smi discovery --dump 1,2,8,11,16"]


def test_of_the_near_cores_those_that_the_worker_may_run_on_are_told(machine):
    machine.card("0000:97:00.0", node="renderD128", files={"numa_node": "-1", "local_cpulist": "0-7"})
    machine.allowed = {2, 3, 9}
    [device] = machine.look().devices
    assert (device.cores, device.numa_node) == ("2-3", None)
    machine.allowed = {9}
    assert machine.look().devices[0].cores == ""


def test_a_driver_that_does_not_tell_how_warm_a_card_is_costs_that_figure(machine, monkeypatch):
    monkeypatch.setattr("gpulayer.plugins.builtin.intel.probe._FILES_S", 0.3)
    folder = machine.card("0000:97:00.0", node="renderD128", files={"hwmon/hwmon1/name": "xe"})
    os.mkfifo(folder / "hwmon/hwmon1/temp1_input")  # nobody ever writes to it
    [device] = machine.look().devices
    assert (device.temperature_c, device.state) == (None, DeviceState.USABLE)


def test_a_figure_that_nobody_tells_is_unknown_and_never_none_at_all():
    [device] = parsed_list((DATA / "discovery-1.json").read_text())
    assert (device.index, device.address, device.model) == (0, "0000:4d:00.0", "Intel(R) Graphics [0x020a]")
    assert (device.memory_bytes, device.memory_free_bytes, device.driver, device.ecc) == (None, None, "", None)
    [device] = with_details((device,), (DATA / "dump-a310.csv").read_text())
    assert (device.model, device.memory_bytes) == ("Intel(R) Arc(TM) A310 LP Graphics", None)


def test_details_are_read_by_the_names_of_columns(machine):
    [device] = parsed_list((DATA / "discovery-1.json").read_text())
    [device] = with_details((device,), "Warning: x\n" + (DATA / "dump-flex.csv").read_text())
    assert device.model == "Intel(R) Graphics [0x56c0]"
    [device] = with_details((device,), "Device ID,Memory Physical Size,Driver Version\n0,32768.00 MiB,I915_23.8\n")
    assert (device.memory_bytes, device.driver) == (32768 * 2**20, "I915_23.8")
    assert with_details((device,), "no such option") == (device,)


@pytest.mark.parametrize(
    "entry",
    ["7", '{"device_id": true, "pci_bdf_address": "0000:01:00.0"}', '{"device_id": 1}', '{"device_id": -1}',
     '{"device_id": 1, "pci_bdf_address": "0000:01:00.1", "device_function_type": "virtual"}'],
)  # fmt: skip
def test_an_entry_that_is_no_device_leaves_the_others(entry):
    good = '{"device_id": 0, "pci_bdf_address": "0000:4D:00.0", "memory_physical_size_byte": "0"}'
    [device] = parsed_list(f'{{"device_list": [{entry}, {good}]}}')
    assert (device.index, device.address, device.memory_bytes) == (0, "0000:4d:00.0", None)


def test_without_the_tool_cards_are_there_with_what_the_kernel_tells(machine):
    machine.card("0000:03:00.0", device="0x56a0", driver="i915", node="renderD129")
    [device] = machine.look().devices
    assert (device.uuid, device.model) == ("XPU-0000:03:00.0", "Intel Graphics [0x56a0]")
    assert (device.memory_bytes, device.state) == (None, DeviceState.USABLE)


def test_a_card_keeps_its_uuid_when_the_tool_comes_or_goes(machine):
    machine.card("0000:97:00.0", node="renderD128")
    before = machine.look().devices[0].uuid
    machine.program("xpu-smi", printing(DATA / "discovery-b60.json"))
    assert machine.look().devices[0].uuid == before


def test_graphics_inside_a_processor_are_no_device_and_no_program_is_asked_for_them(machine):
    machine.card("0000:00:02.0", device="0x7d55", driver="i915", node="renderD128")
    machine.program("xpu-smi", "exit 1")
    assert machine.look() == Findings()
    assert machine.asked() == []


def test_what_counts_is_where_a_card_stands_among_all_of_intels(machine):
    """As xpu-smi and Level Zero count by PCI address, graphics inside the processor too."""
    machine.card("0000:00:02.0", device="0x7d55", driver="i915", node="renderD128")
    machine.card("0000:03:00.0", device="0x56a0", driver="i915", node="renderD129")
    [device] = machine.look().devices
    assert (device.uuid, device.index) == ("XPU-0000:03:00.0", 1)


@pytest.mark.parametrize(
    "more",
    [{"kind": "0x038000"}, {"files": {"vram_d3cold_threshold": "300"}}, {"files": {"drm/card0/lmem_total_bytes": "9"}}],
)
def test_a_card_that_a_virtual_machine_was_given_counts_wherever_it_stands(machine, more):
    machine.card("0000:00:02.0", node="renderD128", **more)
    assert len(machine.look().devices) == 1


def test_cards_of_others_and_what_is_no_display_are_not_looked_at(machine):
    machine.card("0000:01:00.0", vendor="0x10de", node="renderD128")
    machine.card("0000:02:00.0", kind="0x020000")
    machine.card("0000:05:00.0", kind="?")
    machine.program("xpu-smi", "exit 1")
    assert machine.look() == Findings()
    assert machine.asked() == []


def test_a_card_that_this_user_can_not_open_says_so(machine):
    machine.card("0000:03:00.0")
    machine.card("0000:04:00.0", node="renderD129")
    machine.card("0000:05:00.0", driver="vfio-pci", node="renderD130")
    if os.getuid():
        (machine.root / "dev/dri/renderD129").chmod(0)
    else:
        (machine.root / "dev/dri/renderD129").unlink()
    devices = machine.look().devices
    assert [device.state for device in devices] == [DeviceState.UNHEALTHY] * 3
    assert devices[0].reason == "/dev/dri/renderD… is not there"
    assert "/dev/dri/renderD129" in devices[1].reason
    assert devices[2].reason == "no driver of Intel's has it: vfio-pci"


def test_a_driver_that_hangs_is_named_and_its_cards_are_not_lent(machine, monkeypatch):
    monkeypatch.setattr("gpulayer.plugins.builtin.intel.probe._LIST_S", 0.3)
    machine.card("0000:03:00.0", node="renderD128")
    machine.program("xpu-smi", "exec sleep 600")
    found = machine.look()
    assert [device.state for device in found.devices] == [DeviceState.UNHEALTHY]
    assert found.missing == (("xpu", "xpu-smi did not answer within 0.3 s"),)
    assert found.is_silent
    assert len(machine.asked()) == 1


@pytest.mark.parametrize(
    "body", ["echo 'Error: XPUM Service Status Error.' >&2; exit 1", "echo '{}'", "echo '[]'", "kill -9 $$"]
)
def test_a_tool_that_fails_leaves_what_the_kernel_tells(machine, body):
    machine.card("0000:03:00.0", node="renderD128")
    machine.program("xpu-smi", body)
    found = machine.look()
    assert [device.state for device in found.devices] == [DeviceState.USABLE]
    assert found.missing == ()


def test_the_words_of_a_tool_that_fails_are_kept_where_nothing_can_be_used(machine):
    machine.card("0000:03:00.0")
    machine.program("xpu-smi", "echo 'Error: XPUM Service Status Error.' >&2; exit 1")
    assert machine.look().missing == (("xpu", "xpu-smi: Error: XPUM Service Status Error."),)


@pytest.mark.parametrize(
    ("text", "mask"),
    [
        (None, None),
        ("", None),
        ("1", Mask(frozenset({1}), frozenset())),
        (" 0, 2", Mask(frozenset({0, 2}), frozenset())),
        ("0.1", Mask(frozenset(), frozenset({0}))),
        ("0.1,0,1.0", Mask(frozenset({0}), frozenset({1}))),
        ("x,-1,", Mask(frozenset(), frozenset())),
    ],
)
def test_a_mask_is_read_as_level_zero_reads_it(text, mask):
    assert affinity_mask({} if text is None else {"ZE_AFFINITY_MASK": text}) == mask


def test_of_the_cards_those_that_the_worker_may_see_are_devices(machine):
    for number in range(3):
        machine.card(f"0000:0{3 + number}:00.0", node=f"renderD{128 + number}")
    found = machine.look(ZE_AFFINITY_MASK="2,0.1")
    assert [(device.index, device.uuid) for device in found.devices] == [(2, "XPU-0000:05:00.0")]
    assert machine.look(ZE_AFFINITY_MASK="255") == Findings()
    [(kind, why)] = machine.look(ZE_AFFINITY_MASK="0.1").missing
    assert kind == "xpu"
    assert "tile of device 0" in why


class TestIntelProbe(ProbeContract):
    @pytest.fixture
    def probe(self, machine):
        machine.card("0000:4d:00.0", kind="0x038000", node="renderD128")
        machine.card("0000:97:00.0", node="renderD129")
        machine.program("xpu-smi", printing(DATA / "discovery-b60.json"))
        return machine.probe()

    @pytest.fixture
    def environment(self, machine):
        return {"PATH": f"{machine.root / 'bin'}:/usr/bin:/bin"}


class TestIntelProbeHere(ProbeContract):
    @pytest.fixture
    def probe(self):
        return IntelProbe()
