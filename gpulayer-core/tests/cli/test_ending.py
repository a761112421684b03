"""The end of a process that plugins have run in: nothing that they left in it keeps it, and its code is its own."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest

import gpulayer
from gpulayer.cli import down, plugins
from gpulayer.client import embedded
from gpulayer.client.embedded import EmbeddedPlane, ensure_plane, find_plane, is_stale, is_starting
from gpulayer.errors import Unreachable
from gpulayer.plugins import Where
from gpulayer.server.local_worker import LocalWorker
from gpulayer.testing.distribution import install_plugin
from gpulayer.variables import background_variables

LASTING = {
    "thread": "threading.Thread(target=threading.Event().wait).start()",
    "atexit": "atexit.register(threading.Event().wait)",
    "finalizer": "sys.kept = type('Kept', (), {'__del__': lambda self: time.sleep(1000)})()",
    "stream": "threading.Thread(target=hold, daemon=True).start(); held.wait()",
}
PROGRAM = """
import atexit, sys, threading, time
from gpulayer.cli.ending import end_with

held = threading.Event()

class Blocked:
    def write(self, text): return len(text)
    def flush(self):
        held.set()
        time.sleep(1000)

def hold():
    sys.stderr = Blocked()
    sys.stderr.flush()

def run():
    print("said")
    %s
    %s

end_with(run)
"""


def end(lasting, ending):
    program = [sys.executable, "-P", "-c", PROGRAM % (lasting, ending)]
    return subprocess.run(program, capture_output=True, text=True, timeout=30, check=False)


@pytest.mark.parametrize("lasting", LASTING.values(), ids=list(LASTING))
def test_nothing_that_was_left_in_a_process_keeps_it_or_its_last_words(lasting):
    ended = end(lasting, "return 3")
    assert (ended.returncode, ended.stdout) == (3, "said\n")


@pytest.mark.parametrize(
    ("ending", "code", "told"),
    [
        ("return 0", 0, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit(4)", 4, ""),
        ("sys.exit('no such thing')", 1, "no such thing\n"),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt"),
        ("raise RuntimeError('a fault')", 1, "RuntimeError: a fault"),
    ],
)
def test_each_way_to_end_has_the_code_and_the_words_that_python_gives_it(ending, code, told):
    ended = end("pass", ending)
    assert ended.returncode == code
    assert told in ended.stderr
    assert bool(told) == bool(ended.stderr)


# Real control planes and workers.

HOOKS = """
import atexit, ctypes, os, sys, threading, time
from gpulayer.plugins import hookimpl

GPULAYER_API = "1.0"


def leave(ctx):
{body}


@hookimpl
def gpulayer_register_probes(ctx):
    leave(ctx)
    return []


@hookimpl
def gpulayer_register_scorers(ctx):
    leave(ctx)
    return []
"""

# Holds the interpreter for good, and so every thread, signal handler and lock.
FREEZES = """
    def freeze():
        while not os.path.exists(ctx.options["flag"]):
            time.sleep(0.02)
        open(f"{ctx.options['flag']}-{ctx.where}", "w").close()
        ctypes.PyDLL(None).sleep(1000)

    if ctx.where in WHERES:
        threading.Thread(target=freeze, daemon=True).start()
"""


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Where plugins are installed for whatever is started from now on."""
    (tmp_path / "site").mkdir()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")]))
    return tmp_path / "site"


@pytest.fixture
def run(program, away):
    """Run the program to its end: (exit code, stdout, stderr)."""

    def call(*argv):
        process = program(*argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, err = process.communicate(timeout=90)
        return process.returncode, out.decode(), err.decode()

    yield call
    for pid in pids(away.parent / "state"):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def pids(state):
    """Of a control plane and its worker, as their locks say."""
    found = []
    for lock in (state / "plane.lock", state / "worker" / "agent.lock"):
        with suppress(OSError):
            found += [int(word) for word in lock.read_text().split()[:1]]
    return found


def have_ended(processes):
    return all(not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie" for pid in processes)


def test_threads_exit_handlers_and_finalizers_of_plugins_keep_neither_control_plane_nor_worker(run, site, away):
    for name in ("thread", "atexit", "finalizer"):
        install_plugin(site, name, HOOKS.format(body=f"    {LASTING[name]}"))
    code, _, err = run("submit", "--quiet", "--", "true")
    assert code == 0, err
    started = pids(away.parent / "state")
    assert len(started) == 2
    code, _, err = run("down")
    assert (code, err) == (0, "the control plane has ended\n")
    assert have_ended(started)


def test_a_control_plane_in_the_foreground_ends_too(program, site):
    install_plugin(site, "thread", HOOKS.format(body=f"    {LASTING['thread']}"))
    process = program("up", "--no-worker", "--host", "127.0.0.1", "--port", "0", stderr=subprocess.PIPE, text=True)
    while "serves" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert err.splitlines()[-1] == "the control plane has ended"


@pytest.fixture
def frozen(run, site, away, monkeypatch):
    """Start a control plane and its worker, with a plugin that then freezes some of them: (its pid, its worker's)."""
    for name, value in {"_ANSWER_S": 1.0, "_TERM_S": 0.5, "_DEADLINE_S": 2.0, "_QUIET_S": 0.5}.items():
        monkeypatch.setattr(down, name, value)
    monkeypatch.setattr(down, "_SOON", replace(down._SOON, answer_s=1.0))
    monkeypatch.setattr(down, "LocalWorker", partial(LocalWorker, agent_s=0.5))
    monkeypatch.setattr(plugins, "_ANSWER_S", 1.0)

    def start(*wheres):
        flag = away / "flag"
        monkeypatch.setenv("GPULAYER_PLUGIN_FREEZES_FLAG", str(flag))
        body = FREEZES.replace("WHERES", repr([str(where) for where in wheres]))
        install_plugin(site, "freezes", HOOKS.format(body=body))
        code, _, err = run("submit", "--quiet", "--", "true")
        assert code == 0, err
        flag.touch()
        ends = time.monotonic() + 20
        while not all(Path(f"{flag}-{where}").exists() for where in wheres):
            assert time.monotonic() < ends
            time.sleep(0.01)
        return pids(away.parent / "state")

    return start


def test_a_frozen_control_plane_is_given_up_on_by_who_only_looks_and_killed_by_down(frozen, cli, away):
    plane, worker = frozen(Where.PLANE, Where.WORKER)
    said = cli("plugins")
    assert said.code == 0
    assert b"freezes" in said.out
    assert "it gave no answer within 1 s" in said.err
    said = cli("down")
    assert said.code == 0
    assert f"the control plane (process {plane}) does not answer: ending its process\n" in said.err
    assert f"killed the control plane (process {plane}): it neither answered nor ended within 0 s" in said.err
    assert "the worker and what it ran have ended" in said.err
    assert have_ended([plane, worker])
    assert not (away.parent / "state" / "endpoint.json").exists()
    assert cli("down").err.startswith("no control plane runs here")


def test_a_control_plane_that_is_not_done_at_the_deadline_is_killed_with_its_worker(frozen, cli):
    plane, worker = frozen(Where.WORKER)
    said = cli("down")
    assert said.code == 0
    assert f"waiting for the control plane (process {plane}) and its worker, 2 s at most\n" in said.err
    assert f"killed the control plane (process {plane}): it did not end within 2 s of being asked to\n" in said.err
    assert have_ended([plane, worker])


def test_one_that_is_stopped_goes_on_to_end_in_good_order(run, cli, away, monkeypatch):
    monkeypatch.setattr(down, "_SOON", replace(down._SOON, answer_s=0.5))
    monkeypatch.setattr(down, "_ANSWER_S", 0.5)
    code, _, err = run("submit", "--quiet", "--", "true")
    assert code == 0, err
    started = pids(away.parent / "state")
    os.kill(started[0], signal.SIGSTOP)
    said = cli("down")
    assert said.code == 0
    assert "does not answer: ending its process\nthe control plane has ended\n" in said.err
    assert "killed" not in said.err
    assert have_ended(started)


@pytest.mark.parametrize("name", ["endpoint.json", "endpoint.json.former"])
def test_who_says_down_to_a_start_does_not_want_the_one_before_it_back(cli, away, name):
    """A start that was called off leaves what the plane before it left, which makes the next command start it."""
    state = away.parent / "state"
    state.mkdir()
    program = (
        "import fcntl, os, sys, time; lock = open(sys.argv[1], 'w'); fcntl.flock(lock, fcntl.LOCK_EX);"
        " lock.write(f'{os.getpid()}\\n'); lock.flush(); print(flush=True); time.sleep(60)"
    )
    starting = subprocess.Popen([sys.executable, "-c", program, str(state / "plane.lock")], stdout=subprocess.PIPE)
    ended = subprocess.Popen(["true"])
    ended.wait()
    (state / name).write_text(json.dumps({"pid": ended.pid}))
    try:
        starting.stdout.readline()
        reaper = threading.Thread(target=starting.wait)
        reaper.start()
        assert "the control plane has ended" in cli("down").err
        reaper.join()
    finally:
        starting.kill()
        starting.communicate()
    assert not (state / name).exists()


def test_down_sees_to_it_that_nobody_starts_one_that_was_killed_again(run, away):
    """Neither it, with its address and port, nor the one before it, nor one whose PID is somebody else's by now."""
    state = away.parent / "state"
    code, _, err = run("up", "--detach", "--no-worker", "--host", "127.0.0.1", "--port", "0")
    assert code == 0, err
    said = json.loads((state / "endpoint.json").read_bytes())
    os.kill(said["pid"], signal.SIGKILL)
    ends = time.monotonic() + 20
    while not is_stale(state):
        assert time.monotonic() < ends
        time.sleep(0.01)
    (state / "endpoint.json.former").write_text(json.dumps({**said, "pid": os.getpid()}))
    (state / "endpoint.json").write_text(json.dumps({**said, "pid": os.getpid()}))
    code, _, err = run("down")
    assert code == 0
    assert err.startswith("no control plane runs here")
    assert f"the one at {said['url']} had died, and is not started again as it was" in err
    assert not list(state.glob("endpoint.json*"))
    assert not is_stale(state)
    code, _, err = run("job", "list")
    assert code == 0, err
    assert json.loads((state / "endpoint.json").read_bytes())["embedded"] is True
    assert run("down")[0] == 0


@pytest.fixture
def died_before_down(run, away, monkeypatch):
    """A control plane of ``gpulayer up`` has died; what is started in its place has no lock yet when down is said."""
    state = away.parent / "state"
    code, _, err = run("up", "--detach", "--no-worker", "--host", "127.0.0.1", "--port", "0")
    assert code == 0, err
    os.kill(json.loads((state / "endpoint.json").read_bytes())["pid"], signal.SIGKILL)
    ends = time.monotonic() + 20
    while not is_stale(state):
        assert time.monotonic() < ends
        time.sleep(0.01)
    begin, said = embedded.start_detached, []

    def late(argv, **options):
        if not said:
            said.append(run("down"))
        return begin(argv, **options)

    monkeypatch.setattr(embedded, "start_detached", late)
    plane = EmbeddedPlane(state, gpulayer.__version__, background_variables(os.environ), idle_exit_s=60)
    yield plane, said
    assert run("down")[0] == 0


def test_what_a_follower_starts_does_not_come_up_after_down(died_before_down):
    plane, said = died_before_down
    with pytest.raises(Unreachable, match="has ended"):
        ensure_plane(plane, only_died=True)
    assert said[0][0] == 0
    assert "is not started again as it was" in said[0][2]
    assert find_plane(plane.state_dir) is None
    assert not is_starting(plane.state_dir)
    assert not is_stale(plane.state_dir)


def test_a_command_that_needs_one_after_down_gets_a_background_one(died_before_down):
    plane, said = died_before_down
    found = ensure_plane(plane)
    assert found.endpoint.embedded
    assert "is not started again as it was" in said[0][2]


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_start_that_down_calls_off_has_nothing_to_put_back_when_it_is_told(cli, away, monkeypatch, is_killed):
    """Whoever looks between its end and the clean-up after it would start the one before it again."""
    monkeypatch.setattr(down, "_TERM_S", 0.3)
    monkeypatch.setattr(down, "_QUIET_S", 0.1)
    state = away.parent / "state"
    state.mkdir()
    program = (
        "import fcntl, os, signal, sys, pathlib, time; state = pathlib.Path(sys.argv[1]);"
        " lock = open(state / 'plane.lock', 'w'); fcntl.flock(lock, fcntl.LOCK_EX);"
        " lock.write(f'{os.getpid()}\\n'); lock.flush();"
        " seen = lambda: (state / 'seen').write_text(' '.join(p.name for p in state.glob('endpoint*')));"
        " signal.signal(signal.SIGTERM, lambda *_: (seen(), sys.argv[2] == 'ends' and os._exit(0)));"
        " print(flush=True); time.sleep(60)"
    )
    argv = [sys.executable, "-c", program, str(state), "stays" if is_killed else "ends"]
    (state / "endpoint.json.former").write_text(json.dumps({"pid": os.getpid()}))
    starting = subprocess.Popen(argv, stdout=subprocess.PIPE)
    try:
        starting.stdout.readline()
        reaper = threading.Thread(target=starting.wait)
        reaper.start()
        assert cli("down").code == 0
        reaper.join()
    finally:
        starting.kill()
        starting.communicate()
    assert (state / "seen").read_text() == ""
    assert not list(state.glob("endpoint*"))


def test_only_who_has_the_folder_is_ever_signalled(cli, away):
    """The lock's file says who had it last, and the system may have given that number to somebody else."""
    state = away.parent / "state"
    state.mkdir()
    somebody = subprocess.Popen(["sleep", "60"])
    try:
        (state / "plane.lock").write_text(f"{somebody.pid}\n")
        assert cli("down").err.startswith("no control plane runs here")
        assert somebody.poll() is None
    finally:
        somebody.kill()
        somebody.wait()
