"""Licences: the contracts, the file by value, and jobs that wait for one."""

import pytest

import gpulayer_licences
from gpulayer.plugins import Findings, ProbeSite
from gpulayer.testing import PluginContract, ProbeContract
from gpulayer_licences.probe import LicenceProbe, parse_licences


@pytest.fixture
def file(tmp_path):
    written = tmp_path / "licences"
    written.write_text("matlab 2  # seats\n\nhfss 1\n", encoding="utf-8")
    return written


class TestPlugin(PluginContract):
    @pytest.fixture
    def plugin(self):
        return gpulayer_licences

    @pytest.fixture
    def options(self, file):
        return {"file": str(file)}


class TestProbe(ProbeContract):
    @pytest.fixture
    def probe(self, file):
        return LicenceProbe(file)


class TestProbeOfAMachineWithoutLicences(ProbeContract):
    @pytest.fixture
    def probe(self, file):
        file.write_text("# none yet\n", encoding="utf-8")
        return LicenceProbe(file)


def test_what_the_file_says_is_what_there_is(file, tmp_path):
    site = ProbeSite(tmp_path, {})
    assert LicenceProbe(file).look(site) == Findings(resources=(("hfss", 1), ("matlab", 2)))
    file.write_text("", encoding="utf-8")
    assert LicenceProbe(file).look(site) == Findings()


def test_a_file_that_is_not_there_is_a_fault_that_names_the_option(tmp_path):
    probe = LicenceProbe(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"GPULAYER_PLUGIN_LICENCES_FILE names .*nowhere, which is not there"):
        probe.look(ProbeSite(tmp_path, {}))


def test_none_of_a_licence_is_no_licence():
    assert parse_licences("matlab 0\n# hfss 3\n") == ()


@pytest.mark.parametrize("line", ["matlab", "matlab two", "matlab -1", "MATLAB 2", "a b 2", "hfss 2\nhfss 3", "m ²"])
def test_a_line_that_makes_no_sense_is_named(line):
    with pytest.raises(ValueError, match=r"line [12]: "):
        parse_licences(line)


def test_a_job_waits_for_a_licence_that_another_holds(file, tmp_path, plane, fleet):
    found = LicenceProbe(file).look(ProbeSite(tmp_path, {}))
    box = fleet.add("box", resources=dict(found.resources))
    first = plane.client.submit(["matlab"], resources={"hfss": 1})
    box.take(first)
    second = plane.client.submit(["matlab"], resources={"hfss": 1})
    fleet.turn()
    assert second.state == "queued"
    box.finish(first)
    box.finish(second)
    assert second.wait(timeout=10)["state"] == "succeeded"
