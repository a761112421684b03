"""Plugins on a worker, through the real program: one that uses every hook of a worker, and one that abuses each."""

import json
import os
import sys
import urllib.request

import pytest

from gpulayer.testing.distribution import install_plugin

GOOD = """
import os
from gpulayer.plugins import (
    BuildFailed, CheckScript, Environment, EnvironmentPlan, Findings, LaunchRefused, StageFailed, hookimpl,
)
from gpulayer.plugins.builtin.process import ProcessLauncher
from gpulayer.spec.request import Accelerator
from dataclasses import replace

GPULAYER_API = "1.0"

class Probe:
    name = "licences"
    def look(self, site):
        return Findings(labels=(("plugged", "yes"),), resources=(("licence", 2),))

class Check:
    name = "faketorch"
    accelerators = (Accelerator.CPU,)
    def script(self):
        return CheckScript('print("loading"); print(\\'{"version": "2.4", "devices": {"cpu": ""}}\\')')

class Builder:
    name = "made"
    def plan(self, request):
        file = request.work_dir / "env.txt"
        if not file.exists():
            raise BuildFailed("there is no env.txt", hint="ship one with --source")
        return EnvironmentPlan(key=file.read_text())
    def build(self, plan, site):
        site.log("building")
        (site.folder / "builds").write_text(plan.key)
        return Environment({"PATH": os.defpath, "BUILT": str(site.folder / "builds")})

class Wraps:
    name = "wraps"
    def plan(self, attempt, site, machine):
        if attempt.command[0] == "refuse":
            raise LaunchRefused("it starts no refuse", hint="start something else")
        plan = ProcessLauncher().plan(attempt, site, machine)
        return replace(plan, argv=("env", "WRAPPED=1", "CUDA_VISIBLE_DEVICES=", *plan.argv))

class Acts(Wraps):
    name = "acts"
    def act(self, plan, starter):
        return starter.start(replace(plan, env={**plan.env, "ACTED": "1"}))

class Makes:
    scheme = "make"
    def fetch(self, uri, site):
        text = uri.partition(":")[2]
        if text == "nothing":
            raise StageFailed("there is nothing")
        site.progress(0, len(text))
        (site.folder / "made").write_text(text)
        return site.folder / "made"

@hookimpl
def gpulayer_register_probes(ctx):
    return [Probe()]

@hookimpl
def gpulayer_register_framework_checks(ctx):
    return [Check()]

@hookimpl
def gpulayer_register_environments(ctx):
    return [Builder()]

@hookimpl
def gpulayer_register_launchers(ctx):
    return [Wraps(), Acts()]

@hookimpl
def gpulayer_register_stagers(ctx):
    return [Makes()]
"""

BAD = """
from pathlib import Path
from gpulayer.plugins import CheckScript, Environment, EnvironmentPlan, Findings, Launched, hookimpl
from gpulayer.plugins.builtin.process import ProcessLauncher
from gpulayer.spec.machine import Device
from gpulayer.spec.request import Accelerator
from dataclasses import replace

GPULAYER_API = "1.0"

class Probe:
    name = "lies"
    def look(self, site):
        return Findings(cpus=-4, devices=(Device("GPU-0", "first", "cuda", None),) * 5000, labels=((1, 2),))

class Check:
    name = "faketorch"
    accelerators = (Accelerator.CUDA,)
    def script(self):
        return CheckScript("raise SystemExit('no such thing as cuda')")

class Builder:
    name = "breaks"
    def plan(self, request):
        return EnvironmentPlan(key="k")
    def build(self, plan, site):
        raise SystemExit(3)

class Elsewhere:
    name = "elsewhere"
    def plan(self, attempt, site, machine):
        plan = ProcessLauncher().plan(attempt, site, machine)
        return replace(plan, log_path=Path("/tmp/elsewhere"), env={"CUDA_VISIBLE_DEVICES": "all"})

class Pretends(ProcessLauncher):
    name = "pretends"
    def act(self, plan, starter):
        return Launched(1)

class Vanishes:
    scheme = "gone"
    def fetch(self, uri, site):
        return Path("/no/such/place")

@hookimpl
def gpulayer_register_probes(ctx):
    return [Probe()]

@hookimpl
def gpulayer_register_framework_checks(ctx):
    return [Check()]

@hookimpl
def gpulayer_register_environments(ctx):
    return [Builder()]

@hookimpl
def gpulayer_register_launchers(ctx):
    return [Elsewhere(), Pretends()]

@hookimpl
def gpulayer_register_stagers(ctx):
    return [Vanishes()]
"""


@pytest.fixture(scope="module")
def plugged(shared, tmp_path_factory):
    """The shared story, whose worker has both plugins."""
    folder = tmp_path_factory.mktemp("plugins")
    install_plugin(folder, "good", GOOD)
    install_plugin(folder, "bad", BAD)
    path = os.pathsep.join(filter(None, (str(folder), shared.environment.get("PYTHONPATH"))))
    shared.environment["PYTHONPATH"] = path
    assert shared.run("submit", "--", "true").code == 0
    shared.until(lambda: b"not checked yet" not in shared.run("resources").out, "all checks have ended")
    return shared


def ask(story, path):
    endpoint = json.loads((story.state / "endpoint.json").read_text())
    request = urllib.request.Request(f"{endpoint['url']}/v1/{path}")
    request.add_header("Authorization", f"Bearer {endpoint['token']}")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def outcome(story, ended):
    (attempt,) = ask(story, f"jobs/{ended.json['id']}")["attempts"]
    return attempt


def test_what_plugins_find_is_in_the_facts_and_what_they_lie_about_is_not(plugged):
    (worker,) = ask(plugged, "workers")["workers"]
    assert worker["labels"]["plugged"] == "yes"
    assert worker["resources"] == {"licence": 2}
    assert worker["devices"] == []
    assert worker["cpus"] >= 1
    added = {"launcher:wraps", "launcher:acts", "environment:made", "stager:make", "stager:file"}
    assert added <= set(worker["capabilities"])
    found = {one["accelerator"]: (one["usable"], one["reason"]) for one in worker["frameworks"]}
    assert found == {"cpu": (True, ""), "cuda": (False, "its check failed (exit code 1): no such thing as cuda")}


def test_a_job_uses_a_launcher_an_input_a_resource_and_a_framework(plugged):
    show = 'cat "$GPULAYER_INPUT_WORDS"; echo " $WRAPPED$ACTED"; ls -A'
    for launcher, told in (("wraps", b"hello 1\n"), ("acts", b"hello 11\n")):
        ended = plugged.run(
            "submit", "--launcher", launcher, "--input", "words=make:hello", "--resource", "licence=2",
            "--framework", "faketorch>=2", "--", "bash", "-c", show,
        )  # fmt: skip
        assert (ended.code, ended.out) == (0, told), ended.err


def test_an_environment_is_built_from_the_source_and_is_no_output(plugged):
    source = plugged.here / "with-env"
    source.mkdir()
    (source / "env.txt").write_text("of this job")
    for _ in range(2):
        ended = plugged.run(
            "submit", "--environment", "made", "--source", str(source), "--", "bash", "-c", "cat $BUILT; env"
        )
        assert ended.code == 0, ended.err
        assert b"of this job" in ended.out
        assert b"HOME=" not in ended.out  # nothing is added to what was built
        assert b"GPULAYER_JOB_ID=" in ended.out
    built = list((plugged.state / "worker" / "environments" / "made").glob("*/ready"))
    assert len(built) == 1


@pytest.mark.parametrize(
    ("flags", "command", "ended_by", "told"),
    [
        (("--environment", "made"), "true", "environment", "there is no env.txt"),
        (("--launcher", "wraps"), "refuse", "environment", "it starts no refuse"),
        (("--input", "a=make:nothing"), "true", "staging", "there is nothing"),
        (("--input", "a=file:///no/such/file"), "true", "staging", "is not on this worker"),
    ],
)
def test_what_a_user_asked_for_in_vain_ends_the_job_at_once(plugged, flags, command, ended_by, told):
    ended = plugged.run("submit", "--json", *flags, "--", command)
    attempt = outcome(plugged, ended)
    assert (attempt["ended_by"], attempt["blame"]) == (ended_by, "user")
    assert told in attempt["evidence"]


@pytest.mark.parametrize(
    ("flags", "ended_by", "told"),
    [
        (("--environment", "breaks"), "environment", "tried to end the process"),
        (("--launcher", "elsewhere"), "environment", "names other files"),
        (("--launcher", "pretends"), "environment", "has not started it"),
        (("--input", "a=gone:x"), "staging", "where nothing lies"),
    ],
)
def test_what_a_plugin_breaks_is_the_plugins_and_the_worker_lives_on(plugged, flags, ended_by, told):
    pid = plugged.agent_pid()
    ended = plugged.run("submit", "--json", "--retries", "0", *flags, "--", "true")
    attempt = outcome(plugged, ended)
    assert (attempt["ended_by"], attempt["blame"]) == (ended_by, "plugin")
    assert told in attempt["evidence"]
    assert plugged.run("submit", "--", sys.executable, "-c", "print('on')").out == b"on\n"
    assert plugged.agent_pid() == pid


def test_the_workers_plugins_are_known_to_the_control_plane_with_what_went_wrong(plugged):
    def records():
        found = {one["name"]: one for one in ask(plugged, "plugins")["plugins"] if one["where"].startswith("worker ")}
        return found if found.get("bad", {}).get("faults") else None

    found = plugged.until(records, "the worker has told of its plugins")
    assert {"process", "system", "host", "file"} <= {name for name, one in found.items() if one["is_builtin"]}
    assert (found["good"]["status"], found["good"]["faults"]) == ("ok", 0)
    assert "launcher wraps" in found["good"]["provides"]
    assert found["bad"]["faults"] >= 1
