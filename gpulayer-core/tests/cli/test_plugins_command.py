"""``gpulayer plugins``: what is listed, with good plugins and every kind of bad one installed at once."""

import itertools
import json
import re

import pytest

from gpulayer.plugins.builtin import BUILTINS
from tests.plugin_site import BAD, command_of, site_of


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return site_of(tmp_path_factory.mktemp("site"))


@pytest.fixture
def gpulayer(site, away):
    return command_of(site)


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
