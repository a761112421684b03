"""Plugins in a real worker against a scripted control plane: what lasts, what is cancelled, what is told."""

import os

import pytest

from gpulayer.testing.distribution import install_plugin

PLUGIN = """
import pathlib, time
from gpulayer.plugins import Environment, EnvironmentPlan, hookimpl

GPULAYER_API = "1.0"
HERE = pathlib.Path(__file__).parent

def wait_for(name, site):
    while not (HERE / name).exists() and not site.is_cancelled():
        time.sleep(0.01)
    if site.is_cancelled():
        (HERE / "cancelled").touch()

class Slow:
    scheme = name = "slow"
    def fetch(self, uri, site):
        (site.folder / "half").touch()
        (HERE / "fetching").touch()
        site.progress(0, None)
        wait_for("go", site)
        (site.folder / "data").write_text(" ".join(sorted(path.name for path in site.folder.iterdir())))
        return site.folder / "data"
    def plan(self, request):
        return EnvironmentPlan(key="one")
    def build(self, plan, site):
        (HERE / "building").touch()
        wait_for("go", site)
        return Environment({"PATH": site.environment["PATH"]})

@hookimpl
def gpulayer_register_stagers(ctx):
    return [Slow()]

@hookimpl
def gpulayer_register_environments(ctx):
    return [Slow()]
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where the plugin lies, and the files by which it and a test talk to each other."""
    install_plugin(tmp_path / "plugins", "slow", PLUGIN)
    monkeypatch.syspath_prepend(tmp_path / "plugins")  # the worker is started with this process's path
    return tmp_path / "plugins"


def test_an_agent_that_is_killed_while_it_fetches_begins_that_input_anew(scene, folder):
    async def main(plane, worker):
        worker.start()
        plane.assign(1, "sh", "-c", 'cat "$GPULAYER_INPUT_IT"; ls', inputs={"it": "slow:x"})
        await plane.until((folder / "fetching").exists)
        worker.kill()
        (folder / "fetching").unlink()
        left = worker.folder / "attempts" / "1.0" / "inputs" / "it"
        (left / "stale").touch()
        worker.start()
        await plane.until((folder / "fetching").exists)
        (folder / "go").touch()
        item = await plane.end_of(1)
        assert (item["outcome"]["ended_by"], item["outcome"]["exit_code"]) == ("program", 0)
        assert bytes(plane.logs[1]) == b"half"
        assert "outputs" not in item
        await plane.until(lambda: worker.attempts() == [])
        await worker.stop()

    scene(main)


def test_a_program_finds_an_input_whose_name_is_no_text(scene, folder):
    async def main(plane, worker):
        with open(os.fsencode(folder) + b"/d\xffata", "wb") as file:
            file.write(b"found")
        worker.start()
        plane.assign(1, "sh", "-c", 'cat "$GPULAYER_INPUT_IT"', inputs={"it": f"file://{folder}/d%FFata"})
        assert (await plane.end_of(1))["outcome"]["exit_code"] == 0
        assert bytes(plane.logs[1]) == b"found"
        await worker.stop()

    scene(main)


def test_an_agent_that_is_killed_while_the_job_runs_keeps_its_input(scene, folder):
    async def main(plane, worker):
        (folder / "go").touch()
        worker.start()
        wait = 'echo up; while [ ! -e "$0" ]; do sleep 0.01; done; cat "$GPULAYER_INPUT_IT"'
        plane.assign(1, "sh", "-c", wait, str(folder / "end"), inputs={"it": "slow:x"})
        await plane.until(lambda: bytes(plane.logs.get(1, b"")) == b"up\n")
        worker.kill()
        worker.start()
        (folder / "end").touch()
        assert (await plane.end_of(1))["outcome"]["exit_code"] == 0
        assert bytes(plane.logs[1]) == b"up\nhalf"
        await worker.stop()

    scene(main)


@pytest.mark.parametrize(
    ("fields", "begun"), [({"environment": "slow"}, "building"), ({"inputs": {"it": "slow:x"}}, "fetching")]
)
def test_a_job_that_is_cancelled_ends_at_once_and_its_plugin_is_told(scene, folder, fields, begun):
    async def main(plane, worker):
        worker.start()
        plane.assign(1, "true", **fields)
        await plane.until((folder / begun).exists)
        plane.stop(1)
        assert (await plane.end_of(1))["outcome"]["ended_by"] == "cancel"
        await plane.until((folder / "cancelled").exists)
        plane.assign(2, "true")
        assert (await plane.end_of(2))["outcome"]["exit_code"] == 0
        await worker.stop()

    scene(main)


def test_a_worker_leaves_while_a_build_hangs(scene, folder):
    async def main(plane, worker):
        worker.start()
        plane.assign(1, "true", environment="slow")
        await plane.until((folder / "building").exists)
        await worker.stop()
        assert plane.ended[1]["outcome"]["ended_by"] == "worker_stopped"

    scene(main)


def test_plugins_are_told_with_the_first_report_of_a_session_and_not_again(scene, folder):
    async def main(plane, worker):
        worker.start()
        plane.assign(1, "true")
        await plane.end_of(1)
        told = [report.get("plugins") for report in plane.reports]
        assert {"file", "host", "process", "slow", "system"} <= {one["name"] for one in told[0]}
        assert told[1:] == [None] * (len(told) - 1)
        plane.tokens.clear()  # as after a restart of the control plane
        before = len(plane.reports)
        await plane.until(lambda: any(report.get("plugins") for report in plane.reports[before:]))
        await worker.stop()

    scene(main)


def test_a_plugin_that_does_not_work_is_told_at_the_start_and_the_worker_works(scene, folder):
    async def main(plane, worker):
        install_plugin(folder, "broken", "raise RuntimeError('not today')")
        worker.start()
        plane.assign(1, "true")
        assert (await plane.end_of(1))["outcome"]["exit_code"] == 0
        assert "plugin broken is broken: " in worker.said
        assert "not today" in worker.said
        assert os.path.exists(worker.folder / "agent.lock")
        await worker.stop()

    scene(main)


LAUNCHER = """
import pathlib
from gpulayer.plugins import LaunchPlan, hookimpl

GPULAYER_API = "1.0"
HERE = pathlib.Path(__file__).parent

class Odd:
    name = "odd"
    def plan(self, attempt, site, machine):
        if not (HERE / "up").exists():
            raise ConnectionError("the scheduler does not answer")
        return LaunchPlan(str(attempt.key), attempt.command, site.work_dir, dict(machine.variables),
                          site.log_path, site.exit_path)

@hookimpl
def gpulayer_register_launchers(ctx):
    return [Odd()]
"""


def test_attempts_wait_for_a_launcher_that_has_just_failed_and_can_be_stopped_meanwhile(scene, folder):
    async def main(plane, worker):
        install_plugin(folder, "odd", LAUNCHER)
        worker.start()
        plane.assign(1, "true", launcher="odd")
        assert "the scheduler does not answer" in (await plane.end_of(1))["outcome"]["evidence"]
        plane.assign(2, "true", launcher="odd")
        await plane.until(lambda: "job job2 attempt 1 waits: plugin odd is not asked" in worker.said)
        await plane.end_of(2)  # it was asked again a second later
        for epoch in (3, 4, 5):
            plane.assign(epoch, "true", launcher="odd")
            await plane.until(lambda epoch=epoch: f"job job{epoch} attempt 1 waits" in worker.said)
        plane.stop(3)
        assert (await plane.end_of(3))["outcome"]["ended_by"] == "cancel"
        plane.assign(6, "true")
        assert (await plane.end_of(6))["outcome"]["exit_code"] == 0
        assert not {4, 5} & plane.ended.keys()
        worker.kill()
        (folder / "up").touch()
        worker.start()  # which knows nothing of failures
        assert (await plane.end_of(4))["outcome"]["exit_code"] == 0
        assert (await plane.end_of(5))["outcome"]["exit_code"] == 0
        await worker.stop()

    scene(main)


def test_a_worker_leaves_while_an_attempt_waits_for_a_plugin(scene, folder):
    async def main(plane, worker):
        install_plugin(folder, "odd", LAUNCHER)
        worker.start()
        plane.assign(1, "true", launcher="odd")
        await plane.end_of(1)
        plane.assign(2, "true", launcher="odd")
        await plane.until(lambda: "job job2 attempt 1 waits" in worker.said)
        await worker.stop()
        assert plane.ended[2]["outcome"]["ended_by"] == "worker_stopped"

    scene(main)


HANGING = """
import pathlib, time
from gpulayer.plugins import hookimpl
from gpulayer.plugins.builtin.process import ProcessLauncher

GPULAYER_API = "1.0"
HERE = pathlib.Path(__file__).parent

class Hangs(ProcessLauncher):
    name = "hangs"
    def act(self, plan, starter):
        found = starter.start(plan)
        (HERE / "hanging").touch()
        while not (HERE / "go").exists():
            time.sleep(0.01)
        return found

@hookimpl
def gpulayer_register_launchers(ctx):
    return [Hangs()]
"""


def test_a_program_whose_launcher_hangs_after_its_start_runs_is_heard_and_can_be_cancelled(scene, tmp_path, folder):
    install_plugin(tmp_path / "plugins", "hangs", HANGING)

    async def main(plane, worker):
        worker.start()
        plane.assign(1, "sh", "-c", "echo up; sleep 600", launcher="hangs")
        await plane.until(lambda: bytes(plane.logs.get(1, b"")) == b"up\n")
        await plane.until((folder / "hanging").exists)
        worker.kill()  # what is known to run is not started again by the next
        (folder / "hanging").unlink()
        worker.start()
        plane.stop(1)
        assert (await plane.end_of(1))["outcome"]["ended_by"] == "cancel"
        assert not (folder / "hanging").exists()
        plane.assign(2, "sh", "-c", "exit 7", launcher="hangs")
        assert (await plane.end_of(2))["outcome"]["exit_code"] == 7
        (folder / "go").touch()
        await worker.stop()

    scene(main)


SLOW_TO_START = HANGING.replace("        found = starter.start(plan)\n", "").replace(
    "        return found", "        return starter.start(plan)"
)


@pytest.mark.parametrize("is_void", [False, True])
def test_a_stop_is_honoured_at_once_while_a_launcher_has_not_started_the_program_yet(scene, tmp_path, folder, is_void):
    install_plugin(tmp_path / "plugins", "hangs", SLOW_TO_START)

    async def main(plane, worker):
        worker.start()
        plane.assign(1, "touch", str(folder / "ran"), launcher="hangs")
        await plane.until((folder / "hanging").exists)
        if is_void:
            await plane.until(lambda: plane.reports[-1]["holding"] == [1])
            plane.void.add(1)
            await plane.until(lambda: plane.reports[-1]["holding"] == [])
        else:
            plane.stop(1)
            end = await plane.end_of(1)
            assert (end["outcome"]["ended_by"], end["outcome"]["exit_code"]) == ("cancel", None)
        (folder / "go").touch()
        plane.assign(2, "true")
        assert (await plane.end_of(2))["outcome"]["exit_code"] == 0
        await worker.stop()
        assert not (folder / "ran").exists()

    scene(main)


PROBE = """
import pathlib
from gpulayer.plugins import Findings, hookimpl

GPULAYER_API = "1.0"
HERE = pathlib.Path(__file__).parent

class Licences:
    name = "licences"
    def look(self, site):
        (HERE / "looked").touch()
        return Findings(resources=(("matlab", int((HERE / "server").read_text())),))

@hookimpl
def gpulayer_register_probes(ctx):
    return [Licences()]
"""


def test_a_resource_is_known_at_once_after_a_restart_and_anew_soon_after_its_probe_works_again(scene, folder):
    async def main(plane, worker):
        def told():
            return [report["facts"].get("resources") for report in plane.reports if report.get("facts")]

        install_plugin(folder, "licences", PROBE)
        (folder / "server").write_text("2")
        worker.start()
        await plane.until(lambda: told()[-1:] == [{"matlab": 2}])
        await worker.stop()
        before = len(told())
        (folder / "server").unlink()
        (folder / "looked").unlink()
        worker.start()
        await plane.until(lambda: (folder / "looked").exists() and len(told()) > before)
        assert told()[before] == {"matlab": 2}
        (folder / "server").write_text("3")
        await plane.until(lambda: told()[-1] == {"matlab": 3})  # before the next minute
        await worker.stop()

    scene(main)
