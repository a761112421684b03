"""What becomes of plugins after the start: of those that fail, that end the process, that come or that go."""

import os
import subprocess
import sys

import pytest

from gpulayer.clock import ManualClock, iso_utc
from gpulayer.errors import PluginFault
from gpulayer.plugins.contracts.context import Where
from gpulayer.plugins.record import PluginStatus
from gpulayer.plugins.settings import PluginSettings
from tests.made_plugins import look, names, probe, records


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
