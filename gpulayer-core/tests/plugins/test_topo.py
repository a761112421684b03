"""``nvidia-smi topo -m``: recorded machines (each with its public source beside it), damaged ones, and what becomes of
them on devices. What is expected of the recorded ones is in data/topo/EXPECTED.json."""

import json
import random
import re
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulayer.plugins.builtin.child import Child
from gpulayer.plugins.builtin.nvidia.topo import Nic, Topology, look, parse_topo, with_topology
from gpulayer.spec.machine import Device
from gpulayer.spec.request import Accelerator
from gpulayer.spec.topology import drawn, islands

DATA = Path(__file__).parents[1] / "data" / "topo"
EXPECTED = json.loads((DATA / "EXPECTED.json").read_text(encoding="utf-8"))
NAMES = sorted(EXPECTED)
LEGEND = "\nLegend:\n\n  X    = Self\n  NV#  = Connection traversing a bonded set of # NVLinks\n"


def recorded(name):
    return (DATA / name).read_text(encoding="utf-8")


def matrix(topology, count):
    def cell(one, other):
        return "X" if one == other else topology.links.get((min(one, other), max(one, other)))

    return [[cell(one, other) for other in range(count)] for one in range(count)]


def cards(count):
    return tuple(Device(f"GPU-{index}", index, Accelerator.CUDA, "any") for index in range(count))


def joined(name):
    return with_topology(cards(EXPECTED[name]["gpus"]), parse_topo(recorded(name)))


def test_every_recorded_output_is_expected_something_of():
    assert sorted(path.name for path in DATA.glob("*.out")) == NAMES
    assert all((DATA / name).with_suffix(".txt").read_text().startswith("source: ") for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_matrix_is_read_as_it_stands(name):
    """Case T3."""
    topology = parse_topo(recorded(name))
    assert matrix(topology, EXPECTED[name]["gpus"]) == EXPECTED[name]["matrix"]
    assert [nic.name for nic in topology.nics] == EXPECTED[name]["nics"]
    assert topology.reason == ""


@pytest.mark.parametrize("name", NAMES)
def test_cores_and_nodes_of_a_recorded_machine_are_read(name):
    topology = parse_topo(recorded(name))
    for index, tokens in enumerate(EXPECTED[name]["trailing_tokens_per_gpu"]):
        found = [topology.cores.get(index), topology.numa_nodes.get(index)]
        assert [str(one) for one in found if one is not None] == tokens


def test_blank_affinities_are_not_known_and_nodes_are_not_taken_for_cores():
    """Case T1."""
    half = parse_topo(recorded("8x_a100pcie_slurm_partial_affinity.out"))
    assert half.cores == dict.fromkeys(range(4), "0-15,56-71")
    assert half.numa_nodes == dict.fromkeys(range(4), 0) | dict.fromkeys(range(4, 8), 1)
    one_cpu = parse_topo(recorded("8x_h100_in_slurm_1cpu.out"))
    assert one_cpu.cores == dict.fromkeys(range(4, 8), "1")
    assert one_cpu.numa_nodes == half.numa_nodes
    windows = parse_topo(recorded("raw_ansi_windows_blank_affinity_driver610.out"))
    assert windows == Topology()
    devices = joined("8x_a100pcie_slurm_partial_affinity.out")
    assert [(device.cores, device.numa_node) for device in devices[3:5]] == [("0-15,56-71", 0), ("", 1)]


def test_a_blank_affinity_of_which_the_tabs_are_lost_is_not_guessed_at():
    text = re.sub("[ \t]+", " ", recorded("8x_a100pcie_slurm_partial_affinity.out"))
    topology = parse_topo(text)
    assert topology.cores == dict.fromkeys(range(4), "0-15,56-71")
    assert topology.numa_nodes == dict.fromkeys(range(4), 0)
    assert topology.links == parse_topo(recorded("8x_a100pcie_slurm_partial_affinity.out")).links


def test_nics_have_links_and_the_names_of_the_legend():
    topology = parse_topo(recorded("8x_h100_in_slurm_1cpu.out"))
    assert topology.nics[5] == Nic("NIC5", "mlx5_5", dict.fromkeys(range(8), "NODE") | {6: "PIX"})
    assert parse_topo(recorded("8x_2080ti_pix_sys_mlx4.out")).nics == (
        Nic("mlx4_0", "mlx4_0", dict.fromkeys(range(4), "SYS") | dict.fromkeys(range(4, 8), "PIX")),
    )


def test_a_nic_may_have_any_name_and_rows_of_what_is_no_column_are_left_out():
    topology = parse_topo(
        "\tGPU0\tGPU1\tbnxt_re0\tmlx5_bond_0\tCPU Affinity\nGPU0\t X \tPIX\tPXB\tSYS\t0-3\n"
        "  MIG 1g.10gb\t X \tPIX\tPXB\tSYS\t9\nGPU1\tPIX\t X \tPHB\tSYS\t4-7\nGPU7\tPIX\tPIX\tPIX\tPIX\t8\n"
    )
    assert topology.links == {(0, 1): "PIX"}
    assert topology.cores == {0: "0-3", 1: "4-7"}
    assert topology.nics == (
        Nic("bnxt_re0", "bnxt_re0", {0: "PXB", 1: "PHB"}),
        Nic("mlx5_bond_0", "mlx5_bond_0", {0: "SYS", 1: "SYS"}),
    )


def test_a_gpu_with_a_node_of_its_own_has_the_processors_node():
    text = "\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t0-71\t0\t\t1\n"
    assert parse_topo(text) == Topology(cores={0: "0-71"}, numa_nodes={0: 0})
    several = text.replace("\t0\t\t", "\t0,2-9\t\t")
    assert parse_topo(several) == Topology(cores={0: "0-71"})


def test_a_node_that_is_not_available_is_not_known():
    text = "\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-11\t\tN/A\n"
    assert parse_topo(text) == Topology(cores={0: "0-11"})


@pytest.mark.parametrize(
    ("row", "links", "cores"),
    [
        ("GPU0 X NV12NV12 0-7", {(0, 1): "NV12", (0, 2): "NV12"}, {0: "0-7"}),
        ("GPU0 XNV12PIX 0-7", {(0, 1): "NV12", (0, 2): "PIX"}, {0: "0-7"}),
        ("GPU0 X PIX SYS0-7", {(0, 1): "PIX", (0, 2): "SYS"}, {0: "0-7"}),
        ("GPU0 X PIX NV120-7", {(0, 1): "PIX"}, {}),  # NV1 and 20-7, or NV12 and 0-7?
        ("GPU0 X PIX FUTURE2 0-7", {(0, 1): "PIX", (0, 2): "FUTURE2"}, {0: "0-7"}),
        ("GPU0 X PIX ??? 0-7", {}, {}),
        ("GPU0\tX\t\tSYS\t0-7", {(0, 2): "SYS"}, {0: "0-7"}),
        ("GPU0 X PIX N/A 0-7", {}, {}),
        ("GPU0 PIX X SYS 0-7", {}, {}),  # it stands in no row of its own
        ("GPU0 X PIX", {}, {}),
        ("GPU0 X PIX SYS 7-0", {(0, 1): "PIX", (0, 2): "SYS"}, {}),
        ("GPU0 X PIX SYS 0-7 1 2 3", {(0, 1): "PIX", (0, 2): "SYS"}, {}),
    ],
)
def test_a_damaged_row_loses_what_is_damaged_alone(row, links, cores):
    topology = parse_topo(f"\tGPU0\tGPU1\tGPU2\tCPU Affinity\n{row}\nGPU1\tnonsense\n")
    assert topology.links == links
    assert topology.cores == cores


def test_what_two_halves_of_a_matrix_contradict_each_other_in_is_not_known():
    text = "\tGPU0\tGPU1\tGPU2\nGPU0\t X \tNV4\tPIX\nGPU1\tNV2\t X \tSYS\nGPU2\tPIX\tSYS\t X \n"
    assert parse_topo(text).links == {(0, 2): "PIX", (1, 2): "SYS"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "nvidia-smi topo printed nothing"),
        ("\n \t\n", "nvidia-smi topo printed nothing"),
        ("\x1b[4mFailed to initialize NVML: Driver/library version mismatch\x1b[0m\n", "Failed to initialize NVML: "),
        ("GPU0\t X \t0-19\n", "GPU0 X 0-19"),
        ("\tGPU0\tGPU0\n", "GPU0 GPU0"),
        ("No devices were found\n" * 1000, "No devices were found"),
        ("x" * 10_000, "x" * 199 + "…"),
    ],
)
def test_what_is_no_matrix_is_the_reason_that_nothing_is_known(text, reason):
    topology = parse_topo(text)
    assert topology.reason.startswith(reason)
    assert replace(topology, reason="") == Topology()


@pytest.mark.parametrize("name", NAMES)
def test_every_beginning_of_an_output_tells_nothing_that_the_whole_does_not(name):
    text = recorded(name)
    whole = parse_topo(text + "\n")
    for end in range(0, len(text), 1 + len(text) // 150):
        part = parse_topo(text[:end])
        assert part.links.items() <= whole.links.items()
        assert part.cores.items() <= whole.cores.items()
        assert part.numa_nodes.items() <= whole.numa_nodes.items()


ESCAPES = ["\x1b[4m", "\x1b[0m", "\x1b[1;31m", "\x1b[K", "\x1b[2J", "\x1b(B", "\x1b]0;title\x07", "[4m"]


@settings(max_examples=40)
@given(st.sampled_from(NAMES), st.randoms(use_true_random=False))
def test_no_escape_and_no_other_end_of_lines_changes_anything(name, chance: random.Random):
    text = recorded(name) + "\n"
    mangled = "".join(
        chance.choice(ESCAPES) + part if part and chance.random() < 0.2 else part
        for part in re.split(r"(?<=[\t\n])", text)
    )
    end = chance.choice(["\n", "\r\n"])
    assert parse_topo(mangled.replace("\n", end)) == parse_topo(text)


@settings(max_examples=40)
@given(st.sampled_from(NAMES), st.randoms(use_true_random=False))
def test_whatever_becomes_of_white_space_nothing_false_is_told(name, chance: random.Random):
    text = recorded(name) + "\n"
    whole = parse_topo(text)
    mangled = re.sub(r"[ \t]+", lambda match: chance.choice([match[0], " ", "  ", "\t", "        "]), text)
    topology = parse_topo(mangled)
    assert topology.links == whole.links
    assert topology.cores.items() <= whole.cores.items()
    assert topology.numa_nodes.items() <= whole.numa_nodes.items()


@settings(max_examples=40)
@given(st.sampled_from(NAMES), st.randoms(use_true_random=False))
def test_cells_that_lost_the_white_space_between_them_are_still_told_apart(name, chance: random.Random):
    text = recorded(name) + "\n"
    glued = re.sub(
        r"(?<=[A-Z0-9])\t(?=(NV\d|SYS|SOC|NODE|PHB|PXB|PIX)|(NIC|mlx))",
        lambda match: "" if chance.random() < 0.3 else match[0],
        text,
    )
    assert parse_topo(glued).links == parse_topo(text).links


@given(st.text(alphabet="GPU01 \t\nXNVPIX-,CPUAffinity\x1b[m/N", max_size=200) | st.text(max_size=100))
def test_no_text_breaks_the_reader(text):
    topology = parse_topo(text)
    assert all(one < other for one, other in topology.links)
    assert all(topology.cores.values())


@given(st.sampled_from(NAMES), st.data())
def test_no_damage_breaks_the_reader(name, data):
    text = recorded(name)
    at = data.draw(st.integers(0, len(text)))
    topology = parse_topo(text[:at] + data.draw(st.text(max_size=8)) + text[at + data.draw(st.integers(0, 40)) :])
    assert all(one < other for one, other in topology.links)
    assert all(topology.cores.values())


def test_devices_get_links_by_uuid_strongest_first():
    topology = parse_topo("\tGPU0\tGPU1\tGPU2\nGPU0\tX\tSYS\tNV2\nGPU1\tSYS\tX\tFUTURE\nGPU2\tNV2\tFUTURE\tX\n")
    devices = with_topology(cards(3), topology)
    assert [device.links for device in devices] == [
        (("GPU-2", "NV2"), ("GPU-1", "SYS")),
        (("GPU-0", "SYS"), ("GPU-2", "FUTURE")),
        (("GPU-0", "NV2"), ("GPU-1", "FUTURE")),
    ]


def test_a_device_that_has_gone_takes_its_links_along_and_no_index_moves():
    topology = parse_topo(recorded("4x_power9_v100_nv3.out"))
    left = with_topology([device for device in cards(4) if device.index != 1], topology)
    assert [[device.index for device in island] for island in islands(left)] == [[2, 3]]
    assert left[0].links == (("GPU-2", "SYS"), ("GPU-3", "SYS"))
    assert [device.cores for device in left] == ["0-63", "64-127", "64-127"]


def test_devices_keep_their_numbers_where_the_tools_count_anew():
    """GPU 1 has vanished: what the tools call 1 and 2 now are the devices 2 and 3."""
    text = "\tGPU0\tGPU1\tGPU2\tCPU Affinity\nGPU0\tX\tSYS\tSYS\t0-3\nGPU1\tSYS\tX\tNV3\t4-7\nGPU2\tSYS\tNV3\tX\t8-9\n"
    indices = {"GPU-0": 0, "GPU-2": 1, "GPU-3": 2}
    devices = with_topology(cards(4), parse_topo(text), indices=indices)
    assert [device.cores for device in devices] == ["0-3", "", "4-7", "8-9"]
    assert [device.links for device in devices] == [
        (("GPU-2", "SYS"), ("GPU-3", "SYS")),
        (),
        (("GPU-3", "NV3"), ("GPU-0", "SYS")),
        (("GPU-2", "NV3"), ("GPU-0", "SYS")),
    ]


def test_a_slice_stands_where_its_whole_one_does_and_has_no_links():
    topology = parse_topo(recorded("4x_rtx6000ada_4nic.out"))
    slices = [Device(f"MIG-{n}", 3, Accelerator.CUDA, "any", parent="GPU-3") for n in range(2)]
    devices = with_topology([*cards(3), *slices], topology)
    assert [(device.numa_node, device.cores, device.links) for device in devices[3:]] == [(1, "32-63", ())] * 2
    assert all(peer in ("GPU-0", "GPU-1", "GPU-2") for device in devices for peer, _ in device.links)


def test_what_a_topology_does_not_know_stays_as_it_was():
    known = [replace(device, numa_node=2, cores="4-5", links=(("GPU-9", "PIX"),)) for device in cards(2)]
    assert with_topology(known, Topology(reason="no idea")) == tuple(known)


def test_islands_of_recorded_machines():
    def found(name):
        return [[device.index for device in island] for island in islands(joined(name))]

    assert found("8x_a100pcie_slurm_partial_affinity.out") == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert found("dgx_a100_12nic_mlx5names.out") == [list(range(8))]
    assert found("8x_2080ti_pix_sys_mlx4.out") == []


def test_a_recorded_machine_is_drawn():
    assert drawn(joined("4x_power9_v100_nv3.out")) == [
        "cuda    0    1    2    3",
        "   0    -  NV3  SYS  SYS",
        "   1  NV3    -  SYS  SYS",
        "   2  SYS  SYS    -  NV3",
        "   3  SYS  SYS  NV3    -",
        "NV# = # NVLinks",
        "SYS = PCIe, over the link between NUMA nodes",
    ]


def fake_smi(tmp_path, script):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return str(program)


def test_the_program_is_asked_for_the_matrix(tmp_path):
    name = "raw_ansi_1xH100_driver590.out"
    program = fake_smi(tmp_path, f'[ "$*" = "topo -m" ] && cat "{DATA / name}"')
    assert look(Child(), program, {"PATH": "/usr/bin:/bin"}) == parse_topo(recorded(name))


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'Invalid combination of input arguments.'; exit 255", "Invalid combination of input arguments."),
        ("echo 'NVIDIA-SMI has failed' >&2; exit 9", "NVIDIA-SMI has failed"),
        ("exit 18", "nvidia-smi topo ended with 18"),
        (f"cat '{DATA}/2x_t4_phb.out'; exit 3", "GPU0 GPU1 CPU Affinity NUMA Affinity GPU NUMA ID"),
        ("echo 'Failed to initialize NVML: Unknown Error'", "Failed to initialize NVML: Unknown Error"),
    ],
)
def test_a_driver_that_can_not_tell_leaves_the_topology_unknown(tmp_path, script, reason):
    """Case T3."""
    topology = look(Child(), fake_smi(tmp_path, script), {"PATH": "/usr/bin:/bin"})
    assert topology == Topology(reason=reason)
    assert with_topology(cards(2), topology) == cards(2)


def test_the_largest_machines_are_read():
    names = [f"GPU{index}" for index in range(16)] + [f"NIC{index}" for index in range(32)]
    rows = [[name, *(" X " if name == other else "NV18" for other in names), "0-3\t0\t\tN/A"] for name in names]
    header = ["", *names, "CPU Affinity\tNUMA Affinity\tGPU NUMA ID"]
    topology = parse_topo("\n".join("\t".join(line) for line in [header, *rows]) + LEGEND)
    assert topology.links == dict.fromkeys(combinations(range(16), 2), "NV18")
    assert len(topology.nics) == 32
    assert topology.cores == dict.fromkeys(range(16), "0-3")
