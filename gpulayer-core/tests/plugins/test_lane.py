"""Threads for calls that may never return: bounded, handed on, and no reason for a process to stay."""

import subprocess
import sys
import threading
import time
import weakref

import pytest

from gpulayer.plugins.lane import Lane


def run(lane, work):
    done = threading.Event()

    def wrapped():
        try:
            work()
        finally:
            done.set()

    lane.run(wrapped)
    return done


def test_no_more_run_at_a_time_than_there_are_slots_and_the_others_follow_in_order():
    lane = Lane(2, "t")
    gates = [threading.Event() for _ in range(5)]
    began, lock = [], threading.Lock()

    def work(number):
        with lock:
            began.append(number)
        gates[number].wait(10)

    done = [run(lane, lambda number=number: work(number)) for number in range(5)]
    for number in range(5):
        gates[number].set()
        assert done[number].wait(10)
        assert set(began) <= set(range(number + 3))
    assert began[2:] == [2, 3, 4]
    lane.close()


def test_idle_threads_are_used_again_and_end_when_it_is_closed():
    lane = Lane(4, "t")
    threads = set()
    for _ in range(50):
        assert run(lane, lambda: threads.add(threading.current_thread())).wait(10)
    assert len(threads) <= 4
    lane.close()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_a_thread_that_was_busy_when_it_was_closed_ends_afterwards_and_what_waited_is_dropped():
    lane, gate, threads, ran = Lane(1, "t"), threading.Event(), [], []

    def work():
        threads.append(threading.current_thread())
        gate.wait(10)

    done = run(lane, work)
    dropped = []
    lane.run(lambda: ran.append(1), dropped=lambda: dropped.append(1))
    lane.close()
    assert dropped == [1], "whoever waits for it is told"
    lane.run(lambda: ran.append(2), dropped=lambda: dropped.append(2))
    assert dropped == [1, 2]
    gate.set()
    assert done.wait(10)
    threads[0].join(10)
    assert not threads[0].is_alive()
    assert ran == []


def test_what_is_forgotten_while_it_waits_is_not_done_and_keeps_nobody_else():
    lane, gate, ran = Lane(1, "t"), threading.Event(), []
    first = run(lane, lambda: gate.wait(10))

    def unwanted():
        ran.append("unwanted")

    lane.run(unwanted)
    last = run(lane, lambda: ran.append("last"))
    lane.forget(unwanted)
    lane.forget(unwanted)
    gate.set()
    assert first.wait(10)
    assert last.wait(10)
    assert ran == ["last"]
    lane.close()


def test_an_idle_thread_keeps_nothing_of_what_it_has_done():
    """Neither of the first, which it was started with, nor of the last."""
    lane, refs = Lane(1, "t"), []
    for _ in range(2):

        class Work:
            done = threading.Event()

            def __call__(self):
                self.done.set()

        work = Work()
        lane.run(work)
        assert work.done.wait(10)
        refs.append(weakref.ref(work))
        del work
        deadline = time.monotonic() + 10
        while any(ref() is not None for ref in refs):
            assert time.monotonic() < deadline
            time.sleep(0.005)
    lane.close()


def test_work_that_raises_after_all_costs_no_slot(caplog):
    lane = Lane(1, "t")

    def bad():
        raise SystemExit(1)

    assert run(lane, bad).wait(10)
    assert run(lane, lambda: None).wait(10)
    assert "must not raise" in caplog.text
    lane.close()


def test_a_slot_is_free_again_when_the_system_gives_no_thread(monkeypatch):
    lane = Lane(1, "t")

    def refuse(self):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            lane.run(lambda: None)
    assert run(lane, lambda: None).wait(10)
    lane.close()


def test_a_process_ends_at_once_whatever_still_hangs_or_spins_in_it():
    script = """
import logging, sys, threading
from gpulayer.clock import SystemClock
from gpulayer.errors import PluginFault
from gpulayer.plugins.guard import Guard
guard = Guard(clock=SystemClock(), level=logging.DEBUG)
def spin():
    while True: pass
for work in (threading.Event().wait, spin):
    try: guard.call("p", "h", work, deadline_s=0.05)
    except PluginFault as fault: print(fault.message)
guard.close()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("no answer within 0.05 s") == 2
