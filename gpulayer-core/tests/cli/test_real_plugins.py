"""Installed plugins and the program: a real control plane, worker and jobs behind it."""

import json
import os
import subprocess

import pytest

import gpulayer as gl
from gpulayer.testing.distribution import install_distribution, install_plugin

LIMITS = """
from gpulayer.plugins import Findings, Problem, Severity, hookimpl

GPULAYER_API = "1.0"


class Told:
    name = "told"
    every_s = None

    def __init__(self, options):
        self._options = options

    def look(self, site):
        return Findings(labels=tuple(self._options.items()))


@hookimpl
def gpulayer_register_probes(ctx):
    return [Told(ctx.options)]


@hookimpl
def gpulayer_check_job(spec, ctx):
    severity = Severity.ERROR if spec.name == "large" else Severity.WARNING
    return [Problem(severity, f"the limit is {ctx.options['most']}", field="name", hint="make it smaller")]
"""

BROKEN = "GPULAYER_API = '1.0'\nraise RuntimeError('no licence file')\n"


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Where plugins are installed for whatever is started from now on."""
    folder = tmp_path / "site"
    folder.mkdir()
    path = os.pathsep.join(part for part in (str(folder), os.environ.get("PYTHONPATH", "")) if part)
    monkeypatch.setenv("PYTHONPATH", path)
    return folder


@pytest.fixture
def run(program, away):
    """Run the program to its end: (exit code, stdout, stderr)."""

    def call(*argv):
        process = program(*argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, err = process.communicate(timeout=90)
        return process.returncode, out.decode(), err.decode()

    yield call
    code, _, err = call("down")
    assert code == 0, err


def test_a_plugin_checks_jobs_and_its_options_reach_plane_and_worker_and_no_job(run, site, away, monkeypatch):
    install_plugin(site, "limits", LIMITS)
    install_plugin(site, "broken", BROKEN)
    monkeypatch.setenv("GPULAYER_PLUGIN_LIMITS_MOST", "seven")
    monkeypatch.setenv("GPULAYER_STRICT", "0")
    code, out, err = run("submit", "--", "env")
    assert code == 0, err
    assert "GPULAYER_JOB_ID" in out
    assert not [line for line in out.splitlines() if line.startswith(("GPULAYER_PLUGIN", "GPULAYER_STRICT"))]
    assert "warning: plugin limits: name: the limit is seven\n hint: make it smaller\n" in err

    code, out, err = run("submit", "--name", "large", "--", "true")
    assert code == 2
    assert "error: plugin limits refuses it: the limit is seven\n hint: make it smaller\n" in err

    code, out, err = run("worker", "list", "--json")
    (worker,) = json.loads(out)["workers"]
    assert worker["labels"]["most"] == "seven"
    (name,) = {job["name"] for job in json.loads(run("job", "list", "--json")[1])["jobs"]}
    assert name == ""
    with gl.Client(target="local") as client:
        found = {(one["where"].split()[0], one["name"]): one["status"] for one in client.plugins()}
    assert found["plane", "limits"] == found["worker", "limits"] == "ok"
    assert found["plane", "broken"] == found["worker", "broken"] == "broken"
    (line,) = [line for line in (away.parent / "state/plane.log").read_text().splitlines() if "broken" in line]
    assert "RuntimeError: no licence file" in line


HOOK = """
from gpulayer.plugins import hookimpl
GPULAYER_API = "1.0"

@hookimpl
def gpulayer_register_scorers(ctx):
    raise OSError("no licence file")
"""


@pytest.mark.parametrize(("start", "source"), [("submit", BROKEN), ("up", BROKEN), ("up", HOOK)])
def test_a_strict_control_plane_that_does_not_start_names_the_plugin_and_its_distribution(
    program, site, away, monkeypatch, start, source
):
    install_plugin(site, "broken", source)
    monkeypatch.setenv("GPULAYER_STRICT", "1")
    (away.parent / "state").mkdir(mode=0o700)
    (away.parent / "state/plane.log").write_text("of an earlier start\n")
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    argv = {"submit": ["--", "true"], "up": ["--no-worker", "--host", "127.0.0.1", "--port", "0"]}
    process = program(start, *argv[start], **options)
    _, err = process.communicate(timeout=90)
    assert process.returncode == {"submit": 5, "up": 6}[start]
    (line,) = [line for line in err.splitlines() if line.startswith("error: the plugins can't be loaded")]
    assert line.endswith("Error: no licence file (raised by plugin broken of gpulayer-broken 1.0)")
    assert "internal error" not in err
    assert "of an earlier start" not in err
    assert not (away.parent / "state/endpoint.json").exists()


@pytest.mark.parametrize("name", ["GPULAYER_PLUGINS", "GPULAYER_STRICT", "GPULAYER_PLUGINS_IMPORT_S"])
@pytest.mark.parametrize("argv", [["submit", "--", "true"], ["job", "list"], ["up"], ["up", "--detach"]])
def test_what_no_control_plane_would_start_with_is_said_before_anything_is_started(cli, away, monkeypatch, name, argv):
    monkeypatch.setenv(name, "Not That")
    said = cli(*argv)
    assert said.code == 2
    assert f"error: {name}" in said.err
    assert " hint: " in said.err
    assert not (away.parent / "state").exists()


def test_plugins_of_pydantic_run_in_no_process_of_ours_and_no_job_sees_how(run, site, away):
    mark = away / "loaded"
    install_distribution(
        site,
        "watcher",
        modules={"watcher": f"open({str(mark)!r}, 'a').close()\nplugin = None\n"},
        entry_points={"pydantic": {"watcher": "watcher:plugin"}},
    )
    code, out, err = run("submit", "--", "env")
    assert code == 0, err
    assert "PYDANTIC" not in out
    assert run("job", "list")[0] == run("plugins")[0] == 0
    assert not mark.exists()


def test_a_submission_that_waits_for_an_import_that_hangs_says_so_and_the_next_start_does_not(
    run, site, away, monkeypatch
):
    monkeypatch.setenv("GPULAYER_PLUGINS_IMPORT_S", "5")
    install_plugin(site, "hangs", "import threading\nthreading.Event().wait()\n")
    _, _, err = run("submit", "--", "true")
    told = "waiting for the control plane: it tries plugin hangs; each may take 5 s to be imported\n"
    assert told in err
    assert "still trying plugin hangs" in (away.parent / "state/plane.log").read_text()
    assert run("down")[0] == 0
    code, _, err = run("submit", "--", "true")
    assert code == 0
    assert told not in err
    with gl.Client(target="local") as client:
        found = {one["where"].split()[0]: one["error"] for one in client.plugins() if one["name"] == "hangs"}
    assert set(found.values()) == {"its import took longer than 5 s when it was tried last"}
