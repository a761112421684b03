"""The NVIDIA probe through the real pynvml, over a library of our own that gcc makes of tests/nvml.c."""

import json

import pytest

from gpulayer.plugins.builtin.nvidia import NvidiaProbe
from gpulayer.plugins.builtin.nvidia.nvml import NoNvml, reading_of
from gpulayer.plugins.contracts.probe import ProbeSite, ProcessKind, ProcessOnDevice
from gpulayer.spec.machine import Device, DeviceState
from gpulayer.spec.request import Accelerator
from gpulayer.testing import ProbeContract
from gpulayer.worker.findings import checked_findings
from gpulayer.worker.known_devices import KnownDevices
from tests.nvidia import FakeSmi, built_nvml, nvml_environment, row

MIB = 2**20


def card(index, uuid, model="NVIDIA L40S", *, bus="3B", **more):
    """Lines for nvml.c."""
    figures = {
        "uuid": uuid,
        "name": model,
        "pci": f"00000000:{bus}:00.0",
        "memory": "46068 45460",
        "capability": "8.9",
        "compute_mode": 0,
        "ecc": 1,
        "temperature": 63,
        "use": 7,
        "mig": 0,
        "recovery": 0,
        "remapped": "0 0 0 0",
        "compute": "",
        "graphics": "",
    }
    return {
        f"{index}.{name.replace('__', '.')}": value for name, value in (figures | more).items() if value is not None
    }


TWO = {"count": 2} | card(0, "GPU-a", bus="3B") | card(1, "GPU-b", bus="5E", compute="4711:1024")
MIG = (
    {"count": 1}
    | card(0, "GPU-p", "NVIDIA H100 80GB HBM3", mig=1, memory="81559 81022", use=None)
    | {"0.0.uuid": "MIG-1", "0.0.name": "NVIDIA H100 80GB HBM3 MIG 3g.40gb", "0.0.memory": "40448 40422"}
    | {"0.0.gi": 2, "0.0.ci": 0, "0.0.compute": "77:100"}
    | {"0.3.uuid": "MIG-2", "0.3.name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "0.3.memory": "9984 9975"}
    | {"0.3.gi": 9, "0.3.ci": 0}
)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return built_nvml(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def look(tmp_path, library):
    """``look(lines)``: what is found where the library says this; the same probe all through a test."""
    probes = {}

    def found(lines, *, library=library, budget_s=8.0, **environment):
        probe = probes.setdefault(budget_s, NvidiaProbe(root=tmp_path / "root", budget_s=budget_s))
        there = nvml_environment(library, tmp_path / "told", lines) | environment
        return checked_findings(probe.look(ProbeSite(tmp_path, there)))

    return found


class TestProbe(ProbeContract):
    @pytest.fixture
    def probe(self, tmp_path):
        return NvidiaProbe(root=tmp_path / "root")

    @pytest.fixture(params=[TWO, MIG], ids=["cards", "slices"])
    def environment(self, request, library, tmp_path_factory):
        return nvml_environment(library, tmp_path_factory.mktemp("told") / "told", request.param)


def test_all_that_nvml_tells_of_a_card(look):
    found = look(TWO)
    assert found.devices[0] == Device(
        uuid="GPU-a",
        index=0,
        kind=Accelerator.CUDA,
        model="NVIDIA L40S",
        memory_bytes=46068 * MIB,
        memory_free_bytes=45460 * MIB,
        compute_capability="8.9",
        pci_address="0000:3b:00.0",
        driver="550.90.07",
        runtime="12.4",
        compute_mode="default",
        ecc=True,
        temperature_c=63,
        use_percent=7,
    )
    assert found.processes == (ProcessOnDevice("GPU-b", 4711, memory_bytes=1024 * MIB),)
    assert found.missing == ()


def test_who_draws_and_who_computes_and_who_does_both(look):
    found = look({"count": 1} | card(0, "GPU-a", compute="10:100 11", graphics="12:30 10:120"))
    assert found.processes == (
        ProcessOnDevice("GPU-a", 10, memory_bytes=120 * MIB),
        ProcessOnDevice("GPU-a", 11),
        ProcessOnDevice("GPU-a", 12, ProcessKind.GRAPHICS, 30 * MIB),
    )


def test_slices_are_devices_with_their_card_as_parent_and_the_card_is_none(look):
    found = look(MIG)
    first, second = found.devices
    assert (first.uuid, first.parent, first.index) == ("MIG-1", "GPU-p", 0)
    assert (first.model, first.memory_bytes) == ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", 40448 * MIB)
    assert (second.uuid, second.memory_free_bytes, second.use_percent) == ("MIG-2", 9975 * MIB, None)
    assert (second.pci_address, second.compute_capability, second.ecc) == ("0000:3b:00.0", "8.9", True)
    assert found.processes == (ProcessOnDevice("MIG-1", 77, memory_bytes=100 * MIB),)


def test_a_slice_is_named_by_the_worker_in_the_old_way_too(look):
    found = look(MIG, CUDA_VISIBLE_DEVICES="MIG-GPU-p/9/0")
    assert [device.uuid for device in found.devices] == ["MIG-2"]


FIGURES = {
    "name": ("model", ""),
    "pci": ("pci_address", ""),
    "memory": ("memory_bytes", None),
    "capability": ("compute_capability", ""),
    "compute_mode": ("compute_mode", ""),
    "ecc": ("ecc", None),
    "temperature": ("temperature_c", None),
    "use": ("use_percent", None),
}


@pytest.mark.parametrize(("figure", "error"), list(zip(FIGURES, [3, 4, 999, 3, 4, 999, 3, 999], strict=True)))
def test_a_figure_that_can_not_be_read_is_unknown_for_that_card_alone(look, figure, error):
    name, unknown = FIGURES[figure]
    whole = look(TWO).devices
    found = look(TWO | {f"0.error.{figure}": error}).devices
    assert found[1] == whole[1]
    assert getattr(found[0], name) == unknown != getattr(whole[0], name)
    assert found[0].state is DeviceState.USABLE
    if figure != "memory":
        assert found[0].memory_bytes == whole[0].memory_bytes


@pytest.mark.parametrize("error", [3, 4, 999])
def test_what_a_card_does_not_support_is_no_trouble(look, error):
    figures = ("mig", "recovery", "remapped", "retiring", "sram", "addressing", "graphics")
    assert look(TWO | {f"0.error.{figure}": error for figure in figures}).devices == look(TWO).devices


def test_who_computes_is_unknown_where_it_may_not_be_read(look):
    assert look(TWO | {"0.error.compute": 4, "1.error.compute": 4}).processes is None
    assert look(TWO | {"0.error.compute": 4}).processes == (ProcessOnDevice("GPU-b", 4711, memory_bytes=1024 * MIB),)


def test_memory_that_a_card_has_not_of_its_own_is_the_machines(look):
    """P1: NVML answers "Not Supported" on GB10; "Insufficient Permissions" says nothing of that."""
    [broken, hidden] = look(TWO | {"0.error.memory": 3, "1.error.memory": 4}).devices
    assert (broken.memory_bytes, broken.is_memory_shared) == (None, False), "cards of its kind have their own"
    [shared, _] = look(TWO | {"0.error.memory": 3, "0.capability": "12.1"}).devices
    assert (shared.memory_bytes, shared.is_memory_shared) == (None, True)
    assert (hidden.memory_bytes, hidden.is_memory_shared) == (None, False)
    lines = {"count": 1} | card(0, "GPU-g", "NVIDIA GH200 480GB", memory="97871 97000", addressing=2)
    [grace] = look(lines, budget_s=7.0).devices
    assert (grace.memory_bytes, grace.is_memory_shared) == (97871 * MIB, True)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ({"0.error.memory": 15}, "GPU is lost"),
        ({"0.error.temperature": 16}, "GPU requires reset"),
        ({"0.error.uuid": 15}, "GPU is lost"),
        ({"0.error.handle": 15}, "GPU is lost"),
        ({"0.error.handle": 999}, "it can't be read: Unknown Error"),
        ({"0.recovery": 1}, "its driver asks for: GPU reset"),
        ({"0.recovery": 4}, "its driver asks for: drain and reset"),
        ({"0.recovery": 77}, "its driver asks for: recovery action 77"),
        ({"0.remapped": "0 1 0 1"}, "a row of its memory could not be replaced"),
        ({"0.retiring": 1}, "a page of its memory is to be retired: the GPU requires a reset"),
        ({"0.sram": 1}, "its on-chip memory has had too many uncorrectable errors"),
        ({"0.compute_mode": 2}, "its compute mode is prohibited"),
    ],
)
def test_a_card_in_trouble_is_unhealthy_by_its_uuid_and_the_other_is_not_and_it_comes_back(look, lines, reason):
    known = KnownDevices()
    before = known.settle(look(TWO).devices, {})
    found = known.settle(look(TWO | lines).devices, {})
    assert [device.uuid for device in found] == ["GPU-a", "GPU-b"]
    assert found[0].state is DeviceState.UNHEALTHY
    assert found[0].reason.startswith(reason)
    assert found[1] == before[1]
    assert known.settle(look(TWO).devices, {}) == before


def test_a_row_that_waits_to_be_remapped_is_no_trouble(look):
    """NVIDIA: new workloads can be launched; it tells of the reset that it needs, if any, by the recovery action."""
    assert look(TWO | {"0.remapped": "0 1 1 0"}).devices == look(TWO).devices


def test_slices_of_a_card_in_trouble_are_in_trouble(look):
    found = look(MIG | {"0.recovery": 2})
    assert [(device.uuid, device.state) for device in found.devices] == [
        ("MIG-1", DeviceState.UNHEALTHY),
        ("MIG-2", DeviceState.UNHEALTHY),
    ]


def test_a_card_that_can_not_be_opened_is_named_as_the_kernel_knows_it(look, tmp_path):
    for bus, uuid in (("3b", "GPU-kernel"), ("5e", "GPU-b")):
        folder = tmp_path / "root" / "proc" / "driver" / "nvidia" / "gpus" / f"0000:{bus}:00.0"
        folder.mkdir(parents=True)
        text = f"Model: \t\t NVIDIA L40S\nIRQ:   \t\t 55\nGPU UUID: \t {uuid}\nBus Type: \t PCIe\n"
        (folder / "information").write_text(text)
    first, second = look(TWO | {"0.error.handle": 999}).devices
    assert (first.uuid, first.model, first.pci_address) == ("GPU-kernel", "NVIDIA L40S", "0000:3b:00.0")
    assert (first.state, second.state) == (DeviceState.UNHEALTHY, DeviceState.USABLE)


def test_a_driver_that_does_not_start_is_a_reason_and_nvidia_smi_is_not_asked_too(look, tmp_path):
    smi = FakeSmi(tmp_path / "bin", note=str(tmp_path / "note"))
    for code, words in ((9, "Driver Not Loaded"), (18, "Driver/library version mismatch"), (999, "Unknown Error")):
        found = look(TWO | {"init": code}, PATH=smi.environment["PATH"])
        assert found.missing == (("cuda", f"NVML says: {words}"),)
    assert not (tmp_path / "note").exists()


def test_a_driver_without_a_card_says_so(look):
    assert look({"count": 0}).missing == (("cuda", "the driver finds no device"),)


@pytest.mark.parametrize("lines", [{"init": "hang"}, TWO | {"1.error.memory": "hang"}])
def test_a_driver_that_hangs_ends_at_the_limit(look, tmp_path, lines):
    """P4. What was known stays known, unhealthy, and is healthy again when it answers."""
    smi = FakeSmi(tmp_path / "bin", rows=[row(0, "GPU-x", "NVIDIA L40S", bus="01")], note=str(tmp_path / "note"))
    before = look(TWO)
    found = look(lines, budget_s=1.0, PATH=smi.environment["PATH"])
    assert found.devices == (), "of a probe that never knew of any"
    [(kind, why)] = found.missing
    assert kind == "cuda"
    assert why == "the driver does not answer: NVML did not answer within 1 s"
    assert not (tmp_path / "note").exists(), "who else is asked hangs as well"
    assert look(TWO, budget_s=1.0) == before


def test_a_library_that_crashes_takes_nobody_with_it_and_nvidia_smi_is_asked(look, tmp_path):
    smi = FakeSmi(tmp_path / "bin", rows=[row(0, "GPU-x", "NVIDIA L40S", bus="01")])
    found = look(TWO | {"0.error.memory": "crash"}, PATH=smi.environment["PATH"])
    assert [device.uuid for device in found.devices] == ["GPU-x"]
    [(_, why)] = look(TWO | {"0.error.memory": "crash"}).missing
    assert why.endswith("neither NVML nor nvidia-smi can be asked: reading NVML was ended by signal 6")


def test_without_pynvml_nvidia_smi_is_asked(look, tmp_path, monkeypatch):
    monkeypatch.setattr("gpulayer.plugins.builtin.nvidia.probe._folder_of_pynvml", lambda: "")
    smi = FakeSmi(tmp_path / "bin", rows=[row(0, "GPU-x", "NVIDIA L40S", bus="01")])
    assert [device.uuid for device in look(TWO, PATH=smi.environment["PATH"]).devices] == ["GPU-x"]


def test_the_library_is_found_where_the_loader_would_not_look(tmp_path):
    """P8: WSL2 keeps it in a folder of its own."""
    library = built_nvml(tmp_path / "root" / "usr" / "lib" / "wsl" / "lib")
    environment = nvml_environment(library, tmp_path / "told", TWO)
    del environment["LD_LIBRARY_PATH"]
    found = NvidiaProbe(root=tmp_path / "root").look(ProbeSite(tmp_path, environment))
    assert [device.uuid for device in found.devices] == ["GPU-a", "GPU-b"]


def test_an_old_library_lacks_functions_and_what_they_tell_is_unknown(look, tmp_path):
    old = built_nvml(tmp_path / "old", without=["V3", "RECOVERY", "MIG"])
    assert look(TWO, library=old) == look(TWO)


def test_only_what_the_worker_itself_may_use_is_offered(look):
    """E3, by UUID."""
    found = look(TWO, CUDA_VISIBLE_DEVICES="1")
    assert [(device.uuid, device.index) for device in found.devices] == [("GPU-b", 1)]
    assert found.processes == (ProcessOnDevice("GPU-b", 4711, memory_bytes=1024 * MIB),)
    found = look(TWO, CUDA_VISIBLE_DEVICES="-1")
    assert (found.devices, found.processes) == ((), ())


@pytest.mark.parametrize("printed", ["", "[]", "{", "null", "3", '{"error": "x"}', '{"error": "x", "code": 12}'])
def test_what_is_no_document_is_no_reading(printed):
    if printed in ("[]", "null", "3"):
        assert reading_of(printed).cards == ()
    else:
        with pytest.raises(NoNvml):
            reading_of(printed)


def test_a_document_of_odd_values_costs_those_values_alone():
    odd = {"uuid": "GPU-a", "memory": ["x"], "use": 4294967295, "compute": [[1, None], [2], "x"], "temperature": "hot"}
    document = {"read": {"cuda": None}, "cards": [{"index": 0, "read": odd, "failed": {}, "slices": None}]}
    [found] = reading_of(json.dumps(document)).cards
    assert (found.uuid, found.memory_bytes, found.use_percent, found.temperature_c) == ("GPU-a", None, None, None)
    assert [one.pid for one in found.processes] == [1]
