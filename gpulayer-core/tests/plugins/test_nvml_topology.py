"""What NVML tells of links: asked of a stand-in for it, judged by rules of its header, and found to be what
``nvidia-smi topo -m`` shows of the same machine. No recorded answers of NVML are public."""

# ruff: noqa: N802 - names of NVML

import json
import sys
from itertools import combinations
from pathlib import Path

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulayer.plugins.builtin.child import Child, Said, Unanswered
from gpulayer.plugins.builtin.near import with_near
from gpulayer.plugins.builtin.nvidia import nvml_child
from gpulayer.plugins.builtin.nvidia.nvml_child import told_of_links
from gpulayer.plugins.builtin.nvidia.nvml_topology import read_topology, topology_of
from gpulayer.plugins.builtin.nvidia.topo import Topology, parse_topo
from gpulayer.plugins.builtin.nvidia.topology_asking import RememberedTopology, ask_topology
from gpulayer.spec.machine import Device
from gpulayer.spec.request import Accelerator

DATA = Path(__file__).parents[1] / "data" / "topo"
GPU, PROCESSOR, SWITCH, UNKNOWN = 0, 1, 2, 255
ELSEWHERE = "00000000:FF:00.0"


def pci(index):
    return f"00000000:{index + 1:02X}:00.0"


class Refused(Exception):
    def __init__(self, value):
        super().__init__(value)
        self.value = value


class Nvml:
    """As pynvml, with handles that are indices. nvlinks: of each device [type of the end, address of it], None for a
    link that is down; a number: the error of asking for any."""

    NVMLError = Refused

    def __init__(self, *, nvlinks=None, level=30, masks=(), nodes=(), links=18, refuses=()):
        self.nvlinks, self.level, self.masks, self.nodes, self.links = nvlinks or {}, level, masks, nodes, links
        for name in refuses:
            setattr(self, name, self._refuse)

    @staticmethod
    def _refuse(*_):
        raise Refused(3)

    def nvmlDeviceGetPciInfo(self, handle):
        return type("Pci", (), {"busId": pci(handle).encode()})

    def nvmlDeviceGetCpuAffinity(self, handle, words):
        return [*self.masks[handle : handle + 1], *[0] * (words - 1)]

    def nvmlDeviceGetMemoryAffinity(self, handle, words, scope):
        assert scope == pynvml.NVML_AFFINITY_SCOPE_NODE
        return [*self.nodes[handle : handle + 1], *[0] * (words - 1)]

    def nvmlDeviceGetTopologyCommonAncestor(self, one, other):
        return self.level(one, other) if callable(self.level) else self.level

    def _link(self, handle, link):
        links = self.nvlinks.get(handle, [])
        if isinstance(links, int):
            raise Refused(links)
        if link >= self.links:
            raise Refused(2)
        return links[link] if link < len(links) else None

    def nvmlDeviceGetNvLinkState(self, handle, link):
        return int(self._link(handle, link) is not None)

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle, link):
        end = self._link(handle, link)[0]
        if end is None:
            raise Refused(13)
        return end

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle, link):
        return type("Pci", (), {"busId": self._link(handle, link)[1].encode()})


def asked(nvml, count):
    """As it comes out of the child."""
    return topology_of(json.loads(json.dumps(told_of_links(nvml, {index: index for index in range(count)}))))


def to(*indices, kind=GPU):
    return [[kind, pci(index)] for index in indices]


SWITCHES = [[SWITCH, ELSEWHERE]]


def test_all_that_is_asked_is_there_in_the_real_module():
    names = [name for name in vars(Nvml) if name.startswith("nvml")]
    assert len(names) == 7
    assert [name for name in names if not callable(getattr(pynvml, name, None))] == []
    assert pynvml.NVML_ERROR_INVALID_ARGUMENT == 2
    assert pynvml.NVML_ERROR_NOT_SUPPORTED == 3
    assert pynvml.NVML_ERROR_FUNCTION_NOT_FOUND == 13
    assert pynvml.NVML_NVLINK_MAX_LINKS <= nvml_child._MOST_LINKS
    ends = [pynvml.NVML_NVLINK_DEVICE_TYPE_GPU, pynvml.NVML_NVLINK_DEVICE_TYPE_IBMNPU]
    assert [*ends, pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH] == [GPU, PROCESSOR, SWITCH]


def run(tmp_path, module):
    """The program as the worker runs it, with this instead of pynvml."""
    (tmp_path / "pynvml.py").write_text(module)
    command = [sys.executable, "-I", "-S", nvml_child.__file__, "links", str(tmp_path), "/no/such/library.so"]
    return Child().ask(command, environment={}, deadline_s=60).out


FAKE = """
class NVMLError(Exception):
    value = 3
    def __str__(self): return "Not Supported"
def nvmlInit(): pass
def nvmlErrorString(number): return "Not Supported"
def nvmlDeviceGetCount(): return 3
def nvmlDeviceGetHandleByIndex(index):
    if index == 1: raise NVMLError
    return index
def nvmlDeviceGetTopologyCommonAncestor(one, other): return 10
def nvmlDeviceGetNvLinkState(handle, link): raise NVMLError
"""


def test_the_program_needs_nothing_but_the_standard_library_and_leaves_out_what_is_lost(tmp_path):
    assert read_topology(run(tmp_path, FAKE)) == Topology(links={(0, 2): "PIX"})


def test_why_nvml_tells_nothing_is_told(tmp_path):
    failing = FAKE.replace("def nvmlInit(): pass", "def nvmlInit(): raise NVMLError")
    assert read_topology(run(tmp_path, failing)).reason == "NVML says: Not Supported"
    assert read_topology(run(tmp_path, "import no_such_module")).reason == (
        "NVML says: No module named 'no_such_module'"
    )


@pytest.mark.parametrize("printed", ["", "{", "[]", "{}", '{"nvlinks": []}', "[" * 100_000, "Segmentation fault"])
def test_what_is_no_document_tells_nothing(printed):
    assert read_topology(printed) == Topology(reason="what was read of NVML can't be understood")


@pytest.mark.parametrize(
    ("level", "word"), [(0, "PIX"), (10, "PIX"), (20, "PXB"), (30, "PHB"), (40, "NODE"), (50, "SYS")]
)
def test_without_nvlinks_the_nearest_common_ancestor_is_the_link(level, word):
    assert asked(Nvml(level=level), 2).links == {(0, 1): word}


def test_a_level_that_nobody_knows_and_one_that_was_refused_are_no_link():
    unknown = Topology(reason="NVML does not tell how GPU 0 and 1 are joined")
    assert asked(Nvml(level=25), 2) == unknown
    assert asked(Nvml(refuses=["nvmlDeviceGetTopologyCommonAncestor"]), 2) == unknown


def test_links_to_the_other_device_are_counted():
    nvlinks = {0: to(1, 1, 3), 1: [*to(0), None, *to(0, 2)], 2: to(1), 3: to(0)}
    assert asked(Nvml(nvlinks=nvlinks, level=50), 4).links == {
        (0, 1): "NV2",
        (0, 2): "SYS",
        (0, 3): "NV1",
        (1, 2): "NV1",
        (1, 3): "SYS",
        (2, 3): "SYS",
    }


def test_through_switches_two_devices_have_as_many_as_the_one_with_fewer():
    nvlinks = {0: SWITCHES * 18, 1: SWITCHES * 18, 2: SWITCHES * 16, 3: []}
    topology = asked(Nvml(nvlinks=nvlinks), 4)
    assert topology.links == {
        (0, 1): "NV18",
        (0, 2): "NV16",
        (1, 2): "NV16",
        **dict.fromkeys([(0, 3), (1, 3), (2, 3)], "PHB"),
    }
    assert topology.reason == ""


def test_links_to_the_processor_and_to_devices_of_others_join_nothing():
    nvlinks = {0: [[PROCESSOR, ELSEWHERE], [GPU, ELSEWHERE]], 1: [[PROCESSOR, ELSEWHERE], [GPU, ELSEWHERE]]}
    topology = asked(Nvml(nvlinks=nvlinks, level=50), 2)
    assert topology == Topology(links={(0, 1): "SYS"})


@pytest.mark.parametrize("end", [None, UNKNOWN])
def test_an_end_without_a_type_is_known_by_its_address(end):
    assert asked(Nvml(nvlinks={0: to(1, 1, kind=end), 1: to(0, 0, kind=end)}), 2) == Topology(links={(0, 1): "NV2"})


@pytest.mark.parametrize("unknown", [[[UNKNOWN, ELSEWHERE]], [[None, ELSEWHERE]], 15])
def test_pairs_whose_nvlinks_lead_nobody_knows_where_are_not_known(unknown):
    """A device of which nothing is known may stand at the same switch, and not next to one that has no NVLinks."""
    topology = asked(Nvml(nvlinks={0: unknown, 1: unknown, 2: SWITCHES, 3: []}), 4)
    assert topology.links == dict.fromkeys([(0, 3), (1, 3), (2, 3)], "PHB")
    assert topology.reason == "NVML does not tell how GPU 0 and 1 are joined"
    assert asked(Nvml(nvlinks={0: unknown, 1: [], 2: []}), 3).reason == ""


@pytest.mark.parametrize("error", [2, 3, 13])
def test_a_device_or_a_driver_without_nvlinks_has_none(error):
    assert asked(Nvml(nvlinks={0: error, 1: error}), 2) == Topology(links={(0, 1): "PHB"})


def test_cores_and_nodes_are_read_of_masks():
    topology = asked(Nvml(masks=[0b1111, 0b11 << 62], nodes=[0b1, 0b10]), 2)
    assert (topology.cores, topology.numa_nodes) == ({0: "0-3", 1: "62-63"}, {0: 0, 1: 1})


def test_empty_masks_and_several_nodes_are_not_known():
    """Case T1: never an empty set of cores."""
    topology = asked(Nvml(masks=[0, 0], nodes=[0, 0b11]), 2)
    assert (topology.cores, topology.numa_nodes) == ({}, {})


def test_what_is_refused_costs_nothing_else():
    refused = ["nvmlDeviceGetCpuAffinity", "nvmlDeviceGetMemoryAffinity", "nvmlDeviceGetPciInfo"]
    assert asked(Nvml(nvlinks={0: SWITCHES, 1: SWITCHES}, refuses=refused), 2) == Topology(links={(0, 1): "NV1"})


@pytest.mark.parametrize("name", ["4x_power9_v100_nv3.out", "8x_a100pcie_slurm_partial_affinity.out"])
def test_nvml_and_the_program_tell_the_same_of_a_machine(name):
    shown = parse_topo((DATA / name).read_text())
    count = max(other for _, other in shown.links) + 1
    bonds = {pair: int(word[2:]) for pair, word in shown.links.items() if word.startswith("NV")}
    nvlinks = {index: [] for index in range(count)}
    for (one, other), links in bonds.items():
        nvlinks[one] += to(other) * links
        nvlinks[other] += to(one) * links
    levels = {word: level for level, word in [(10, "PIX"), (20, "PXB"), (30, "PHB"), (40, "NODE"), (50, "SYS")]}
    nvml = Nvml(nvlinks=nvlinks, level=lambda one, other: levels.get(shown.links[one, other], 50))
    assert asked(nvml, count).links == shown.links


def test_the_switches_of_a_recorded_machine_make_the_same_matrix():
    shown = parse_topo((DATA / "8x_h100_in_slurm_1cpu.out").read_text())
    assert asked(Nvml(nvlinks=dict.fromkeys(range(8), SWITCHES * 18)), 8).links == shown.links


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.sampled_from(["0", "1", pci(0)]),
    lambda of: st.lists(of, max_size=4) | st.dictionaries(st.sampled_from(["0", "1", "x", "-1"]), of, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["ancestors", "nvlinks", "pci", "cores", "nodes"]), JUNK) | JUNK)
def test_no_document_breaks_the_judge(document):
    topology = topology_of(document)
    assert all(topology.cores.values())
    assert set(topology.links) <= set(combinations(range(-9, 99), 2))


def device(uuid="GPU-0", **fields):
    return Device(uuid, 0, Accelerator.CUDA, "any", pci_address="0000:3b:00.0", **fields)


def sysfs(tmp_path, node, cores):
    folder = tmp_path / "bus/pci/devices/0000:3b:00.0"
    folder.mkdir(parents=True)
    (folder / "numa_node").write_text(f"{node}\n")
    (folder / "local_cpulist").write_text(f"{cores}\n")
    return tmp_path


@pytest.mark.parametrize(
    ("node", "cores", "allowed", "found"),
    [
        ("1", "16-31", None, (1, "16-31")),
        ("-1", "0-7", None, (None, "0-7")),
        ("0", "0-31", {0, 1, 2, 40}, (0, "0-2")),
        ("1", "32-63", {0, 1}, (1, "")),  # case T1: nobody is pinned to no core
        ("", "", None, (None, "")),
        ("x", "x", None, (None, "")),
    ],
)
def test_the_kernel_tells_what_stands_near(tmp_path, node, cores, allowed, found):
    (near,) = with_near([device()], allowed=allowed, sys_root=sysfs(tmp_path, node, cores))
    assert (near.numa_node, near.cores) == found


def test_the_kernel_is_believed_only_where_nobody_else_knew(tmp_path):
    known = device(numa_node=0, cores="0-3")
    other = Device("GPU-1", 1, Accelerator.CUDA, "any")
    gone = Device("GPU-2", 2, Accelerator.CUDA, "any", pci_address="0000:99:00.0")
    root = sysfs(tmp_path, "1", "16-31")
    assert with_near([known, other, gone], sys_root=root) == (known, other, gone)


class Asked:
    """In place of a child: programs that answer, by their names, or raise."""

    def __init__(self, **answers):
        self.answers = answers
        self.asked = []

    def ask(self, command, *, environment, deadline_s):
        self.asked.append(command)
        answer = self.answers[command[0]]
        if isinstance(answer, Exception):
            raise answer
        return answer


NVML_TELLS = Said(0, json.dumps({"nvlinks": {"0": [], "1": []}, "ancestors": [[0, 1, 20]]}), "")
NVML_TELLS_NOT = Said(0, json.dumps({"nvlinks": {"0": [], "1": []}, "ancestors": []}), "")
SMI_SHOWS = Said(0, "\tGPU0\tGPU1\nGPU0\t X \tNV2\nGPU1\tNV2\t X \n", "")


def test_nvidia_smi_is_asked_only_for_what_nvml_does_not_know():
    knowing = Asked(python=NVML_TELLS, smi=SMI_SHOWS)
    assert ask_topology(knowing, environment={}, nvml=["python"], tool="smi").links == {(0, 1): "PXB"}
    assert knowing.asked == [["python"]]
    unsure = Asked(python=NVML_TELLS_NOT, smi=SMI_SHOWS)
    assert ask_topology(unsure, environment={}, nvml=["python"], tool="smi").links == {(0, 1): "NV2"}
    assert ask_topology(Asked(smi=SMI_SHOWS), environment={}, tool="smi").links == {(0, 1): "NV2"}


def test_where_nobody_knows_the_reason_is_kept():
    mute = Asked(python=NVML_TELLS_NOT, smi=Said(255, "Not Supported\n", ""))
    assert ask_topology(mute, environment={}, nvml=["python"], tool="smi") == Topology(reason="Not Supported")
    alone = ask_topology(mute, environment={}, nvml=["python"])
    assert alone.reason == "NVML does not tell how GPU 0 and 1 are joined"
    assert ask_topology(mute, environment={}).reason == "neither NVML nor nvidia-smi can be asked"


def test_a_topology_is_remembered_until_other_devices_are_there_or_count_otherwise():
    asked = []

    def ask():
        asked.append(1)
        return Topology(links={(0, 1): f"NV{len(asked)}"})

    remembered = RememberedTopology()
    for indices in ({"a": 0, "b": 1}, {"b": 1, "a": 0}):
        assert remembered.of(indices, ask).links == {(0, 1): "NV1"}
    assert remembered.of({"b": 0}, ask).links == {(0, 1): "NV2"}
    assert remembered.of({"b": 0, "a": 1}, ask).links == {(0, 1): "NV3"}
    assert len(asked) == 3


def test_who_did_not_answer_is_asked_again_a_few_times():
    silence = Unanswered("nvidia-smi does not answer")
    answers = [silence, Topology(links={(0, 1): "PIX"}), *[silence] * 3]

    def ask():
        answer = answers.pop(0)
        if isinstance(answer, Unanswered):
            raise answer
        return answer

    remembered = RememberedTopology()
    found = [remembered.of({"a": 0, "b": 1}, ask) for _ in range(4)]
    assert [topology.reason for topology in found] == ["nvidia-smi does not answer", "", "", ""]
    assert [remembered.of({"a": 0}, ask).reason for _ in range(9)] == ["nvidia-smi does not answer"] * 9
    assert answers == []
