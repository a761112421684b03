"""A program that a probe asks, in a child that it can end."""

import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from gpulayer.plugins.builtin.child import Child, Said, Unanswered, Unstarted, found_program
from tests.together import end_one, is_alive

ENVIRONMENT = {"PATH": "/usr/bin:/bin"}


def ask(child, script, *, deadline_s=10.0):
    return child.ask(["sh", "-c", script], environment=ENVIRONMENT, deadline_s=deadline_s)


def test_what_a_program_prints_is_told_with_its_exit_code():
    assert ask(Child(), "echo out; echo err >&2; exit 7") == Said(7, "out\n", "err\n")


def test_it_has_the_environment_that_was_given_and_nothing_to_read():
    assert Child().ask(["sh", "-c", "cat; echo $A"], environment={"A": "b", "PATH": "/bin:/usr/bin"}).out == "b\n"


def test_nothing_is_added_to_its_environment():
    for environment in ({"A": "b"}, {"LC_CTYPE": "C"}, {"LC_ALL": "C"}):
        said = Child().ask(["/usr/bin/env"], environment=environment)
        assert dict(line.split("=", 1) for line in said.out.splitlines()) == environment


def test_only_its_own_three_files_are_open_in_it():
    """``ls`` has the folder open that it lists."""
    assert ask(Child(), "ls /proc/self/fd").out.split() == ["0", "1", "2", "3"]


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends it there alone")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_one_that_hangs_ends_with_whoever_asked_it(tmp_path, number):
    """However that ended, and though its own signals are ignored."""
    note = tmp_path / "note"
    script = f"trap '' TERM INT HUP; echo $$ > {shlex.quote(str(note))}.new; mv {note}.new {note}; sleep 600; true"
    asking = f"""
import threading
from gpulayer.plugins.builtin.child import Child
asked = dict(environment={ENVIRONMENT!r}, deadline_s=600)
threading.Thread(target=lambda: Child().ask(["sh", "-c", {script!r}], **asked), daemon=True).start()
threading.Event().wait()
"""
    with subprocess.Popen([sys.executable, "-c", asking], stderr=subprocess.DEVNULL) as worker:
        try:
            wait_until(note.exists)
            child = int(note.read_text())
            worker.send_signal(number)
        except BaseException:
            worker.kill()
            raise
    try:
        wait_until(lambda: not is_alive(child))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)


def wait_until(is_so):
    ends_s = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < ends_s
        time.sleep(0.01)


def test_what_it_leaves_behind_with_its_pipes_is_not_waited_for(tmp_path):
    note = tmp_path / "note"
    said = ask(Child(), f"echo out; echo err >&2; setsid sleep 600 & echo $! > {shlex.quote(str(note))}", deadline_s=60)
    end_one(int(note.read_text()))
    assert said == Said(0, "out\n", "err\n")


def test_a_signal_that_ended_it_is_its_exit_code():
    assert ask(Child(), "kill -9 $$").code == -9


def test_both_pipes_are_read_however_much_each_has():
    said = ask(Child(), "head -c 300000 /dev/zero >&2; head -c 300000 /dev/zero")
    assert (len(said.out), len(said.err)) == (300_000, 300_000)


def test_what_is_no_text_is_no_error():
    assert ask(Child(), r"printf 'a\377b'").out == "a�b"


def test_a_program_that_is_not_there_or_may_not_be_run_says_so(tmp_path):
    with pytest.raises(Unstarted, match="nowhere can't be run: No such file"):
        Child().ask([str(tmp_path / "nowhere")], environment={})
    (tmp_path / "no-program").write_text("")
    with pytest.raises(Unstarted, match="no-program can't be run: Permission denied"):
        Child().ask([str(tmp_path / "no-program")], environment={})
    (tmp_path / "no-program").chmod(0o755)
    (tmp_path / "no-program").write_bytes(b"\x7fELF")
    with pytest.raises(Unstarted, match="no-program can't be run: Exec format error"):
        Child().ask([str(tmp_path / "no-program")], environment={})


def test_one_that_ignores_being_asked_to_end_is_ended_at_the_limit_with_all_that_it_started(tmp_path):
    pids = tmp_path / "pids"
    child = Child()
    script = f"trap '' TERM; sleep 600 & echo $$ $! > {shlex.quote(str(pids))}; wait; wait"
    with pytest.raises(Unanswered, match=r"^sh did not answer within 2 s$"):
        ask(child, script, deadline_s=2.0)
    first, *others = map(int, pids.read_text().split())
    assert not is_alive(first)
    while any(is_alive(pid) for pid in others):
        pass  # killed at once, and dead when the kernel comes to it
    assert ask(child, "echo again").out == "again\n"


def test_one_that_closes_its_output_and_goes_on_is_late_too():
    with pytest.raises(Unanswered, match="did not answer"):
        ask(Child(), "exec >&- 2>&-; sleep 600", deadline_s=0.2)


def test_one_that_does_not_stop_talking_is_ended():
    with pytest.raises(Unanswered, match="does not stop talking"):
        ask(Child(), "cat /dev/zero")


def test_while_one_is_stuck_no_second_is_started_and_after_it_has_gone_one_is(tmp_path):
    """P4: a process in D state does not die of SIGKILL; here nobody sends it."""
    started = []

    def no_kill(pid, signal_number):
        started.append((pid, signal_number))

    child = Child(kill=no_kill, dying_s=0.05)
    with pytest.raises(Unanswered, match="did not answer"):
        child.ask([sys.executable, "-c", "import time; time.sleep(600)"], environment={}, deadline_s=0.1)
    [(stuck, sent)] = started
    assert sent == signal.SIGKILL
    mark = tmp_path / "ran"
    for _ in range(2):
        with pytest.raises(Unanswered, match=rf"hangs since an earlier time and can't be ended \(process {stuck}\)"):
            ask(child, f"touch {shlex.quote(str(mark))}")
    assert not mark.exists()
    assert len(started) == 1
    end_one(stuck)
    assert ask(child, "echo back").out == "back\n"


def test_a_program_is_found_on_the_path_and_then_elsewhere(tmp_path):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    program = tmp_path / "second" / "tool"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    assert found_program("tool", environment={"PATH": f"{first}:{second}"}) == str(program)
    assert found_program("tool", environment={"PATH": first}, also=[second]) == str(program)
    assert found_program("tool", environment={"PATH": first}) == ""
    assert found_program("tool", environment={"PATH": ""}) == ""


def test_nothing_is_found_where_one_happens_to_stand(tmp_path, monkeypatch):
    program = tmp_path / "tool"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    assert found_program("tool", environment={"PATH": ":.:bin"}) == ""
