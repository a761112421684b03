"""``gpulayer plugins check``: each thing that can be wrong with a plugin is found, and told in the step it shows in."""

import json
import os
import time

import psutil
import pytest

from gpulayer.plugins.builtin import BUILTINS
from gpulayer.plugins.trial import check_plugin, installed_plugins
from gpulayer.testing.distribution import install_plugin
from tests.plugin_site import HEAD, REGISTERS, command_of, site_of, variables_of


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return site_of(tmp_path_factory.mktemp("site"))


@pytest.fixture
def gpulayer(site, away):
    return command_of(site)


@pytest.fixture
def check(site):
    def run(name, **options):
        return check_plugin(name, variables_of(site), **options)

    return run


def test_a_good_plugin_passes_and_every_step_has_its_time(gpulayer, check):
    report = check("good")
    assert report.is_good, report.flaws
    assert (report.distribution, report.version, report.api) == ("gpulayer-good", "2.1", "1.0")
    assert report.provides == ["probe licences", "scorer cheap-hour"]
    names = ["import", "API and hooks", "gpulayer_register_probes", "probe Licences", "gpulayer_register_scorers"]
    assert [step.name for step in report.steps] == [*names, "scorer Cheap"]
    assert all(step.took_s is not None and step.is_good for step in report.steps)
    said = gpulayer("plugins", "check", "good")
    assert (said.code, said.out.splitlines()[-1]) == (0, "nothing is wrong with it")


@pytest.mark.parametrize("name", sorted(BUILTINS))
def test_cores_own_plugins_pass(site, name):
    report = check_plugin(name, os.environ)
    assert report.is_good, report.flaws
    assert bool(report.provides) == (name != "webhook"), "without an address there is nobody to tell"


def test_each_thing_that_is_wrong_with_what_a_plugin_registers_is_said(check):
    report = check("odd")
    flaws = {flaw.what: flaw.message for flaw in report.flaws}
    assert flaws["NoPlan"] == "it gave a NoPlan where a Launcher is due; it has no plan"
    assert flaws["BadName"].startswith("its launcher BadName has the name 'Bad Name'; it must be a lower-case letter")
    assert flaws["BadName.plan"].startswith("it can't be called as plan(attempt, site, machine): ")
    assert flaws["Restless.plan"] == "the same arguments gave another plan"
    assert flaws["BadScorer"] == "its scorer BadScorer has a lifetime_s that is no number of seconds from 1 to 3600"
    assert flaws["Rude.score"] == "it gave a dict, where a list is due"
    assert flaws["Async"].startswith("its probe Async: look is async; it is called in a thread")
    assert flaws["Old"] == "its check Old has accelerators that are no tuple of Accelerator"
    assert flaws["Future.script"].startswith("its source is no Python: ")
    assert flaws["Caller"].startswith("its stager Caller has the scheme 'S3:'; it must be that of URIs")
    assert flaws["Caller.fetch"].startswith("it can't be called as fetch(uri, site): ")
    assert flaws["gpulayer_register_environments"] == "it gave None where a list of EnvironmentBuilder is due"
    assert "HOME" in flaws["process"]
    assert "odd-thread" in report.warnings[0].message
    assert report.provides == []


THING = HEAD + "class Thing:\n    {body}\n{decorated}\ndef {function}(ctx):\n    return [{things}]\n"


def thing(hook, body, *, things="Thing()", function="", decorated="@hookimpl"):
    return THING.format(body=body, decorated=decorated, function=function or hook, things=things)


# Whether each is loaded.
REGISTERED = {
    "by-specname": (
        thing(
            "",
            "name = 'x'; look = lambda self, site: Findings()",
            function="mine",
            decorated="@hookimpl(specname='gpulayer_register_probes')",
        ),
        True,
    ),
    "kinds-in-a-list": (
        thing(
            "gpulayer_register_event_sinks",
            "name = 'x'; kinds = [EventKind.JOB_ENDED]; tell = lambda self, event: None",
        ),
        False,
    ),
    "odd-scheme": (thing("gpulayer_register_stagers", "scheme = 'my_s3'; fetch = lambda self, uri, site: None"), False),
    "plus-scheme": (thing("gpulayer_register_stagers", "scheme = 's3+x'; fetch = lambda self, uri, site: None"), True),
    "twins": (
        thing("gpulayer_register_probes", "name = 'x'; look = lambda self, site: None", things="Thing(), Thing()"),
        False,
    ),
    "class": (
        thing("gpulayer_register_probes", "name = 'x'; look = lambda self, site: None", things="Thing"),
        False,
    ),
    "attribute": (thing("gpulayer_register_probes", "name = 'x'; look = 3"), False),
    "twice": (HEAD + REGISTERS + "@hookimpl(specname='gpulayer_register_probes')\ndef too(ctx): return []\n", False),
}


def test_the_check_and_the_loader_are_of_one_mind(tmp_path):
    for name, (source, _) in REGISTERED.items():
        install_plugin(tmp_path, name, source)
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    environment = {**os.environ, "PYTHONPATH": path}
    records, trouble = installed_plugins(environment)
    assert not trouble
    loaded = {each["name"]: each for each in records}
    for name, (_, is_loaded) in REGISTERED.items():
        report = check_plugin(name, environment)
        assert (loaded[name]["status"] == "ok") is is_loaded, loaded[name]
        assert report.is_good is is_loaded, (name, report.flaws, report.output)
        assert report.provides == loaded[name]["provides"], name
        assert bool(report.provides) is is_loaded


PLANS = {
    "good": ("", ""),
    "text": ("argv='python train.py'", "it gave a str where a list of str is due"),
    "none": ("argv=()", "its plan has no program"),
    "odd": ("env={'A=B': 'x'}", "'A=B' can't name a variable"),
    "away": ("cwd=site.output_dir", "its plan starts in "),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_that_every_worker_refuses_is_no_good_plan(tmp_path, name):
    change, message = PLANS[name]
    source = (
        f"from dataclasses import replace\nfrom gpulayer.plugins import ProcessLauncher\n{HEAD}"
        "class Mine:\n    name = 'mine'\n"
        "    def plan(self, attempt, site, machine):\n"
        f"        return replace(ProcessLauncher().plan(attempt, site, machine), {change})\n"
        "@hookimpl\ndef gpulayer_register_launchers(ctx):\n    return [Mine()]\n"
    )
    install_plugin(tmp_path, name, source)
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    report = check_plugin(name, {**os.environ, "PYTHONPATH": path})
    assert [flaw.message.startswith(message) for flaw in report.flaws] == [True] * bool(message), report.flaws


JOB_CHECKS = {
    "good": ("return []", ""),
    "nameless": ("return [Problem(Severity.ERROR, spec.name[0])]", "it raised IndexError: string index out of range"),
    "silent": ("return None", "it gave None where a list of Problem is due"),
    "wordy": ("return [Problem(Severity.ERROR, 3)]", "it gave a int where str is due"),
}


@pytest.mark.parametrize("name", JOB_CHECKS)
def test_a_job_check_is_asked_about_usual_and_odd_jobs(tmp_path, name):
    body, message = JOB_CHECKS[name]
    source = (
        f"from gpulayer.plugins import Problem, Severity\n{HEAD}@hookimpl\ndef gpulayer_check_job(spec):\n    {body}\n"
    )
    install_plugin(tmp_path, name, source)
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    report = check_plugin(name, {**os.environ, "PYTHONPATH": path})
    assert [flaw.message for flaw in report.flaws] == [message] * bool(message)
    assert "gpulayer_check_job" in {step.name for step in report.steps}
    assert report.provides == ([] if message else ["job check"])


def test_a_traceback_has_the_plugins_own_frames_and_no_option(check):
    report = check("odd")
    (flaw,) = [flaw for flaw in report.flaws if flaw.what == "gpulayer_register_providers"]
    assert flaw.message == "it raised ValueError: no account for key ***"
    assert "gpulayer_odd.py" in flaw.story
    assert "trial_child" not in flaw.story
    assert report.output.startswith("hello, the key is ***")


@pytest.mark.parametrize(
    ("name", "step", "words"),
    [
        ("raises", "import", "it raised ValueError: no config"),
        ("imports", "import", "it raised ModuleNotFoundError: No module named 'not_there'"),
        ("quits", "import", "it ends the program (SystemExit: 0)"),
        ("exits", "import", "it ended the process with exit code 3"),
        ("crashes", "import", "it was ended by SIG"),
        ("old", "API and hooks", "it needs the plugin API 0.3; this gpulayer has 1.0"),
        ("mute", "API and hooks", "it does not say which GPULAYER_API it needs"),
        ("asyncs", "API and hooks", "gpulayer_register_probes is async"),
        ("sulks", "gpulayer_register_probes", "it raised RuntimeError: not today"),
        ("file", "entry point", "gpulayer-core 0.1.0 and gpulayer-file 1.0 have a plugin of that name"),
        ("same", "entry point", "gpulayer-one 1.0 and gpulayer-two 1.0 have a plugin of that name"),
    ],
)
def test_each_way_to_be_broken_is_named_with_the_step_that_it_shows_in(check, name, step, words):
    report = check(name)
    assert not report.is_good
    flaw = report.flaws[0]
    assert flaw.what == step
    assert flaw.message.startswith(words)


def test_an_import_that_never_ends_is_ended_in_time_with_what_it_started(tmp_path, check):
    install_plugin(
        tmp_path,
        "hangs",
        f"import subprocess, time\nsubprocess.Popen(['sh', '-c', 'echo $$ > {tmp_path}/pid; exec sleep 600'])\n"
        f"import pathlib\nwhile not pathlib.Path('{tmp_path}/pid').read_text().strip():\n    time.sleep(0.01)\n"
        "time.sleep(600)",
    )
    waited = []
    (tmp_path / "pid").touch()
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    report = check_plugin("hangs", environment, deadline_s=4, waiting=lambda: waited.append(1))
    assert waited == [1]
    assert [(flaw.what, flaw.message) for flaw in report.flaws] == [("import", "it still ran after 4 s")]
    assert has_ended(int((tmp_path / "pid").read_text()))


LEAVES = """
import pathlib, subprocess, time
subprocess.Popen(["sh", "-c", "echo $$ > {folder}/pid; exec sleep 600"], start_new_session=True)
while not pathlib.Path("{folder}/pid").read_text().strip():
    time.sleep(0.01)
"""


@pytest.mark.parametrize(
    ("then", "flaws"),
    [
        (REGISTERS, []),
        ("import os; os._exit(3)", ["it ended the process with exit code 3"]),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", ["it was ended by SIGSEGV"]),
        ("time.sleep(600)", ["it still ran after 4 s"]),
    ],
)
def test_what_an_import_starts_in_a_session_of_its_own_is_ended_with_the_trial_and_told(tmp_path, then, flaws):
    (tmp_path / "pid").touch()
    install_plugin(tmp_path, "leaves", HEAD + LEAVES.format(folder=tmp_path) + then)
    report = check_plugin("leaves", environment_of(tmp_path), deadline_s=4)
    assert [flaw.message for flaw in report.flaws] == flaws
    assert has_ended(int((tmp_path / "pid").read_text()))
    if not flaws:
        [warning] = report.warnings
        assert (warning.what, warning.message) == ("process", "it left a process running (sleep)")


def has_ended(pid, deadline_s=10):
    """The kill has been sent; the kernel carries it out."""
    try:
        process = psutil.Process(pid)
        ends = time.monotonic() + deadline_s
        while process.status() != psutil.STATUS_ZOMBIE and time.monotonic() < ends:
            time.sleep(0.01)
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def environment_of(folder):
    return {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}


def test_a_plugin_that_prints_without_end_fills_neither_disk_nor_memory(tmp_path):
    install_plugin(
        tmp_path, "loud", "import os\nfor _ in range(64): os.write(1, b'so loud. ' * 2**14)\nraise SystemExit"
    )
    report = check_plugin("loud", environment_of(tmp_path), most_written=2**20)
    assert report.flaws[0].message == "it raised OSError: [Errno 27] File too large"
    assert 1000 < len(report.output) <= 4000
    assert "so loud. so loud." in report.output


ODD_LINES = [
    "", "no json", "3", "null", "[]", '"text"', "{", '{"begin": 3}', '{"end": "x"}', '{"flaw": {"what": "x"}}',
    '{"flaw": 1}', '{"warning": {"surprise": 1}}', '{"provides": [1, null]}', '{"hooks": 3, "api": 1}',
    '{"steps": 1, "flaws": 2, "name": 3}', '{"records": 1}', '{"records": [1]}', '{"records": [{"name": "x"}]}',
    '{"known": 1}', "\\0377\\0000",
]  # fmt: skip


def test_odd_lines_in_what_the_child_answers_are_passed_over(tmp_path):
    """A plugin can write into any file that is open."""
    child = tmp_path / "python"
    lines = "\n".join(ODD_LINES)
    # Its file is the first argument after those of Python itself.
    child.write_text(f"#!/bin/sh\nshift 5\nprintf '{lines}\n' > \"$1\"\necho the end\nexit 3\n")
    child.chmod(0o755)
    report = check_plugin("x", os.environ, python=str(child))
    assert [(flaw.what, flaw.message) for flaw in report.flaws] == [("start", "it ended the process with exit code 3")]
    assert (report.name, report.output) == ("x", "the end")
    records, trouble = installed_plugins(os.environ, python=str(child))
    assert (records, trouble) == ([], "trying them ended the process with exit code 3: the end")


def test_an_unknown_name_gets_the_nearest_one(gpulayer):
    said = gpulayer("plugins", "check", "goood")
    assert (said.code, said.out) == (2, "")
    assert said.err == "error: no plugin 'goood' is installed here\n hint: did you mean good?\n"


def test_the_report_is_one_json_document(gpulayer):
    said = gpulayer("plugins", "check", "raises", "--json")
    assert said.code == 1
    document = json.loads(said.out)
    assert document["ok"] is False
    (flaw,) = document["flaws"]
    assert flaw["what"] == "import"
    assert "gpulayer_raises.py" in flaw["traceback"]
    assert said.err == ""
