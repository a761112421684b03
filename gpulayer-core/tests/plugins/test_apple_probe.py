"""The GPU of a Mac, with what its programs printed elsewhere: tests/data/apple/SOURCES.txt."""

from pathlib import Path

import pytest

from gpulayer.plugins.builtin.apple import AppleProbe
from gpulayer.plugins.builtin.apple.answers import Gpu, parsed_gpus, parsed_sysctl
from gpulayer.plugins.contracts.probe import Findings, ProbeSite
from gpulayer.spec.machine import DeviceState
from gpulayer.spec.request import Accelerator
from gpulayer.testing import ProbeContract

DATA = Path(__file__).parents[1] / "data" / "apple"
SYSCTL = "hw.memsize: 38654705664\nhw.optional.arm64: 1\nmachdep.cpu.brand_string: Apple M3 Pro\n"


class Mac:
    def __init__(self, root):
        self.root = root
        self.calls = root / "calls"
        root.mkdir()
        (root / "sysctl.txt").write_text(SYSCTL)
        self.program("sysctl", f"exec cat {root}/sysctl.txt")
        self.program("system_profiler", f"exec cat {DATA}/m3-pro.json")

    def program(self, name, body):
        path = self.root / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >> {self.calls}\n{body}\n')
        path.chmod(0o755)

    def asked(self):
        return self.calls.read_text().splitlines() if self.calls.exists() else []

    def probe(self, system="darwin"):
        return AppleProbe(system=system, sysctl=str(self.root / "sysctl"), profiler=str(self.root / "system_profiler"))

    def look(self):
        return self.probe().look(ProbeSite(self.root, {"PATH": "/usr/bin:/bin"}))


@pytest.fixture
def mac(tmp_path):
    return Mac(tmp_path / "mac")


def test_its_one_gpu_has_the_memory_of_the_machine(mac):
    found = mac.look()
    [device] = found.devices
    assert (device.kind, device.uuid, device.index) == (Accelerator.MPS, "MPS-0", 0)
    assert (device.model, device.runtime, device.state) == ("Apple M3 Pro", "Metal 3", DeviceState.USABLE)
    assert (device.memory_bytes, device.is_memory_shared) == (38654705664, True)
    assert (device.memory_free_bytes, device.temperature_c, device.use_percent) == (None, None, None)
    assert found.cpu_model == "Apple M3 Pro"
    assert found.missing == ()


def test_it_is_one_device_whatever_computes_on_it(mac):
    """A second one for MLX would be the same GPU, lent twice."""
    assert [device.kind for device in mac.look().devices] == [Accelerator.MPS]


def test_elsewhere_nothing_is_asked(mac):
    assert mac.probe("linux").look(ProbeSite(mac.root, {})) == Findings()
    assert mac.asked() == []


def test_the_profiler_is_asked_until_it_has_answered_once(mac):
    site = ProbeSite(mac.root, {"PATH": "/usr/bin:/bin"})
    probe = mac.probe()
    mac.program("system_profiler", "echo nonsense")
    assert [device.model for device in probe.look(site).devices] == ["Apple M3 Pro"]  # of sysctl
    mac.program("system_profiler", f"exec cat {DATA}/m3-pro.json")
    assert [device.runtime for device in probe.look(site).devices] == ["Metal 3"]
    probe.look(site)
    assert [line.split()[0] for line in mac.asked()].count("system_profiler") == 2


def test_a_mac_of_intel_times_has_no_such_gpu_but_a_processor(mac):
    (mac.root / "sysctl.txt").write_text(
        "hw.memsize: 8589934592\nmachdep.cpu.brand_string: Intel(R) Core(TM) i5-8259U CPU @ 2.30GHz\n"
    )
    assert mac.look() == Findings(cpu_model="Intel(R) Core(TM) i5-8259U CPU @ 2.30GHz")
    assert [line.split()[0] for line in mac.asked()] == ["sysctl"]


def test_a_virtual_machine_without_a_gpu_says_why(mac):
    mac.program("system_profiler", """echo '{"SPDisplaysDataType": []}'""")
    [(kind, why)] = mac.look().missing
    assert kind == "mps"
    assert "no GPU of Apple's" in why


def test_memory_that_is_not_told_is_unknown(mac):
    (mac.root / "sysctl.txt").write_text("hw.optional.arm64: 1\nsysctl: unknown oid 'hw.memsize'\n")
    [device] = mac.look().devices
    assert (device.memory_bytes, device.model) == (None, "Apple M3 Pro")


def test_programs_that_hang_or_are_not_there_are_named(mac, monkeypatch):
    monkeypatch.setattr("gpulayer.plugins.builtin.apple.probe._SYSCTL_S", 0.3)
    mac.program("sysctl", "exec sleep 600")
    assert mac.look() == Findings(missing=(("mps", "sysctl did not answer within 0.3 s"),), is_silent=True)
    (mac.root / "sysctl").unlink()
    found = mac.look()
    [(_, why)] = found.missing
    assert "can't be run" in why
    assert not found.is_silent


def test_what_older_releases_tell_is_read_too():
    assert parsed_gpus((DATA / "m1.json").read_text()) == (Gpu("", is_apple=True),)
    named = '{"SPDisplaysDataType": [7, {"_name": "kHW_AppleM1Item", "sppci_model": "Apple M1", "sppci_cores": "8"}]}'
    assert parsed_gpus(named) == (Gpu("Apple M1", is_apple=True),)


def test_a_model_that_the_profiler_does_not_tell_is_that_of_the_processor(mac):
    (mac.root / "sysctl.txt").write_text(SYSCTL.replace("M3 Pro", "M1"))
    mac.program("system_profiler", f"exec cat {DATA}/m1.json")
    assert [device.model for device in mac.look().devices] == ["Apple M1"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"SPDisplaysDataType": {}}', "\0"])
def test_what_is_no_answer_is_an_error(text):
    with pytest.raises(ValueError):  # noqa: PT011 - json's own, or ours
        parsed_gpus(text)


def test_lines_of_sysctl_are_names_and_values():
    assert parsed_sysctl("a.b: c: d\n\nnonsense\ne:\n") == {"a.b": "c: d"}


class TestAppleProbe(ProbeContract):
    @pytest.fixture
    def probe(self, mac):
        return mac.probe()


class TestAppleProbeHere(ProbeContract):
    @pytest.fixture
    def probe(self):
        return AppleProbe()
