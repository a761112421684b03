"""Whatever an import does, it does it to a child, and what became of it is said."""

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest

from gpulayer.plugins.discovery import Found
from gpulayer.plugins.preflight import try_imports
from gpulayer.plugins.record import PluginStatus

# What can be put back, or comes to an end.
TAME = {
    "streams": "import sys\ndel sys.stdout\nsys.path = None",
    "soft": "import resource as r\nr.setrlimit(r.RLIMIT_NOFILE, (8, r.getrlimit(r.RLIMIT_NOFILE)[1]))",
    "alarm": "import signal\nsignal.alarm(3)",
    "logs": "import logging.config\nlogging.config.dictConfig({'version': 1})",
    "ends": "import atexit\natexit.register(print)",
    "forks": "import os\npid = os.fork()\nif not pid: os._exit(0)\nos.waitpid(pid, 0)",
    "runs": "import subprocess\nsubprocess.run(['true'])",
}
GOOD = "@hookimpl\ndef gpulayer_register_probes(ctx): return []\n"
SLEEP = "import time\ntime.sleep(600)\n"
# By name: source, what is said of it, and of the hint.
BAD = {
    "raises": ("raise ValueError('no\\nluck')", "ValueError: no luck (gpulayer_raises.py, line 3)", "may be broken"),
    "syntax": ("x = = 1", "SyntaxError: invalid syntax (gpulayer_syntax.py, line 3)", "may be broken"),
    "needs": ("import not_there.part", "ModuleNotFoundError: No module named 'not_there'", "needs not_there, which"),
    "exits": ("raise SystemExit(4)", "its import tried to end the process (exit 4", "only defines"),
    "ends": ("import os\nos._exit(0)", "its import ended the process (exit 0)", "only defines"),
    "crashes": (
        "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)",
        "ended the process (SIGSEGV)",
        "only defines",
    ),
    "hangs": (SLEEP, "takes longer than 2 s", "only defines"),
    "spins": ("while True: pass", "takes longer than 2 s", "only defines"),
    "deaf": (
        "import signal\nfor n in (1, 2, 14, 15): signal.signal(n, signal.SIG_IGN)\n" + SLEEP,
        "ValueError: signal only",
        "",
    ),
    "loud": (
        "import os\nwhile True: os.write(1, b'x' * 9999); os.write(2, b'x' * 9999); print('x')",
        "longer than 2 s",
        "",
    ),
    "greedy": ("x = []\nwhile True: x.append(b'x' * (8 << 20))", "takes more than 90 MiB of memory", "only defines"),
    "closes": ("import os\nos.closerange(0, 1000)", "its import ended the process", "only defines"),
    "evil": ("class E(Exception):\n    def __str__(self): raise self\nraise E", "fails to say what it is", ""),
    "rubbish": ("import sys\nsys.modules[__name__] = 7", "what was imported is no module", "sys.modules"),
    "future": ("GPULAYER_API = '9.0'\n" + GOOD, "it needs the plugin API 9.0", "upgrade gpulayer-core"),
    "forks": (GOOD + "import os\nos.fork()", "its import makes a copy of the process", "only defines"),
    "copies": (
        GOOD + "import os, time\nif not os.fork(): time.sleep(600)",
        "its import makes a copy of the process",
        "only defines",
    ),
    "threads": (
        GOOD + "import threading as t\nt.Thread(target=t.Event().wait, daemon=False).start()",
        "leaves a thread running that is no daemon",
        "only defines",
    ),
    "stays": (
        GOOD + "import atexit, threading\natexit.register(threading.Event().wait)",
        "at the end of the process (atexit) does not end",
        "only defines",
    ),
    "leaves": (
        GOOD + "import atexit, os\natexit.register(os._exit, 3)",
        "at the end of the process (atexit) does not end",
        "only defines",
    ),
    "limits": (
        GOOD + "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))",
        "its import changes hard limits of the process (RLIMIT_NOFILE)",
        "only defines",
    ),
    "mute": (GOOD + "import sys\nsys.stdout.close()", "changes sys.stdout, which all", "only defines"),
    "dup": (GOOD + "import os\nos.dup2(os.open('/dev/zero', os.O_RDONLY), 0)", "the file descriptor 0", "only"),
    "empty": ("", "it implements no hook", "@hookimpl"),
}
STRAGGLER = (
    "import os, subprocess, sys\n"
    "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', __file__], start_new_session={new})\n"
)


def found(name):
    return Found(name, f"gpulayer_{name}", f"gpulayer-{name}", "1.0")


def running(folder):
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if str(folder) in " ".join(process.info["cmdline"] or ())
    ]


@pytest.fixture
def attempt(plugin):
    def attempt(sources, *, deadline_s=1.0, memory_bytes=90 << 20, **more):
        for name, source in sources.items():
            plugin(name, source)
        names = [found(name) for name in sources]
        return try_imports(names, python=sys.executable, deadline_s=deadline_s, memory_bytes=memory_bytes, **more)

    return attempt


def test_bad_ones_are_told_apart_and_the_good_one_among_them_is_good(attempt, capfd):
    tried = attempt({"good": GOOD, **{name: source for name, (source, _, _) in BAD.items()}}, deadline_s=2.0)
    for name, (_, error, hint) in BAD.items():
        told = tried[name].inspected
        assert error in told.error, name
        assert hint in told.hint, name
        assert told.status is (PluginStatus.INCOMPATIBLE if name == "future" else PluginStatus.BROKEN)
        assert "\n" not in told.error
    assert tried["good"].inspected.status is PluginStatus.OK
    assert tried["good"].inspected.hooks == ("gpulayer_register_probes",)
    assert tried["good"].faults == ()
    assert capfd.readouterr() == ("", "")


def test_what_can_be_put_back_or_comes_to_an_end_is_no_reason_to_refuse(attempt):
    tried = attempt({name: f"{GOOD}{source}\n" for name, source in TAME.items()}, deadline_s=20.0)
    assert {name: one.inspected.error for name, one in tried.items()} == dict.fromkeys(TAME, "")
    assert {one.faults for one in tried.values()} == {()}


def test_however_many_hang_they_take_one_deadline_and_each_is_told_as_it_is_known(attempt, tmp_path):
    """All have begun before the first of them is given up."""
    told = []

    def tell(name, one):
        told.append((name, one.is_late, sum(1 for _ in tmp_path.glob("begun-*"))))

    begins = f"open(f'{tmp_path}/begun-' + __name__, 'w').close()\n"
    hang = {**{f"hang{number:02}": begins + SLEEP for number in range(20)}, "spin": begins + "while True: pass"}
    tried = attempt({**hang, "good": GOOD}, deadline_s=4.0, told=tell)
    assert told[0][:2] == ("good", False)
    assert sorted(told[1:]) == sorted((name, True, len(hang)) for name in hang)
    assert tried.keys() == {*hang, "good"}


def test_one_that_is_not_there_at_all_is_told_by_its_entry_point(attempt):
    told = try_imports([found("nowhere")], python=sys.executable)["nowhere"].inspected
    assert told.error == "its entry point names the module gpulayer_nowhere, which is not there"


def test_what_an_import_leaves_running_is_ended_and_noted(attempt, site):
    tried = attempt(
        {
            "group": GOOD + STRAGGLER.format(new=False),
            "session": GOOD + STRAGGLER.format(new=True),
            "daemon": GOOD + "import threading as t\nt.Thread(target=t.Event().wait, daemon=True).start()\n",
        },
        deadline_s=5.0,
    )
    assert {one.inspected.status for one in tried.values()} == {PluginStatus.OK}
    for name in ("group", "session"):
        [fault] = tried[name].faults
        assert fault.startswith("its import left a process running (")
    assert tried["daemon"].faults == ()
    deadline = time.monotonic() + 10
    while running(site) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert running(site) == []


def test_one_that_ends_the_child_of_all_is_found_and_the_others_are_tried_again(attempt, site):
    tried = attempt(
        {"good": GOOD, "patricide": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\n" + SLEEP, "fine": GOOD},
        deadline_s=3.0,
    )
    assert tried["patricide"].inspected.error == "its import ended the process (SIGKILL)"
    assert tried["good"].inspected.status is tried["fine"].inspected.status is PluginStatus.OK


def test_where_there_is_no_fork_each_has_a_child_of_its_own(attempt):
    wanted = ("raises", "ends", "hangs")
    tried = attempt({"good": GOOD, **{name: BAD[name][0] for name in wanted}}, can_fork=False, deadline_s=1.0)
    assert tried["good"].inspected.status is PluginStatus.OK
    assert "ValueError: no luck" in tried["raises"].inspected.error
    assert "ended the process (exit 0)" in tried["ends"].inspected.error
    assert "takes longer than 1 s" in tried["hangs"].inspected.error


def test_for_no_plugin_nothing_is_started():
    assert try_imports([], python="/nowhere/python") == {}


def test_a_python_that_cannot_be_started_is_said():
    told = try_imports([found("a")], python="/nowhere/python")["a"].inspected
    assert told.error == "its import can't be tried: /nowhere/python: No such file or directory"


def test_imports_see_the_same_path_and_variables_and_nothing_is_left_in_either(attempt, site, monkeypatch):
    monkeypatch.setenv("A_VARIABLE", "1")
    source = GOOD + f"import os, sys\nassert os.environ['A_VARIABLE'] == '1'\nassert {str(site)!r} in sys.path\n"
    assert attempt({"looks": source})["looks"].inspected.error == ""
    assert not any(name.startswith("gpulayer_") for name in sys.modules if "looks" in name)
    assert Path(site).exists()


def test_the_child_can_be_asked_by_hand(plugin, site):
    plugin("good", GOOD)
    order = {
        "path": [],
        "plugins": [asdict(found("good"))],
        "deadline_s": 5.0,
        "memory_bytes": None,
        "is_forking": True,
    }
    done = subprocess.run(
        [sys.executable, "-m", "gpulayer.plugins.preflight"],
        input=json.dumps(order),
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *sys.path])},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    begun, told = done.stdout.splitlines()
    assert begun == "begun good"
    assert json.loads(told)["inspected"]["status"] == "ok"
