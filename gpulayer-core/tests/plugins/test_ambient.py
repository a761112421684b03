"""What an import must not change, changed all at once and put back."""

import asyncio
import builtins
import gc
import locale
import logging
import logging.config
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from gpulayer.plugins import guard
from gpulayer.plugins.ambient import Ambient, Place


def act(change):
    """What is said of it; and a second look finds nothing."""
    before = Ambient()
    try:
        change()
    finally:
        said = before.put_back()
    assert before.put_back() == ()
    return said


def chdir():
    os.chdir("/")


def limit_files(soft):
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


class Evil:
    """Whoever touches it is hurt."""

    def _hurt(self, *_, **__):
        raise SystemExit(3)

    __eq__ = __ne__ = __hash__ = __str__ = __repr__ = __getattribute__ = __call__ = __bool__ = __iter__ = _hurt


class Socket(socket.socket):
    pass


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda: os.environ.update(GPULAYER_X="secret"), "os.environ (GPULAYER_X)"),
        (lambda: os.environ.pop("PATH"), "os.environ (PATH)"),
        (chdir, "the working directory"),
        (lambda: os.umask(0o007), "the umask"),
        (sys.path.clear, "sys.path ("),
        (lambda: setattr(sys, "stdout", None), "sys.stdout"),
        (lambda: setattr(sys, "stderr", None), "sys.stderr"),
        (lambda: setattr(sys, "excepthook", print), "sys.excepthook"),
        (lambda: setattr(threading, "excepthook", print), "threading (excepthook)"),
        (lambda: locale.setlocale(locale.LC_NUMERIC, "C.UTF-8"), "the locale"),
        (lambda: socket.setdefaulttimeout(1.0), "the default time-out of sockets"),
        (lambda: logging.getLogger().setLevel(1), "the level of the root logger"),
        (lambda: logging.getLogger().addHandler(logging.NullHandler()), "the handlers of the root logger"),
        (lambda: logging.disable(50), "logging.disable"),
        (lambda: sys.setrecursionlimit(5000), "the recursion limit"),
        (gc.disable, "the garbage collector"),
        (lambda: delattr(sys, "stdout"), "sys.stdout"),
        (lambda: setattr(sys, "stdout", Evil()), "sys.stdout"),
        (lambda: setattr(sys, "excepthook", Evil()), "sys.excepthook"),
        (lambda: setattr(sys, "path", None), "sys.path"),
        (lambda: sys.path.__setitem__(slice(None), [Evil()]), "sys.path ("),
        (lambda: sys.path.append(Evil()), "sys.path (a Evil)"),
        (sys.meta_path.clear, "sys.meta_path ("),
        (lambda: setattr(sys, "modules", {}), "sys.modules"),
        (lambda: sys.modules.pop("socket"), "sys.modules (socket)"),
        (lambda: sys.modules.update(json=Evil()), "sys.modules (json)"),
        (lambda: delattr(logging, "root"), "logging.root"),
        (lambda: setattr(logging.root, "handlers", Evil()), "the handlers of the root logger"),
        (lambda: setattr(logging.root, "level", Evil()), "the level of the root logger"),
        (lambda: setattr(os, "environ", Evil()), "os.environ"),
        (lambda: setattr(os.environ, "_data", {}), "os.environ"),
        (lambda: os.environ._data.update({b"A": Evil()}), "os.environ (A)"),
        (lambda: setattr(os, "getcwd", Evil()), "os (getcwd)"),
        (lambda: setattr(guard.Guard, "call", Evil()), "gpulayer.plugins.guard.Guard (call)"),
        (lambda: logging.getLogger("gpulayer").setLevel(60), "loggers of others (gpulayer)"),
        (lambda: setattr(logging.getLogger("gpulayer.plugins.guard"), "disabled", True), "loggers of others ("),
        (lambda: limit_files(100), "limits of the process (RLIMIT_NOFILE)"),
        (lambda: signal.alarm(300), "a timer of the process"),
        (lambda: signal.setitimer(signal.ITIMER_PROF, 300.0, 1.0), "a timer of the process"),
        (lambda: asyncio.set_event_loop_policy(asyncio.DefaultEventLoopPolicy()), "the event loop policy"),
        (lambda: setattr(builtins, "open", None), "builtins (open)"),
        (lambda: delattr(builtins, "vars"), "builtins (vars)"),
        (lambda: setattr(socket, "socket", Socket), "socket (socket)"),
        (lambda: setattr(subprocess, "Popen", None), "subprocess (Popen)"),
        (lambda: setattr(guard, "Life", None), "gpulayer.plugins.guard (Life)"),
        (lambda: delattr(guard, "_told"), "gpulayer.plugins.guard (_told)"),
        (lambda: setattr(guard.Guard, "call", None), "gpulayer.plugins.guard.Guard (call)"),
    ],
)
def test_what_the_process_shares_is_named_and_put_back(change, said):
    [one] = act(change)
    assert one.startswith(said)
    assert "secret" not in one


def test_all_at_once():
    def change():
        os.environ["PATH"] = "b"
        os.umask(0o007)
        socket.setdefaulttimeout(1.0)
        builtins.sorted = None
        os.getcwd = None
        os.chdir("/")

    assert len(act(change)) == 6
    assert sorted([2, 1]) == [1, 2]
    assert os.getcwd() != "/"


def test_adding_is_nobodys_harm():
    def change():
        sys.path.append("/nowhere")
        guard.new_name = 1
        socket.new_name = print
        os.environ.setdefault("ACME_HOME", "/opt/acme")

    assert act(change) == ()
    assert "/nowhere" in sys.path
    assert os.environ.pop("ACME_HOME") == "/opt/acme"
    sys.path.remove("/nowhere")
    del guard.new_name, socket.new_name


def test_a_variable_that_is_new_stays_after_an_import_alone():
    before = Place.now()
    os.environ["ACME_HOME"] = "/opt/acme"
    assert before.put_back(is_import=True) == ()
    assert before.put_back() == ("os.environ (ACME_HOME)",)
    assert "ACME_HOME" not in os.environ


def test_many_names_are_counted():
    [said] = act(lambda: os.environ.update({f"LD_{number}": "" for number in range(9)}))
    assert said == "os.environ (LD_0, LD_1, LD_2, LD_3, LD_4 and 4 more)"


def test_signal_handlers_are_the_main_threads_own_business():
    was = signal.getsignal(signal.SIGUSR1)
    assert act(lambda: signal.signal(signal.SIGUSR1, signal.SIG_IGN)) == ()
    signal.signal(signal.SIGUSR1, was)


def test_a_working_directory_that_is_gone_is_no_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gone").mkdir()
    os.chdir("gone")
    os.rmdir(tmp_path / "gone")
    before = Place.now()
    assert before.put_back() == ()
    os.chdir(tmp_path)
    assert before.put_back() == ("the working directory",)


def test_beside_other_threads_it_does_not_look_at_what_gpulayer_sets_while_it_starts():
    """A control plane switches the collector off, imports, and switches it on: an import of a plugin may span that."""
    gc.disable()
    try:
        before = Ambient(is_shared=True)
        gc.enable()
        assert before.put_back() == ()
        assert gc.isenabled()
    finally:
        gc.enable()


def test_a_module_that_another_thread_imports_just_now_becomes_what_it_will_be(monkeypatch):
    """For a while its names may be others than in the end."""
    module = ModuleType("gpulayer.half")
    module.__spec__ = ModuleSpec("gpulayer.half", None)
    module.__spec__._initializing = True
    module.act = print
    monkeypatch.setitem(sys.modules, "gpulayer.half", module)
    before = Ambient()
    module.act = sorted
    assert before.put_back() == ()
    assert module.act is sorted


@pytest.mark.parametrize("name", [5, None, b"x\xff", "text"])
def test_variables_that_no_system_knows_are_taken_out_and_nothing_raises(name):
    before = Place.now()
    os.environ._data[name] = b"secret"
    [said] = before.put_back()
    assert said.startswith("os.environ (")
    assert "secret" not in said
    assert before.put_back() == ()


def test_logging_that_was_configured_as_a_whole_works_as_before(tmp_path):
    """A common mistake: it switches off all loggers that there are, and closes all handlers."""
    handler = logging.FileHandler(tmp_path / "log")
    handler.addFilter(lambda record: True)
    ours, others = logging.getLogger("gpulayer.plugins.guard"), logging.getLogger("somebody.else")
    logging.root.addHandler(handler)
    before = Ambient()
    logging.config.dictConfig({"version": 1, "root": {"handlers": [], "level": "CRITICAL"}})
    handler.filters.clear()
    handler.setLevel(60)
    try:
        assert "the handlers of the root logger" in before.put_back()
        ours.warning("one")
        others.warning("two")
        assert (tmp_path / "log").read_text().split() == ["one", "two"]
        assert len(handler.filters) == 1
        assert before.lasting() == ()
    finally:
        logging.root.removeHandler(handler)
        handler.close()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))", "hard limits of the process (RLIMIT_NOFILE)"),
        ("sys.stdout.close()", "sys.stdout"),
        ("os.dup2(os.open(os.devnull, os.O_WRONLY), 1)", "the file descriptor 1"),
        ("os.close(2)", "the file descriptor 2"),
        ("resource.setrlimit(resource.RLIMIT_NOFILE, (8, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))", None),
        ("del sys.stdout, logging.root, os.environ; sys.path = sys.modules = None", None),
    ],
)
def test_what_cannot_be_put_back_is_told_apart(change, said):
    script = f"""
import logging, os, resource, sys
from gpulayer.plugins.ambient import Ambient
answer = os.dup(1)
before = Ambient(is_shared=True)
{change}
before.put_back()
os.write(answer, repr(before.lasting()).encode())
os._exit(0)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True)
    lasting = eval(done.stdout)
    assert lasting == () if said is None else said in lasting


def test_a_timer_that_ran_before_runs_on(monkeypatch):
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    signal.alarm(300)
    try:
        assert act(lambda: None) == ()
        [said] = act(lambda: signal.alarm(3))
        assert said.startswith("a timer")
        assert 290 < signal.getitimer(signal.ITIMER_REAL)[0] <= 300
        act(lambda: signal.alarm(0))
        assert 290 < signal.getitimer(signal.ITIMER_REAL)[0] <= 300
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def test_beside_other_threads_a_limit_that_was_raised_is_gpulayers_own_doing():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        limit_files(200)
        before = Ambient(is_shared=True)
        limit_files(300)
        assert before.put_back() == ()
        limit_files(100)
        assert before.put_back() == ("limits of the process (RLIMIT_NOFILE)",)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (200, hard)
    finally:
        limit_files(soft)
