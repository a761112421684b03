"""Plugins of every kind of badness, one by one and all at once, beside a good one and core's own."""

import asyncio
import dataclasses
import io
import logging
import os
import socket
import subprocess
import sys
import threading
from traceback import format_exception_only

import pytest

from gpulayer.clock import ManualClock, iso_utc
from gpulayer.errors import PluginFault
from gpulayer.plugins.builtin import BUILTINS
from gpulayer.plugins.contracts.context import Where
from gpulayer.plugins.contracts.event import EventKind, PlaneEvent
from gpulayer.plugins.contracts.probe import Findings, ProbeSite
from gpulayer.plugins.contracts.problem import Problem
from gpulayer.plugins.host import load_plugins
from gpulayer.plugins.record import PluginStatus
from gpulayer.plugins.results import instance_of, list_of
from gpulayer.plugins.settings import PluginSettings
from gpulayer.spec.request import Accelerator
from gpulayer.testing.distribution import install_distribution

PROBE = """
class Probe:
    name = {name!r}
    def look(self, site):
        {look}
@hookimpl
def gpulayer_register_probes(ctx):
    return [Probe()]
"""


def probe(name, look="return Findings(cpus=3)"):
    return PROBE.format(name=name, look=look)


def registers(hook, values):
    return f"@hookimpl\ndef {hook}(ctx): return {values}\n"


def look(host, registered, tmp_path, deadline_s=5.0):
    site = ProbeSite(tmp_path, {})
    return host.call(
        registered, "Probe.look", lambda thing: instance_of(Findings, thing.look(site)), deadline_s=deadline_s
    )


def records(host):
    return {record.name: record for record in host.records()}


def plugins_in(registry):
    """Of which plugins anything could be asked."""
    found = [getattr(registry, field.name) for field in dataclasses.fields(registry)]
    return {one.plugin for things in found for one in (things.values() if isinstance(things, dict) else things)}


def seen(things):
    """``host`` stands for all of core's own probes."""
    own = [thing for thing in things if thing.plugin in BUILTINS and thing.kind == "probe"]
    return [thing for thing in things if thing not in own or thing.name == "host"]


def names(things):
    return [thing.name for thing in seen(things)]


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


def test_only_those_that_are_named_are_imported_and_the_others_say_why_not(load, plugin):
    plugin("wanted", probe("wanted"))
    plugin("unwanted", "raise AssertionError('imported')")
    host = load(settings=PluginSettings(allowed=frozenset({"wanted", "wantde", "host"})))
    told = records(host)
    assert told["wanted"].status is PluginStatus.OK
    assert (told["unwanted"].status, told["unwanted"].error) == (
        PluginStatus.DISABLED,
        "GPULAYER_PLUGINS does not name it",
    )
    assert (told["wantde"].status, told["wantde"].hint) == (PluginStatus.BROKEN, "did you mean wanted?")
    assert told["host"].is_builtin
    host = load(settings=PluginSettings(allowed=frozenset()), python="/nowhere/python")
    assert {record.status for record in host.records() if not record.is_builtin} == {PluginStatus.DISABLED}
    assert names(host.registry.probes) == ["host"]


def test_an_import_that_changes_what_all_share_is_noted_and_undone_and_the_plugin_works(load, plugin, tmp_path):
    change = (
        "import os, sys, socket, gpulayer.plugins.results as r\n"
        "os.environ['LD_PRELOAD'] = 'x'; os.chdir('/'); os.umask(0); sys.stdout = None; socket.setdefaulttimeout(1)\n"
        "r.instance_of = None\n"
    )
    plugin("changes", probe("changes") + change)
    before = (os.getcwd(), sys.stdout, socket.getdefaulttimeout())
    host = load()
    assert (os.getcwd(), sys.stdout, socket.getdefaulttimeout()) == before
    assert "LD_PRELOAD" not in os.environ
    record = records(host)["changes"]
    assert record.status is PluginStatus.OK
    assert record.faults == 6
    assert {fault.hook for fault in record.last_faults} == {"import"}
    assert any("gpulayer.plugins.results (instance_of)" in fault.message for fault in record.last_faults)
    assert look(host, host.registry.probes[-1], tmp_path).cpus == 3


def test_one_that_behaves_in_the_child_alone_is_contained_here_too(load, plugin):
    """It knows where it is."""
    here = f"import os, sys, time\nif os.getpid() == {os.getpid()}:\n    "
    plugin("hangs", probe("a") + here + "time.sleep(30)\n")
    plugin("exits", probe("b") + here + "sys.exit(3)\n")
    plugin("turns", probe("c") + here + "GPULAYER_API = '7.0'\n")
    plugin("good", probe("good"))
    told = records(load(import_deadline_s=2.0))
    assert "no answer within 2 s" in told["hangs"].error
    assert "tried to end the process (exit 3" in told["exits"].error
    assert told["turns"].status is PluginStatus.INCOMPATIBLE
    assert told["good"].provides == ("probe good",)


def test_what_is_gone_after_an_import_takes_nobody_down(load, plugin):
    plugin("gone", probe("gone") + "import logging, sys\ndel sys.stdout, logging.root\nsys.path = None\n")
    plugin("good", probe("good"))
    stdout, path = sys.stdout, sys.path
    told = records(load())
    assert (sys.stdout, sys.path) == (stdout, path)
    assert told["gone"].status is told["good"].status is PluginStatus.OK
    assert told["gone"].faults == 3


def test_what_only_the_real_import_changes_and_cannot_be_put_back_is_refused(load, plugin, monkeypatch):
    plugin("mute", probe("mute") + f"import os, sys\nif os.getpid() == {os.getpid()}: sys.stdout.close()\n")
    plugin("good", probe("good"))
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    host = load()
    told = records(host)
    assert told["mute"].status is PluginStatus.BROKEN
    assert "its import changed sys.stdout" in told["mute"].error
    assert names(host.registry.probes) == ["host", "good"]


def test_one_that_hangs_at_its_import_is_waited_for_once(load, plugin, tmp_path):
    plugin("hangs", "import threading\nthreading.Event().wait()\n")
    plugin("raises", "1 / 0\n")
    plugin("good", probe("good"))
    first = records(load(import_deadline_s=1.0, marks=tmp_path / "marks"))
    assert first["hangs"].error == "its import takes longer than 1 s"
    again = records(load(import_deadline_s=1.0, marks=tmp_path / "marks"))
    assert (again["hangs"].status, again["hangs"].error) == (
        PluginStatus.BROKEN,
        "its import took longer than 1 s when it was tried last",
    )
    assert again["raises"].error == first["raises"].error
    assert again["good"].provides == ("probe good",)
    named = PluginSettings(allowed=frozenset({"hangs"}))
    assert records(load(settings=named, import_deadline_s=1.0, marks=tmp_path / "marks"))["hangs"] == first["hangs"]


def test_an_import_that_fails_names_the_line_of_the_plugin_not_of_what_it_called(load, plugin):
    plugin("raises", "from pathlib import Path\nPath('/no/such/file').read_text()\n", bare=True)
    assert records(load())["raises"].error.endswith("'/no/such/file' (gpulayer_raises.py, line 2)")


def test_secrets_of_its_options_are_in_no_record_and_no_log(load, plugin, caplog, tmp_path):
    source = (
        "import logging\n@hookimpl\ndef gpulayer_register_probes(ctx):\n"
        "    logging.getLogger('x').error('key %s', ctx.options['key']); raise ValueError(ctx.options['key'])\n"
        "@hookimpl\ndef gpulayer_register_stagers(ctx): return ctx.options['key']\n"
    )
    plugin("leaks", source)
    settings = PluginSettings.of({"GPULAYER_PLUGIN_LEAKS_KEY": "hunter2hunter2"})
    with caplog.at_level("DEBUG"):
        host = load(Where.WORKER, settings)
    record = records(host)["leaks"]
    assert "ValueError: ***" in record.error
    assert "key ***" in caplog.text
    assert "hunter2" not in caplog.text + repr(host.records()) + repr(host.registry)


@pytest.mark.parametrize("is_tried_first", [True, False])
@pytest.mark.parametrize(
    ("secret", "pieces"),
    [
        ("-----BEGIN KEY-----\nMIIEline1\nline2xyz\n-----END KEY-----", ("MIIE", "line2")),
        ("s1s2s3s4s5s6s7s8s9", ("s1s2", "s8s9")),
    ],
)
@pytest.mark.parametrize("before", [0, 270, 290, 380, 395])
def test_no_import_tells_a_secret_wherever_its_words_are_cut(
    load, plugin, monkeypatch, caplog, before, secret, pieces, is_tried_first
):
    """In the child that tries, which knows no secrets, and in this process."""
    monkeypatch.setenv("GPULAYER_PLUGIN_LEAKS_KEY", secret)
    here = os.getpid()
    when = "" if is_tried_first else f"if os.getpid() == {here}: "
    text = f"'x' * {before} + ' ' + os.environ['GPULAYER_PLUGIN_LEAKS_KEY']"
    plugin(
        "leaks", f"import os\n{when}raise RuntimeError({text})\n@hookimpl\ndef gpulayer_check_job(spec): return []\n"
    )
    with caplog.at_level("DEBUG"):
        host = load(settings=PluginSettings.of(dict(os.environ)))
    record = records(host)["leaks"]
    assert record.error.startswith("RuntimeError")
    assert "gpulayer_leaks.py, line 4" in record.error
    told = caplog.text + repr(host.records())
    assert [piece for piece in pieces if piece in told] == []


def test_options_of_core_s_own_plugins_are_hidden_although_nobody_else_s_is_installed(load, site):
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    logging.getLogger().addHandler(handler)
    try:
        load(settings=PluginSettings.of({"GPULAYER_PLUGIN_HOST_TOKEN": "hunter2hunter2"}), discover=lambda: ())
        logging.getLogger("somebody").warning("with hunter2hunter2")
    finally:
        logging.getLogger().removeHandler(handler)
    assert written.getvalue() == "with ***\n"


def test_one_that_fails_again_and_again_is_suspended_and_comes_back(load, plugin, tmp_path):
    plugin(
        "moody", probe("moody", "import os; return Findings(cpus=int(os.path.exists(site.work_dir / 'on')) or 1 / 0)")
    )
    clock = ManualClock()
    host = load(Where.WORKER, clock=clock)
    moody = host.registry.probes[-1]
    for _ in range(4):
        with pytest.raises(PluginFault):
            look(host, moody, tmp_path)
    record = records(host)["moody"]
    assert (record.status, record.faults, record.error) == (
        PluginStatus.SUSPENDED,
        3,
        "ZeroDivisionError: division by zero",
    )
    again = iso_utc(clock.wall_ms() + 30_000)[11:19]
    assert record.hint == f"it failed several times in a row, and is tried again at {again} UTC"
    clock.advance(10_000)
    assert records(host)["moody"].hint == record.hint, "a worker would tell of it again and again"
    (tmp_path / "on").touch()
    clock.advance(20_000)
    assert records(host)["moody"].hint.endswith(" is tried again when it is needed next")
    assert look(host, moody, tmp_path).cpus == 1
    assert records(host)["moody"].status is PluginStatus.OK


def test_one_that_is_uninstalled_meanwhile_works_on_and_says_so(load, plugin, tmp_path):
    clock = ManualClock()
    gone = plugin("gone", probe("gone"))
    newer = plugin("newer", probe("newer"))
    host = load(clock=clock)
    assert {record.error for record in host.records()} == {""}
    gone.uninstall()
    newer.uninstall()
    plugin("newer", probe("newer"), version="2.0")
    assert {record.error for record in host.records()} == {""}, "it is not looked for all the time"
    clock.advance(10_000)
    told = records(host)
    assert told["gone"].error == "gpulayer-gone 1.0 is not installed any more"
    assert told["newer"].error == "gpulayer-newer 2.0 is installed now, and 1.0 runs"
    assert told["gone"].status is PluginStatus.OK
    assert look(host, host.registry.probes[-1], tmp_path).cpus == 3


def test_one_that_is_installed_meanwhile_is_told_with_what_to_do(load, plugin):
    clock = ManualClock()
    host = load(clock=clock)
    assert "later" not in records(host)
    later = plugin("later", probe("later"), version="3.1")
    clock.advance(10_000)
    record = records(host)["later"]
    assert (record.status, record.version) == (PluginStatus.DISABLED, "3.1")
    assert record.error == "it was installed after this process started"
    assert record.hint.endswith("on your own machine: gpulayer down, then start again")
    assert "later" not in {one.plugin for one in host.registry.probes}
    later.uninstall()
    clock.advance(10_000)
    assert "later" not in records(host)


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


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("raise KeyError('mine')", KeyError),
        ("GPULAYER_API = '7.0'", PluginFault),
        (registers("gpulayer_register_probes", "1 / 0"), ZeroDivisionError),
        (registers("gpulayer_register_probes", "None"), TypeError),
        (registers("gpulayer_register_probes", "__import__('time').sleep(1)"), PluginFault),
        ("class Sealed(Exception):\n    __slots__ = ()\n    add_note = None\nraise Sealed", Exception),
    ],
)
def test_strict_raises_what_went_wrong_instead_and_says_whose_it_was(load, plugin, source, error):
    plugin("bad", source)
    with pytest.raises(error) as caught:
        load(settings=PluginSettings(strict=True), register_deadline_s=0.2)
    told = "".join(format_exception_only(caught.value))
    assert "plugin bad" in told
    assert told.count("of gpulayer-bad 1.0)") == 1


def test_who_waits_is_told_which_plugins_are_imported_and_when_none_is_any_more(load, plugin):
    plugin("good", probe("good"))
    plugin("odd", "raise KeyError('mine')")
    told = []
    load(trying=told.append)
    tried, imported = told[: told.index(())], told[told.index(()) + 1 :]
    assert tried in ([("good", "odd"), ("good",)], [("good", "odd"), ("odd",)])  # each goes when it is known
    assert imported == [("good",), ()]


def test_strict_with_good_ones_is_like_any_other_start(load, plugin):
    plugin("good", probe("good"))
    assert names(load(settings=PluginSettings(strict=True)).registry.probes) == ["host", "good"]


CRASH = """
import sys
from pathlib import Path
from traceback import format_exception_only
from gpulayer.clock import SystemClock
from gpulayer.plugins.contracts.context import Where
from gpulayer.plugins.host import load_plugins
from gpulayer.plugins.settings import PluginSettings
settings = PluginSettings(strict=True)
host = load_plugins(Where.WORKER, settings, clock=SystemClock(), version="0", marks=Path(sys.argv[1]))
kills = next(probe for probe in host.registry.probes if probe.name == "kills")
host.call(kills, "Probe.look", lambda thing: thing.look(None), deadline_s=5.0)
"""


def test_one_that_ends_the_process_in_a_call_is_known_afterwards_and_given_up_in_the_end(load, plugin, site, tmp_path):
    plugin("kills", probe("kills", "import os; os._exit(9)"))
    plugin("zz", probe("zz"))
    marks = tmp_path / "state" / "marks"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *sys.path])}
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", CRASH, marks], env=environment, timeout=60, check=False)
        assert done.returncode == 9
    host = load(marks=marks)
    record = records(host)["kills"]
    assert record.status is PluginStatus.BROKEN
    assert record.error == "the process ended during Probe.look of it, 3 times in a row"
    assert record.hint.endswith("or where GPULAYER_PLUGINS names it, which leaves out all that it does not name")
    assert record.last_faults[0].message == "the process before this one ended during Probe.look"
    assert names(host.registry.probes) == ["host", "zz"]
    host.close()
    host = load(marks=marks, settings=PluginSettings(allowed=frozenset({"kills"})))
    assert records(host)["kills"].status is PluginStatus.OK


def test_marks_that_cannot_be_kept_keep_nothing_from_working(load, plugin, tmp_path):
    plugin("good", probe("good"))
    (tmp_path / "file").touch()
    assert names(load(marks=tmp_path / "file" / "marks").registry.probes) == ["host", "good"]


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


def test_a_host_that_could_not_be_made_leaves_nothing_behind(site, plugin):
    plugin("bad", "1 / 0")
    filters = [list(handler.filters) for handler in logging.getLogger().handlers]
    settings = PluginSettings(strict=True, options={"bad": {"key": "hunter2"}})
    with pytest.raises(ZeroDivisionError):
        load_plugins(Where.CHECK, settings, clock=ManualClock(), version="0")
    assert [list(handler.filters) for handler in logging.getLogger().handlers] == filters


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
