"""The fixtures of the test kit, as a plugin's author uses them."""

import subprocess
import sys
from importlib.metadata import entry_points
from types import ModuleType

import pytest

from gpulayer.errors import GpulayerError
from gpulayer.testing import BROKEN, cuda_devices, install_distribution

GOOD = """
from gpulayer.plugins import Findings, hookimpl

GPULAYER_API = "1.0"

class Probe:
    name = "rack"

    def look(self, site):
        return Findings(labels=(("rack", "7"),))

@hookimpl
def gpulayer_register_probes(ctx):
    return [Probe()]
"""


def test_a_job_goes_to_the_worker_that_fits_and_ends_as_the_test_says(plane, fleet):
    fleet.add("small", cpus=1)
    gpu = fleet.add("gpu", cpus=8, devices=cuda_devices(2), labels={"rack": "7"})
    job = plane.client.submit(["python", "train.py"], accelerator="cuda", devices=1, labels={"rack": "7"})
    assert fleet.worker_of(job) is gpu
    attempt = gpu.take(job)
    assert attempt.command == ("python", "train.py")
    assert attempt.devices == ("GPU-0",)
    assert job.state == "running"
    gpu.finish(job, exit_code=3, output=b"boom\n")
    record = job.wait(timeout=10)
    assert (record["state"], record["exit_code"]) == ("failed", 3)
    assert b"".join(job.logs()) == b"boom\n"
    assert gpu.assignments == ()


def test_a_worker_that_loses_a_job_gives_it_to_another(plane, fleet):
    first = fleet.add("first")
    job = plane.client.submit(["true"])
    first.take(job)
    second = fleet.add("second")
    first.leave()
    second.finish(job)
    assert job.wait(timeout=10)["state"] == "succeeded"


def test_a_cancelled_job_ends_when_its_worker_gets_a_turn(plane, fleet):
    box = fleet.add("box")
    job = plane.client.submit(["sleep", "9"])
    box.take(job)
    job.cancel()
    plane.until(lambda: fleet.turn() or job.state == "cancelled")
    assert not box.holds(job)


def test_time_passes_when_the_test_says_so(plane, fleet):
    fleet.add("box")
    plane.advance(3_600_000)
    plane.until(lambda: plane.client.worker("box")["state"] == "silent")
    fleet.turn()
    plane.until(lambda: plane.client.worker("box")["state"] == "ready")


def test_a_worker_may_be_of_any_shape(plane, fleet):
    fleet.add("odd", cpus=96, resources={"licence": 2}, capabilities=["launcher:torch"], zone="zürich")
    record = plane.client.worker("odd")
    assert record["cpus"] == 96
    assert record["resources"] == {"licence": 2}
    assert record["capabilities"] == ["launcher:torch"]
    assert record["locality"]["zone"] == "zürich"


def test_a_restarted_plane_knows_what_it_knew(plane, fleet):
    job = plane.client.submit(["true"], name="kept")
    plane.restart()
    assert plane.client.job("kept") == job


def test_an_installed_plugin_is_found_and_gone_after_the_test(installed_plugin):
    installed_plugin("rack", GOOD)
    (found,) = [point for point in entry_points(group="gpulayer") if point.name == "rack"]
    assert found.load().GPULAYER_API == "1.0"
    install_distribution(installed_plugin.folder, "gpulayer-more", plugins={"more": "gpulayer_rack"})
    assert {"rack", "more"} <= {point.name for point in entry_points(group="gpulayer")}


def test_what_a_test_installed_is_not_there_for_the_next():
    assert "gpulayer_rack" not in sys.modules
    assert not {"rack", "more"} & {point.name for point in entry_points(group="gpulayer")}


def test_it_is_the_one_that_is_imported_also_where_another_of_that_name_was(installed_plugin, monkeypatch):
    other = ModuleType("gpulayer_rack")
    monkeypatch.setitem(sys.modules, "gpulayer_rack", other)
    installed_plugin("rack", GOOD)
    (found,) = [point for point in entry_points(group="gpulayer") if point.name == "rack"]
    assert found.load() is not other


@pytest.mark.parametrize("how", ["raises", "exits", "no_syntax", "lacks", "dies"])
def test_a_broken_plugin_is_broken(installed_plugin, how):
    installed_plugin("bad", broken=how)
    (found,) = [point for point in entry_points(group="gpulayer") if point.name == "bad"]
    code = f"import {found.value}"
    done = subprocess.run([sys.executable, "-c", code], env=installed_plugin.children, capture_output=True, check=False)
    assert done.returncode != 0


def test_every_broken_plugin_differs_from_the_others():
    assert len(set(BROKEN.values())) == len(BROKEN) > 15


def test_without_pytest_the_kit_names_the_extra(tmp_path):
    code = """
import sys
sys.modules["pytest"] = None
import gpulayer.testing
assert gpulayer.testing.BROKEN
try:
    gpulayer.testing.ProbeContract
except ModuleNotFoundError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "gpulayer.testing.ProbeContract needs pytest: pip install 'gpulayer-core[testing]'\n"


class TestPlaneOfAPlugin:
    """A plane loads what the test says, by the way that it loads what is installed."""

    @pytest.fixture
    def plane_plugins(self, installed_plugin):
        installed_plugin(
            "choosy",
            'from gpulayer.plugins import Problem, Severity, hookimpl\nGPULAYER_API = "1.0"\n'
            "@hookimpl\ndef gpulayer_check_job(spec, ctx):\n"
            "    why = 'every job here has ' + ctx.options['what']\n"
            "    return [] if spec.name else [Problem(Severity.ERROR, why, 'name')]\n",
        )
        return {"choosy": "gpulayer_choosy"}

    @pytest.fixture
    def plane_options(self):
        return {"choosy": {"what": "a name"}}

    def test_its_checks_are_asked_with_its_options(self, plane):
        with pytest.raises(GpulayerError, match="every job here has a name"):
            plane.client.submit(["true"])
        assert plane.client.submit(["true"], name="good").record()["name"] == "good"
