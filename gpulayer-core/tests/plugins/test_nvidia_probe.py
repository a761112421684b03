"""The NVIDIA probe with an nvidia-smi that is ours: what is found, what is not, what hangs, what shrinks."""

from pathlib import Path

import pytest

from gpulayer.plugins.builtin.child import Child
from gpulayer.plugins.builtin.nvidia import NvidiaProbe
from gpulayer.plugins.builtin.nvidia.presence import Signs, signs_of
from gpulayer.plugins.builtin.nvidia.smi import FIELDS
from gpulayer.plugins.contracts.probe import Findings, ProbeSite, ProcessOnDevice
from gpulayer.spec.machine import DeviceState
from gpulayer.testing import ProbeContract
from gpulayer.worker.findings import checked_findings
from gpulayer.worker.known_devices import KnownDevices
from tests.nvidia import FakeSmi, row
from tests.together import end_one, is_alive

DATA = Path(__file__).parents[1] / "data" / "nvidia-smi"
MIB = 2**20
ROWS = [
    row(0, "GPU-3060", "NVIDIA GeForce RTX 3060", bus="03", memory_mib=12288),
    row(1, "GPU-4090", "NVIDIA GeForce RTX 4090", bus="0A", memory_mib=24564),
]
FOUR = [row(number, f"GPU-{number}", "NVIDIA L40S", bus=f"0{number}") for number in range(4)]


@pytest.fixture
def smi(tmp_path):
    return FakeSmi(tmp_path / "bin", rows=ROWS)


@pytest.fixture
def probe(tmp_path):
    """On a machine that has nothing but what a test puts there."""
    return NvidiaProbe(root=tmp_path / "root", with_nvml=False)


def settled(known, found):
    """As the worker knows them, over several looks."""
    return known.settle(found.devices, dict(found.missing))


def look(probe, environment):
    return checked_findings(probe.look(ProbeSite(Path("/"), environment)))


class TestProbe(ProbeContract):
    @pytest.fixture
    def probe(self, tmp_path):
        return NvidiaProbe(root=tmp_path / "root", with_nvml=False)

    @pytest.fixture
    def environment(self, tmp_path_factory):
        text = "GPU-4090, 4711, 100\n"
        return FakeSmi(tmp_path_factory.mktemp("bin"), rows=ROWS, apps=text).environment


def test_cards_are_found_with_all_that_is_told_of_them(probe, smi):
    table = (DATA / "table_l40s.out").read_text()
    smi.tell(rows=ROWS, table=table, apps="GPU-4090, 4711, 1024\nGPU-4090, 12, [N/A]\nGPU-other, 5, 1\n")
    found = look(probe, smi.environment)
    first, second = found.devices
    assert (first.uuid, first.index, first.model) == ("GPU-3060", 0, "NVIDIA GeForce RTX 3060")
    assert (second.memory_bytes, second.memory_free_bytes) == (24564 * MIB, 24500 * MIB)
    assert (second.pci_address, second.driver, second.runtime) == ("0000:0a:00.0", "550.90.07", "13.2")
    assert (second.compute_capability, second.compute_mode, second.ecc) == ("8.9", "default", None)
    assert (second.temperature_c, second.use_percent, second.state) == (40, 0, DeviceState.USABLE)
    assert found.processes == (
        ProcessOnDevice("GPU-4090", 4711, memory_bytes=1024 * MIB),
        ProcessOnDevice("GPU-4090", 12),
    )
    assert found.missing == ()


UNKNOWN = ["gpu_recovery_action", "compute_cap", "addressing_mode", *(f for f in FIELDS if f.count(".") == 2)]
UNKNOWN += ["utilization.gpu", "temperature.gpu", "remapped_rows.failure", "retired_pages.pending", "compute_mode"]


def test_fields_that_an_old_driver_refuses_are_not_known_and_the_rest_is(probe, smi, tmp_path):
    note = tmp_path / "note"
    smi.tell(rows=ROWS, unknown=UNKNOWN, note=str(note))
    found = look(probe, smi.environment)
    assert look(probe, smi.environment) == found
    assert sum("--query-gpu" in line for line in note.read_text().splitlines()) == len(UNKNOWN) + 2, "once each"
    assert [device.compute_capability for device in found.devices] == ["", ""]
    assert [device.memory_bytes for device in found.devices] == [12288 * MIB, 24564 * MIB]


@pytest.mark.parametrize("code", [0, 6, 9, 18, 255])
@pytest.mark.parametrize(
    "name", ["odd_nvml_mismatch", "odd_nvml_unknown_error", "odd_cannot_communicate", "odd_no_devices"]
)
def test_an_error_on_the_standard_output_is_the_reason_and_no_device(probe, smi, name, code):
    """P2."""
    text = (DATA / f"{name}.out").read_text()
    smi.tell(said=text, code=code)
    found = look(probe, smi.environment)
    assert found.devices == ()
    [(kind, why)] = found.missing
    assert kind == "cuda"
    assert why == "nvidia-smi says: " + " ".join(line.strip() for line in text.splitlines() if line.strip())


def test_one_that_says_nothing_is_a_reason_too(probe, smi):
    smi.tell(said="", code=15)
    assert look(probe, smi.environment).missing == (("cuda", "nvidia-smi said nothing and ended with exit code 15"),)


def test_a_warning_with_a_bad_exit_code_costs_no_card(probe, smi):
    smi.tell(rows=ROWS, before=["WARNING: infoROM is corrupted at gpu 0000:03:00.0"], code=14)
    assert [device.state for device in look(probe, smi.environment).devices] == [DeviceState.USABLE] * 2


def test_shared_memory_is_unknown_and_the_card_is_there(probe, smi):
    """P1."""
    cells = {"memory__total": "[N/A]", "memory__free": "[N/A]", "compute_cap": "12.1"}
    smi.tell(rows=[row(0, "GPU-spark", "NVIDIA GB10", bus="0f", **cells)], apps="GPU-spark, 524, 96\n")
    found = look(probe, smi.environment)
    [device] = found.devices
    assert (device.memory_bytes, device.memory_free_bytes, device.is_memory_shared) == (None, None, True)
    assert device.state is DeviceState.USABLE
    assert found.processes == (ProcessOnDevice("GPU-spark", 524, memory_bytes=96 * MIB),)


def test_processes_that_may_not_be_read_are_unknown(probe, smi):
    """P1."""
    smi.tell(rows=ROWS, apps=(DATA / "odd_insufficient_permissions_apps.out").read_text())
    assert look(probe, smi.environment).processes is None


def test_slices_are_devices_by_their_names_and_the_card_is_none(probe, smi):
    smi.tell(
        rows=[row(0, "GPU-p", "NVIDIA H100 80GB HBM3", bus="09", mig__mode__current="Enabled")],
        L=(DATA / "L_h100_mig.out").read_text(),
        table=(DATA / "table_h100_mig.out").read_text(),
    )
    found = look(probe, smi.environment)
    assert len(found.devices) == 4
    assert {device.parent for device in found.devices} == {"GPU-p"}
    assert [device.memory_bytes for device in found.devices] == [mib * MIB for mib in (40448, 20096, 9984, 9984)]


def test_a_card_in_mig_mode_without_slices_is_there_and_why_it_can_not_be_used_is_told(probe, smi):
    """Also beside one that can."""
    sliced = row(0, "GPU-p", "NVIDIA H100", bus="09", mig__mode__current="Enabled")
    smi.tell(rows=[sliced, row(1, "GPU-q", "NVIDIA H100", bus="0a")])
    found = look(probe, smi.environment)
    assert [(device.uuid, device.state, device.reason) for device in found.devices] == [
        ("GPU-p", DeviceState.UNHEALTHY, "it is in MIG mode, and no MIG device was made"),
        ("GPU-q", DeviceState.USABLE, ""),
    ]


def test_a_card_that_can_not_be_opened_is_offered_by_its_number_too(probe, smi, tmp_path):
    """E3: as without the variable."""
    lost = (DATA / "odd_device_handle_then_table.out").read_text().splitlines()[:1]
    smi.tell(rows=[row(0, "GPU-q", "NVIDIA H100", bus="0a")], before=lost)
    devices = look(probe, smi.environment).devices
    assert [device.state for device in devices] == [DeviceState.USABLE, DeviceState.UNHEALTHY]
    for text, kept in (("0,1", devices), ("0", devices[:1]), ("1", devices[1:])):
        worker = NvidiaProbe(root=tmp_path / "root", with_nvml=False)
        assert look(worker, smi.environment | {"CUDA_VISIBLE_DEVICES": text}).devices == kept


@pytest.mark.parametrize(
    ("cells", "field", "value"),
    [
        ({"temperature__gpu": "5000"}, "temperature_c", None),
        ({"memory__total": "99999999999999"}, "memory_bytes", None),
        ({"memory__free": "999999"}, "memory_free_bytes", None),
        ({"utilization__gpu": "101"}, "use_percent", None),
        ({"compute_cap": "banana"}, "compute_capability", ""),
        ({"compute_cap": "9.9.9.9"}, "compute_capability", ""),
        ({"name": "H\x00100\x1b[31m"}, "model", "H 100"),
        ({"name": "NVIDIA H100, the second, of two"}, "model", "NVIDIA H100, the second, of two"),
        ({"index": "[Unknown Error]"}, "index", 0),
        ({"index": "-1"}, "index", 0),
        ({"index": "999999999"}, "index", 0),
        ({"driver_version": "5" * 70}, "driver", "5" * 63 + "…"),
    ],
)
def test_what_can_not_be_is_unknown_of_that_card_alone(probe, smi, cells, field, value):
    other = row(1, "GPU-q", "NVIDIA H100", bus="0a", gpu_recovery_action="GPU reset")
    smi.tell(
        rows=[row(0, "GPU-p", "NVIDIA H100", bus="09") | {k.replace("__", "."): v for k, v in cells.items()}, other]
    )
    found = checked_findings(look(probe, smi.environment))
    first, second = found.devices
    assert getattr(first, field) == value
    assert (first.uuid, first.state, second.state) == ("GPU-p", DeviceState.USABLE, DeviceState.UNHEALTHY)
    assert (second.temperature_c, second.memory_bytes, second.compute_capability) == (40, 24564 * MIB, "8.9")


@pytest.mark.parametrize("said", ["NVRM: Xid 79, GPU has fallen off the bus\0\0", "x" * 10_000, "\x1b]0;owned\x07 no"])
def test_whatever_it_says_is_a_reason_that_can_be_told(probe, smi, said):
    smi.tell(said=said, code=15)
    [(kind, why)] = checked_findings(look(probe, smi.environment)).missing
    assert kind == "cuda"
    assert why.startswith("nvidia-smi says: ")
    assert why.isprintable()


def test_no_more_complaints_are_taken_for_cards_than_can_be_told(probe, smi):
    handle = "Unable to determine the device handle for GPU 0000:{:02x}:{:02x}.0: Unknown Error"
    smi.tell(rows=FOUR, before=[handle.format(at // 32, at % 32) for at in range(4096, 8000)])
    assert len(checked_findings(look(probe, smi.environment)).devices) == 1024


def test_more_cards_and_processes_than_can_be_told_are_cut(probe, smi):
    rows = [row(number, f"GPU-{number}", "NVIDIA H100", bus="01") for number in range(1030)]
    smi.tell(rows=rows, apps="".join(f"GPU-0, {pid}, 1\n" for pid in range(1, 5000)))
    found = checked_findings(look(probe, smi.environment))
    assert len(found.devices) == 1024
    assert found.processes is not None
    assert len(found.processes) == 4096


def test_a_tool_that_is_ended_by_a_signal_says_so(tmp_path, probe):
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir(exist_ok=True)
    program.write_text("#!/bin/sh\nkill -11 $$\n")
    program.chmod(0o755)
    [(_, why)] = look(probe, {"PATH": f"{program.parent}:/usr/bin:/bin"}).missing
    assert why == "nvidia-smi said nothing and was ended by signal 11"


def test_where_the_driver_takes_too_long_the_log_says_once_what_may_help(tmp_path, smi, caplog):
    smi.tell(rows=ROWS, hang="")
    for is_running, told in ((False, 1), (True, 0)):
        caplog.clear()
        probe = NvidiaProbe(root=tmp_path / "root", with_nvml=False, budget_s=0.2)
        for _ in range(2):
            found = look(probe, smi.environment)
            assert found.missing == (("cuda", "the driver does not answer: nvidia-smi did not answer within 0.2 s"),)
            assert found.is_silent
        assert sum("nvidia-persistenced" in record.message for record in caplog.records) == told, is_running
        (tmp_path / "root/run/nvidia-persistenced").mkdir(parents=True, exist_ok=True)
        (tmp_path / "root/run/nvidia-persistenced/socket").touch()


def test_a_driver_that_hangs_ends_at_the_limit_and_leaves_nothing(tmp_path, smi):
    """P4: it ignores SIGTERM and sleeps."""
    note = tmp_path / "note"
    smi.tell(rows=ROWS, hang="", note=str(note))
    found = look(NvidiaProbe(root=tmp_path / "root", with_nvml=False, budget_s=0.5), smi.environment)
    assert found.devices == ()
    [(_, why)] = found.missing
    assert why.startswith("the driver does not answer: nvidia-smi did not answer within")
    [line] = note.read_text().splitlines()
    assert not is_alive(int(line.split()[0]))


def test_a_driver_that_can_not_be_ended_has_one_stuck_process_and_is_asked_again_when_it_has_gone(tmp_path, smi):
    """P4: it ignores SIGKILL too; here nobody sends it."""
    note = tmp_path / "note"
    smi.tell(rows=ROWS, hang="--query-gpu", note=str(note))
    child = Child(kill=lambda pid, number: None, dying_s=0.05)
    probe = NvidiaProbe(root=tmp_path / "root", with_nvml=False, budget_s=0.5, child=child)
    for _ in range(3):
        [(_, why)] = look(probe, smi.environment).missing
        assert why.startswith("the driver does not answer: ")
    [line] = note.read_text().splitlines()
    end_one(int(line.split()[0]))
    smi.tell(rows=ROWS)
    assert len(look(NvidiaProbe(root=tmp_path / "root", with_nvml=False, child=child), smi.environment).devices) == 2


@pytest.mark.parametrize("hangs", ["table", "--query-compute-apps"])
def test_a_text_that_hangs_takes_no_figures_that_were_read(tmp_path, smi, hangs):
    table = (DATA / "table_l40s.out").read_text()
    smi.tell(rows=ROWS, hang=hangs, table=table, apps="GPU-4090, 4711, 1024\n")
    found = look(NvidiaProbe(root=tmp_path / "root", with_nvml=False, budget_s=1.5), smi.environment)
    assert [(device.uuid, device.state, device.temperature_c) for device in found.devices] == [
        ("GPU-3060", DeviceState.USABLE, 40), ("GPU-4090", DeviceState.USABLE, 40),
    ]  # fmt: skip
    assert found.missing == ()
    if hangs == "table":
        assert found.processes == (ProcessOnDevice("GPU-4090", 4711, memory_bytes=1024 * MIB),)
        assert found.devices[0].runtime == ""
    else:
        assert found.processes is None


def test_where_the_list_of_slices_hangs_nobody_says_that_there_are_none(tmp_path, smi):
    """What was known of them stays: they are unhealthy for this reason."""
    smi.tell(rows=[row(0, "GPU-p", "NVIDIA H100", bus="09", mig__mode__current="Enabled")], hang="-L")
    found = look(NvidiaProbe(root=tmp_path / "root", with_nvml=False, budget_s=1.0), smi.environment)
    assert found.devices == ()
    assert "the driver does not answer" in found.missing[0][1]


def test_of_two_cards_with_one_uuid_the_second_is_told_and_can_not_be_used(probe, smi):
    smi.tell(rows=[FOUR[0], FOUR[1] | {"uuid": "GPU-0"}, FOUR[2]], apps="GPU-0, 5, 1\n")
    found = look(probe, smi.environment)
    assert [(device.uuid, device.index, device.reason) for device in found.devices] == [
        ("GPU-0", 0, ""),
        ("CUDA-0000:01:00.0", 1, "it has the same UUID as device 0: GPU-0"),
        ("GPU-2", 2, ""),
    ]
    assert found.devices[1].state is DeviceState.UNHEALTHY


def test_a_row_that_is_there_twice_is_one_card(probe, smi):
    smi.tell(rows=[FOUR[0], FOUR[0], FOUR[1]])
    assert [device.uuid for device in look(probe, smi.environment).devices] == ["GPU-0", "GPU-1"]


@pytest.mark.parametrize("what", ["folder", "not executable", "leads nowhere"])
def test_an_nvidia_smi_that_can_not_be_run_at_all_is_told(tmp_path, probe, what):
    path = tmp_path / "nvidia-smi"
    if what == "folder":
        path.mkdir()
    elif what == "leads nowhere":
        path.symlink_to(tmp_path / "gone")
    else:
        path.write_text("#!/bin/sh\n")
    environment = {"PATH": f"{tmp_path}/none:{tmp_path}"}
    [(kind, why)] = look(probe, environment).missing
    assert (kind, why[: len(str(path))]) == ("cuda", str(path))
    assert why.endswith(what)
    (tmp_path / "root" / "dev").mkdir(parents=True)
    (tmp_path / "root" / "dev" / "nvidiactl").touch()
    assert why in look(probe, environment).missing[0][1], "beside what else is there"


def test_where_there_is_nothing_of_nvidias_nobody_is_asked(tmp_path, monkeypatch):
    def no_child(*arguments, **options):
        raise AssertionError("a child was started")

    monkeypatch.setattr(Child, "ask", no_child)
    for with_nvml in (True, False):
        probe = NvidiaProbe(root=tmp_path, with_nvml=with_nvml)
        assert look(probe, {"PATH": str(tmp_path)}) == Findings()
        assert look(probe, {}) == Findings(), "an empty root has no nvidia-smi in any default folder"


def test_a_driver_without_anybody_to_ask_says_so(tmp_path, probe):
    (tmp_path / "root" / "dev").mkdir(parents=True)
    (tmp_path / "root" / "dev" / "nvidiactl").touch()
    [(kind, why)] = look(probe, {"PATH": ""}).missing
    assert kind == "cuda"
    assert "neither NVML nor nvidia-smi" in why


def test_a_jetson_is_recognised_and_named(tmp_path, probe):
    tree = tmp_path / "root" / "proc" / "device-tree"
    tree.mkdir(parents=True)
    (tree / "compatible").write_bytes(b"nvidia,p3737-0000+p3701-0000\0nvidia,tegra234\0")
    (tree / "model").write_bytes(b"NVIDIA Jetson AGX Orin Developer Kit\0")
    found = look(probe, {"PATH": ""})
    assert found.devices == ()
    [(kind, why)] = found.missing
    assert kind == "cuda"
    assert why.startswith("this is a NVIDIA Jetson AGX Orin Developer Kit, ")


def test_p8_wsl_has_the_tool_where_no_path_leads(tmp_path, probe):
    """That it is WSL2 is told by the host probe."""
    root = tmp_path / "root"
    folder = root / "usr" / "lib" / "wsl" / "lib"
    FakeSmi(folder, rows=ROWS)
    (root / "dev").mkdir()
    (root / "dev" / "dxg").touch()
    found = look(probe, {"PATH": str(tmp_path)})
    assert [device.uuid for device in found.devices] == ["GPU-3060", "GPU-4090"]


def test_only_what_the_worker_itself_may_use_is_offered(probe, smi):
    """E3."""
    smi.tell(rows=FOUR, apps="GPU-0, 5, 1\nGPU-3, 6, 1\n")
    found = look(probe, smi.environment | {"CUDA_VISIBLE_DEVICES": "2,3"})
    assert [(device.uuid, device.index) for device in found.devices] == [("GPU-2", 2), ("GPU-3", 3)]
    assert found.processes == (ProcessOnDevice("GPU-3", 6, memory_bytes=MIB),)
    none = look(NvidiaProbe(with_nvml=False), smi.environment | {"CUDA_VISIBLE_DEVICES": ""})
    assert none.devices == ()
    assert none.missing == (("cuda", "CUDA_VISIBLE_DEVICES is empty: the worker may use none of its 4 NVIDIA GPUs"),)


def test_a_name_that_is_no_cards_is_told_and_so_is_how_many_are_kept_back(smi, caplog):
    smi.tell(rows=FOUR)
    caplog.set_level("INFO")
    probe = NvidiaProbe(with_nvml=False)
    for _ in range(2):
        found = look(probe, smi.environment | {"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-zzz"})
        assert len(found.devices) == 1
    said = [record.message for record in caplog.records if record.name.endswith("nvidia.probe")]
    told = "CUDA_VISIBLE_DEVICES=GPU-1,GPU-zzz: 3 of 4 NVIDIA GPUs are not offered"
    assert said == [f"{told}; 'GPU-zzz' names none of 4 NVIDIA GPUs"]
    assert found.missing == (("cuda", said[0]),), "whoever looks at the machine sees it, too"
    for text, stray in (("GPU-zzz", "GPU-zzz"), ("7", "7")):
        none = look(NvidiaProbe(with_nvml=False), smi.environment | {"CUDA_VISIBLE_DEVICES": text})
        why = f"CUDA_VISIBLE_DEVICES={text}: the worker may use none of its 4 NVIDIA GPUs: {stray} is none of them"
        assert none.missing == (("cuda", why),)


@pytest.mark.parametrize(
    ("uuid", "why"),
    [("", "it tells no UUID"), ("[]", "it tells no UUID"), ("MIG-1", "it tells 'MIG-1' for its UUID")],
)
def test_a_card_whose_uuid_is_none_says_what_is_wrong(probe, smi, uuid, why):
    smi.tell(rows=[FOUR[0], FOUR[1] | {"uuid": uuid}])
    assert [device.reason for device in look(probe, smi.environment).devices] == ["", f"it can't be read: {why}"]


@pytest.mark.parametrize(
    ("model", "capability", "is_shared"),
    [
        ("NVIDIA L40S", "8.9", False),
        ("NVIDIA H100 80GB HBM3", "9.0", False),
        ("NVIDIA GB10", "12.1", True),
        ("Orin (nvgpu)", "8.7", True),
        ("one of tomorrow", "13.1", True),
        ("NVIDIA GH200 480GB", "9.0", True),
    ],
)
def test_memory_that_is_not_told_is_the_machines_only_of_a_card_that_can_share_it(
    probe, smi, model, capability, is_shared
):
    smi.tell(rows=[FOUR[0] | {"name": model, "compute_cap": capability, "memory.total": "[N/A]"}])
    (device,) = look(probe, smi.environment).devices
    assert (device.memory_bytes, device.is_memory_shared) == (None, is_shared)


def test_a_card_that_vanishes_is_unhealthy_and_renumbers_no_other_and_comes_back(probe, smi):
    smi.tell(rows=FOUR)
    environment = smi.environment | {"CUDA_VISIBLE_DEVICES": "1,2"}
    known = KnownDevices()
    before = settled(known, look(probe, environment))
    assert [device.uuid for device in before] == ["GPU-1", "GPU-2"]
    shrunk = [FOUR[0], FOUR[2] | {"index": "1"}, FOUR[3] | {"index": "2"}]
    smi.tell(rows=shrunk)
    after = {device.uuid: device for device in settled(known, look(probe, environment))}
    assert set(after) == {"GPU-1", "GPU-2"}, "GPU-3 has the number 2 now, and is not meant"
    assert (after["GPU-2"].index, after["GPU-2"].state) == (2, DeviceState.USABLE)
    assert (after["GPU-1"].index, after["GPU-1"].state) == (1, DeviceState.UNHEALTHY)
    smi.tell(rows=FOUR)
    assert settled(known, look(probe, environment)) == before


def test_a_card_that_is_put_in_takes_no_number_of_another(probe, smi):
    smi.tell(rows=FOUR)
    known = KnownDevices()
    settled(known, look(probe, smi.environment))
    new = row(2, "GPU-new", "NVIDIA L40S", bus="07")
    smi.tell(rows=[FOUR[0], FOUR[3] | {"index": "1"}, new])
    indices = {device.uuid: device.index for device in settled(known, look(probe, smi.environment))}
    assert indices == {"GPU-0": 0, "GPU-1": 1, "GPU-2": 2, "GPU-3": 3, "GPU-new": 4}


@pytest.mark.parametrize("named", ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"])
@pytest.mark.parametrize("text", ["1", "GPU-1"])
def test_the_one_card_that_a_worker_may_use_vanishes_and_no_variable_is_blamed(probe, smi, named, text):
    smi.tell(rows=FOUR)
    environment, known = smi.environment | {named: text}, KnownDevices()
    before = settled(known, look(probe, environment))
    assert [device.uuid for device in before] == ["GPU-1"]
    smi.tell(rows=[FOUR[0], FOUR[2] | {"index": "1"}, FOUR[3] | {"index": "2"}])
    [gone] = settled(known, look(probe, environment))
    assert (gone.uuid, gone.index, gone.reason) == ("GPU-1", 1, "it is not found any more")
    complaint = "Unable to determine the device handle for GPU 00000000:01:00.0: GPU is lost.  Reboot the system"
    smi.tell(rows=[FOUR[0], FOUR[2], FOUR[3]], before=[complaint])
    [lost] = settled(known, look(probe, environment))
    assert (lost.uuid, lost.index) == ("GPU-1", 1)
    assert "GPU is lost" in lost.reason
    smi.tell(rows=FOUR)
    assert settled(known, look(probe, environment)) == before


def test_a_card_that_can_not_be_read_any_more_is_known_by_its_address(probe, smi):
    smi.tell(rows=FOUR)
    known = KnownDevices()
    settled(known, look(probe, smi.environment))
    complaint = "Unable to determine the device handle for GPU 00000000:02:00.0: GPU is lost.  Reboot the system"
    smi.tell(rows=[FOUR[0], FOUR[1], FOUR[3]], before=[complaint])
    devices = {device.uuid: device for device in settled(known, look(probe, smi.environment))}
    assert set(devices) == {f"GPU-{number}" for number in range(4)}
    assert (devices["GPU-2"].index, devices["GPU-2"].state) == (2, DeviceState.UNHEALTHY)
    assert "GPU is lost" in devices["GPU-2"].reason
    assert devices["GPU-2"].model == "NVIDIA L40S"


def test_a_card_that_nobody_knows_has_a_name_by_its_address_until_it_can_be_read(probe, smi):
    complaint = "Unable to determine the device handle for GPU 0000:02:00.0: Unknown Error"
    smi.tell(rows=FOUR[:2], before=[complaint])
    known = KnownDevices()
    unread = settled(known, look(probe, smi.environment))[2]
    assert (unread.uuid, unread.state) == ("CUDA-0000:02:00.0", DeviceState.UNHEALTHY)
    smi.tell(rows=FOUR[:3])
    assert [device.uuid for device in settled(known, look(probe, smi.environment))] == ["GPU-0", "GPU-1", "GPU-2"]


def test_where_nobody_answers_any_more_all_are_unhealthy_and_come_back(probe, smi):
    known = KnownDevices()
    before = settled(known, look(probe, smi.environment))
    text = (DATA / "odd_nvml_unknown_error.out").read_text()
    smi.tell(said=text, code=255)
    found = look(probe, smi.environment)
    gone = settled(known, found)
    assert [device.uuid for device in gone] == ["GPU-3060", "GPU-4090"]
    assert {device.state for device in gone} == {DeviceState.UNHEALTHY}
    assert {device.reason for device in gone} == {"nvidia-smi says: Failed to initialize NVML: Unknown Error"}
    smi.tell(rows=ROWS)
    assert settled(known, look(probe, smi.environment)) == before


def test_slices_that_were_unmade_are_gone_for_good(probe, smi):
    card = row(0, "GPU-p", "NVIDIA H100", bus="09", mig__mode__current="Enabled")
    listed = (DATA / "L_h100_mig.out").read_text()
    smi.tell(rows=[card], L=listed)
    known = KnownDevices()
    assert len(settled(known, look(probe, smi.environment))) == 4
    smi.tell(rows=[card], L="".join(listed.splitlines(keepends=True)[:3]))
    assert len(settled(known, look(probe, smi.environment))) == 2
    smi.tell(rows=[card | {"mig.mode.current": "Disabled"}])
    assert [device.uuid for device in settled(known, look(probe, smi.environment))] == ["GPU-p"]


def test_how_cards_are_joined_is_asked_once_and_again_when_one_comes_or_goes(probe, smi, tmp_path):
    note = tmp_path / "note"

    def topo(count):
        head = "\t" + "\t".join(f"GPU{number}" for number in range(count)) + "\tCPU Affinity\tNUMA Affinity\n"
        cells = [["X" if one == other else "NV4" for other in range(count)] for one in range(count)]
        return head + "".join(f"GPU{one}\t" + "\t".join(line) + "\t0-1\t0\n" for one, line in enumerate(cells))

    def times_asked():
        return sum(" topo " in line for line in note.read_text().splitlines())

    smi.tell(rows=FOUR, topo=topo(4), note=str(note))
    for _ in range(2):
        first = look(probe, smi.environment).devices[0]
        assert [link for _, link in first.links] == ["NV4"] * 3
        assert first.numa_node == 0
    assert times_asked() == 1
    smi.tell(rows=[FOUR[0], FOUR[2] | {"index": "1"}], topo=topo(2), note=str(note))
    devices = {device.uuid: device for device in look(probe, smi.environment).devices}
    assert devices["GPU-2"].links == (("GPU-0", "NV4"),), "by who they are, not by their numbers"
    assert times_asked() == 2


def test_a_tool_that_can_not_be_run_is_no_driver_that_hangs(probe, tmp_path):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/nowhere/sh\n")
    program.chmod(0o755)
    found = look(probe, {"PATH": str(tmp_path)})
    assert found.missing == (("cuda", f"{program} can't be run: No such file or directory"),)


def test_signs_are_read_of_names_alone(tmp_path):
    assert signs_of({"PATH": ""}, root=tmp_path) == Signs()
    (tmp_path / "lib").mkdir()
    library = tmp_path / "lib" / "libnvidia-ml.so.1"
    library.touch()
    assert signs_of({"PATH": "", "LD_LIBRARY_PATH": f":x:{tmp_path}/lib"}, root=tmp_path).library == str(library)
    (tmp_path / "proc" / "driver" / "nvidia").mkdir(parents=True)
    signs = signs_of({"PATH": ""}, root=tmp_path)
    assert (signs.library, signs.has_driver, signs.is_any) == ("", True, True)
