"""What an import must not change, changed all at once and put back."""

import asyncio
import builtins
import gc
import locale
import logging
import os
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
        os.environ["A"] = "b"
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

    assert act(change) == ()
    sys.path.remove("/nowhere")
    del guard.new_name, socket.new_name


def test_many_names_are_counted():
    [said] = act(lambda: os.environ.update({f"X{number}": "" for number in range(9)}))
    assert said == "os.environ (X0, X1, X2, X3, X4 and 4 more)"


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
