"""What nvidia-smi prints, by recordings (each has its source beside it), and what is made of it."""

from pathlib import Path

import pytest

from gpulayer.plugins.builtin.nvidia.cards import Card, OnCard, Slice, as_pci_address, devices_of, processes_of
from gpulayer.plugins.builtin.nvidia.smi import (
    APPS,
    FIELDS,
    apps_of,
    card_of,
    listed_of,
    query,
    reading_of,
    refused_field,
    rows_of,
    table_of,
)
from gpulayer.spec.machine import DeviceState

DATA = Path(__file__).parents[1] / "data" / "nvidia-smi"
MIB = 2**20
ZEROS = "00000000-0000-0000-0000-000000000000"


def recorded(name):
    return (DATA / f"{name}.out").read_bytes().decode()


def cards(name):
    rows, said = rows_of(recorded(name))
    assert said == []
    return [card_of(row, number) for number, row in enumerate(rows)]


H100 = Card(
    index=0,
    uuid=f"GPU-{ZEROS}",
    model="NVIDIA H100 80GB HBM3",
    pci_address="0000:00:09.0",
    memory_bytes=81559 * MIB,
    memory_free_bytes=81081 * MIB,
    compute_capability="9.0",
    compute_mode="default",
    ecc=True,
    temperature_c=41,
    use_percent=0,
)


@pytest.mark.parametrize("form", ["full", "short"])
def test_a_card_is_read_of_every_recorded_query(form):
    assert cards(f"query_{form}_h100") == [H100]
    assert cards(f"query_{form}_l40s") == [
        Card(
            index=0,
            uuid=f"GPU-{ZEROS}",
            model="NVIDIA L40S",
            pci_address="0000:01:00.0",
            memory_bytes=46068 * MIB,
            memory_free_bytes=45460 * MIB,
            compute_capability="8.9",
            compute_mode="default",
            ecc=True,
            temperature_c=63,
            use_percent=100,
        )
    ]


@pytest.mark.parametrize("form", ["full", "short"])
def test_a_card_in_mig_mode_has_no_use_and_is_sliced(form):
    [card] = cards(f"query_{form}_h100_mig")
    assert (card.is_sliced, card.use_percent, card.temperature_c) == (True, None, 42)


def test_a_windows_driver_without_ecc_and_mig_is_no_trouble():
    [card] = cards("query_short_windows_rtx2080s")
    assert (card.ecc, card.is_sliced, card.trouble, card.memory_bytes) == (None, False, "", 8192 * MIB)
    assert not card.is_memory_shared


def test_memory_that_is_not_told_is_unknown_and_the_machines_own():
    """P1."""
    [card] = cards("odd_gb10_memory_NA")
    assert (card.memory_bytes, card.memory_free_bytes, card.is_memory_shared) == (None, None, True)
    assert card.trouble == ""


def test_one_field_with_an_error_is_unknown_alone():
    rows, said = rows_of(recorded("odd_unknown_error_row"))
    assert said == []
    assert [row["name"] for row in rows] == ["GeForce RTX 2080 Ti"]
    assert rows[0]["power.default_limit"] == "[Unknown Error]"
    card = card_of(rows[0])
    assert (card.use_percent, card.temperature_c, card.trouble) == (100, 56, "")
    marked = card_of({"uuid": "GPU-1", "memory.total": "[Unknown Error]", "memory.free": "[Insufficient Permissions]"})
    assert (marked.memory_bytes, marked.memory_free_bytes, marked.is_memory_shared) == (None, None, False)


@pytest.mark.parametrize(
    ("row", "trouble"),
    [
        ({"uuid": "[Unknown Error]"}, "it can't be read: Unknown Error"),
        ({"uuid": "GPU-1", "memory.total": "[GPU is lost]"}, "GPU is lost"),
        ({"uuid": "GPU-1", "temperature.gpu": "[GPU requires reset]"}, "GPU requires reset"),
        ({"uuid": "GPU-1", "gpu_recovery_action": "Reset"}, "its driver asks for: Reset"),
        ({"uuid": "GPU-1", "gpu_recovery_action": "Drain and Reset"}, "its driver asks for: Drain and Reset"),
        ({"uuid": "GPU-1", "remapped_rows.failure": "Yes"}, "a row of its memory could not be replaced"),
        ({"uuid": "GPU-1", "remapped_rows.pending": "Yes"}, ""),
        ({"uuid": "GPU-1", "retired_pages.pending": "Yes"}, "a page of its memory is to be retired"),
        ({"uuid": "GPU-1", "gpu_recovery_action": "None", "remapped_rows.failure": "No"}, ""),
        ({"uuid": "GPU-1", "gpu_recovery_action": "[N/A]", "retired_pages.pending": "[N/A]"}, ""),
    ],
)
def test_what_keeps_a_card_from_being_used_is_named(row, trouble):
    assert card_of(row).trouble.startswith(trouble)
    assert bool(card_of(row).trouble) == bool(trouble)


@pytest.mark.parametrize(
    "name",
    [
        "odd_nvml_mismatch",
        "odd_nvml_unknown_error",
        "odd_cannot_communicate",
        "odd_no_devices",
        "odd_topo_i_unsupported",
        "odd_insufficient_permissions_apps",
    ],
)
def test_what_is_no_row_is_what_it_said_and_no_card(name):
    """P2."""
    reading = reading_of(recorded(name), FIELDS)
    assert reading.cards == ()
    assert reading.said.startswith("nvidia-smi says: ")
    for line in recorded(name).splitlines():
        assert line.strip() in reading.said


def test_a_card_that_is_only_complained_of_is_a_card_and_the_others_stay_usable():
    complaint = recorded("odd_device_handle_then_table").splitlines()[0]
    row = "0, GPU-a, NVIDIA L40S, 00000000:33:00.0, 46068, 45460, 8.9, 610.57.04, Default" + ", [N/A]" * 9
    reading = reading_of(f"{complaint}\n{row}\n", FIELDS)
    first, second = devices_of(reading)
    assert (first.uuid, first.state, first.driver) == ("GPU-a", DeviceState.USABLE, "610.57.04")
    assert (second.index, second.uuid, second.pci_address) == (1, "CUDA-0000:34:00.0", "0000:34:00.0")
    assert (second.state, second.reason) == (DeviceState.UNHEALTHY, "it can't be read: Unknown Error")
    assert second.memory_bytes is None


@pytest.mark.parametrize(
    ("told", "index", "address", "words"),
    [
        ("GPU 0000:09:00.0: Unknown Error", 0, "0000:09:00.0", "Unknown Error"),
        ("GPU 0000:09:00.0: GPU is lost.  Reboot the system", 0, "0000:09:00.0", "GPU is lost.  Reboot the system"),
        ("GPU 000:BA:80.0: Unknown Error", 0, "0000:ba:80.0", "Unknown Error"),
        ("GPU3: 0000:34:00.0: Unknown Error", 3, "0000:34:00.0", "Unknown Error"),
    ],
)
def test_all_forms_of_the_complaint_of_a_handle(told, index, address, words):
    line = f"Unable to determine the device handle for {told}"
    [card] = reading_of(line, FIELDS).cards
    assert (card.index, card.uuid, card.pci_address, card.trouble) == (index, "", address, f"it can't be read: {words}")


def test_the_list_of_cards_and_slices():
    assert listed_of(recorded("L_h100")) == [Card(0, f"GPU-{ZEROS}", "NVIDIA H100 80GB HBM3")]
    assert listed_of(recorded("L_l40s")) == [Card(0, f"GPU-{ZEROS}", "NVIDIA L40S")]
    assert listed_of(recorded("L_windows_rtx2080s")) == [Card(0, f"GPU-{ZEROS}", "NVIDIA GeForce RTX 2080 SUPER")]
    [card] = listed_of(recorded("L_h100_mig"))
    assert [(one.number, one.uuid[:12], one.model) for one in card.slices] == [
        (0, "MIG-00000000", "NVIDIA H100 80GB HBM3 MIG 3g.40gb"),
        (1, "MIG-00000001", "NVIDIA H100 80GB HBM3 MIG 2g.20gb"),
        (2, "MIG-00000002", "NVIDIA H100 80GB HBM3 MIG 1g.10gb"),
        (3, "MIG-00000003", "NVIDIA H100 80GB HBM3 MIG 1g.10gb"),
    ]
    [card] = listed_of(recorded("L_gpu_mig_2g"))
    assert card.uuid == "", "as it was pasted"
    assert [one.uuid for one in card.slices] == ["MIG-377e0049-554c-540b-93c6-d0976f8426cb"]


def test_the_plain_table_tells_driver_and_cuda_by_their_old_and_new_names():
    assert (table_of(recorded("table_h100")).driver, table_of(recorded("table_h100")).runtime) == ("590.48.01", "13.1")
    assert (table_of(recorded("table_l40s")).driver, table_of(recorded("table_l40s")).runtime) == ("595.80", "13.2")
    windows = table_of(recorded("table_windows_rtx2080s"))
    assert (windows.driver, windows.runtime) == ("610.62", "13.3")
    assert table_of(recorded("odd_device_handle_then_table")).driver == "610.57.04"
    assert table_of("").cards == ()


def test_the_plain_table_tells_cards_and_slices():
    [card] = table_of(recorded("table_l40s")).cards
    assert (card.index, card.pci_address, card.memory_bytes, card.use_percent, card.compute_mode) == (
        0,
        "0000:01:00.0",
        46068 * MIB,
        100,
        "default",
    )
    [card] = table_of(recorded("table_h100_mig")).cards
    assert card.use_percent is None
    assert card.slices[0] == Slice(
        0,
        "",
        gpu_instance=2,
        compute_instance=0,
        memory_bytes=40448 * MIB,
        memory_free_bytes=40422 * MIB,
    )
    assert [(one.gpu_instance, one.number, one.memory_bytes) for one in card.slices[1:]] == [
        (3, 1, 20096 * MIB),
        (9, 2, 9984 * MIB),
        (10, 3, 9984 * MIB),
    ]


def test_a_card_that_takes_one_process_says_so_in_the_table_of_an_old_driver():
    [card] = table_of(recorded("odd_compute_mode_eprocess")).cards
    assert (card.model, card.compute_mode, card.memory_free_bytes) == (
        "Tesla K40m",
        "exclusive_process",
        (11439 - 74) * MIB,
    )


def test_slices_are_devices_and_their_card_is_none():
    row = rows_of(recorded("query_full_h100_mig"))[0][0]
    queried = ", ".join(row.get(field, "[N/A]").removesuffix(" MiB") for field in FIELDS)
    reading = reading_of(queried, FIELDS, table=recorded("table_h100_mig"), listed=recorded("L_h100_mig"), apps="")
    devices = devices_of(reading)
    assert [device.uuid[:12] for device in devices] == [f"MIG-0000000{number}" for number in range(4)]
    assert {device.parent for device in devices} == {f"GPU-{ZEROS}"}
    first = devices[0]
    assert (first.model, first.memory_bytes) == ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", 40448 * MIB)
    assert (first.runtime, first.driver, first.compute_capability) == ("13.1", "590.48.01", "9.0")
    assert (first.index, first.pci_address, first.use_percent) == (0, "0000:00:09.0", None)
    assert processes_of(reading) is None, "whose they are of several slices is not told"


def test_who_computes_is_told_by_device_and_an_unreadable_figure_is_unknown():
    text = "GPU-a, 524, [Insufficient Permissions]\nGPU-a, 525, 1024\nGPU-b, 7, [N/A]\n"
    assert apps_of(text) == {
        "GPU-a": [OnCard(524), OnCard(525, memory_bytes=1024 * MIB)],
        "GPU-b": [OnCard(7)],
    }
    assert apps_of("") == {}
    assert apps_of("No running processes found\n") == {}
    assert apps_of(recorded("odd_insufficient_permissions_apps")) is None
    assert apps_of(recorded("odd_nvml_unknown_error")) is None


def test_a_field_that_an_old_driver_does_not_know_is_named():
    said = 'Field "gpu_recovery_action" is not a valid field to query.\n\n'
    assert refused_field(said) == "gpu_recovery_action"
    assert refused_field(recorded("odd_no_devices")) == ""


def test_what_is_asked_for():
    assert query(APPS, of="compute-apps") == [
        "--query-compute-apps=gpu_uuid,pid,used_memory",
        "--format=csv,noheader,nounits",
    ]


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("0000:04:00.0", "0000:04:00.0"),
        ("3b:00.1", "0000:3b:00.1"),
        ("00010000:01:00.0", "10000:01:00.0"),
        ("[N/A]", ""),
        ("", ""),
    ],
)
def test_addresses_are_written_as_linux_writes_them(text, address):
    assert as_pci_address(text) == address


def test_every_recording_is_looked_at_by_a_test():
    source = Path(__file__).read_text()
    for path in DATA.glob("*.out"):
        name = path.stem
        assert name in source or name.replace("full", "{form}").replace("short", "{form}") in source, name
        assert (DATA / f"{name}.txt").read_text().startswith("source:")
