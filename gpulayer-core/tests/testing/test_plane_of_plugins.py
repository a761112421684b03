"""What the kit's control plane tells of the plugins that it is given, and what it makes of wrong ones."""

import sys
from importlib import import_module
from types import ModuleType

import pytest

from gpulayer.testing import LivePlane

pytest_plugins = ["pytester"]

FAILING = (
    'from gpulayer.plugins import hookimpl\nGPULAYER_API = "1.0"\n'
    "@hookimpl\ndef gpulayer_check_job(spec, ctx):\n    raise KeyError('cost-centre')\n"
)


class TestOneThatFails:
    @pytest.fixture
    def plane_plugins(self, installed_plugin):
        installed_plugin("failing", FAILING)
        return {"failing": import_module("gpulayer_failing")}

    def test_its_faults_are_told_once_and_its_record_stays(self, plane):
        assert plane.faults() == []
        plane.client.submit(["true"])
        assert plane.faults() == ["failing, gpulayer_check_job: KeyError: 'cost-centre'"]
        assert plane.faults() == []
        (record,) = plane.plugin_records()
        assert (record.name, record.status, record.faults) == ("failing", "ok", 1)

    def test_faults_from_before_a_restart_are_told_too(self, plane):
        plane.client.submit(["true"])
        plane.restart()
        plane.client.submit(["true"])
        assert plane.faults() == ["failing, gpulayer_check_job: KeyError: 'cost-centre'"] * 2


def test_a_test_whose_plugin_failed_fails_unless_it_has_asked(pytester):
    pytester.makepyfile(
        gpulayer_failing=FAILING,
        test_it="""
        import gpulayer_failing
        import pytest

        pytest_plugins = ["gpulayer.testing.fixtures"]

        @pytest.fixture
        def plane_plugins():
            return {"failing": gpulayer_failing}

        def test_unaware(plane):
            plane.client.submit(["true"])

        def test_aware(plane):
            plane.client.submit(["true"])
            assert plane.faults()
        """,
    )
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    done.assert_outcomes(passed=2, errors=1)
    done.stdout.fnmatch_lines(["*failing, gpulayer_check_job: KeyError: 'cost-centre'*"])


def test_one_that_is_not_loaded_is_a_fault_that_says_why(tmp_path):
    live = LivePlane(tmp_path, plugin_modules={"absent": "gpulayer_absent"}).start()
    try:
        (said,) = live.faults()
    finally:
        live.stop()
    assert said.startswith("absent is broken: its entry point names the module gpulayer_absent, which is not there (")


@pytest.mark.parametrize(
    ("plugins", "error", "said"),
    [
        ({"my-teams": ["x"]}, TypeError, r'not a list: \{"my-teams": "gpulayer_my_teams"\}'),
        ({"Teams": sys}, ValueError, "'Teams' can't be the name of a plugin"),
        ({"teams": ModuleType("made_up")}, ValueError, "made_up of the plugin teams can't be imported by its name"),
    ],
)
def test_what_is_no_plugin_is_refused_with_what_is_due(tmp_path, plugins, error, said):
    with pytest.raises(error, match=said):
        LivePlane(tmp_path, plugin_modules=plugins)


def test_whoever_submits_has_a_name_as_on_a_real_plane(plane):
    assert plane.client.submit(["true"]).record()["submitted_by"]["name"] == "test"
