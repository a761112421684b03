"""What an import may do: nothing that it does takes this process down, and nothing of it is left in it."""

import io
import logging
import os
import socket
import sys
from traceback import format_exception_only

import pytest

from gpulayer.clock import ManualClock
from gpulayer.errors import PluginFault
from gpulayer.plugins.contracts.context import Where
from gpulayer.plugins.host import load_plugins
from gpulayer.plugins.record import PluginStatus
from gpulayer.plugins.settings import PluginSettings
from tests.made_plugins import look, names, probe, records, registers


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


def test_a_host_that_could_not_be_made_leaves_nothing_behind(site, plugin):
    plugin("bad", "1 / 0")
    filters = [list(handler.filters) for handler in logging.getLogger().handlers]
    settings = PluginSettings(strict=True, options={"bad": {"key": "hunter2"}})
    with pytest.raises(ZeroDivisionError):
        load_plugins(Where.CHECK, settings, clock=ManualClock(), version="0")
    assert [list(handler.filters) for handler in logging.getLogger().handlers] == filters
