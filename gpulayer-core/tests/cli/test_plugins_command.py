"""``gpulayer plugins``: what is listed and checked, with good plugins and every kind of bad one installed at once."""

import itertools
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass

import psutil
import pytest

from gpulayer.plugins.builtin import BUILTINS
from gpulayer.plugins.trial import check_plugin, installed_plugins
from gpulayer.testing.distribution import install_distribution, install_plugin

HEAD = """
from gpulayer.plugins import *
from gpulayer.plugins import hookimpl
GPULAYER_API = "1.0"
"""

GOOD = f"""{HEAD}
class Licences:
    name = "licences"
    def look(self, site):
        return Findings(resources=(("matlab", 2),))

class Cheap:
    name = "cheap-hour"
    lifetime_s = 60.0
    def score(self, batch):
        return [None for _ in batch.pairs]

@hookimpl
def gpulayer_register_probes(ctx):
    return [Licences()]

@hookimpl
def gpulayer_register_scorers(ctx):
    return [Cheap()]
"""

ODD = f"""{HEAD}
import os, threading
os.environ["HOME"] = "/nowhere"
print("hello, the key is " + os.environ["GPULAYER_PLUGIN_ODD_KEY"])
threading.Thread(target=threading.Event().wait, name="odd-thread").start()

class NoPlan:
    name = "no-plan"

class BadName:
    name = "Bad Name"
    def plan(self, attempt, site):
        return None

class Restless:
    name = "restless"
    count = 0
    def plan(self, attempt, site, machine):
        self.count += 1
        return LaunchPlan(str(self.count), (), site.work_dir, {{}}, site.log_path, site.exit_path)

class BadScorer:
    name = "bad"
    lifetime_s = 0
    def score(self, batch):
        return {{}}

class Rude:
    name = "rude"
    lifetime_s = 60
    def score(self, batch):
        return {{}}

class Async:
    name = "async"
    async def look(self, site):
        return None

class Old:
    name = "torch"
    accelerators = ("cuda",)
    def script(self):
        return CheckScript("")

class Future:
    name = "jax"
    accelerators = (Accelerator.CUDA,)
    def script(self):
        return CheckScript("match 1:\\n    case 1: pass")

class Caller:
    scheme = "S3:"
    def fetch(self, uri, site, extra):
        return site.folder

@hookimpl
def gpulayer_register_launchers(ctx):
    return [NoPlan(), BadName(), Restless()]

@hookimpl
def gpulayer_register_scorers(ctx):
    return [BadScorer(), Rude()]

@hookimpl
def gpulayer_register_probes(ctx):
    return [Async()]

@hookimpl
def gpulayer_register_framework_checks(ctx):
    return [Old(), Future()]

@hookimpl
def gpulayer_register_stagers(ctx):
    return [Caller()]

@hookimpl
def gpulayer_register_environments(ctx):
    return None

@hookimpl
def gpulayer_register_providers(ctx):
    raise ValueError("no account for key " + ctx.options["key"])
"""

REGISTERS = "@hookimpl\ndef gpulayer_register_probes(ctx):\n    return []\n"

BAD = {
    "raises": "raise ValueError('no config')",
    "imports": "import not_there",
    "quits": "import sys\nsys.exit(0)",
    "exits": "import os\nos._exit(3)",
    "crashes": "import ctypes\nctypes.string_at(0)",
    "old": HEAD.replace("1.0", "0.3") + REGISTERS,
    "mute": REGISTERS.replace("@hookimpl", "from gpulayer.plugins import hookimpl\n@hookimpl"),
    "sulks": HEAD + REGISTERS.replace("return []", "raise RuntimeError('not today')"),
    "asyncs": HEAD + REGISTERS.replace("def", "async def"),
    "file": HEAD + REGISTERS,
}


@dataclass
class Ended:
    code: int
    out: str
    err: str


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    install_plugin(folder, "good", GOOD, version="2.1")
    install_plugin(folder, "odd", ODD)
    for name, source in BAD.items():
        install_plugin(folder, name, source)
    for name in ("one", "two"):
        module = f"{name}_same"
        install_distribution(folder, f"gpulayer-{name}", modules={module: HEAD + REGISTERS}, plugins={"same": module})
    commands = {"hello": "hello_cli:app", "bare": "hello_cli"}
    install_distribution(folder, "gpulayer-hello", modules={"hello_cli": "def app(): pass"}, commands=commands)
    return folder


@pytest.fixture
def gpulayer(site, away):
    def run(*argv, plane=None, **variables):
        path = f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        env = {**os.environ, "PYTHONPATH": path, "GPULAYER_PLUGIN_ODD_KEY": "sesame-open", **variables}
        env |= plane.environment if plane is not None else {}
        done = subprocess.run(
            [sys.executable, "-P", "-m", "gpulayer.cli", *argv],
            env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=110, check=False,
        )  # fmt: skip
        return Ended(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def check(site):
    def run(name, **options):
        path = f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        environment = {**os.environ, "PYTHONPATH": path, "GPULAYER_PLUGIN_ODD_KEY": "sesame-open"}
        return check_plugin(name, environment, **options)

    return run


def record(name="good", **changes):
    return {
        "name": name,
        "distribution": f"gpulayer-{name}",
        "version": "2.1",
        "api": "1.0",
        "is_builtin": False,
        "status": "ok",
        "error": "",
        "hint": "",
        "hooks": [],
        "provides": [],
        "faults": 0,
        "last_faults": [],
        **changes,
    }


# The list.


def test_with_every_kind_of_bad_plugin_installed_the_list_names_each_with_its_reason(gpulayer):
    said = gpulayer("plugins", "--json")
    assert said.code == 0, said.err
    assert said.err == "note: no control plane runs here; these are the plugins of this environment\n"
    document = json.loads(said.out)
    found = {(each["name"], each["distribution"]): each for each in document["plugins"]}
    assert {each["where"] for each in document["plugins"]} == {"here"}
    good = found["good", "gpulayer-good"]
    assert (good["status"], good["version"], good["api"]) == ("ok", "2.1", "1.0")
    assert good["provides"] == ["probe licences", "scorer cheap-hour"]
    for name in BAD:
        each = found[name, f"gpulayer-{name}"]
        assert each["status"] in ("broken", "incompatible", "duplicate"), each
        assert each["error"], each
    assert found["old", "gpulayer-old"]["status"] == "incompatible"
    assert found["file", "gpulayer-core"]["status"] == "ok"
    for one in ("one", "two"):
        each = found["same", f"gpulayer-{one}"]
        assert each["status"] == "duplicate"
        assert "gpulayer-one" in each["error"]
        assert "gpulayer-two" in each["error"]
    assert [(each["name"], each["status"]) for each in document["commands"]] == [("bare", "broken"), ("hello", "ok")]
    assert "sesame-open" not in said.out


def test_people_see_the_bad_ones_first_with_reason_and_hint_below_and_core_last(gpulayer):
    lines = gpulayer("plugins", "list").out.splitlines()
    assert lines[0].split() == ["STATUS", "PLUGIN", "VERSION", "API", "WHERE", "PROVIDES"]
    rows = [line.split()[0] for line in lines if not line.startswith(" ") and line]
    order = [row for row in rows if row in ("broken", "duplicate", "incompatible", "ok")]
    last_bad = max(index for index, row in enumerate(order[:-2]) if row != "ok")
    assert "ok" not in order[:last_bad]
    (at,) = [index for index, line in enumerate(lines) if line.split()[:2] == ["broken", "raises"]]
    assert "no config" in lines[at + 1]
    assert lines[at + 1].startswith("    ")
    assert f"gpulayer's own work: {', '.join(sorted(BUILTINS))}" in lines


def test_none_leaves_all_plugins_and_commands_out(gpulayer):
    document = json.loads(gpulayer("plugins", "--json", GPULAYER_PLUGINS="none").out)
    others = [each for each in document["plugins"] if not each["is_builtin"]]
    assert {each["status"] for each in others} == {"disabled", "duplicate"}
    assert not [each for each in others if each["provides"]]
    assert {each["status"] for each in document["commands"]} == {"disabled"}
    assert {each["status"] for each in document["plugins"] if each["is_builtin"]} == {"ok"}


def test_a_strict_environment_is_listed_as_well_and_one_that_makes_no_sense_is_refused(gpulayer):
    document = json.loads(gpulayer("plugins", "--json", GPULAYER_STRICT="1").out)
    assert {"ok", "broken"} <= {each["status"] for each in document["plugins"]}
    for argv in (("plugins",), ("plugins", "check", "good")):
        said = gpulayer(*argv, GPULAYER_PLUGINS="Not A Name")
        assert (said.code, said.out) == (2, "")
        assert said.err.startswith("error: GPULAYER_PLUGINS: ")


def test_those_of_the_plane_and_its_workers_are_listed_with_theirs_merged(gpulayer, plane):
    fault = {"at": "2026-11-30T05:00:00.000Z", "hook": "Probe.look", "message": "ValueError: no server"}
    remote = [
        {**record(provides=["scorer cheap-hour"]), "where": "plane"},
        {**record(provides=["probe licences"]), "where": "worker box-1"},
        {
            **record("far", status="suspended", faults=4, last_faults=[fault], hint="look there"),
            "where": "worker box-1",
        },
        {**record("file", is_builtin=True, distribution="gpulayer-core"), "where": "plane"},
        *({**record("wide"), "where": f"worker w{number}"} for number in range(40)),
    ]
    plane.on("GET", "/v1/plugins", {"plugins": remote, "next": None})
    said = gpulayer("plugins", plane=plane, GPULAYER_PLUGINS="good")
    assert (said.code, said.err) == (0, "")
    lines = [line.split("  ") for line in said.out.splitlines()]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    assert ["ok", "good", "2.1", "1.0", "here, plane, worker box-1", "probe licences, scorer cheap-hour"] in cells
    assert ["suspended", "far", "2.1", "1.0", "worker box-1", "-"] in cells
    assert ["ok", "wide", "2.1", "1.0", "40 workers", "-"] in cells
    assert "failed 4 times" in said.out
    assert "Probe.look: ValueError: no server" in said.out
    assert "→ look there" in said.out
    wheres = [each["where"] for each in json.loads(gpulayer("plugins", "--json", plane=plane).out)["plugins"]]
    assert {"here", "plane", "worker box-1"} <= set(wheres)


def test_rows_that_differ_in_faults_alone_are_one_and_what_hindered_nothing_is_noted(gpulayer, plane):
    def fault(hook, message, second=0):
        return {"at": f"2026-11-30T05:00:{second:02}.000Z", "hook": hook, "message": message}

    put_back = "its import changed sys.stdout, which all of the process share; that was put back"
    late, early = fault("Probe.look", "no answer", 9), fault("Probe.look", "no luck", 1)
    remote = [
        {**record("mild", faults=1, last_faults=[fault("import", put_back)]), "where": "plane"},
        {**record("mild"), "where": "worker box-1"},
        {**record("slow", faults=2, last_faults=[late]), "where": "worker box-1"},
        {**record("slow", faults=1, last_faults=[early]), "where": "worker box-2"},
        {**record("mixed", faults=2, last_faults=[fault("import", put_back), late]), "where": "plane"},
        {**record("left", faults=2, last_faults=[fault("import", "its import left a process running (a)")] * 2)}
        | {"where": "plane"},
    ]
    plane.on("GET", "/v1/plugins", {"plugins": remote, "next": None})
    lines = gpulayer("plugins", plane=plane, GPULAYER_PLUGINS="good").out.splitlines()
    below = {line.split()[1]: re.sub(r", [^,:]+ ago", "", after) for line, after in itertools.pairwise(lines)
             if line.split()[1:2] and line.startswith("ok ")}  # fmt: skip
    assert below["mild"] == f"    noted once in plane: import: {put_back}"
    assert below["slow"] == "    failed 3 times; last: Probe.look: no answer"
    assert below["mixed"] == "    failed 2 times; last: Probe.look: no answer"
    assert below["left"] == "    noted 2 times; last: import: its import left a process running (a)"
    assert sum(line.startswith("ok ") and " mild " in line for line in lines) == 1


def test_a_variable_that_no_plugin_reads_is_said_with_the_one_that_may_be_meant(gpulayer):
    names = {"GPULAYER_PLUGIN_GOD_KEY": "sesame-open", "GPULAYER_PLUGIN_ZZZZZ_KEY": "sesame-open"}
    said = gpulayer("plugins", GPULAYER_PLUGINS="none", **names)
    assert said.err.splitlines()[1:] == [
        "note: GPULAYER_PLUGIN_GOD_KEY is set, and no plugin has such a name; did you mean an option of good?",
        "note: GPULAYER_PLUGIN_ZZZZZ_KEY is set, and no plugin has such a name",
    ]
    assert "sesame-open" not in said.out + said.err


def test_the_help_says_where_options_come_from(gpulayer):
    said = gpulayer("plugins", "--help").out
    assert "GPULAYER_PLUGIN_<NAME>_<OPTION>" in said
    assert "docs/plugins/index.md" in said


def test_a_check_names_the_options_that_the_plugin_is_given_and_not_their_values(gpulayer):
    variables = {"GPULAYER_PLUGIN_GOOD_ZONE": "sesame-open", "GPULAYER_PLUGIN_GOOD_KEY": "sesame-open"}
    said = gpulayer("plugins", "check", "good", **variables)
    assert "options: key, zone" in said.out.splitlines()
    assert "sesame-open" not in said.out
    assert json.loads(gpulayer("plugins", "check", "good", "--json", **variables).out)["options"] == ["key", "zone"]


def test_a_check_of_a_package_with_a_command_alone_says_so(gpulayer):
    said = gpulayer("plugins", "check", "hello")
    assert said.code == 2
    assert said.err.splitlines() == [
        "error: hello is no plugin: gpulayer-hello 1.0 adds the command gpulayer hello, and nothing to check",
        " hint: gpulayer hello --help tries it",
    ]


def test_a_check_of_one_that_is_elsewhere_says_where(gpulayer, plane):
    remote = [{**record("far"), "where": where} for where in ("worker box-1", "plane")]
    plane.on("GET", "/v1/plugins", {"plugins": remote, "next": None})
    said = gpulayer("plugins", "check", "far", plane=plane)
    assert said.code == 2
    assert said.err.splitlines()[0] == "error: the plugin far is loaded by plane, worker box-1, and not installed here"
    said = gpulayer("plugins", "check", "farr", plane=plane)
    assert said.err.splitlines()[0] == "error: no plugin 'farr' is installed here"


def test_a_control_plane_that_cannot_be_asked_is_said_and_the_rest_listed(gpulayer):
    far = {"GPULAYER_URL": "http://127.0.0.1:1", "GPULAYER_PLUGINS": "good"}
    said = gpulayer("plugins", "--json", **far)
    assert said.code == 0
    assert said.err.startswith("note: the control plane's plugins are unknown: ")
    assert "good" in {each["name"] for each in json.loads(said.out)["plugins"]}
    said = gpulayer("plugins", "--json", GPULAYER_TOKEN="glc_" + "a" * 12 + "_secret", **far)
    assert "no control plane answers at http://127.0.0.1:1" in said.err
    assert json.loads(said.out)["plugins"]


def test_every_other_command_works_with_all_of_them_installed(gpulayer, job_plane):
    assert gpulayer("--help").err == ""
    said = gpulayer("submit", "--", "true", plane=job_plane)
    assert said.code == 0, said.err
    assert gpulayer("hello").code == 0


# The check.


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
