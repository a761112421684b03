"""Plugins of every kind of badness, one by one and all at once, beside a good one and core's own."""

import asyncio
import dataclasses
import os
import sys
import threading

import pytest

from gpulayer.errors import PluginFault
from gpulayer.plugins.builtin import BUILTINS
from gpulayer.plugins.contracts.context import Where
from gpulayer.plugins.contracts.event import EventKind, PlaneEvent
from gpulayer.plugins.contracts.problem import Problem
from gpulayer.plugins.record import PluginStatus
from gpulayer.plugins.results import list_of
from gpulayer.plugins.settings import PluginSettings
from gpulayer.spec.request import Accelerator
from gpulayer.testing.distribution import install_distribution
from tests.made_plugins import look, names, probe, records, registers, seen


def plugins_in(registry):
    """Of which plugins anything could be asked."""
    found = [getattr(registry, field.name) for field in dataclasses.fields(registry)]
    return {one.plugin for things in found for one in (things.values() if isinstance(things, dict) else things)}


def test_without_others_there_are_cores_own_and_no_child_is_started(load):
    host = load(python="/nowhere/python", discover=tuple)
    assert [record.name for record in host.records()] == list(BUILTINS) == sorted(BUILTINS)
    assert {record.status for record in host.records()} == {PluginStatus.OK}
    assert {record.is_builtin for record in host.records()} == {True}
    provides = {record.name: record.provides for record in host.records()}
    assert provides["file"] == ("stager file",)
    assert provides["host"] == ("probe host",)
    assert provides["process"] == ("launcher process",)
    assert provides["system"] == ("environment system",)
    assert list(host.registry.launchers) == ["process"]


def test_a_good_one_is_registered_and_its_record_tells_all_of_it(load, plugin, tmp_path):
    plugin("licences", probe("licences") + registers("gpulayer_check_job", "[]"), version="1.4")
    host = load()
    record = records(host)["licences"]
    assert record.status is PluginStatus.OK
    assert (record.distribution, record.version, record.api) == ("gpulayer-licences", "1.4", "1.0")
    assert record.hooks == ("gpulayer_check_job", "gpulayer_register_probes")
    assert record.provides == ("probe licences", "job check")
    assert (record.error, record.hint, record.faults, record.is_builtin) == ("", "", 0, False)
    assert look(host, host.registry.probes[-1], tmp_path).cpus == 3


def test_hooks_are_asked_where_they_belong_alone(load, plugin):
    source = "asked = []\n" + "".join(
        f"@hookimpl\ndef gpulayer_register_{what}(ctx): asked.append({what!r}); return []\n"
        for what in ("probes", "framework_checks", "environments", "launchers", "stagers", "scorers", "providers")
    )
    plugin("all", source + registers("gpulayer_on_event", "None"))
    for where, count, sinks in ((Where.WORKER, 5, 0), (Where.PLANE, 2, 1), (Where.CHECK, 7, 1)):
        sys.modules.pop("gpulayer_all", None)
        host = load(where)
        assert len(sys.modules["gpulayer_all"].asked) == count
        assert len(host.registry.event_sinks) == sinks


def test_the_order_is_by_priority_then_by_name_and_core_comes_first_unless_somebody_says_so(load, plugin):
    plugin("zz", probe("zz") + "GPULAYER_PRIORITY = 1\n")
    plugin("bb", probe("bb"))
    plugin("aa", probe("aa"))
    plugin("first", probe("first") + "GPULAYER_PRIORITY = -1\n")
    assert names(load(Where.WORKER).registry.probes) == ["first", "host", "zz", "aa", "bb"]


def test_job_checks_and_sinks_take_the_arguments_that_they_want(load, plugin, tmp_path):
    told = tmp_path / "told"
    plugin(
        "says",
        "@hookimpl\ndef gpulayer_check_job(ctx, spec):\n"
        "    return [Problem(Severity.WARNING, f'{ctx.plugin} in {ctx.where}: {spec}, {ctx.options[\"a\"]}')]\n"
        f"import pathlib\ntold = pathlib.Path({str(told)!r})\n"
        "@hookimpl\ndef gpulayer_on_event(event): told.write_text(event.kind)\n",
    )
    plugin("silent", "@hookimpl\ndef gpulayer_check_job(): return []\n@hookimpl\ndef gpulayer_on_event(): pass\n")
    host = load(Where.PLANE, PluginSettings(options={"says": {"a": "b"}}))
    checks = {check.plugin: check for check in host.registry.job_checks}
    said = {
        name: host.call(
            check, "gpulayer_check_job", lambda ask: list_of(Problem, ask("SPEC"), at_most=64), deadline_s=5.0
        )
        for name, check in checks.items()
    }
    assert [problem.message for problem in said["says"]] == ["says in plane: SPEC, b"]
    assert said["silent"] == []
    event = PlaneEvent("e1", 1, 0, EventKind.JOB_ENDED)
    for sink in host.registry.event_sinks:
        assert (
            asyncio.run(host.acall(sink, "gpulayer_on_event", lambda thing: thing.tell(event), deadline_s=5.0)) is None
        )
    assert told.read_text() == "job.ended"


ENDLESS = "def endless():\n    while True: yield Probe()\n"


# By name: source, and what is said of it.
REFUSED = {
    "raises": (registers("gpulayer_register_probes", "1 / 0"), "ZeroDivisionError"),
    "exits": (
        "import sys\n" + registers("gpulayer_register_probes", "sys.exit(3)"),
        "it tried to end the process (exit 3)",
    ),
    "hangs": ("import time\n" + registers("gpulayer_register_probes", "time.sleep(30)"), "no answer within 1 s"),
    "none": (registers("gpulayer_register_probes", "None"), "it gave None where a list of Probe is due"),
    "text": (registers("gpulayer_register_launchers", "'torch'"), "it gave a str where a list of Launcher is due"),
    "single": (probe("single").replace("[Probe()]", "Probe()"), "it gave a Probe where a list of Probe is due"),
    "class": (probe("class").replace("[Probe()]", "[Probe]"), "it gave the class Probe where a Probe is due: call it"),
    "lacks": (registers("gpulayer_register_scorers", "[object()]"), "it has no name, score"),
    "million": (probe("million").replace("[Probe()]", "endless()") + ENDLESS, "more than 64 Probe"),
    "unnamed": (probe(None), "has the name None; it must be a lower-case letter"),
    "loudname": (probe("Loud Name"), "has the name 'Loud Name'"),
    "evilname": (probe("x").replace("name = 'x'", "name = property(lambda self: 1 / 0)"), "ZeroDivisionError"),
    "twins": (probe("twins").replace("[Probe()]", "[Probe(), Probe()]"), "registers two of the name twins"),
    "async": (probe("async").replace("def look", "async def look"), "look is async"),
    "attribute": (
        probe("attribute").replace("return [", "Probe.look = 3; return ["),
        "a int where the method look is due",
    ),
}


def test_what_registers_badly_is_refused_with_the_reason_and_nothing_else_is(load, plugin, tmp_path):
    for name, (source, _) in REFUSED.items():
        plugin(name, source + registers("gpulayer_register_stagers", "[]"))
    plugin("good", probe("good"))
    host = load(register_deadline_s=1.0)
    told = records(host)
    for name, (_, error) in REFUSED.items():
        assert told[name].status is PluginStatus.BROKEN, name
        assert error in told[name].error, name
        assert told[name].hint
        assert told[name].provides == ()
        assert told[name].faults == 1
        assert error in told[name].last_faults[0].message
    assert names(host.registry.probes) == ["host", "good"]
    assert look(host, host.registry.probes[-1], tmp_path).cpus == 3


ALL_HOOKS = (
    probe("half")
    + registers("gpulayer_check_job", "[]")
    + registers("gpulayer_on_event", "None")
    + """
class Scorer:
    name, lifetime_s = "half", 60
    def score(self, batch): return []
@hookimpl
def gpulayer_register_scorers(ctx): return [Scorer()]
"""
)


@pytest.mark.parametrize("where", list(Where))
@pytest.mark.parametrize("hook", ["stagers", "launchers", "providers", "event_sinks"])
def test_a_plugin_is_in_or_out_as_a_whole_whichever_hook_of_it_fails(load, plugin, where, hook):
    plugin("half", ALL_HOOKS + registers(f"gpulayer_register_{hook}", "1 / 0"))
    plugin("whole", ALL_HOOKS.replace("half", "whole"))
    host = load(where)
    record = records(host)["half"]
    fails_here = where is Where.CHECK or (where is Where.PLANE) is (hook in ("providers", "event_sinks"))
    assert record.status is (PluginStatus.BROKEN if fails_here else PluginStatus.OK)
    assert ("half" in plugins_in(host.registry)) is bool(record.provides) is not fails_here
    assert records(host)["whole"].status is PluginStatus.OK
    assert "whole" in plugins_in(host.registry)
    if fails_here:
        assert f"gpulayer_register_{hook}" in record.error


def test_after_one_hook_failed_no_other_of_that_plugin_is_asked(load, plugin):
    plugin("half", "asked = []\n" + registers("gpulayer_register_probes", "1 / 0")
           + registers("gpulayer_register_stagers", "asked.append(1)"))  # fmt: skip
    assert records(load())["half"].faults == 1
    assert sys.modules["gpulayer_half"].asked == []


def test_two_of_one_name_are_both_refused_and_both_are_named(load, plugin, site):
    plugin("same", probe("same"))
    install_distribution(
        site, "other-dist", version="3.0", modules={"gpulayer_o": "1 / 0"}, plugins={"same": "gpulayer_o"}
    )
    host = load()
    both = [record for record in host.records() if record.name == "same"]
    assert [record.distribution for record in both] == ["gpulayer-same", "other-dist"]
    for record in both:
        assert record.status is PluginStatus.DUPLICATE
        assert record.error == "gpulayer-same 1.0 and other-dist 3.0 both have a plugin same"
    assert names(host.registry.probes) == ["host"]
    assert "gpulayer_same" not in sys.modules


def test_the_names_of_cores_own_are_taken(load, plugin):
    plugin("host", probe("mine"))
    plugin("sneaky", probe("host") + registers("gpulayer_register_stagers", "[]"))
    host = load()
    theirs = [record for record in host.records() if not record.is_builtin]
    assert [record.status for record in theirs] == [PluginStatus.DUPLICATE] * 2
    assert "is the name of a plugin of gpulayer itself" in theirs[0].error
    assert theirs[1].error == "probe host is registered by host, too"
    assert [(one.plugin, one.name) for one in seen(host.registry.probes)] == [("host", "host")]


def test_of_two_that_register_one_name_neither_is_loaded(load, plugin):
    two = "class Other(Probe): name = {other!r}\n@hookimpl\ndef gpulayer_check_job(): return []\n"
    for name in ("one", "two"):
        source = probe("shared") + two.format(other=f"of-{name}")
        plugin(name, source.replace("[Probe()]", "[Probe(), Other()]"))
    host = load()
    assert names(host.registry.probes) == ["host"]
    assert host.registry.job_checks == ()
    told = records(host)
    assert told["one"].status is told["two"].status is PluginStatus.DUPLICATE
    assert told["one"].error == "probe shared is registered by two, too"
    assert told["two"].error == "probe shared is registered by one, too"
    assert told["one"].provides == told["two"].provides == ()
    sole = load(settings=PluginSettings(allowed=frozenset({"two"})))
    assert records(sole)["two"].provides == ("probe shared", "probe of-two", "job check")


def test_who_is_out_for_another_reason_takes_no_name(load, plugin):
    plugin("broken", probe("shared") + registers("gpulayer_register_stagers", "None"))
    plugin("good", probe("shared"))
    host = load()
    assert records(host)["good"].status is PluginStatus.OK
    assert [(one.plugin, one.name) for one in seen(host.registry.probes)] == [("host", "host"), ("good", "shared")]


def test_a_deprecated_hook_works_and_leaves_a_note_in_the_record(load, plugin, tmp_path):
    plugin("old", probe("old"))
    plugin("new", registers("gpulayer_check_job", "[]"))
    host = load(deprecated={"gpulayer_register_probes": "implement gpulayer_see"})
    told = records(host)
    assert told["old"].hint == (
        "gpulayer_register_probes is deprecated: implement gpulayer_see (the plugin API 2.0 ends it)"
    )
    assert (told["old"].status, told["old"].error, told["old"].faults) == (PluginStatus.OK, "", 0)
    assert look(host, host.registry.probes[-1], tmp_path).cpus == 3
    assert {told[name].hint for name in ("new", "host")} == {""}
    assert records(load())["old"].hint == ""


def test_several_may_check_one_framework(load, plugin):
    check = (
        "class Check:\n    name = 'torch'\n    accelerators = ()\n    def script(self): return CheckScript('')\n"
        + registers("gpulayer_register_framework_checks", "[Check()]")
    )
    plugin("one", check)
    plugin("two", check)
    checks = [(one.plugin, one.name) for one in load().registry.framework_checks if one.name == "torch"]
    assert checks == [("frameworks", "torch"), ("one", "torch"), ("two", "torch")]


def test_one_module_under_two_names_is_one_too_many(load, site):
    install_distribution(
        site,
        "double",
        modules={"gpulayer_double": f'from gpulayer.plugins import *\nGPULAYER_API = "1.0"\n{probe("p")}'},
        plugins={"a": "gpulayer_double", "b": "gpulayer_double"},
    )
    told = records(load())
    assert told["a"].status is PluginStatus.OK
    assert told["b"].error == "its module gpulayer_double is that of the plugin a already"


def test_what_an_option_may_have_done_is_told_with_the_options_names(load, plugin):
    plugin("rack-2", registers("gpulayer_register_probes", "int(ctx.options['units'])"))
    plugin("poor", registers("gpulayer_register_probes", "1 / 0"))
    options = PluginSettings.of({"GPULAYER_PLUGIN_RACK_2_UNITS": "many!", "GPULAYER_PLUGIN_RACK_2_ROW": "secret-row"})
    told = records(load(settings=options))
    assert told["rack-2"].hint == (
        "look at its options (GPULAYER_PLUGIN_RACK_2_ROW, GPULAYER_PLUGIN_RACK_2_UNITS); "
        "gpulayer plugins check rack-2 shows where it failed"
    )
    assert told["poor"].hint == "tell the plugin's author; see its faults"


def test_all_at_once_the_good_one_and_cores_own_work(load, plugin, site, tmp_path):
    for name, (source, _) in REFUSED.items():
        plugin(name, source)
    plugin("import-hangs", "import time; time.sleep(600)")
    plugin("import-ends", "import os; os._exit(1)")
    plugin("import-crashes", "import os; os.kill(os.getpid(), 11)")
    plugin("import-raises", "1 / 0")
    plugin("future", "GPULAYER_API = '1.9'")
    plugin("env", probe("env") + "import os; os.environ.clear()")
    plugin("host", probe("x"))
    install_distribution(site, "b", modules={"gpulayer_b": ""}, plugins={"future": "gpulayer_b", "Bad Name": "x"})
    plugin("late", probe("late", "import time; time.sleep(30)"))
    plugin("good", probe("good"))
    host = load(Where.WORKER, import_deadline_s=2.0, register_deadline_s=1.0)
    told = records(host)
    assert told["good"].status is PluginStatus.OK
    assert "PATH" in os.environ
    working = {name for name, record in told.items() if record.status is PluginStatus.OK}
    # An outsider has the name "host"; what "lacks" registers is nothing that a worker asks for.
    assert working == set(BUILTINS) - {"host"} | {"env", "good", "late", "lacks"}
    by_name = {one.name: one for one in seen(host.registry.probes)}
    assert list(by_name) == ["host", "env", "good", "late"]
    with pytest.raises(PluginFault, match="no answer"):
        look(host, by_name["late"], tmp_path, deadline_s=0.05)
    assert look(host, by_name["good"], tmp_path).cpus == 3
    assert look(host, by_name["host"], tmp_path).cpus >= 1
    assert list(host.registry.launchers) == ["process"]
    host.close()
    for thread in threading.enumerate():
        if thread.name == "plugin-good":
            thread.join(10)
            assert not thread.is_alive()


def test_what_a_thing_says_of_itself_is_kept_beside_it(load, plugin):
    plugin(
        "says",
        "from gpulayer.plugins import Accelerator, EventKind\n"
        "class Scores:\n    name, lifetime_s = 's', 7\n    def score(self, batch): return []\n"
        "class Tells:\n    name, kinds = 't', frozenset({EventKind.JOB_ENDED})\n    def tell(self, event): pass\n"
        "class Check:\n    name, accelerators = 'c', (Accelerator.CPU,)\n    def script(self): return None\n"
        + registers("gpulayer_register_scorers", "[Scores()]")
        + registers("gpulayer_register_event_sinks", "[Tells()]")
        + registers("gpulayer_register_framework_checks", "[Check()]"),
    )
    registry = load(Where.PLANE).registry
    (scorer,), (sink,) = registry.scorers, [one for one in registry.event_sinks if one.plugin == "says"]
    assert (scorer.name, scorer.lifetime_s) == ("s", 7.0)
    assert (sink.name, sink.kinds) == ("t", frozenset({EventKind.JOB_ENDED}))
    (check,) = [one for one in load(Where.WORKER).registry.framework_checks if one.plugin == "says"]
    assert (check.name, check.accelerators) == ("c", (Accelerator.CPU,))
