"""What the page on placement says of recorded machines is what is chosen there, and said of it."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from gpulayer.ids import WorkerId
from gpulayer.placement.capacity import allocate, usable_capacity, why_devices
from gpulayer.plugins.builtin.nvidia.topo import parse_topo, with_topology
from gpulayer.spec.machine import Device, WorkerFacts
from gpulayer.spec.request import Accelerator, Request
from gpulayer.spec.topology import strength

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/placement.md").read_text(encoding="utf-8")
DATA = ROOT / "gpulayer-core/tests/data/topo"
ROWS = re.findall(r"^\| `(\w+)` \| ([\d ]+) \| (\d+) \| (.+?) \|$", PAGE, re.MULTILINE)


def test_the_page_has_rows() -> None:
    assert len(ROWS) == 7


@pytest.mark.parametrize(("name", "free", "wanted", "reason"), ROWS)
def test_a_row_of_the_page_is_what_is_chosen(name: str, free: str, wanted: str, reason: str) -> None:
    topology = parse_topo((DATA / f"{name}.out").read_text(encoding="utf-8"))
    count = 1 + max(index for pair in topology.links for index in pair)
    cards = [Device(f"GPU-{index}", index, Accelerator.CUDA, "any") for index in range(count)]
    facts = WorkerFacts("linux-x86_64", "0.1.0", 64, 10**12, devices=with_topology(cards, topology))
    there = replace(usable_capacity(facts), devices=frozenset(f"GPU-{index}" for index in free.split()))
    request = Request(accelerators=(Accelerator.CUDA,), devices=int(wanted))
    allocation = allocate(request, WorkerId("w"), facts, there)
    assert allocation is not None
    assert why_devices(request, facts, there, allocation) == reason
    indices = [uuid.removeprefix("GPU-") for uuid in allocation.devices]
    assert ",".join(indices) == reason.partition(":")[0].split()[1]


def test_links_are_worth_what_the_page_says() -> None:
    (sentence,) = re.findall(r"A link is worth 100 and one for each NVLink \(XGMI: (\d+)\), (.+?), and nothing", PAGE)
    said = {word: int(worth) for word, worth in re.findall(r"([A-Z]+) (\d+)", sentence[1])} | {"XGMI": int(sentence[0])}
    assert said == {word: strength(word) for word in ("XGMI", "PIX", "PXB", "PHB", "NODE", "SOC")}
    assert strength("SYS") == strength("SOC")
    assert strength("NV12") == 112
